"""What a node writes to its disk, by cause, and the resulting lifetime of flash."""
