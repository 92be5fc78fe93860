"""OPC UA: one server, one session, one subscription, rebuilt whole after any loss.

`address` reads node ids from the tag map, `plan` cuts work to the server's limits, `decode` turns notification bytes
into samples (these three are cores). `security/` keeps certificates and makes secured connections, `explore/` looks at a
server before it is a source. `session`, `variant` and these two folders speak to asyncua, and only they. `source` puts
them together.
"""
