"""`bsfg modbus`: look at Modbus devices before they are sources. None of the commands needs a node.toml."""
