"""Requests of one link that wait to begin: a few of each zone in one turn of the event loop, as its rate allows."""

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
        zones: int,
        pacer: Pacer,
        now_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], object]], Callable[[], None]],
        begin: Callable[[Arrival], object],
    ) -> None:
        self._pacer, self._now_ms, self._begin = pacer, now_ms, begin
        self._queue: FairQueue[Arrival] = FairQueue(STARTS_MAX * zones, STARTS_MAX, self._may_begin)
        self._alarm = Alarm(call_later, self._begin_due)
        self._begins_ms = 0
        self.open: Counter[str] = Counter()
        """Requests by zone that wait or are being answered."""

    def accepts(self, zone: str) -> bool:
        """Whether another request of a zone may wait."""
        return self.open[zone] < REQUESTS_OPEN_MAX

    def add(self, arrival: Arrival) -> None:
        """Begin a request when it is the zone's turn."""
        self.open[arrival.caller.zone] += 1
        self._queue.add(arrival.caller.zone, arrival)
        self._begin_due()

    def begun(self, zone: str) -> None:
        """A request of a zone runs: the next may begin."""
        self._queue.end(zone)
        if self._queue.zones_waiting():
            self._begin_due()

    def ended(self, zone: str) -> None:
        """A request of a zone has its answer, or gets none."""
        self.open[zone] -= 1

    def _begin_due(self) -> None:
        # One time for queue and alarm: a zone that becomes ready in between would otherwise get no alarm.
        now_ms = self._begins_ms = self._now_ms()
        while (arrival := self._queue.take()) is not None:
            self._pacer.request_begins(arrival.caller.zone, now_ms)
            self._begin(arrival)
        if waiting := self._queue.zones_waiting():
            due = [self._pacer.request_ready_ms(zone, now_ms) for zone in waiting]
            self._alarm.set(min((at_ms for at_ms in due if at_ms > now_ms), default=None), now_ms)

    def _may_begin(self, zone: str) -> bool:
        return self._pacer.request_ready_ms(zone, self._begins_ms) <= self._begins_ms
