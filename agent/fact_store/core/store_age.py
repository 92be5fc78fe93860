"""The age of the store: the milliseconds for which it has been open, in all its lives together (decision 0024). Core:
no IO.

The time to live counts age, not wall-clock time, for two reasons. A gateway without a battery starts in 1970; when NTP
sets its clock, all facts recorded before would appear fifty years old. And while a gateway is switched off for two
weeks, peers cannot fetch its facts.

Marks in the log store the age across restarts. A restart loses the time since the last mark, so facts are kept longer,
never shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

MARK_EVERY_MS = 60_000  # ten thousand rows a week for each stream; times to live are hours
HOUR_MS = 3_600_000
NEVER_NS = 2**63 - 1
"""A monotonic time that is never reached, for alarms that are not set."""


@dataclass(frozen=True, slots=True)
class AgeClock:
    """The store's age: `base_ms` at monotonic time `started_ns`."""

    base_ms: int
    started_ns: int

    def now_ms(self, monotonic_ns: int) -> int:
        """The age at a monotonic time, in milliseconds."""
        assert monotonic_ns >= self.started_ns
        return self.base_ms + (monotonic_ns - self.started_ns) // 1_000_000


JUMP_MS, JUMPS_EVERY_MS = 10_000, 60_000


class WallClock:
    """Whether the wall clock has jumped against the clock that counts from the start of the machine: it may have been
    put back with its memory, and then this life runs twice. A clock that jumps on and on is believed once a minute."""

    def __init__(self) -> None:
        self._apart_ms: int | None = None
        self._jumped_ms = -JUMPS_EVERY_MS

    def has_jumped(self, unix_ms: int, boot_ms: int) -> bool:
        """Called before each commit."""
        apart_ms = unix_ms - boot_ms
        if self._apart_ms is None:
            self._apart_ms = apart_ms
        if abs(apart_ms - self._apart_ms) <= JUMP_MS or boot_ms - self._jumped_ms < JUMPS_EVERY_MS:
            return False
        self._apart_ms, self._jumped_ms = apart_ms, boot_ms
        return True


def is_mark_due(last_ms: int | None, now_ms: int, last_unix_ms: int, now_unix_ms: int) -> bool:
    """Whether the next append to a stream sets a mark; `last_ms` is the age at its last mark, None if it has none.

    A mark is also due after a minute of the wall clock, which advances while the store is closed and is set forward or
    back: marks give the times at which facts were recorded (decision 0042).
    """
    return last_ms is None or max(now_ms - last_ms, abs(now_unix_ms - last_unix_ms)) >= MARK_EVERY_MS


def last_offset_before(
    marks: Sequence[tuple[int, int]], age_ms: int, last_ms: int | None, end_offset: int, released_offset: int
) -> int:
    """The last offset that was certainly recorded before age `age_ms`, by these marks (first_offset, age_ms), oldest
    first.

    Facts between a mark and the next one were recorded within a minute after the first of them, because the next append
    after that minute sets a mark. `last_ms` is the age at the newest mark of the stream; `marks` may end before it.
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
