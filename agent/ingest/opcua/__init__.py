"""OPC UA: one server, one session, one subscription, rebuilt whole after any loss.

`address` reads node ids from the tag map, `plan` cuts work to the server's limits, `decode` turns notification bytes
into samples, `refusal` explains a failed connection, `certificate_facts` and `trust_list` judge certificates (these are
cores). `certificate`, `trust_folder` and `file_check` keep the files. `session`, `client`, `security`, `variant` and
`explore/` speak to asyncua, and only they. `source` puts them together.
"""
