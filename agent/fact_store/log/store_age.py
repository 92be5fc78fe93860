"""The store's own clock: milliseconds it has been open, in all its lives together. Core: no IO.

Time to live counts these and not the hours on the wall, for two reasons. A gateway without a battery wakes up in 1970, is set
right by NTP an hour later, and would find everything it recorded meanwhile fifty years old. And facts that lay in a gateway
that was switched off for a fortnight had nobody who could have fetched them: they deserve their time like any other.

Marks in the log keep the clock over restarts; what passed since the last mark is forgotten, which keeps facts longer, never shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

MARK_EVERY_MS = 60_000  # ten thousand rows a week and stream; what is asked of age is hours
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class AgeClock:
    """`base_ms` at monotonic time `started_ns`."""

    base_ms: int
    started_ns: int

    def now_ms(self, monotonic_ns: int) -> int:
        """The age now."""
        assert monotonic_ns >= self.started_ns
        return self.base_ms + (monotonic_ns - self.started_ns) // 1_000_000


def is_mark_due(last_ms: int | None, now_ms: int) -> bool:
    """Whether the next append to a stream sets a mark, when its last one was set at that age (None: it has none)."""
    return last_ms is None or now_ms - last_ms >= MARK_EVERY_MS


def last_offset_before(
    marks: Sequence[tuple[int, int]], age_ms: int, last_ms: int | None, end_offset: int, released_offset: int
) -> int:
    """The last offset that is certainly older than `age_ms`, as far as these marks (first_offset, age_ms; oldest first) tell.

    What came between a mark and the next one, came within a minute after the first of them, for then the next would have been
    set. The newest mark of the stream was set at `last_ms`; marks may end before it.
    """
    found = released_offset
    for (first_offset, at_ms), following in zip_longest(marks, marks[1:]):
        if at_ms + MARK_EVERY_MS > age_ms:
            break
        if following is not None:
            found = max(found, following[0] - 1)
        else:
            found = max(found, end_offset if at_ms == last_ms else first_offset - 1)
    return found
