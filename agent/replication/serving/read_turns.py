"""Whose turn it is to have something read: the zones of all links share a few places, and each has its part of the time
that reading takes. A core: no IO, no clock.

What is read costs this node's processor, whatever becomes of it: a broker takes the answers for a session that does not
read, and drops them. So a zone that is not alone waits after what was read for it until its part of the time has paid
for that. A zone that is alone gets all that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.fair_queue import FairQueue
from agent.replication.serving.limits import READ_MS_PER_SECOND, READS_MAX, READS_OF_ZONE_MAX, SHARED_MS

T = TypeVar("T")

ReadyMs = Callable[[int], int | None]
"""When the link of a zone may take a further answer for it, asked at a time: that time for at once; None where no time
is known, and the link says so when it is ready."""


class ReadTurns(Generic[T]):
    """The places to read in, and the work that waits for one. Times are in ms of one monotonic clock."""

    def __init__(self) -> None:
        self._queue: FairQueue[T] = FairQueue(READS_MAX, self._places_of, self._may_read)
        self._ready: dict[str, ReadyMs] = {}
        self._asked_ms: dict[str, int] = {}  # by zone, when something was last to be read for it
        self._time: dict[str, TokenBucket] = {}  # in microseconds
        self._now_ms = 0

    def ask(self, zone: str, work: T, ready_ms: ReadyMs, now_ms: int) -> None:
        """Something is to be read for a zone, when its link is ready."""
        self._asked_ms[zone] = now_ms
        self._ready[zone] = ready_ms
        self._queue.add(zone, work)

    def take(self, now_ms: int) -> T | None:
        """The next work that gets a place; None where none may have one now."""
        self._now_ms = now_ms
        return self._queue.take()

    def end(self, zone: str, work: T, took_us: int, now_ms: int) -> None:
        """Work is over, and its place is free; or it is not wanted any more, and has had none. `took_us`: the time of a
        processor that it took."""
        self._now_ms = now_ms
        if not self._queue.withdraw(zone, work):
            self._queue.end(zone)
            if self._is_shared(zone):  # else a zone that was alone would begin with its debts
                self._time_of(zone).spend(took_us, now_ms)

    def due_ms(self, now_ms: int) -> int | None:
        """When `take` may give a place that it does not give now, without any other event; None for never."""
        self._now_ms = now_ms
        due = [at_ms for zone in self._queue.zones_waiting() if (at_ms := self._ready_ms(zone)) is not None]
        return min((at_ms for at_ms in due if at_ms > now_ms), default=None)

    def _is_shared(self, zone: str) -> bool:
        since_ms = self._now_ms - SHARED_MS
        return any(at_ms > since_ms for other, at_ms in self._asked_ms.items() if other != zone)

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
