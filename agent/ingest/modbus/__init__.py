"""Modbus over TCP, TLS or a serial line: one device or gateway, polled on grids, its units kept apart.

`address` reads registers from the tag map, `plan` finds the fewest reads, `sweep` polls a unit and learns what it
refuses, `decode` and `block` turn registers into values (cores). `line` speaks to the device, `source` puts them
together.
"""
