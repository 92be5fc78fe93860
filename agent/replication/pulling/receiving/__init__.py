"""The receiver: what one pull decides, of values and the time alone. All modules here are cores."""
