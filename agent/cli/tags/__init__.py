"""`bsfg tags`: create a tag file from a template, check it, compare it with the one in force, or import another
product's tag list.

The commands read no device. A file is read with the settings of a source in node.toml, or of the protocol given by
`--protocol`.
"""
