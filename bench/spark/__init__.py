"""Benchmarks of reading facts in Spark, compared with Parquet and a source that has nothing to decode."""
