"""Modbus TCP: one device or gateway, polled on a grid, its units kept apart.

`address` reads registers from the tag map, `plan` finds the fewest reads, `decode` turns registers into values (these
three are cores), `line` is the only module that speaks to pymodbus, `source` puts them together.
"""
