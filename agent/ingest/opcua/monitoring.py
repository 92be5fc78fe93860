"""How one item is monitored: its sampling interval, its queue at the server and its filter; and how many values an
overflow lost.

The queue is long enough for publishing intervals and for stalls of the link or of this process. Core: numbers in,
numbers out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

STALL_MS = 10_000  # a queue lasts so long beyond publishing: a restarted switch, a store that waits for its disk
QUEUE_SIZE_MAX = 1_000  # at the server, for each item; 10,000 items of 50 bytes are half a gigabyte there
INTERVAL_MS_MAX = 86_400_000  # of what a server revised; it may answer any number
CHANGES_PER_S = 10  # that are expected of one item where the server samples on change
QUEUE_SIZE_ON_CHANGE = 100  # where the server samples at no interval but on change: a stall at ten changes a second


class Trigger(Enum):
    """Which change of an item is notified (OPC 10000-4, 7.22.2); the name is what a tag map writes."""

    STATUS = 0
    STATUS_VALUE = 1
    STATUS_VALUE_TIMESTAMP = 2


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What a tag map says of one item. None and 0 leave it to the source's settings."""

    sampling_interval_ms: int | None = None
    queue_size: int = 0
    deadband: float = 0.0
    deadband_is_percent: bool = False
    trigger: Trigger = Trigger.STATUS_VALUE

    @property
    def has_filter(self) -> bool:
        """Whether the server is to filter in another way than by itself."""
        return self.deadband > 0 or self.trigger is not Trigger.STATUS_VALUE


AS_THE_SOURCE_SAYS = Monitoring()


def publishing_ms_of(revised_ms: float, asked_ms: float) -> float:
    """The time between two publications or two keep-alives, as the server revised it; as it was asked for, if the
    server answers 0, a day or more, or no number."""
    return revised_ms if 0 < revised_ms < INTERVAL_MS_MAX else asked_ms


def sampling_ms_of(revised_ms: float, asked_ms: float) -> float:
    """A sampling interval as the server revised it, a day at most; 0: on change. As it was asked for, if the server
    answers less, or no number."""
    return min(revised_ms, INTERVAL_MS_MAX) if revised_ms >= 0 else asked_ms


def queue_size_for(sampling_ms: float, publishing_ms: float) -> int:
    """A queue that holds what is sampled in one publishing interval and a stall. Intervals as the server revised
    them."""
    if sampling_ms <= 0:
        return min(QUEUE_SIZE_MAX, QUEUE_SIZE_ON_CHANGE + int(publishing_ms) // 1_000 * CHANGES_PER_S)
    return max(2, min(QUEUE_SIZE_MAX, math.ceil((publishing_ms + STALL_MS) / sampling_ms) + 1))


def discarded(previous_ns: int, times_ns: Sequence[int], sampling_ms: float) -> int:
    """How many values a server discarded at least.

    The server drops the oldest of a full queue and marks the oldest it keeps: `times_ns` are the source times of the
    marked value and of those behind it, `previous_ns` that of the last value before it, 0 if there was none. The values
    that were kept show how close the lost ones lay. A server that is late now and then has sampled fewer in the gap,
    and nothing shows that: a fifth of the time is taken off for it, and the count is never exact.
    """
    gap_ns = times_ns[0] - previous_ns
    spacings = sorted(later - earlier for earlier, later in itertools.pairwise(times_ns))
    if not previous_ns or gap_ns <= 0 or not spacings or spacings[0] <= 0:
        return 1
    wide_ns = spacings[len(spacings) * 3 // 4]  # not the widest: one late sample would halve the count
    wide_ns = max(wide_ns, int(sampling_ms * 0.5e6))  # a timer may be early, but not by half
    return max(1, gap_ns * 4 // (wide_ns * 5) - 1)


def is_hole(previous_ns: int, first_ns: int, sampling_ms: float) -> bool:
    """Whether samples are missing between the last value and the first of a queue that came full. `previous_ns` is 0
    where there was no value."""
    return (
        previous_ns != 0 and first_ns - previous_ns > 2 * sampling_ms * 1e6
    )  # a timer may be late, but not by one sample
