"""The door to the store for one source: appends, remembers what is on its way, waits when the store says not now.

Promises that a sample handed in is committed, or handed in again when the store refuses it, for as long as the process
lives, or told as lost if the store fails at it repeatedly; the caller is held meanwhile, which is how a full store slows a source. What is on its way is bounded. Gaps are
written as facts, merged while they cannot be. It will not drop, and it decides nothing about what is worth recording.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from agent.ingest.gap import STORE_REJECTED, Gap, GapLog, gap_message
from agent.ingest.ports import Refusals, StorePort
from agent.message import Sample, TagDefinition

ResultT = TypeVar("ResultT")

IN_FLIGHT_SAMPLES_MAX = 100_000  # some seconds of a fast source at 100 bytes each: 10 MB, then the source waits
REFUSED_WAIT_S = 0.05  # first pause after a refusal; a group commit takes about this long
REFUSED_WAIT_MAX_S = 2.0  # a store that is full for hours is asked this often
FAILURES_MAX = 3  # attempts to hand in samples at which the store fails without refusing
GAP_INTERVAL_S = 10.0  # gaps are merged for this long before they become a fact


class _Flight:
    """Samples handed to the store and not yet known to be committed. No future: refused, to be handed in again."""

    __slots__ = ("failures", "future", "rows", "stream")

    def __init__(self, stream: str, rows: Sequence[Sample], future: Future[Any] | None) -> None:
        self.stream = stream
        self.rows = rows
        self.future = future
        self.failures = 0


class Recorder:
    """One source's door to the store."""

    def __init__(self, source: str, zone: str, store: StorePort, refusals: Refusals, operational_stream: str) -> None:
        self._source, self._zone = source, zone
        self._store, self._refusals = store, refusals
        self._operational_stream = operational_stream
        self._flights: deque[_Flight] = deque()  # bounded by IN_FLIGHT_SAMPLES_MAX through `record`
        self._in_flight = 0
        self._gaps = GapLog()
        self._gaps_due_s = 0.0
        self.samples_total = 0
        self.lost_total = 0
        self.refused_total = 0
        self.last_value_unix_ms = 0

    async def define(self, definitions: Sequence[TagDefinition]) -> list[int]:
        """Numbers for definitions, asked for until the store gives them."""
        return await self._insist(lambda: self._store.define(definitions))

    async def record(self, stream: str, rows: Sequence[Sample]) -> None:
        """Hand samples to the store; returns once they are queued there and what is on its way is within its bound."""
        self.hand_in(stream, rows)
        await self.settle()

    def hand_in(self, stream: str, rows: Sequence[Sample]) -> None:
        """Take samples over, without waiting: from here on nothing that ends the caller loses them. `settle` must follow."""
        if rows:
            self._flights.append(_Flight(stream, rows, None))
            self._in_flight += len(rows)

    async def settle(self) -> None:
        """Give the store what was handed in; returns once what is on its way is within its bound."""
        await self._launch()
        while self._in_flight > IN_FLIGHT_SAMPLES_MAX:
            await self._settle_oldest()
        await self._settle_done()

    def add_gap(self, gap: Gap) -> None:
        """Note a loss; it becomes a fact with the next `flush_gaps` that is due."""
        self.lost_total += gap.count
        self._gaps.add(gap)

    async def flush_gaps(self, *, at_once: bool = False) -> None:
        """Write open gaps as facts, if there are any and the last ones are long enough ago."""
        if not self._gaps or (time.monotonic() < self._gaps_due_s and not at_once):
            return
        self._gaps_due_s = time.monotonic() + GAP_INTERVAL_S
        gaps = self._gaps.take()
        while gaps:
            message = gap_message(gaps[0], self._zone, time.time_ns() // 1_000_000)
            try:
                await _committed(self._store.append_message(self._operational_stream, message))
            except self._refusals:
                self.refused_total += 1
                self._gaps.put_back(gaps)
                return
            except BaseException:
                self._gaps.put_back(gaps)
                raise
            gaps.pop(0)

    async def drain(self) -> None:
        """Wait until everything handed in is committed, gaps included."""
        await self._launch()
        while self._flights:
            await self._settle_oldest()
        await self.flush_gaps(at_once=True)

    async def _launch(self) -> None:
        """Hand in, oldest first, whatever has no future yet; wait as long as the store refuses."""
        wait_s = REFUSED_WAIT_S
        for flight in list(self._flights):
            while flight.future is None:
                try:
                    flight.future = self._store.append_samples(flight.stream, flight.rows)
                except self._refusals:
                    self.refused_total += 1
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, REFUSED_WAIT_MAX_S)
                except BaseException:
                    self._failed(flight)
                    raise

    def _failed(self, flight: _Flight) -> None:
        """The store failed in a way that waiting does not mend. Samples that fail again and again would hold up all that
        come after them for ever: they are given up, and a gap says so."""
        flight.future = None
        flight.failures += 1
        if flight.failures < FAILURES_MAX:
            return
        self._flights.remove(flight)
        self._in_flight -= len(flight.rows)
        times = [row.source_time_ns for row in flight.rows]
        gap = Gap(self._source, STORE_REJECTED, min(times), max(times), len(times), count_exact=True)
        self.add_gap(gap)

    async def _settle_done(self) -> None:
        while self._flights and self._flights[0].future is not None and self._flights[0].future.done():
            await self._settle_oldest()

    async def _settle_oldest(self) -> None:
        """Wait for the oldest samples on their way; hand them in again if the store refused them after all."""
        flight = self._flights[0]
        if flight.future is None:
            await self._launch()
        assert flight.future is not None, "launched above"
        try:
            await _committed(flight.future)
        except self._refusals:
            self.refused_total += 1
            flight.future = None
            await asyncio.sleep(REFUSED_WAIT_S)
            return
        except asyncio.CancelledError:
            raise  # we are being stopped; the samples stay on their way
        except BaseException:
            self._failed(flight)
            raise
        self._flights.popleft()
        self._in_flight -= len(flight.rows)
        self.samples_total += len(flight.rows)
        self.last_value_unix_ms = max(self.last_value_unix_ms, flight.rows[-1].source_time_ns // 1_000_000)

    async def _insist(self, ask: Callable[[], Future[ResultT]]) -> ResultT:
        wait_s = REFUSED_WAIT_S
        while True:
            try:
                return await _committed(ask())
            except self._refusals:
                self.refused_total += 1
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, REFUSED_WAIT_MAX_S)


async def _committed(future: Future[ResultT]) -> ResultT:
    """The store's answer. Shielded: what is handed in is not taken back when we are told to stop waiting."""
    return await asyncio.shield(asyncio.wrap_future(future))
