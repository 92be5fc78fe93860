"""How an item is monitored: its sampling interval, its queue at the server and its filter. Also whether a full queue
may have lost values.

The queue is long enough for publishing intervals and for stalls of the link or of this process. Core.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

STALL_MS = 10_000  # a queue also holds the values of a stall: a switch restarts, the store waits for its disk
QUEUE_SIZE_MAX = 1_000  # for each item; 10,000 full queues with 50 bytes a value take half a gigabyte at the server
INTERVAL_MS_MAX = 86_400_000  # a server may revise an interval to any number
CHANGES_PER_S = 10  # expected of an item that the server samples on change
QUEUE_SIZE_ON_CHANGE = 100  # for an item that is sampled on change: a stall of ten seconds at ten changes a second


class Trigger(Enum):
    """Which change of an item is notified (OPC 10000-4, 7.22.2); the name is what a tag map writes."""

    STATUS = 0
    STATUS_VALUE = 1
    STATUS_VALUE_TIMESTAMP = 2


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The settings of a tag map for one item. None and 0 stand for the settings of the source."""

    sampling_interval_ms: int | None = None
    queue_size: int = 0
    deadband: float = 0.0
    deadband_is_percent: bool = False
    trigger: Trigger = Trigger.STATUS_VALUE

    @property
    def has_filter(self) -> bool:
        """Whether the item needs a filter."""
        return self.deadband > 0 or self.trigger is not Trigger.STATUS_VALUE


AS_THE_SOURCE_SAYS = Monitoring()


def publishing_ms_of(revised_ms: float, asked_ms: float) -> float:
    """The revised time between two publications or keep-alives; the requested one if the server answers 0, a day or
    more, or no number."""
    return revised_ms if 0 < revised_ms < INTERVAL_MS_MAX else asked_ms


def sampling_ms_of(revised_ms: float, asked_ms: float) -> float:
    """The revised sampling interval, at most a day; 0: on change. The requested one if the server answers less than 0
    or no number."""
    return min(revised_ms, INTERVAL_MS_MAX) if revised_ms >= 0 else asked_ms


def queue_size_for(sampling_ms: float, publishing_ms: float) -> int:
    """The size of a queue that holds the samples of one publishing interval and a stall. The intervals are revised
    ones."""
    if sampling_ms <= 0:
        return min(QUEUE_SIZE_MAX, QUEUE_SIZE_ON_CHANGE + int(publishing_ms) // 1_000 * CHANGES_PER_S)
    return max(2, min(QUEUE_SIZE_MAX, math.ceil((publishing_ms + STALL_MS) / sampling_ms) + 1))


def is_hole(previous_ns: int, first_ns: int, sampling_ms: float) -> bool:
    """Whether samples are missing between the last value and the first of a full queue. `previous_ns` is 0 if there was
    no value."""
    return (
        previous_ns != 0 and first_ns - previous_ns > 2 * sampling_ms * 1e6
    )  # a timer may be late, but not by one sample
