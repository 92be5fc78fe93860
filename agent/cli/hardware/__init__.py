"""`bsfg hardware`: what a gateway bears, and files for its kernel that are made from node.toml."""
