"""`bsfg hardware`: the capacity of a gateway, and packet filter, systemd and udev files made from node.toml."""
