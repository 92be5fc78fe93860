"""Benchmarks of ingest: the values of a source, from the socket to the committed store, compared with the cost of the
library that receives them."""
