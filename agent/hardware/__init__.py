"""The capacity of a gateway: profiles of gateways, measurements on this machine, and estimates from both.

`profiles/` holds a TOML file for each class of gateway (hardware/README.md lists the keys).
"""
