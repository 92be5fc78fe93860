"""The demonstration: three zones, a broker and a plant as real processes on this machine, and what happens to them.

Nothing here is part of a gateway's work. It starts the same programs an operator would (`bsfg run`, Mosquitto, an OPC
UA server, a Modbus device), in a temporary folder, on loopback ports found free at that moment, and ends them all by
their id.

    processes       one child process: start, wait, freeze, kill, stop
    mosquitto       a private broker
    layout          the folder: certificates, broker configuration, one node.toml per zone
    plant/          the simulated OPC UA server and Modbus device
    scenario        the steps of the demonstration, and the comparison of counts at the end
    view            the table on the terminal
"""
