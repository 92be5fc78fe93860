"""Asking a store: facts as rows, the latest value of every tag, SQL, export to other programs, and what lies where.

Everything here reads, read-only and in pages; nothing is decided for anybody and nothing is kept.
"""
