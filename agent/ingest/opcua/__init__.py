"""OPC UA: one server, one session, one subscription, rebuilt whole after any loss.

`address` reads node ids from the tag map, `plan` cuts work to the server's limits, `decode` turns notification bytes
into samples, `refusal` explains a failed connection, `certificate_facts` reads certificates (these are cores);
`session`, `client`, `security` and `variant` speak to asyncua, and only they; `certificate` makes our own; `source`
puts them together.
"""
