"""Expires consumers: a consumer that was inactive for too long is lost; one that is being removed is deleted after ten
minutes.

Belongs to the writer's thread, which calls it after each commit and at `alarm_ns`, and queues the due events as a call.
lifecycle.py decides the times. They start no earlier than the opening of the store, because a consumer cannot connect
while the store is closed.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.fact_store.consumers.activity import ConsumerActivity
from agent.fact_store.core import NEVER_NS, Catalog, Event, Lifecycle, next_timeout

RETRY_NS = 1_000_000_000  # an event that could not be committed (a full disk) is due again after this


class ConsumerExpiry:
    """Finds consumers that have timed out. `lost_ns_of` returns, for a stream, the nanoseconds of inactivity after
    which a consumer is lost."""

    def __init__(self, activity: ConsumerActivity, lost_ns_of: Callable[[str], int]) -> None:
        self._activity = activity
        self._lost_ns_of = lost_ns_of
        self._known: list[tuple[str, Lifecycle]] = []
        self._since_ns: dict[str, int] = {}
        self.alarm_ns = 0  # at once
        """Monotonic time at which `due` must be called without a commit, in nanoseconds."""

    def due(self, catalog: Catalog, now_ns: int) -> dict[str, Event]:
        """The events that are due, by consumer."""
        known = [(name, consumer.lifecycle) for name, consumer in catalog.consumers.items()]
        if known == self._known and now_ns < self.alarm_ns:
            return {}
        unchanged = set(self._known)
        self._since_ns = {pair[0]: self._since_ns[pair[0]] if pair in unchanged else now_ns for pair in known}
        self._known = known
        self._activity.retain_only(catalog.consumers)
        self.alarm_ns = NEVER_NS
        events = dict[str, Event]()
        for name, consumer in catalog.consumers.items():
            seen = self._activity.get(name)
            since_ns = self._since_ns[name]
            if seen is not None:  # a consumer that waits at the end of the log is active until its wait ends
                since_ns = max(since_ns, seen.seen_ns, seen.caught_up_ns or 0)
            if (coming := next_timeout(consumer.lifecycle, since_ns, self._lost_ns_of(consumer.stream))) is None:
                continue
            event, at_ns = coming
            if at_ns <= now_ns:
                events[name], at_ns = event, now_ns + RETRY_NS
            self.alarm_ns = min(self.alarm_ns, at_ns)
        return events
