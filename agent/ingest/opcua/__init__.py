"""OPC UA: one server, one session, one subscription, rebuilt whole after any loss.

`address` reads node ids from the tag map, `plan` cuts work to the server's limits, `decode` turns notification bytes into
samples (these three are cores), `session` is the only module that speaks to asyncua, `source` puts them together.
"""
