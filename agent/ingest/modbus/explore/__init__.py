"""Looking at a device before it is a source: what its registers mean, which units and registers it has, which requests
a tag map costs.

`interpretation`, `register_scan` and `request_plan` decide (cores); `device` asks the device, `probe` tries a source
step by step. Nothing here needs a node or a tag file, and nothing is written to the device.
"""
