"""`bsfg source`: the OPC UA servers and Modbus devices of node.toml, with the same commands for both protocols."""
