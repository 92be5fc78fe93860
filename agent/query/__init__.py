"""Queries of a store: facts as rows or messages, the latest value of every tag, SQL, export to files, and statistics.

All queries are read-only and read in pages, so they neither block the writer nor keep the write-ahead log from being
reused.
"""
