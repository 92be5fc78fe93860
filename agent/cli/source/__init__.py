"""`bsfg source`: the OPC UA servers and Modbus devices of node.toml, in the same words for both protocols."""
