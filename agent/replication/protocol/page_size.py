"""How large a page to ask one peer for: as large as its way allows, found by asking. Core: no IO, no clock.

A large page costs both sides less (0.13 us a fact in pages of 1 MB, 0.18 in pages of 256 KiB), but what waits behind it
waits longer, and on a slow way one that takes longer than its receiver's patience is asked for again and again. So a
page that came at once is followed by one twice as large, and one that took long by one half as large. In between, where
only the distance may be long, nothing changes.
"""

from __future__ import annotations

BYTES_MIN, BYTES_START, BYTES_MAX = 16 * 1024, 256 * 1024, 1_000_000
"""The largest fits into the packet that our brokers let through, 1 MiB, with its header."""
QUICK_MS = 50
"""What a live fact behind a page may be delayed; the largest takes as long at 160 Mbit/s."""
SLOW_MS = 1_500
"""Half of a receiver's patience. Longer than any distance; 256 KiB take as long at 1.4 Mbit/s."""


class PageSize:
    """Of one pull, at most `bytes_max` bytes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes = min(BYTES_START, bytes_max)

    def arrived(self, took_ms: int) -> None:
        """A page came after so long, behind which the peer has more: it was as large as was asked for."""
        if took_ms <= QUICK_MS:
            self.bytes = min(2 * self.bytes, self._bytes_max)
        elif took_ms >= SLOW_MS:
            self._halve()

    def timed_out(self) -> None:
        """A page did not come in time."""
        self._halve()

    def _halve(self) -> None:
        self.bytes = max(self.bytes // 2, min(BYTES_MIN, self._bytes_max))
