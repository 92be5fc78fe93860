"""The settings of a node as frozen values: a module for each part of node.toml, with the default beside the field and
the rules that a type cannot express.

They stand apart from the code that they control, so that a command, a Spark task or a test that only needs settings
does not load the store or a protocol library. `agent.config` reads them from the file. Nothing here opens a file,
socket or store.
"""
