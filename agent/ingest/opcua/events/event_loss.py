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
QUEUE_OVERFLOWED = "event_queue_overflow"  # reported by the server
QUEUE_FULL = "event_queue_full"  # the queue was full, so events may have been discarded
SUBSCRIPTION_LOST = "event_subscription_lost"  # between two subscriptions
PUBLICATION_MISSING = "event_publication_missing"  # sent by the server and not received
UNREADABLE = "events_unreadable"  # a malformed event and those behind it


class QueueWatch:
    """The queues of one subscription. `queue_sizes` has the revised sizes by handle; 0 or 1: not known."""

    def __init__(self, queue_sizes: Mapping[int, int]) -> None:
        self._sizes = queue_sizes
        self._counts: Counter[int] = Counter()

    def take(self, events: Iterable[Event], *, more: bool) -> str:
        """Take in the events of a publication. Returns the reason of a loss; empty if there was none."""
        reason = ""
        for event in events:
            self._counts[event.handle] += 1
            if event.is_of(QUEUE_OVERFLOW):
                reason = QUEUE_OVERFLOWED
        if more:
            return reason
        counts, self._counts = self._counts, Counter()
        is_full = any(1 < self._sizes.get(handle, 0) <= count for handle, count in counts.items())
        return reason or (QUEUE_FULL if is_full else "")
