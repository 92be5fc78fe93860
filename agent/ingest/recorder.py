"""Appends the samples of one source to the store, waits while the store refuses, and retries failed appends.

A sample that is handed in is committed unless the process ends first. If the store fails to append it several times, it
is given up and recorded as a gap. The caller waits while the store refuses, so a full store slows its sources. The
number of uncommitted samples is bounded. Messages are appended in the same way, by a recorder of their own
(`for_another_task`): one task uses a recorder. Gaps are merged until they are due, and then appended as facts ahead of
the samples that follow them. `sampling` decides which samples are recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from agent.columns import SampleColumns
from agent.errors import StoreBusy, StoreFull
from agent.ingest.clock import Span
from agent.ingest.completeness import Stored
from agent.ingest.gap import GAP_INTERVAL_S, GAP_PREDICATE, OUTAGE_REASONS, STORE_REJECTED, Gap, GapLog, gap_message
from agent.ingest.ports import StorePort
from agent.ingest.quality import is_bad
from agent.message import OPERATIONAL_STREAM, Message, TagDefinition

ResultT = TypeVar("ResultT")

IN_FLIGHT_SAMPLES_MAX = 100_000  # some seconds of a fast source, 10 MB at 100 bytes each; beyond it the source waits
REFUSED_WAIT_S = 0.05  # first pause after a refusal; a group commit takes about this long
REFUSED_WAIT_MAX_S = 2.0  # between attempts at a store that is full for hours
FAILURES_MAX = 3  # attempts to append samples that the store fails to append without refusing them
COMPLETE_INTERVAL_S = 1.0  # between two records of up to when the source is complete
_REFUSALS = (StoreBusy, StoreFull)  # these pass; a store that has failed ends the node
MESSAGE_BYTES_A_SAMPLE = 100  # within IN_FLIGHT_SAMPLES_MAX a message counts as one more sample per so many bytes


class _Flight:
    """Facts that are not known to be committed, and their times. If `future` is None, they are to be appended (again).
    `weight` counts within IN_FLIGHT_SAMPLES_MAX. `gap` is set if the fact is a gap."""

    __slots__ = ("append", "count", "failures", "future", "gap", "times_ns", "value_ns", "weight")

    def __init__(
        self,
        append: Callable[[], Future[Any]],
        count: int,
        weight: int,
        times_ns: Sequence[int],
        gap: Gap | None = None,
    ) -> None:
        self.append, self.count, self.weight, self.times_ns, self.gap = append, count, weight, times_ns, gap
        self.future: Future[Any] | None = None
        self.failures = 0
        self.value_ns = times_ns[-1]  # time of the newest value, 0 if there is none

    @property
    def is_committed(self) -> bool:
        """Whether the store has committed them."""
        return self.future is not None and self.future.done() and self.future.exception() is None

    @property
    def is_refused(self) -> bool:
        """Whether the store has refused them after it had taken them."""
        return self.future is not None and self.future.done() and isinstance(self.future.exception(), _REFUSALS)


class _Completeness:
    """Up to when the parts of a source are complete, as stored and to be stored."""

    def __init__(self) -> None:
        self.parts: dict[str, Stored] = {}  # as stored, or on its way
        self._noted: dict[str, Stored] = {}
        self._waiting: tuple[int, dict[str, Stored]] | None = None  # for so many flights to be settled
        self._stored: Future[Any] | None = None
        self._sent: Mapping[str, Stored | None] = {}  # what `_stored` is about
        self._due_s = 0.0

    def due(self, parts: Mapping[str, Stored], taken: int, settled: int) -> dict[str, Stored | None]:
        """What to store now, as it was noted when so many flights were taken that are all settled; None: the part is no
        longer known. Notes these parts for one of the next calls."""
        self._noted = dict(parts)
        if self._waiting is None:
            if time.monotonic() >= self._due_s:
                self._waiting = taken, self._noted
            return {}
        count, noted = self._waiting
        if settled < count or (self._stored is not None and not self._stored.done()):
            return {}
        self._waiting = None
        return self._changed(noted)

    def failed(self) -> Mapping[str, Stored | None]:
        """What the store has failed to take, after it had queued it. It is still true."""
        is_failed = self._stored is not None and self._stored.done() and self._stored.exception() is not None
        return self._sent if is_failed else {}

    def last(self) -> dict[str, Stored | None]:
        """What to store at the end, when everything is settled."""
        return self._changed(self._noted) if self._noted else {}

    def _changed(self, noted: Mapping[str, Stored]) -> dict[str, Stored | None]:
        changed: dict[str, Stored | None] = {
            part: known for part, known in noted.items() if self.parts.get(part) != known
        }
        return changed | dict.fromkeys(self.parts.keys() - noted.keys())

    def store(self, changed: Mapping[str, Stored | None], stored: Future[Any]) -> None:
        """These parts are on their way to the store."""
        self._stored, self._sent, self._due_s = stored, changed, time.monotonic() + COMPLETE_INTERVAL_S
        for part, known in changed.items():
            if known is None:
                self.parts.pop(part, None)
            else:
                self.parts[part] = known


class Recorder:
    """Appends the facts of one source. Its gaps have the predicate `gap_predicate`."""

    def __init__(
        self,
        source: str,
        zone: str,
        store: StorePort,
        gap_predicate: str = GAP_PREDICATE,
        doubted: Callable[[], Sequence[Span]] = tuple,
    ) -> None:
        """`doubted` gives the times of this node's clock that are not believed."""
        self.source, self.zone, self.doubted = source, zone, doubted
        self._store, self._gap_predicate = store, gap_predicate
        self._flights: deque[_Flight] = deque()  # bounded by IN_FLIGHT_SAMPLES_MAX through `record`
        self._in_flight = 0
        self._gaps = GapLog()
        self._gaps_due_s = 0.0
        self.taken_total = self.settled_total = 0  # flights
        self._held_from: int | None = None  # behind so many flights that were taken
        self._is_full = False  # the store has refused the oldest ones
        self._complete = _Completeness()
        self.samples_total = 0
        self.lost_total = 0
        self.refused_total = 0
        self.last_value_unix_ms = 0

    def for_another_task(self, gap_predicate: str = GAP_PREDICATE) -> Recorder:
        """Another recorder of the same source, for a task other than the one that records the live values."""
        return Recorder(self.source, self.zone, self._store, gap_predicate)

    def note_stored(self, value_ns: int) -> None:
        """The store holds a value of this time from an earlier process; one that has not changed is not recorded
        again."""
        self.last_value_unix_ms = max(self.last_value_unix_ms, value_ns // 1_000_000)

    async def define(self, definitions: Sequence[TagDefinition]) -> list[int]:
        """The numbers of tag definitions. Waits while the store refuses."""
        return await self._retry_while_refused(lambda: self._store.define(definitions))

    async def record(self, stream: str, columns: SampleColumns) -> None:
        """Append samples. Returns when the store has queued them and the number of uncommitted samples is within the
        limit."""
        self.hand_in(stream, columns)
        await self.settle()

    def hand_in(self, stream: str, columns: SampleColumns) -> None:
        """Take samples without waiting, so that none is lost if the caller is cancelled afterwards. The caller then
        awaits `settle`."""
        if columns.tags:
            append = partial(self._store.append_columns, stream, columns)
            flight = _Flight(append, len(columns.tags), len(columns.tags), columns.source_times_ns)
            flight.value_ns = _last_value_ns(columns)
            self._take_over(flight)

    def hand_in_message(self, stream: str, message: Message, time_ns: int) -> None:
        """As `hand_in`, for a message about something that happened at `time_ns`."""
        append = partial(self._store.append_message, stream, message)
        weight = 1 + len(message.fact.object_json) // MESSAGE_BYTES_A_SAMPLE
        self._take_over(_Flight(append, 1, weight, [time_ns]))

    def hand_in_fact(self, message: Message, time_ns: int) -> None:
        """As `hand_in_message`, for an operational fact."""
        self.hand_in_message(OPERATIONAL_STREAM, message, time_ns)

    def _take_over(self, flight: _Flight) -> None:
        if self._held_from is not None and flight.gap is not None:
            self._flights.insert(self._held_from - self.settled_total, flight)
            self._held_from += 1
        else:
            self._flights.append(flight)
        self.taken_total += 1
        self._in_flight += flight.weight

    def hold(self) -> None:
        """Keep what is handed in, up to the limit of uncommitted samples, until `release`: the gap before it is not
        known yet, and is to be stored first."""
        self._held_from = self.taken_total

    def release(self) -> None:
        """The next `settle` appends what was held, after the gaps."""
        self.hand_in_gaps(at_once=True)
        self._held_from = None

    @property
    def are_gaps_stored(self) -> bool:
        """Whether every gap that was noted is committed."""
        return not self._gaps and all(flight.gap is None for flight in self._flights)

    async def settle(self) -> None:
        """Append what was handed in. Returns when the number of uncommitted samples is within the limit."""
        self._store_complete_again()
        if self._held_from is not None and self._in_flight <= IN_FLIGHT_SAMPLES_MAX:
            return
        self._held_from = None
        await self._launch()
        await self._settle_while(lambda: self._in_flight > IN_FLIGHT_SAMPLES_MAX)
        await self._settle_done()

    def add_gap(self, gap: Gap) -> None:
        """Note a gap. The next `hand_in_gaps` that is due makes it a fact. An outage is due at once."""
        self.lost_total += gap.count
        self._gaps.add(gap)
        if gap.reason in OUTAGE_REASONS:
            self._gaps_due_s = 0.0

    def hand_in_gaps(self, *, at_once: bool = False) -> None:
        """Hand in the gaps that are due, ahead of the facts that follow: if the process is killed, the store must not
        hold values that came after a loss without the fact of that loss. They are due once in GAP_INTERVAL_S, or
        `at_once`. The caller then awaits `settle`."""
        if not self._gaps or (time.monotonic() < self._gaps_due_s and not at_once):
            return
        self._gaps_due_s = time.monotonic() + GAP_INTERVAL_S
        for gap in self._gaps.take_gaps():
            message = gap_message(gap, self.zone, time.time_ns() // 1_000_000, self._gap_predicate)
            append = partial(self._store.append_message, OPERATIONAL_STREAM, message)
            flight = _Flight(append, 0, 1, [gap.last_time_ns], gap)
            flight.value_ns = 0
            self._take_over(flight)

    def continue_from(self, parts: Mapping[str, Stored]) -> None:
        """An earlier process has stored this."""
        self._complete.parts.update(parts)

    async def begin_complete(self, part: str, known: Stored) -> None:
        """Store up to when a part is complete before its first fact, if nothing is stored of it: a process that is
        killed in its first seconds leaves a gap, too."""
        if part not in self._complete.parts:
            await self._store_complete({part: known})

    async def note_complete(self, parts: Mapping[str, Stored]) -> None:
        """Store up to when the parts of the source are complete, as soon as everything that was handed in until now is
        committed, and no gap is waiting. Called regularly; at most one record a second is made."""
        await self._settle_done()
        self._store_complete_again()
        if self._gaps:
            return
        changed = self._complete.due(parts, self.taken_total, self.settled_total)
        if changed:
            with suppress(*_REFUSALS):
                self._complete.store(changed, self._store.set_completeness(self.source, changed))

    async def end_recording(self) -> None:
        """Wait until everything handed in is committed. Then store up to when the source is complete by what was noted
        last."""
        await self.drain()
        self._store_complete_again()
        if changed := self._complete.last():
            await self._store_complete(changed)

    def _store_complete_again(self) -> None:
        if failed := self._complete.failed():
            with suppress(*_REFUSALS):
                self._complete.store(failed, self._store.set_completeness(self.source, failed))

    async def _store_complete(self, changed: dict[str, Stored | None]) -> None:
        """Returns when the store has taken it. It is committed with the next fact at the latest, and within a second,
        which is too long to wait for."""
        while True:
            try:
                return self._complete.store(changed, self._store.set_completeness(self.source, changed))
            except _REFUSALS:
                self.refused_total += 1
                await asyncio.sleep(REFUSED_WAIT_S)

    async def append_fact(self, message: Message) -> None:
        """Append an operational fact. Returns when it is committed. Waits while the store refuses."""
        await self._retry_while_refused(lambda: self._store.append_message(OPERATIONAL_STREAM, message))

    async def committed(self) -> None:
        """Wait until everything that is handed in now is committed or given up. For a task other than the one that
        records."""
        before = list(self._flights)
        while before := [flight for flight in before if flight in self._flights and not flight.is_committed]:  # noqa: ASYNC110
            await asyncio.sleep(REFUSED_WAIT_S)  # the recording task may have to append them again

    async def drain(self) -> None:
        """Wait until everything handed in is committed, gaps included."""
        self.release()
        await self._settle_while(lambda: bool(self._flights))

    async def _launch(self) -> None:
        """Append what has no future yet. Waits while the store refuses."""
        wait_s = REFUSED_WAIT_S
        while not self._append_waiting():
            self.refused_total += 1
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, REFUSED_WAIT_MAX_S)

    def _append_waiting(self) -> bool:
        """Append what has no future yet, the oldest first; False if the store refuses. While it is full, only the
        oldest is tried: if a newer one were stored first, an older value would follow it as the last one."""
        for flight in list(self._flights):
            if flight.is_refused:
                self._take_back()
            if self._is_full and flight is not self._flights[0]:
                return True
            if flight.future is not None:
                continue
            try:
                flight.future = flight.append()
            except _REFUSALS:
                return False
            except BaseException:
                self._failed(flight)
                raise
        return True

    def _failed(self, flight: _Flight) -> None:
        """Count a failure other than a refusal. Samples that fail FAILURES_MAX times are given up and recorded as a
        gap: otherwise they would block all later samples forever."""
        flight.future = None
        flight.failures += 1
        if flight.failures < FAILURES_MAX:
            return
        self._flights.remove(flight)
        self.settled_total += 1
        self._in_flight -= flight.weight
        if flight.gap is not None:
            self._gaps.add(flight.gap)
            return
        first_ns, last_ns = min(flight.times_ns), max(flight.times_ns)
        self.add_gap(Gap(self.source, STORE_REJECTED, first_ns, last_ns, flight.count, count_exact=True))

    async def _settle_done(self) -> None:
        while self._flights and self._flights[0].future is not None and self._flights[0].future.done():
            await self._settle_oldest()

    async def _settle_while(self, is_needed: Callable[[], bool]) -> None:
        wait_s = REFUSED_WAIT_S
        while is_needed():
            await self._settle_oldest(wait_s)
            wait_s = min(wait_s * 2, REFUSED_WAIT_MAX_S) if self._is_full else REFUSED_WAIT_S

    async def _settle_oldest(self, refused_wait_s: float = REFUSED_WAIT_S) -> None:
        """Wait for the commit of the oldest samples. If the store refuses them, they are appended again."""
        flight = self._flights[0]
        if flight.future is None:
            await self._launch()
        assert flight.future is not None, "launched above"
        try:
            await _committed(flight.future)
        except _REFUSALS:
            self.refused_total += 1
            self._take_back()
            await asyncio.sleep(refused_wait_s)
            return
        except asyncio.CancelledError:
            raise  # the source is being stopped; the samples stay in flight
        except BaseException:
            self._failed(flight)
            raise
        self._flights.popleft()
        self.settled_total += 1
        self._in_flight -= flight.weight
        self.samples_total += flight.count
        self.last_value_unix_ms = max(self.last_value_unix_ms, flight.value_ns // 1_000_000)
        if self._is_full:
            self._is_full = False
            await self._launch()

    def _take_back(self) -> None:
        """The store is full. All that it has refused is to be appended again."""
        self._is_full = True
        for flight in self._flights:
            if flight.is_refused:
                flight.future = None

    async def _retry_while_refused(self, ask: Callable[[], Future[ResultT]]) -> ResultT:
        wait_s = REFUSED_WAIT_S
        while True:
            try:
                return await _committed(ask())
            except _REFUSALS:
                self.refused_total += 1
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, REFUSED_WAIT_MAX_S)


def _last_value_ns(columns: SampleColumns) -> int:
    """The time of the newest sample that is not bad, 0 if all are."""
    if not is_bad(max(columns.qualities)):
        return columns.source_times_ns[-1]
    pairs = zip(columns.source_times_ns, columns.qualities, strict=True)
    return max((time_ns for time_ns, status in pairs if not is_bad(status)), default=0)


async def _committed(future: Future[ResultT]) -> ResultT:
    """The result of an append. Shielded: cancelling the wait does not cancel the append."""
    if future.done():  # saves a turn of the loop and its wake-up from another thread
        return future.result()
    return await asyncio.shield(asyncio.wrap_future(future))
