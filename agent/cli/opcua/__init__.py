"""`bsfg opcua`: look at OPC UA servers before they are sources. None of the commands needs a node.toml."""
