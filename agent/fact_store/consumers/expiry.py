"""What time alone does to consumers: who was not seen for long is lost, who is being removed is gone in the end.

Belongs to the writer's thread, which asks after each commit and at `alarm_ns`; what is due becomes a piece of work like any
other. When it is due is decided in lifecycle.py. Time counts from the opening of the store at the earliest: a consumer must
have had the time to come.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.fact_store.consumers.ack_waiters import NEVER_NS
from agent.fact_store.consumers.activity import ConsumerActivity
from agent.fact_store.log import Catalog, Event, Lifecycle, next_timeout

AGAIN_NS = 1_000_000_000  # what could not be committed (a full disk) is tried again after this


class ConsumerExpiry:
    """Watches consumers. `lost_ns_of` says for a stream how long a consumer may be away before it is lost."""

    def __init__(self, activity: ConsumerActivity, lost_ns_of: Callable[[str], int]) -> None:
        self._activity = activity
        self._lost_ns_of = lost_ns_of
        self._known: list[tuple[str, Lifecycle]] = []
        self._since_ns: dict[str, int] = {}
        self.alarm_ns = NEVER_NS
        """When `due` is to be asked although nothing was committed."""

    def due(self, catalog: Catalog, now_ns: int) -> dict[str, Event]:
        """What has happened to whom meanwhile."""
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
            if seen is not None:  # one that waits at the end has been seen until its wait ends
                since_ns = max(since_ns, seen.seen_ns, seen.caught_up_ns or 0)
            if (coming := next_timeout(consumer.lifecycle, since_ns, self._lost_ns_of(consumer.stream))) is None:
                continue
            event, at_ns = coming
            if at_ns <= now_ns:
                events[name], at_ns = event, now_ns + AGAIN_NS
            self.alarm_ns = min(self.alarm_ns, at_ns)
        return events
