"""Decides for which zone data is read next: the zones of all links share a few places and the processor time of
reading. A core: no IO, no clock.

Reading costs processor time even if the answer is never used: a broker accepts the answers for a session that does not
read, and drops them. So while several zones ask, each waits after a read until its share of the time has paid for it. A
zone that asks alone gets all that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.fair_queue import FairQueue
from agent.replication.serving.limits import READ_MS_PER_SECOND, READS_MAX, READS_OF_ZONE_MAX, SHARED_MS

T = TypeVar("T")

ReadyMs = Callable[[int], int | None]
"""From the present time, when the link of a zone can take another answer for it. None: not known; `take` is called
again when the link has sent something."""


class ReadTurns(Generic[T]):
    """The places for reading, and the work that waits for one. Times are in ms of one monotonic clock."""

    def __init__(self) -> None:
        self._queue: FairQueue[T] = FairQueue(READS_MAX, self._places_of, self._may_read)
        self._ready: dict[str, ReadyMs] = {}
        self._asked_ms: dict[str, int] = {}  # by zone: when it last asked
        self._time: dict[str, TokenBucket] = {}  # in microseconds
        self._now_ms = 0

    def ask(self, zone: str, work: T, ready_ms: ReadyMs, now_ms: int) -> None:
        """Queue work of a zone, which gets a place when the zone's link is ready."""
        self._asked_ms[zone] = now_ms
        self._ready[zone] = ready_ms
        self._queue.add(zone, work)

    def take(self, now_ms: int) -> T | None:
        """The next work that gets a place; None if none may have one now."""
        self._now_ms = now_ms
        return self._queue.take()

    def end(self, zone: str, work: T, took_us: int, now_ms: int) -> None:
        """Free the place of work that has ended, or withdraw work that has no place yet. `took_us`: the processor time
        that it used."""
        self._now_ms = now_ms
        if not self._queue.withdraw(zone, work):
            self._queue.end(zone)
            if self._is_shared(zone):  # otherwise a zone that was alone would begin in debt
                self._time_of(zone).spend(took_us, now_ms)

    def due_ms(self, now_ms: int) -> int | None:
        """When `take` may give a place that it does not give now, if nothing else happens; None for never."""
        if not (waiting := self._queue.zones_waiting()):
            return None
        self._now_ms = now_ms
        due = [at_ms for zone in waiting if (at_ms := self._ready_ms(zone)) is not None]
        return min((at_ms for at_ms in due if at_ms > now_ms), default=None)

    def _is_shared(self, zone: str) -> bool:
        since_ms = self._now_ms - SHARED_MS
        others = len(self._asked_ms) > 1  # mostly one zone asks
        return others and any(at_ms > since_ms for other, at_ms in self._asked_ms.items() if other != zone)

    def _places_of(self, zone: str) -> int:
        return 1 if self._is_shared(zone) else READS_OF_ZONE_MAX

    def _may_read(self, zone: str) -> bool:
        at_ms = self._ready_ms(zone)
        return at_ms is not None and at_ms <= self._now_ms

    def _ready_ms(self, zone: str) -> int | None:
        now_ms = self._now_ms
        if (at_ms := self._ready[zone](now_ms)) is None or not self._is_shared(zone):
            return at_ms
        return max(at_ms, self._time_of(zone).ready_ms(now_ms, Priority.BACKLOG))

    def _time_of(self, zone: str) -> TokenBucket:
        if (known := self._time.get(zone)) is None:
            known = self._time[zone] = TokenBucket(READ_MS_PER_SECOND * 1000)
        return known
