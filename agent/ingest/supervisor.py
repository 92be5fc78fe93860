"""Supervises all sources separately: the failure of one does not affect the others.

A source runs, is lost, waits and is rebuilt; `lifecycle` decides how long it waits. The loss is logged once for each
reason, and the return once, when a value has arrived. When a source is lost, each of its tags is recorded once as bad,
with the time up to which the source was complete. When it returns, a gap fact declares the time from then on
(`completeness`), unless the source has missed nothing. The time without a process is such a gap too.

A source whose tag file was never good waits for it. The store numbers a new tag map (`offer`) while the source runs.
Then it is offered to the source, which takes it over between two polls or deliveries, or at its next connection. No
connection is closed for it.

This module has the only broad except of the project: any exception of a driver ends one life of one source and is
counted. An AssertionError is a bug of ours and passes through, so that the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from agent.concurrency import TaskGroup, end_if_cancelled, timeout
from agent.file_watch import PATIENT, WatchTimes
from agent.ingest import quality
from agent.ingest.clock import Span
from agent.ingest.completeness import Moment, Stored
from agent.ingest.delivery import Delivery, Standby, record_removed
from agent.ingest.errors import NoHistory, NotConnected, Problem, SourceBusy, UnknownSource
from agent.ingest.gap import AGENT_STOPPED, CLOCK_SET_BACK, EVENTS_PART, LEADER_CHANGED, SOURCE_LOST
from agent.ingest.lifecycle import (
    Backoff,
    Event,
    Failures,
    Newest,
    Outage,
    State,
    next_state,
)
from agent.ingest.ports import FindRemoved, StoredFacts, StorePort
from agent.ingest.probe_result import TagReading
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import Tally
from agent.ingest.tags.tag_map import TagMap
from agent.ingest.tags.watch import KeepFiles, TagWatch
from agent.settings.sources import ModbusSourceSettings, SourceSettings

if TYPE_CHECKING:
    from agent.ingest.modbus.line import Endpoints
    from agent.ingest.modbus.source import ModbusSource
    from agent.ingest.opcua.poll_source import OpcuaPollSource
    from agent.ingest.opcua.source import OpcuaSource

    Source: TypeAlias = OpcuaSource | OpcuaPollSource | ModbusSource

log = logging.getLogger(__name__)

DRAIN_S = 10.0  # at a stop, for uncommitted facts; systemd waits longer
BUSY_WAIT_S = 5.0  # longest wait for a server without room: a dead session may end there at any moment
CONNECTED_STATES = (State.CONNECTED, State.STANDBY)
VALUE_WAIT_S = 5.0  # for the first good value of a source that is up, before its gap is declared without one
NUMBERING_RETRY_S = 10.0  # after the store failed to number a new tag map; the recorder retries refusals


@dataclass(frozen=True, slots=True)
class EventStatistics:
    """The events of a source since the start of the process. A time of 0: none yet."""

    events_total: int
    lost_total: int  # received and not stored; a fact records each loss
    last_event_unix_ms: int
    conditions_retained: int


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """The counters and state of a source since the start of the process. Times of 0: never."""

    name: str
    kind: str
    state: State
    tags: int
    tags_bad: int  # the last sample is bad
    tags_silent: int  # no sample since the start of the process
    values_total: int
    backfilled_total: int  # read from the source's history after a gap
    gaps_open: int  # known and not yet filled from history
    dropped_total: int
    duplicates_total: int
    out_of_order_total: int
    polls_missed_total: int
    polls_late_total: int
    store_refused_total: int
    last_value_unix_ms: int
    clock_ahead_s: float | None  # the clock of the source, of ours; None if it has none, or has not been read
    service_level: int | None  # of an OPC UA server, 0 to 255; None if it was not read
    connects_total: int
    errors_total: int
    last_error: str
    remarks: str  # what was learned about the device; empty if it needs no attention
    tags_problem: str  # why the present tag file is not in force; empty if it is
    events: EventStatistics | None  # None if none are configured
    turns_total: int  # grows whenever anything is done for this source, failures included: proof of work

    @property
    def connected(self) -> bool:
        return self.state in CONNECTED_STATES


def make_source(
    settings: SourceSettings,
    delivery: Delivery,
    stored: StoredFacts | None,
    endpoints: Callable[[], Endpoints] | None,
) -> Source:
    """A source. Without `stored` no gap is filled from history. `endpoints` gives what Modbus sources share; None: this
    one has its own. The adapter is imported here, because asyncua takes half a second and 25 MB, which a node without
    an OPC UA source does not need."""
    if isinstance(settings, ModbusSourceSettings):
        from agent.ingest.modbus.line import Endpoints
        from agent.ingest.modbus.source import ModbusSource

        return ModbusSource(settings, (endpoints or Endpoints)(), delivery)
    from agent.ingest.opcua import session
    from agent.ingest.opcua.events import EVENTS_LOST, EventCollector
    from agent.ingest.opcua.history import HistoryBackfill
    from agent.ingest.opcua.poll_source import OpcuaPollSource
    from agent.ingest.opcua.source import OpcuaSource

    session.quiet_library()
    rate, recorder, backfill = settings.history_values_per_s_max, delivery.recorder, None
    if stored is not None and rate:
        backfill = HistoryBackfill(delivery, recorder.for_another_task(), stored, rate)
    if settings.mode == "poll":
        return OpcuaPollSource(settings, delivery, backfill)
    events = EventCollector(settings, recorder.for_another_task(EVENTS_LOST)) if settings.events else None
    return OpcuaSource(settings, delivery, backfill, events)


def _undelivered_ns(settings: SourceSettings) -> int:
    """How old a value may be that a gateway which ends has not received."""
    if isinstance(settings, ModbusSourceSettings) or settings.mode == "poll":
        return 0
    return (settings.sampling_interval_ms + 2 * settings.publishing_interval_ms) * 1_000_000


@dataclass(frozen=True, slots=True)
class EarlierLead:
    """Another gateway of the zone may have recorded until now. `complete_ns`: up to when all that it recorded is here,
    or declared missing, on our clock; None: not known."""

    complete_ns: int | None = None


@dataclass(slots=True)
class _Search:
    """One search in a stream: the tags that are asked for, and what was found."""

    numbers: set[int] = field(default_factory=set)
    found: Mapping[int, Newest] | None = None


class JointSearch:
    """Searches the newest samples of several sources together. All of them begin at the same time when a gateway takes
    over, and each search reads the same end of a stream."""

    def __init__(self, stored: StoredFacts) -> None:
        self._stored = stored
        self._next: dict[str, _Search] = {}  # by stream: that of the sources which wait for the present one
        self._searching = asyncio.Lock()

    async def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:
        """The newest sample of each of these tags that has one."""
        search = self._next.setdefault(stream, _Search())
        search.numbers.update(numbers)
        async with self._searching:
            if self._next.get(stream) is search:
                del self._next[stream]
            if search.found is None:  # or the source that searched has ended
                search.found = await asyncio.to_thread(self._stored.newest_samples, stream, search.numbers)
        return {number: search.found[number] for number in numbers if number in search.found}


class SourceSupervisor:
    """Runs one source: starts it, waits for its end, and starts it again."""

    def __init__(
        self,
        settings: SourceSettings,
        tags: TagMap,
        recorder: Recorder,
        stored: StoredFacts | None = None,
        endpoints: Callable[[], Endpoints] | None = None,
        search: JointSearch | None = None,
    ) -> None:
        """`search`: in `stored`, joint with other sources."""
        self.settings = settings
        self._tags, self._recorder, self._stored = tags, recorder, stored
        self._search = search
        self._standby = Standby(self._became_warm, self._continue)
        self._delivery = Delivery(settings.name, (), (), recorder, self._standby, self._end_wait)
        self._source = make_source(settings, self._delivery, stored, endpoints)
        self._state = State.IDLE
        self._failures = Failures()
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._outage: Outage | None = None  # from a loss to the first value after it
        self._earlier_lead: EarlierLead | None = None  # None: this gateway records alone
        self._up_s = 0.0  # since when it is connected
        self._gap_place: int | None = None  # of what declares the time before its first value, among what is recorded
        self._retry = asyncio.Event()
        self._connects_total = self._errors_total = 0
        self._last_error = ""
        self._offered = asyncio.Event()
        self._has_numbers = asyncio.Event()  # the delivery was offered a map
        if tags.tags:
            self._offered.set()
        self.file_problems: tuple[Problem, ...] = ()  # of the tag file on disk, which is not in force
        self._numbering_problem = ""

    @property
    def kind(self) -> str:
        """The protocol of its source."""
        return "modbus" if isinstance(self.settings, ModbusSourceSettings) else "opcua"

    @property
    def tags(self) -> TagMap:
        """The tag map in force, or offered."""
        return self._tags

    def start(self, group: TaskGroup) -> None:
        """Run in `group`; once."""
        assert self._running is None, "a supervisor runs once"
        self._running = group.create_permanent(self.run(), name=f"supervise {self.settings.name}", until=self._stop)

    def stop(self) -> asyncio.Task[None]:
        """Begin to stop the source. The returned task is done when everything it held is committed."""
        assert self._running is not None, "it was started"
        self._stop.set()
        return self._running

    async def run(self) -> None:
        """Run the source until `stop`. Then deliver what it still holds and wait for the commit."""
        async with TaskGroup() as group:
            start = partial(group.create_permanent, until=self._stop)
            lives = start(self._live(), name=f"source {self.settings.name}")
            numbering = start(self._number_offers(), name=f"tags of {self.settings.name}")
            await self._stop.wait()
            numbering.cancel()
            lives.cancel()
        was_away = self._state is State.WAITING
        self._become(Event.STOP)
        try:
            async with timeout(DRAIN_S):
                if self._standby.is_over:
                    await self._source.finish()
                    if not was_away and self._end_outage():
                        await self._source.finish()  # it is complete up to a later time now
                    if self._outage is None and self._source.complete is not None:
                        # The next process does not know how the clock was set just before.
                        _, *before = self._source.clock.spans(self._source.complete, self._source.clock.now())
                        self._declare_as_it_was(before)
                    if self._source.events is not None:
                        await self._source.events.end_recording()
                await self._recorder.end_recording()
        except TimeoutError:
            extra = {"action": "source_not_drained", "source": self.settings.name}
            log.warning("the store took too long to accept the last samples", extra=extra)

    def offer(self, tags: TagMap) -> None:
        """Read these tags from now on."""
        self._tags = tags
        self._offered.set()

    def begin_recording(self, earlier_lead: EarlierLead | None) -> None:
        """Record from now on. None: this gateway records alone."""
        if not self._standby.has_begun:
            self._earlier_lead = earlier_lead
            self._standby.begin_recording()
            self._failures.forget()
            self._retry.set()

    @property
    def is_recording(self) -> bool:
        """Whether it records, or will as soon as it can."""
        return self._standby.has_begun

    @property
    def is_gap_stored(self) -> bool:
        """Whether what was missing before it began to record, and since, is stored as a gap or as bad samples."""
        place, recorder = self._gap_place, self._recorder
        is_stored = place is not None and recorder.settled_total >= place and recorder.are_gaps_stored
        return is_stored or not self._tags.tags

    @property
    def is_connected(self) -> bool:
        """Whether it is connected, or warm where it stands by."""
        return self._state in CONNECTED_STATES

    def note_file_problems(self, problems: Sequence[Problem]) -> None:
        """Note the problems of the tag file on disk; an empty sequence clears them."""
        self.file_problems = tuple(problems)

    def retry(self) -> State:
        """Connect now instead of waiting. A connected source asks again for what its device refused. Returns the state
        before the call."""
        self._failures.forget()
        self._retry.set()
        if self._state is State.CONNECTED:
            self._source.retry()
        return self._state

    def backfill(self, first_ns: int, last_ns: int) -> int:
        """Queue a time for filling from history. Returns the number of open gaps. Raises NoHistory."""
        if self.kind != "opcua":
            raise NoHistory(f"{self.settings.name} is a Modbus device, which keeps no history")
        backfill = self._source.backfill
        if backfill is None:
            raise NoHistory(f"history of {self.settings.name} is not read: history_values_per_s_max is 0")
        backfill.request(first_ns, last_ns)
        return backfill.gaps_open

    async def read_tags(self, names: Collection[str]) -> list[TagReading]:
        """Read the tags with these names over the open connection, without recording them. Raises NotConnected and
        SourceLost."""
        read_tags = self._source.read_tags
        if read_tags is None or self._state is not State.CONNECTED:
            raise NotConnected(f"{self.settings.name} is {self._state.value}: {self._last_error or 'no value yet'}")
        return await read_tags([tag for tag in self._tags.tags if tag.name in names])

    def statistics(self) -> SourceStatistics:
        counts, ahead_ns = self._delivery.sampler.counts, self._source.clock.ahead_ns
        backfill, events = self._source.backfill, self._source.events
        tally = self._delivery.sampler.tally() if self._delivery.tags else Tally(0, len(self._tags.tags))
        if self._state is State.STANDBY:
            tally = Tally(0, 0)  # none is expected to have a value here
        return SourceStatistics(
            name=self.settings.name,
            kind=self.kind,
            state=self._state,
            tags=len(self._tags.tags),
            tags_bad=tally.bad,
            tags_silent=tally.silent,
            values_total=self._recorder.samples_total,
            backfilled_total=backfill.values_total if backfill is not None else 0,
            gaps_open=backfill.gaps_open if backfill is not None else 0,
            dropped_total=self._recorder.lost_total,
            duplicates_total=counts.duplicates,
            out_of_order_total=counts.out_of_order,
            polls_missed_total=self._source.polls_missed_total,
            polls_late_total=self._source.polls_late_total,
            store_refused_total=self._recorder.refused_total,
            last_value_unix_ms=self._recorder.last_value_unix_ms,
            clock_ahead_s=None if ahead_ns is None else ahead_ns / 1e9,
            service_level=self._source.service_level,
            connects_total=self._connects_total,
            errors_total=self._errors_total,
            last_error=self._last_error,
            remarks=self._source.remarks,
            tags_problem=_summary(self.file_problems) or self._numbering_problem,
            events=EventStatistics(*events.statistics()) if events is not None else None,
            turns_total=self._errors_total + self._recorder.refused_total + self._delivery.turns_total,
        )

    async def _live(self) -> None:
        """Run the source again and again, with pauses in between."""
        await self._has_numbers.wait()  # a tag file without tags is not good
        backoff = Backoff(self.settings.reconnect_delay_ms, self.settings.reconnect_delay_max_ms)
        while True:
            self._become(Event.START)
            self._failures.begin_life()
            error = await self._error_of(self._one_life())
            assert error is not None, "a life ends only by an exception"
            self._become(Event.DOWN)
            self._retry.clear()
            outage = self._outage = self._outage or Outage()
            self._log_loss(outage, error)
            await self._error_of(self._finish_life(outage))
            failures = self._failures.end_life(self._source.alive_s)
            wait_s = backoff.wait_ms(failures, random.random()) / 1000  # noqa: S311 jitter
            await self._pause(min(wait_s, BUSY_WAIT_S) if isinstance(_innermost(error), SourceBusy) else wait_s)

    async def _pause(self, wait_s: float) -> None:
        """Wait before the next connection attempt, or until `retry`."""
        try:
            async with timeout(wait_s):
                await self._retry.wait()
        except TimeoutError:
            pass

    async def _error_of(self, part: Awaitable[None]) -> Exception | None:
        """Await a part of a life and count its error. Returns the error, or None."""
        try:
            await part
        except Exception as error:
            end_if_cancelled()
            if isinstance(error, AssertionError):
                raise
            if isinstance(error, ExceptionGroup) and error.subgroup(AssertionError) is not None:
                raise
            self._errors_total += 1
            self._last_error = _text(error)
            return error
        end_if_cancelled()
        return None

    async def _one_life(self) -> None:
        self._delivery.expect_value(self._got_value)
        if self._standby.has_begun:
            await self._standby.end_standby()
        await self._source.run(self._came_up)

    async def _continue(self) -> None:
        """Before anything is recorded: continue where an earlier process of this node ended, or another gateway, if
        that recorded later. The time since then is an outage."""
        source, delivery, parts, stored = self._source, self._delivery, dict[str, Stored](), list[Newest]()
        if not delivery.tags:
            delivery.take_over_map(source.clock.now_ns())
        if self._stored is not None and self._search is not None:
            parts |= await asyncio.to_thread(self._stored.completeness, self.settings.name)
            for stream, numbers in delivery.numbers_by_stream().items():
                newest = await self._search.newest_samples(stream, numbers)
                delivery.seed(newest)
                stored += newest.values()
            self._recorder.note_stored(max((known.good_ns for known in stored), default=0))
        if self._earlier_lead is not None:
            delivery.sampler.doubt_seeded()
        own, reason = {part: known for part, known in parts.items() if part != EVENTS_PART}, AGENT_STOPPED
        led = self._led(parts.get(""), stored)
        if led is not None:
            parts, reason = {"": led}, LEADER_CHANGED
            own.pop("", None)  # so that `led` replaces it in the store
        self._recorder.continue_from(own)
        if led is not None:
            await self._recorder.begin_complete("", led)
        source.continue_from(parts, reason)
        self._outage, delivery.has_outage = None, "" in parts
        if "" in parts:
            self._outage = Outage(Moment(parts[""].complete_ns, source.clock.set_back_ns), reason)
            self._hold()
        else:
            self._note_gap()

    def _led(self, own: Stored | None, stored: Sequence[Newest]) -> Stored | None:
        """Up to when all that another gateway recorded is here, on the clock of the source; None if this one recorded
        later, or none did. `stored`: the newest samples. A gateway that had lost the source has recorded until then. Of
        one that failed while this one was new, only its samples tell."""
        if self._earlier_lead is None:
            return None
        newest_ns = max((newest.good_ns for newest in stored), default=0)
        ahead_ns = self._source.clock.ahead_ns
        if ahead_ns is None and own is not None:
            ahead_ns = own.ahead_ns
        if self._earlier_lead.complete_ns is not None:
            led_ns = self._earlier_lead.complete_ns + (ahead_ns or 0)
            if stored and all(newest.sample.quality == quality.BAD_COMMUNICATION_ERROR for newest in stored):
                led_ns = min([led_ns, *(newest.sample.source_time_ns for newest in stored)])
        elif newest_ns and own is None:
            led_ns = min(newest_ns, time.time_ns() + (ahead_ns or 0))
        else:
            return None
        led = Stored(led_ns - _undelivered_ns(self.settings), ahead_ns)
        return led if own is None or own.complete_ns < led.complete_ns else None

    async def _number_offers(self) -> None:
        """Number new tag maps at the store and offer them to the source."""
        while True:
            await self._offered.wait()
            self._offered.clear()
            error = await self._error_of(self._number_offer())
            self._numbering_problem = "" if error is None else f"the store does not number the tags: {_text(error)}"
            if error is not None:
                await asyncio.sleep(NUMBERING_RETRY_S)
                self._offered.set()

    async def _number_offer(self) -> None:
        offered = self._tags
        numbers = await self._recorder.define([tag.definition for tag in offered.tags])
        if offered is self._tags:  # otherwise a newer one was offered meanwhile
            self._delivery.offer_map(offered.tags, numbers)
            self._has_numbers.set()

    async def _finish_life(self, outage: Outage) -> None:
        """Deliver the remaining samples of a life. Then record that no tag has a value since the source was
        complete."""
        source, delivery = self._source, self._delivery
        if delivery.is_standby:
            return
        await source.finish()
        if self._earlier_lead is not None and self._gap_place is None and self._end_outage():
            outage = self._outage = Outage()  # of its own: the values that came are stored after the gap
        delivery.has_outage = True
        if outage.since is None:  # not before `finish`, because it delivers signs of life
            outage.since = source.complete
        now = source.clock.now()
        since_ns = None if outage.since is None else outage.since.on(now)
        await delivery.lose(quality.BAD_COMMUNICATION_ERROR, now.time_ns, since_ns=since_ns)
        self._note_gap()
        await self._recorder.settle()
        self._hold()

    def _hold(self) -> None:
        """In an outage, until the source is up and its gap is known. If this gateway dies meanwhile, the other one
        takes a good value for the end of the outage."""
        if self._earlier_lead is not None:
            self._recorder.hold()

    def _note_gap(self) -> None:
        """Everything that was missing before the first value is declared now."""
        self._recorder.release()
        if self._gap_place is None:
            self._gap_place = self._recorder.taken_total

    def _became_warm(self) -> None:
        """Called again and again while the source stands by."""
        if self._state is State.STANDBY:
            return
        self._become(Event.WARM)
        self._connects_total += 1
        self._failures.note_value(time.monotonic())
        self._outage = None
        log.info("source stands by", extra={"action": "source_stands_by", "source": self.settings.name})

    def _came_up(self) -> None:
        self._connects_total += self._state is not State.STANDBY
        self._up_s = time.monotonic()
        self._become(Event.UP)
        if self._outage is None or self._outage.reason != SOURCE_LOST:
            log.info("source connected", extra={"action": "source_connected", "source": self.settings.name})
        if self._outage is None:
            self._source.take_missed()  # there was nothing before
        elif not self._delivery.is_value_expected:
            self._returned(self._outage)
        self._recorder.release()

    def _end_outage(self) -> bool:
        """End an outage in which values have come, although the source has not returned: no fact would name what is
        missing before them. True if there was one."""
        if self._outage is None or self._delivery.is_value_expected:
            return False
        self._returned(self._outage)
        return True

    def _got_value(self, _: int) -> None:
        """Called for the first good value of this life. The source may still be building other subscriptions."""
        self._failures.note_value(time.monotonic())
        if self._outage is not None and self._state is State.CONNECTED:
            self._returned(self._outage)

    def _end_wait(self) -> None:
        """Called again and again while the source runs. One that is up and has no good value, for example because the
        device refuses all registers, would keep the other gateway from believing that the gaps of all are stored."""
        is_late = self._state is State.CONNECTED and time.monotonic() - self._up_s >= VALUE_WAIT_S
        if is_late and self._earlier_lead is not None and self._gap_place is None and self._outage is not None:
            self._returned(self._outage)

    def _returned(self, outage: Outage) -> None:
        """End the outage: the source is connected, and a value has arrived or is not waited for any longer."""
        source, delivery = self._source, self._delivery
        self._outage, delivery.has_outage = None, False
        if outage.reason == SOURCE_LOST:
            log.info("source returned", extra={"action": "source_returned", "source": self.settings.name})
        if source.take_missed() and outage.since is not None:
            span, *before = source.clock.spans(outage.since, source.clock.now())
            delivery.add_gap(outage.reason, *span, 0, delivery.points, exact=False)
            self._declare_as_it_was(before)
        self._note_gap()

    def _declare_as_it_was(self, spans: Sequence[tuple[int, int]]) -> None:
        """Declare a gap in the times of the clock as it was before it was set."""
        for span in spans:
            self._delivery.add_gap(CLOCK_SET_BACK, *span, 0, self._delivery.points, exact=False)

    def _log_loss(self, outage: Outage, error: Exception) -> None:
        """Log each reason of an outage once."""
        why = _text(error)
        if outage.is_new_reason(why):
            log.warning("source lost", extra={"action": "source_lost", "source": self.settings.name, "why": why})

    def _become(self, event: Event) -> None:
        self._state = next_state(self._state, event)


class Ingest:
    """All sources of a node."""

    def __init__(
        self,
        zone: str,
        sources: Sequence[SourceSettings],
        tag_maps: Mapping[str, TagMap],
        store: StorePort,
        operational_stream: str = "facts.operational",
        watch_times: WatchTimes = PATIENT,
        stored: StoredFacts | None = None,
        find_removed: FindRemoved | None = None,
        problems: Mapping[str, Sequence[Problem]] = MappingProxyType({}),
        keep_files: KeepFiles = lambda _: None,
        doubted: Callable[[], Sequence[Span]] = tuple,
        *,
        is_recording: bool = True,
    ) -> None:
        """`problems` are those of the tag files that are not in force; the map of such a source is an earlier one, or
        empty. `keep_files` is called in a thread with the tag files that come into force. `doubted` gives the times of
        this node's clock that are not believed. `is_recording`: otherwise the sources stand by until
        `begin_recording`."""
        self._recorder_of = partial(
            Recorder, zone=zone, store=store, operational_stream=operational_stream, doubted=doubted
        )
        self._stored, self._watch_times = stored, watch_times
        self._search = None if stored is None else JointSearch(stored)
        self._find_removed, self._keep_files = find_removed, keep_files
        self._is_recording = is_recording
        self._earlier_lead = None if is_recording else EarlierLead()
        self._by_name = dict[str, SourceSupervisor]()
        self._by_name |= {s.name: self._supervisor(s, tag_maps[s.name]) for s in sources}
        for name, found in problems.items():
            self._by_name[name].note_file_problems(found)
        self._notes = [note for found in tag_maps.values() for note in found.notes]
        self._stop = asyncio.Event()
        self._group: TaskGroup | None = None
        self._background: list[asyncio.Task[None]] = []
        self._background_over = asyncio.Event()
        self._changing = asyncio.Lock()  # held while sources are replaced

    async def run(self) -> None:
        """Supervise all sources until `stop`. Returns when everything they delivered is committed."""
        for note in self._notes:
            log.warning("tag file has a note", extra={"action": "tag_file_note", "note": note})
        async with TaskGroup() as group:
            self._group = group
            for supervisor in self._by_name.values():
                supervisor.start(group)
            self._run_background(group)
            await self._stop.wait()
            for supervisor in self._by_name.values():
                supervisor.stop()
            self._end_background()

    def stop(self) -> None:
        """Ask `run` to end: stop the sources, drain, wait for the commit."""
        self._stop.set()

    async def change(self, sources: Sequence[SourceSettings], tag_maps: Mapping[str, TagMap]) -> None:
        """Read these sources from now on. A source with unchanged settings continues undisturbed. Any other stops,
        delivers what it holds, and restarts if it is among `sources`. Call this while `run` runs."""
        assert self._group is not None, "sources are changed while they run"
        async with self._changing:
            kept = {s.name for s in sources if s.name in self._by_name and self._by_name[s.name].settings == s}
            ending = [supervisor.stop() for name, supervisor in self._by_name.items() if name not in kept]
            if ending:
                await asyncio.wait(ending)
            before = self._by_name
            self._by_name = {
                s.name: before[s.name] if s.name in kept else self._supervisor(s, tag_maps[s.name]) for s in sources
            }
            for name, supervisor in self._by_name.items():
                if name not in kept:
                    supervisor.start(self._group)
            self._end_background()
            self._run_background(self._group)

    def begin_recording(self, since_ns: int | None) -> None:
        """Record from now on. `since_ns`: up to when all that another gateway of the zone recorded is here, or declared
        missing, on our clock; each source declares a gap from then on, or from where this node was complete if that is
        later. None: not known."""
        if self._is_recording:
            return
        self._is_recording, self._earlier_lead = True, EarlierLead(since_ns)
        for supervisor in self._by_name.values():
            supervisor.begin_recording(self._earlier_lead)
        if self._group is not None:
            self._record_removed(self._group)

    async def end_recording(self) -> None:
        """Stop recording, and stand by. Returns when everything that arrived is committed. Nothing is recorded as bad
        or missing, because another gateway goes on."""
        self._is_recording = False
        async with self._changing:
            ending = [supervisor for supervisor in self._by_name.values() if supervisor.is_recording]
            if self._group is not None and ending:
                await asyncio.wait([supervisor.stop() for supervisor in ending])
            if self._stop.is_set():
                return
            for before in ending:  # recording may have begun again meanwhile
                name = before.settings.name
                after = self._by_name[name] = self._supervisor(before.settings, before.tags)
                after.note_file_problems(before.file_problems)
                if self._group is not None:
                    after.start(self._group)

    def fitness(self) -> int:
        """How many sources are connected, or warm where they stand by."""
        return sum(supervisor.is_connected for supervisor in self._by_name.values())

    def gaps_stored(self) -> bool:
        """Whether it records, and what each source missed until now is stored."""
        return self._is_recording and all(supervisor.is_gap_stored for supervisor in self._by_name.values())

    def _run_background(self, group: TaskGroup) -> None:
        """Watch the tag files of the sources, and record once the tags that are in none of them any more."""
        self._background, self._background_over = [], asyncio.Event()
        supervisors = list(self._by_name.values())
        maps = {source.settings.name: source.tags for source in supervisors}
        if supervisors:
            settings = [source.settings for source in supervisors]
            problems = {source.settings.name: source.file_problems for source in supervisors if source.file_problems}
            watch = TagWatch(
                settings,
                maps,
                self._offer,
                self._note_file_problems,
                self._watch_times,
                problems=problems,
                keep=self._keep_files,
            )
            watching = group.create_permanent(watch.run(), name="tag files", until=self._background_over)
            self._background.append(watching)
        if self._is_recording:
            self._record_removed(group)

    def _record_removed(self, group: TaskGroup) -> None:
        """Record once the tags that are in none of the tag files any more."""
        maps = self.tag_maps()
        # The tags of a source without a map are not known to be removed.
        if self._find_removed is not None and all(found.tags for found in maps.values()):
            subjects = frozenset(tag.definition.subject for found in maps.values() for tag in found.tags)
            removal = record_removed(self._find_removed, subjects, self._recorder_of("removed-tags"))
            self._background.append(group.create_task(removal, name="removed tags"))

    def _end_background(self) -> None:
        self._background_over.set()
        for task in self._background:
            task.cancel()

    @cached_property
    def _endpoints(self) -> Endpoints:
        """Modbus sources with the same host and port share a line."""
        from agent.ingest.modbus.line import Endpoints

        return Endpoints()

    def _supervisor(self, settings: SourceSettings, tags: TagMap) -> SourceSupervisor:
        recorder = self._recorder_of(settings.name)
        found = SourceSupervisor(settings, tags, recorder, self._stored, lambda: self._endpoints, self._search)
        if self._is_recording:
            is_new = settings.name not in self._by_name
            found.begin_recording(EarlierLead() if is_new and self._earlier_lead else self._earlier_lead)
        return found

    def _offer(self, source: str, tags: TagMap) -> None:
        self._by_name[source].offer(tags)

    def _note_file_problems(self, source: str, problems: Sequence[Problem]) -> None:
        self._by_name[source].note_file_problems(problems)

    def retry(self, source: str) -> str:
        """Make a source connect now. Returns its state before the call. Raises UnknownSource."""
        return self._named(source).retry().value

    async def read_tags(self, source: str, names: Collection[str]) -> list[TagReading]:
        """Read tags over the connection of their source, without recording them. Raises UnknownSource, NotConnected and
        SourceLost."""
        return await self._named(source).read_tags(names)

    def backfill(self, source: str, first_ns: int, last_ns: int) -> int:
        """Fill what is missing between these times from the history of the source's server, when it is connected.
        Returns the number of open gaps. Raises UnknownSource and NoHistory."""
        return self._named(source).backfill(first_ns, last_ns)

    def _named(self, source: str) -> SourceSupervisor:
        if source not in self._by_name:
            names = ", ".join(sorted(self._by_name)) or "none"
            raise UnknownSource(f"no source {source!r}; the sources of this node: {names}")
        return self._by_name[source]

    def tag_maps(self) -> dict[str, TagMap]:
        """The tag maps in force, or offered, by source."""
        return {name: supervisor.tags for name, supervisor in self._by_name.items()}

    def statistics(self) -> tuple[SourceStatistics, ...]:
        return tuple(supervisor.statistics() for supervisor in self._by_name.values())


def _summary(problems: Sequence[Problem]) -> str:
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}" if problems else ""


def _innermost(error: BaseException) -> BaseException:
    """The first error of a group, of groups in it too."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(error: BaseException) -> str:
    """The innermost error of a group, in one line."""
    error = _innermost(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]
