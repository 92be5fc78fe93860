"""Who was seen when: consumers that fetched or confirmed since the store was opened, in memory.

Serving sides tell of it from any thread, for every fetch, so it costs a dictionary entry and no commit. Two things rest on it:
whether a consumer is in sync (acks.py), and when it counts as lost or as removed (lifecycle.py). A restart forgets it, for
nobody has been seen in this life yet; `seen_unix_ms` of the table `consumer` remembers the day for people.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from agent.fact_store.append import Follower
from agent.fact_store.log import Catalog, Lifecycle


@dataclass(frozen=True, slots=True)
class LastActivity:
    """When a consumer was last seen, and when last at the end of the log: in the future while a fetch of it waits there."""

    seen_ns: int
    seen_unix_ms: int
    caught_up_ns: int | None


class ConsumerActivity:
    """Consumers seen, by name. Any thread."""

    def __init__(self) -> None:
        self._seen: dict[str, LastActivity] = {}
        self._noting: set[str] = set()
        self._lock = threading.Lock()

    def record_fetch(self, name: str, *, is_at_end: bool, waits_ns: int, now_ns: int, now_unix_ms: int) -> None:
        """A fetch reached the end of the log (and waits there so long), or did not: then whatever waited there no longer does."""
        with self._lock:
            before = self._seen.get(name)
            caught_up_ns = before.caught_up_ns if before else None
            if is_at_end:
                caught_up_ns = now_ns + waits_ns
            elif caught_up_ns is not None:
                caught_up_ns = min(caught_up_ns, now_ns)
            self._seen[name] = LastActivity(now_ns, now_unix_ms, caught_up_ns)

    def record_confirm(self, name: str, *, is_at_end: bool, now_ns: int, now_unix_ms: int) -> None:
        """A confirmation: it says nothing of a fetch that may wait meanwhile."""
        with self._lock:
            before = self._seen.get(name)
            caught_up_ns = before.caught_up_ns if before else None
            if is_at_end:
                caught_up_ns = max(caught_up_ns or 0, now_ns)
            self._seen[name] = LastActivity(now_ns, now_unix_ms, caught_up_ns)

    def retain_only(self, names: Mapping[str, object]) -> None:
        """Drop who is no longer registered."""
        with self._lock:
            for name in self._seen.keys() - names.keys():
                del self._seen[name]

    def begin_recording(self, name: str) -> bool:
        """Whether nobody else is about to write down that this one was seen; then the caller is, until `end_recording`."""
        with self._lock:
            is_free = name not in self._noting
            self._noting.add(name)
            return is_free

    def end_recording(self, name: str) -> None:
        """It is written down, or could not be."""
        with self._lock:
            self._noting.discard(name)

    def unsaved(self, catalog: Catalog) -> dict[str, int]:
        """Who was seen more than a second later than the table says, and when."""
        stored = {name: consumer.seen_unix_ms or 0 for name, consumer in catalog.consumers.items()}
        with self._lock:
            return {
                name: seen.seen_unix_ms
                for name, seen in self._seen.items()
                if seen.seen_unix_ms > stored.get(name, seen.seen_unix_ms) + 1000
            }

    def seen_unix_ms(self, name: str) -> int | None:
        """When a consumer was last seen by the clock on the wall, in this life of the process."""
        seen = self._seen.get(name)
        return seen.seen_unix_ms if seen else None

    def get(self, name: str) -> LastActivity | None:
        """When a consumer was last seen in this life of the process."""
        return self._seen.get(name)

    def followers(self, catalog: Catalog, stream: str) -> list[Follower]:
        """Whom an append to a stream may wait for: its consumers, but none that is about to be removed."""
        found = list[Follower]()
        for name, consumer in catalog.consumers.items():
            if consumer.stream == stream and consumer.lifecycle is not Lifecycle.DELETION_STARTED:
                seen = self._seen.get(name)
                found.append(Follower(name, consumer.frontier, seen.caught_up_ns if seen else None))
        return found
