"""A simulated plant: an OPC UA server and a Modbus TCP device with moving values, each a process of its own.

    python -m agent.demo.plant.opcua_server --port 0
    python -m agent.demo.plant.modbus_server --port 0

Port 0 takes any free one; `--tags-file FILE` writes the tag file that fits. When it serves, each prints one line,
`ready <port>`, and ends cleanly at SIGTERM. The signals are functions of time, so that a test can check the values that
arrive.
"""
