"""Activity of consumers in this life of the process: when each last fetched or confirmed, when it was last at the end
of the log, and which have timed out.

The serving side records activity from any thread for every fetch, so it is kept in memory and costs no commit. It
decides whether a consumer is in sync (acks.py), and when it counts as lost or is removed (lifecycle.py). A restart
clears it; the column `seen_unix_ms` of the table `consumer` keeps an older time for operators.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.fact_store.append import Follower
from agent.fact_store.core import NEVER_NS, Catalog, ConsumerEvent, Lifecycle, next_timeout

RETRY_NS = 1_000_000_000  # an event that could not be committed (a full disk) is due again after this


@dataclass(frozen=True, slots=True)
class LastActivity:
    """Times of one consumer. `caught_up_ns`: when it was last at the end of the log; in the future while its fetch
    waits there."""

    seen_ns: int
    seen_unix_ms: int
    caught_up_ns: int | None


class ConsumerActivity:
    """Last activity of consumers, by name. Thread-safe."""

    def __init__(self) -> None:
        self._last: dict[str, LastActivity] = {}
        self._recording: set[str] = set()
        self._lock = threading.Lock()

    def record_fetch(self, name: str, *, is_at_end: bool, waits_ns: int, now_ns: int, now_unix_ms: int) -> None:
        """Record a fetch. At the end of the log it may wait for `waits_ns`; a fetch elsewhere ends an earlier wait."""
        with self._lock:
            before = self._last.get(name)
            caught_up_ns = before.caught_up_ns if before else None
            if is_at_end:
                caught_up_ns = now_ns + waits_ns
            elif caught_up_ns is not None:
                caught_up_ns = min(caught_up_ns, now_ns)
            self._last[name] = LastActivity(now_ns, now_unix_ms, caught_up_ns)

    def record_confirm(self, name: str, *, is_at_end: bool, now_ns: int, now_unix_ms: int) -> None:
        """Record a confirmation. It does not end a fetch that waits at the end of the log."""
        with self._lock:
            before = self._last.get(name)
            caught_up_ns = before.caught_up_ns if before else None
            if is_at_end:
                caught_up_ns = max(caught_up_ns or 0, now_ns)
            self._last[name] = LastActivity(now_ns, now_unix_ms, caught_up_ns)

    def retain_only(self, names: Mapping[str, object]) -> None:
        """Drop consumers that are no longer registered."""
        with self._lock:
            for name in self._last.keys() - names.keys():
                del self._last[name]

    def begin_recording(self, name: str) -> bool:
        """Whether the caller may queue the commit that this consumer was seen: False while such a commit is queued.

        The caller must call `end_recording` when its commit is done.
        """
        with self._lock:
            is_free = name not in self._recording
            self._recording.add(name)
            return is_free

    def end_recording(self, name: str) -> None:
        """Note that the commit is done, or has failed."""
        with self._lock:
            self._recording.discard(name)

    def unsaved(self, catalog: Catalog) -> dict[str, int]:
        """Consumers seen more than a second after the time in the table, with the time in milliseconds since 1970."""
        stored = {name: consumer.seen_unix_ms or 0 for name, consumer in catalog.consumers.items()}
        with self._lock:
            return {
                name: seen.seen_unix_ms
                for name, seen in self._last.items()
                if seen.seen_unix_ms > stored.get(name, seen.seen_unix_ms) + 1000
            }

    def seen_unix_ms(self, name: str) -> int | None:
        """When a consumer was last seen in this life, in milliseconds since 1970."""
        seen = self._last.get(name)
        return seen.seen_unix_ms if seen else None

    def get(self, name: str) -> LastActivity | None:
        """The activity of a consumer in this life of the process."""
        return self._last.get(name)

    def followers(self, catalog: Catalog, stream: str) -> list[Follower]:
        """The consumers of a stream that an append may wait for: all except those being removed."""
        found = list[Follower]()
        for name, consumer in catalog.consumers.items():
            if consumer.stream == stream and consumer.lifecycle is not Lifecycle.DELETION_STARTED:
                seen = self._last.get(name)
                found.append(Follower(name, consumer.frontier, seen.caught_up_ns if seen else None))
        return found


class ConsumerExpiry:
    """Finds consumers that have timed out, in the writer's thread. `lost_ns_of` returns, for a stream, the nanoseconds
    of inactivity after which a consumer is lost. They begin no earlier than the opening of the store, because a
    consumer cannot connect while the store is closed."""

    def __init__(self, activity: ConsumerActivity, lost_ns_of: Callable[[str], int]) -> None:
        self._activity = activity
        self._lost_ns_of = lost_ns_of
        self._known: list[tuple[str, Lifecycle]] = []
        self._since_ns: dict[str, int] = {}
        self.alarm_ns = 0  # at once
        """Monotonic time at which `due` must be called without a commit, in nanoseconds."""

    def due(self, catalog: Catalog, now_ns: int) -> dict[str, ConsumerEvent]:
        """The events that are due, by consumer."""
        known = [(name, consumer.lifecycle) for name, consumer in catalog.consumers.items()]
        if known == self._known and now_ns < self.alarm_ns:
            return {}
        unchanged = set(self._known)
        self._since_ns = {pair[0]: self._since_ns[pair[0]] if pair in unchanged else now_ns for pair in known}
        self._known = known
        self._activity.retain_only(catalog.consumers)
        self.alarm_ns = NEVER_NS
        events = dict[str, ConsumerEvent]()
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
