"""One node: every part put together, started and stopped in order; its status and its comparisons with peers."""
