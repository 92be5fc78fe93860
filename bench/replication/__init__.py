"""Benchmarks of two stores and a broker: replicate, drain, lag, fetch; the endpoints they start and the bare loops they
compare with."""
