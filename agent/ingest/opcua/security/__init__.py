"""Security of OPC UA: who we are to a server, whether its certificate is accepted, and why a connection was refused.

`certificate_facts`, `trust_list` and `refusal` decide (cores); `certificate` and `trust_folder` keep the files, and
`file_check` tells what can be told of them before connecting; `channel` and `client` secure and make the connection,
through asyncua.
"""
