"""Security of OPC UA: our identity at a server, acceptance of its certificate, and the reasons of refused connections.

`certificate_facts`, `trust_list` and `refusal` decide (cores); `certificate` and `trust_folder` keep the files, and
`file_check` checks them before connecting; `channel` and `client` secure and make the connection, through asyncua.
"""
