"""Which monitored items to create next, in calls a server will take.

Servers limit how many items one call may create and say so, wrongly at times. Calls start at the smaller of our own limit
and the server's; a call refused for its size is halved, and stays halved. A node the server refuses is *parked*: it is tried
again with other parked nodes only, after a pause that doubles, so that a vanished node never holds up the others
(influxdata/telegraf#19186). Core: knows handles and status codes, no library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PAUSE_DOUBLINGS_MAX = 10  # times the first pause, at most


@dataclass(slots=True)
class _Pause:
    at_ns: int
    pause_ns: int
    quality: int


class ItemPlan:
    """The wanted items of one session, by handle: pending, live or parked."""

    def __init__(self, handles: Iterable[int], size_max: int, pause_ns: int) -> None:
        assert size_max >= 1, "a call creates at least one item"
        self._pending = list(handles)
        self._size = size_max
        self._pause_ns = pause_ns
        self._parked: dict[int, _Pause] = {}
        self.live: set[int] = set()

    @property
    def call_size(self) -> int:
        return self._size

    @property
    def parked(self) -> frozenset[int]:
        return frozenset(self._parked)

    def next_call(self, now_ns: int) -> Sequence[int]:
        """Handles to create now: those never tried, then parked ones whose time has come, never both in one call."""
        if self._pending:
            return self._pending[: self._size]
        due = [handle for handle, pause in self._parked.items() if pause.at_ns <= now_ns]
        return due[: self._size]

    def limit(self, size_max: int) -> None:
        """The server's own word on the size of a call; 0 means it has none."""
        if size_max > 0:
            self._size = min(self._size, size_max)

    def call_refused(self, size: int) -> bool:
        """The whole call was too much. True if a smaller one is to be tried, False if it cannot be smaller."""
        if size <= 1:
            return False
        self._size = min(self._size, size // 2)
        return True

    def answered(self, handles: Sequence[int], statuses: Sequence[int], now_ns: int) -> dict[int, int]:
        """Take in the result of a call. Returns the handles that are parked now for a reason that is news, with it."""
        assert len(handles) == len(statuses), "one status for each item"
        news: dict[int, int] = {}
        asked = set(handles)
        self._pending = [handle for handle in self._pending if handle not in asked]
        for handle, status in zip(handles, statuses, strict=True):
            known = self._parked.pop(handle, None)
            if not status & 0x8000_0000:
                self.live.add(handle)
                continue
            pause_ns = (
                self._pause_ns if known is None else min(known.pause_ns * 2, self._pause_ns * PAUSE_DOUBLINGS_MAX)
            )
            self._parked[handle] = _Pause(now_ns + pause_ns, pause_ns, status)
            if known is None or known.quality != status:
                news[handle] = status
        return news
