"""What the land job writes: files of facts, and tables in which each batch of a stream is once."""
