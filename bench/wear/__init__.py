"""What a node writes to its disk, by cause, and how long flash bears it."""
