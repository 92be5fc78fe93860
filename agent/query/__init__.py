"""Queries of a store: facts as rows or messages, the latest value of every tag, SQL, export to files, and statistics.

Everything here is read-only and reads in pages, so it neither blocks the writer nor holds the write-ahead log.
"""
