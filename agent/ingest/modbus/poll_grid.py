"""Decides when to poll: each poll interval has a grid of slots, all with one start.

Slot n of an interval is at start + n intervals, regardless of how long earlier polls took. Slots of several intervals
that coincide are one poll. A slot is polled up to half an interval late. After that it is missed, and missed slots are
not made up. Core. Times are in ns of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MS = 1_000_000  # nanoseconds
LATE_PART = 10  # a poll that begins more than a tenth of its interval after its slot is late


@dataclass(frozen=True, slots=True)
class Missed:
    """Slots of one interval that were not polled."""

    interval_ms: int
    count: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class Slot:
    """The poll intervals that are due, in ms, how many of them are late, and the slots missed before."""

    due: frozenset[int]
    late: int
    missed: tuple[Missed, ...]


class PollGrid:
    """The grids of one source."""

    def __init__(self, intervals: Iterable[int], start_ns: int) -> None:
        self._start_ns = start_ns
        self._next: dict[int, int] = {}  # by interval: the number of its next slot
        self.keep(intervals, start_ns)

    def keep(self, intervals: Iterable[int], now_ns: int) -> None:
        """Poll at these intervals from now on. A new interval begins with its next slot."""
        known = self._next
        self._next = {
            interval: known.get(interval, (now_ns - self._start_ns) // (interval * MS) + 1) for interval in intervals
        }

    def next_ns(self) -> int:
        """The time of the next slot."""
        return min(self._start_ns + number * interval * MS for interval, number in self._next.items())

    def take_slot(self, now_ns: int) -> Slot:
        """Return and consume the slots that are due."""
        due: set[int] = set()
        missed: list[Missed] = []
        late = 0
        for interval, number in self._next.items():
            interval_ns = interval * MS
            late_ns = now_ns - self._start_ns - number * interval_ns
            if late_ns < 0:
                continue
            passed, late_ns = divmod(late_ns, interval_ns)
            is_due = late_ns <= interval_ns // 2
            count = passed if is_due else passed + 1
            if is_due:
                due.add(interval)
                late += late_ns > interval_ns // LATE_PART
            if count:
                first_ns = self._start_ns + number * interval_ns
                missed.append(Missed(interval, count, first_ns, first_ns + (count - 1) * interval_ns))
            self._next[interval] = number + passed + 1
        return Slot(frozenset(due), late, tuple(missed))
