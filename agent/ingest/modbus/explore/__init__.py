"""Explores a device before it is configured as a source: interprets registers, finds units and registers.

`interpretation` and `register_scan` decide (cores); `device` asks the device, `probe` tries a source step by step.
Nothing here needs a node or a tag file, and nothing is written to the device.
"""
