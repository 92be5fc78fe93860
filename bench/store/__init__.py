"""Benchmarks of one store in one process: append, growth, ids, retention, sql."""
