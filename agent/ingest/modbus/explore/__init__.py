"""Explores a device before it is configured as a source: interprets registers, finds units and registers, and shows the
requests of a tag map.

`interpretation`, `register_scan` and `request_plan` decide (cores); `device` asks the device, `probe` tries a source
step by step. Nothing here needs a node or a tag file, and nothing is written to the device.
"""
