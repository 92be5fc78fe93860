"""Looking at a server before it is a source: trying the connection, walking the address space, reading single nodes.

`walk` and `tag_rows` decide (cores); `services` asks the server within its limits, `explorer` puts the two together,
and `probe` tries a connection step by step. Nothing here needs a node or a tag file, and nothing is written to the
server.
"""
