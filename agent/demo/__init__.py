"""The demonstration: three zones, a broker and a simulated plant as real processes on this machine.

It starts the programs that an operator would start (`bsfg run`, Mosquitto, an OPC UA server, a Modbus device) in a
temporary folder, on free loopback ports, and stops them by process id. A gateway does not use this package; benchmarks
and tests do.
"""
