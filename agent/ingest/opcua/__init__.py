"""OPC UA: one server, one session, one subscription, rebuilt whole after any loss.

`address` reads node ids from the tag map, `plan` cuts work to the server's limits, `decode` turns notification bytes
into samples, `variant` reads values that are no plain number or text, `structures` knows a server's data types (these
are cores); `session`, `security` and `type_reader` speak to asyncua, and only they; `source` puts them together.
"""
