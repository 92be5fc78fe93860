"""Decides for which node data is read next: the nodes of all links share a few places and the processor time of
reading. A core: no IO, no clock.

Reading costs processor time even if the answer is never used: a broker accepts the answers for a session that does not
read, and drops them. So while several nodes ask, each waits after a read until its share of the time has paid for it. A
node that asks alone gets all that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.fair_queue import FairQueue
from agent.replication.serving.limits import READ_MS_PER_SECOND, READS_MAX, READS_OF_NODE_MAX, SHARED_MS

T = TypeVar("T")

ReadyMs = Callable[[int], int | None]
"""From the present time, when the link of a node can take another answer for it. None: not known; `take` is called
again when the link has sent something."""


class ReadTurns(FairQueue[T]):
    """The places for reading, and the work that waits for one."""

    def __init__(self) -> None:
        super().__init__(READS_MAX, self._read_places, self._read_ready_ms)
        self._ready: dict[str, ReadyMs] = {}
        self._asked_ms: dict[str, int] = {}  # by node: when it last asked
        self._time: dict[str, TokenBucket] = {}  # in microseconds

    def ask(self, node: str, work: T, ready_ms: ReadyMs, now_ms: int) -> None:
        """Queue work of a node, which gets a place when the node's link is ready."""
        self._asked_ms[node] = now_ms
        self._ready[node] = ready_ms
        self.add(node, work)

    def end_read(self, node: str, work: T, took_us: int, now_ms: int) -> None:
        """Free the place of work that has ended, or withdraw work that has no place yet. `took_us`: the processor time
        that it used."""
        if self.leave(node, work) and self._is_shared(node, now_ms):
            self._time_of(node).spend(took_us, now_ms)  # a node that was alone would begin in debt

    def _is_shared(self, node: str, now_ms: int) -> bool:
        """Whether another node has asked within SHARED_MS."""
        return any(at_ms > now_ms - SHARED_MS for asking, at_ms in self._asked_ms.items() if asking != node)

    def _read_places(self, node: str, now_ms: int) -> int:
        return 1 if self._is_shared(node, now_ms) else READS_OF_NODE_MAX

    def _read_ready_ms(self, node: str, now_ms: int) -> int | None:
        if (at_ms := self._ready[node](now_ms)) is None or not self._is_shared(node, now_ms):
            return at_ms
        return max(at_ms, self._time_of(node).ready_ms(now_ms, Priority.BACKLOG))

    def _time_of(self, node: str) -> TokenBucket:
        if (known := self._time.get(node)) is None:
            known = self._time[node] = TokenBucket(READ_MS_PER_SECOND * 1000)
        return known
