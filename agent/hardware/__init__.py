"""The capacity of a gateway: profiles of gateways, measurements on this machine, and estimates from both.

`profiles.toml` has the classes of gateways (hardware/README.md lists the keys).
"""
