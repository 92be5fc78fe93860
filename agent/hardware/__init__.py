"""What a gateway can bear: profiles of gateways, what is measured on this one, and the sums made of both.

`profiles/` holds a TOML file for each class of gateway (hardware/README.md lists the keys).
"""
