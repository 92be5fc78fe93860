"""Requests of one link that wait to begin: a few of each node in one turn of the event loop, as its rate allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from agent.replication.mqtt import Incoming
from agent.replication.protocol.pacing import Alarm
from agent.replication.serving.admission import Caller
from agent.replication.serving.fair_queue import FairQueue
from agent.replication.serving.limits import REQUESTS_OPEN_MAX, STARTS_MAX
from agent.replication.serving.pacing import Pacer


class Arrival(NamedTuple):
    """A request, and who sent it."""

    caller: Caller
    incoming: Incoming


class Arrivals:
    """`begin` starts the task of a request; it calls `begun` when it runs, and `ended` at its end."""

    def __init__(
        self,
        nodes: int,
        pacer: Pacer,
        now_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], object]], Callable[[], None]],
        begin: Callable[[Arrival], object],
    ) -> None:
        self._pacer, self._now_ms, self._begin = pacer, now_ms, begin
        self._queue: FairQueue[Arrival] = FairQueue(STARTS_MAX * nodes, STARTS_MAX, self._may_begin)
        self._alarm = Alarm(call_later, self._begin_due)
        self._begins_ms = 0
        self.open: Counter[str] = Counter()
        """Requests by node that wait or are being answered."""

    def accepts(self, node: str) -> bool:
        """Whether another request of a node may wait."""
        return self.open[node] < REQUESTS_OPEN_MAX

    def add(self, arrival: Arrival) -> None:
        """Begin a request when it is the node's turn."""
        self.open[arrival.caller.node] += 1
        self._queue.add(arrival.caller.node, arrival)
        self._begin_due()

    def begun(self, node: str) -> None:
        """A request of a node runs: the next may begin."""
        self._queue.end(node)
        if self._queue.nodes_waiting():
            self._begin_due()

    def ended(self, node: str) -> None:
        """A request of a node has its answer, or gets none."""
        self.open[node] -= 1

    def _begin_due(self) -> None:
        # One time for queue and alarm: a node that becomes ready in between would otherwise get no alarm.
        now_ms = self._begins_ms = self._now_ms()
        while (arrival := self._queue.take()) is not None:
            self._pacer.request_begins(arrival.caller.node, now_ms)
            self._begin(arrival)
        if waiting := self._queue.nodes_waiting():
            due = [self._pacer.request_ready_ms(node, now_ms) for node in waiting]
            self._alarm.set(min((at_ms for at_ms in due if at_ms > now_ms), default=None), now_ms)

    def _may_begin(self, node: str) -> bool:
        return self._pacer.request_ready_ms(node, self._begins_ms) <= self._begins_ms
