"""Replication: a zone pulls the facts of another, page by page. DESIGN.md has the parts and their reasons.

The cores decide without IO, and shells carry their decisions out. The package knows the batch format and uses a store
through the ports in `protocol.ports`; it does not use SQLite.
"""
