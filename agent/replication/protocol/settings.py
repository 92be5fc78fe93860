"""What node.toml may say of replication beyond names: bounds of its numbers, for the reader of that file and for whoever obeys them."""

from __future__ import annotations

BYTES_PER_SECOND_MIN = 16_384
"""Of `bytes_per_second_max` of a peer. Less, and a page of the least size would take longer than a live stream may owe (`bandwidth`)."""
