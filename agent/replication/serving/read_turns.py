"""Decides for which node data is read next: the nodes of all links share a few places and the processor time of
reading. A core: no IO, no clock.

Reading costs processor time even if the answer is never used: a broker accepts the answers for a session that does not
read, and drops them. So while several nodes ask, each waits after a read until its share of the time has paid for it. A
node that asks alone gets all that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.fair_queue import FairQueue
from agent.replication.serving.limits import READ_MS_PER_SECOND, READS_MAX, READS_OF_NODE_MAX, SHARED_MS

T = TypeVar("T")

ReadyMs = Callable[[int], int | None]
"""From the present time, when the link of a node can take another answer for it. None: not known; `take` is called
again when the link has sent something."""


class ReadTurns(Generic[T]):
    """The places for reading, and the work that waits for one. Times are in ms of one monotonic clock."""

    def __init__(self) -> None:
        self._queue: FairQueue[T] = FairQueue(READS_MAX, self._places_of, self._may_read)
        self._ready: dict[str, ReadyMs] = {}
        self._asked_ms: dict[str, int] = {}  # by node: when it last asked
        self._time: dict[str, TokenBucket] = {}  # in microseconds
        self._now_ms = 0

    def ask(self, node: str, work: T, ready_ms: ReadyMs, now_ms: int) -> None:
        """Queue work of a node, which gets a place when the node's link is ready."""
        self._asked_ms[node] = now_ms
        self._ready[node] = ready_ms
        self._queue.add(node, work)

    def take(self, now_ms: int) -> T | None:
        """The next work that gets a place; None if none may have one now."""
        self._now_ms = now_ms
        return self._queue.take()

    def end(self, node: str, work: T, took_us: int, now_ms: int) -> None:
        """Free the place of work that has ended, or withdraw work that has no place yet. `took_us`: the processor time
        that it used."""
        self._now_ms = now_ms
        if not self._queue.withdraw(node, work):
            self._queue.end(node)
            if self._is_shared(node):  # otherwise a node that was alone would begin in debt
                self._time_of(node).spend(took_us, now_ms)

    def due_ms(self, now_ms: int) -> int | None:
        """When `take` may give a place that it does not give now, if nothing else happens; None for never."""
        if not (waiting := self._queue.nodes_waiting()):
            return None
        self._now_ms = now_ms
        due = [at_ms for node in waiting if (at_ms := self._ready_ms(node)) is not None]
        return min((at_ms for at_ms in due if at_ms > now_ms), default=None)

    def _is_shared(self, node: str) -> bool:
        since_ms = self._now_ms - SHARED_MS
        others = len(self._asked_ms) > 1  # mostly one node asks
        return others and any(at_ms > since_ms for other, at_ms in self._asked_ms.items() if other != node)

    def _places_of(self, node: str) -> int:
        return 1 if self._is_shared(node) else READS_OF_NODE_MAX

    def _may_read(self, node: str) -> bool:
        at_ms = self._ready_ms(node)
        return at_ms is not None and at_ms <= self._now_ms

    def _ready_ms(self, node: str) -> int | None:
        now_ms = self._now_ms
        if (at_ms := self._ready[node](now_ms)) is None or not self._is_shared(node):
            return at_ms
        return max(at_ms, self._time_of(node).ready_ms(now_ms, Priority.BACKLOG))

    def _time_of(self, node: str) -> TokenBucket:
        if (known := self._time.get(node)) is None:
            known = self._time[node] = TokenBucket(READ_MS_PER_SECOND * 1000)
        return known
