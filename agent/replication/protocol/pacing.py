"""Back-off between two attempts, the size of the next page, and the alarm for what is due next. Core: no IO, no clock;
chance is a value between 0 and 1.

A large page costs both sides less (0.13 us a fact in pages of 1 MB, 0.18 in pages of 256 KiB). But it delays the facts
behind it, and on a slow line a page that exceeds the answer timeout would be requested again and again. So the page
after a quick one is twice as large, the page after a slow one half as large. Between the two limits, where a long round
trip may be the reason, the size stays.
"""

from __future__ import annotations

from collections.abc import Callable

DOUBLINGS_MAX = 16

HEARTBEAT_MS = 5_000
"""Between two heartbeats of a server to a requester of which fetches wait."""

BYTES_MIN, BYTES_START, BYTES_MAX = 16 * 1024, 256 * 1024, 1_000_000
"""The largest fits into the packet that our brokers let through, 1 MiB, with its header."""
QUICK_MS = 50
"""How long a page may delay a live fact behind it; the largest page takes this long at 160 Mbit/s."""
SLOW_MS = 1_500
"""Half of a receiver's answer timeout. Longer than any round trip; 256 KiB take as long at 1.4 Mbit/s."""


def backoff_ms(least_ms: int, most_ms: int, tries: int, chance: float) -> int:
    """The wait in ms after `tries` failures: `least_ms` doubled with each failure, at most `most_ms`.

    Half of it is random, so that many nodes do not retry at the same moment.
    """
    full_ms = min(least_ms << min(tries, DOUBLINGS_MAX), most_ms)
    return full_ms // 2 + int(full_ms / 2 * chance)


class PageSize:
    """The page size of one pull, at most `bytes_max` bytes."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.bytes = min(BYTES_START, bytes_max)

    def arrived(self, took_ms: int) -> None:
        """A full page arrived after `took_ms`: the peer has more behind it."""
        if took_ms <= QUICK_MS:
            self.bytes = min(2 * self.bytes, self._bytes_max)
        elif took_ms >= SLOW_MS:
            self._halve()

    def timed_out(self) -> None:
        """A page did not come in time."""
        self._halve()

    def _halve(self) -> None:
        self.bytes = max(self.bytes // 2, min(BYTES_MIN, self._bytes_max))


class Alarm:
    """Calls back at the earliest of the times that were set."""

    def __init__(
        self, call_later: Callable[[float, Callable[[], object]], Callable[[], None]], callback: Callable[[], None]
    ) -> None:
        self._call_later, self._callback = call_later, callback
        self._at_ms: int | None = None
        self._cancel: Callable[[], None] = lambda: None

    def set(self, at_ms: int | None, now_ms: int) -> None:
        """Call back at this time, unless an earlier one is set. None sets no time."""
        if at_ms is None or (self._at_ms is not None and self._at_ms <= at_ms):
            return
        self._cancel()
        self._at_ms = at_ms
        self._cancel = self._call_later((at_ms - now_ms) / 1000, self._ring)

    def cancel(self) -> None:
        """Do not call back."""
        self._cancel()
        self._at_ms = None

    def _ring(self) -> None:
        self._at_ms = None
        self._callback()
