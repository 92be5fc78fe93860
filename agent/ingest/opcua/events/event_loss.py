"""Detects lost events: reported overflows, and overflows that a server does not report.

A server whose queue for a monitored item overflows sends an event of the type EventQueueOverflowEventType (OPC 10000-4,
7.22.3). Some servers (node-opcua) discard events silently. Then the burst that empties the queue has as many events as
the queue can hold, and it is not known whether there were more. That is recorded as a loss of unknown size.

Core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from agent.ingest.opcua.events.event_fields import QUEUE_OVERFLOW, Event

EVENTS_LOST = "events_lost"  # the predicate of the fact


class QueueWatch:
    """The queues of one subscription. `queue_sizes` has the revised sizes by handle; 0 or 1: not known."""

    def __init__(self, queue_sizes: Mapping[int, int]) -> None:
        self._sizes = queue_sizes
        self._counts: Counter[int] = Counter()

    def take(self, events: Iterable[Event], *, more: bool) -> bool:
        """Take in the events of a publication. Whether some may be lost before it."""
        has_overflowed = False
        for event in events:
            self._counts[event.handle] += 1
            has_overflowed |= event.is_of(QUEUE_OVERFLOW)
        if more:
            return has_overflowed
        counts, self._counts = self._counts, Counter()
        return has_overflowed or any(1 < self._sizes.get(handle, 0) <= count for handle, count in counts.items())
