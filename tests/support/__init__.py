"""Helpers for several test folders: real programs that are started and always stopped, and checks."""
