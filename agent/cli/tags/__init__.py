"""`bsfg tags`: begin a tag file, check one, compare it with the one in force, or make it from another product's list.

Nothing is read from a device. A file is read with the settings of a source of node.toml, or without one as `--protocol`
says.
"""
