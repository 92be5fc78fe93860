"""Benchmarks of reading facts in Spark, beside Parquet and a source that has nothing to decode."""
