"""`bsfg tags`: write, check, compare and translate tag files."""
