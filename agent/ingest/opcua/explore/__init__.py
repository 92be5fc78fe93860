"""Explores a server before it is configured as a source: tests the connection, walks the address space, reads single
nodes.

`walk` and `tag_rows` decide (cores); `services` asks the server within its limits, `explorer` puts the two together,
and `probe` tries a connection step by step. Nothing here needs a node or a tag file, and nothing is written to the
server.
"""
