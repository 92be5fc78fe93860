"""Benchmarks of ingest: the values of a source, from the socket to the committed store, with what the library that
receives them costs beside it."""
