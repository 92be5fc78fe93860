"""Requests of one link that wait to begin: a few of each node in one turn of the event loop, as its rate allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from agent.replication.mqtt import Incoming
from agent.replication.serving.admission import Caller
from agent.replication.serving.fair_queue import Dispatcher, FairQueue
from agent.replication.serving.limits import REQUESTS_OPEN_MAX, STARTS_MAX
from agent.replication.serving.pacing import Pacer, Use


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
        ready_ms = partial(pacer.ready_ms, Use.REQUESTS)
        self._queue: FairQueue[Arrival] = FairQueue(STARTS_MAX * nodes, lambda *_: STARTS_MAX, ready_ms)
        self._dispatcher = Dispatcher(self._queue, self._begin_paid, now_ms, call_later)
        self.open: Counter[str] = Counter()
        """Requests by node that wait or are being answered."""

    def accepts(self, node: str) -> bool:
        """Whether another request of a node may wait."""
        return self.open[node] < REQUESTS_OPEN_MAX

    def add(self, arrival: Arrival) -> None:
        """Begin a request when it is the node's turn."""
        self.open[arrival.caller.node] += 1
        self._queue.add(arrival.caller.node, arrival)
        self._dispatcher.begin_due()

    def begun(self, node: str) -> None:
        """A request of a node runs: the next may begin."""
        self._queue.end_work(node)
        if not self._queue.is_empty():
            self._dispatcher.begin_due()

    def ended(self, node: str) -> None:
        """A request of a node has its answer, or gets none."""
        self.open[node] -= 1

    def _begin_paid(self, arrival: Arrival) -> None:
        self._pacer.spend(Use.REQUESTS, arrival.caller.node, 1, self._now_ms())
        self._begin(arrival)
