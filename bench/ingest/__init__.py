"""Benchmarks of ingest: a source's values from the socket to the committed store."""
