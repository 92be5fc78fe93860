"""Supervises all sources separately: the failure of one does not affect the others.

A source runs, is lost, waits and is rebuilt; `lifecycle` decides how long it waits. The loss is logged once for each
reason, and the return once, when a value has arrived. When a source is lost, each of its tags is recorded once as bad,
with the time up to which the source was complete. When it returns, a gap fact declares the time from then on
(`completeness`), unless the source has missed nothing. The time without a process is such a gap too.

A source whose tag file was never good waits for it. The store numbers a new tag map (`offer`) while the source runs.
Then it is offered to the source, which takes it over between two polls or deliveries; one that waits connects at once.
No connection is closed for it.

This module has the only broad except of the project: any exception of a driver ends one life of one source and is
counted. An AssertionError is a bug of ours and passes through, so that the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agent.concurrency import TaskGroup, end_if_cancelled, timeout
from agent.ingest.completeness import Stored
from agent.ingest.delivery import Delivery, Standby
from agent.ingest.errors import NoHistory, NotConnected, SourceBusy, TagFileProblem
from agent.ingest.gap import BELIEVED_PART, EVENTS_PART
from agent.ingest.lifecycle import Backoff, Failures, Newest, SourceEvent, State, next_state
from agent.ingest.ports import StoredFacts
from agent.ingest.probe_result import TagReading
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import Tally
from agent.ingest.supervision.joint_search import JointSearch
from agent.ingest.supervision.lead_change import EarlierLead, led_until, undelivered_ns
from agent.ingest.supervision.outages import Outages
from agent.ingest.supervision.source_making import make_source
from agent.ingest.supervision.statistics import CONNECTED_STATES, EventStatistics, SourceStatistics
from agent.ingest.tags.tag_map import TagMap
from agent.settings.sources import ModbusSourceSettings, SourceSettings

if TYPE_CHECKING:
    from agent.ingest.modbus.line import Endpoints

log = logging.getLogger(__name__)

DRAIN_S = 10.0  # at a stop, for uncommitted facts; systemd waits longer
BUSY_WAIT_S = 5.0  # longest wait for a server without room: a dead session may end there at any moment
NUMBERING_RETRY_S = 10.0  # after the store failed to number a new tag map; the recorder retries refusals


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
        self._delivery = Delivery(settings.name, (), (), recorder, self._standby, self._end_wait, self._note_removed)
        self._source = make_source(settings, self._delivery, stored, endpoints)
        self._outages = Outages(settings.name, self._source, self._delivery, recorder)
        self._state = State.IDLE
        self._failures = Failures()
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._retry = asyncio.Event()
        self._connects_total = self._errors_total = 0
        self._last_error = ""
        self._offered = asyncio.Event()
        self._has_numbers = asyncio.Event()  # the delivery was offered a map
        if tags.tags:
            self._offered.set()
        self.file_problems: tuple[TagFileProblem, ...] = ()  # of the tag file on disk, which is not in force
        self._numbering_problem = ""

    @property
    def kind(self) -> str:
        """The protocol of its source."""
        return "modbus" if isinstance(self.settings, ModbusSourceSettings) else "opcua"

    @property
    def tags(self) -> TagMap:
        """The tag map in force, or offered."""
        return self._tags

    @property
    def has_map(self) -> bool:
        """Whether the source has taken over a map."""
        return bool(self._delivery.tags)

    @property
    def subjects(self) -> frozenset[str]:
        """Of the tags that are read until an offered map is taken over."""
        return frozenset(tag.definition.subject for tag in self._delivery.tags.values())

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
        self._become(SourceEvent.STOP)
        self._outages.go_down()
        try:
            async with timeout(DRAIN_S):
                if self._standby.is_over:
                    await self._source.finish()
                    if not was_away and self._outages.end():
                        await self._source.finish()  # it is complete up to a later time now
                    self._outages.declare_clock_sets()
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
            self._outages.earlier_lead = earlier_lead
            self._standby.begin_recording()
            self._failures.forget()
            self._retry.set()

    @property
    def is_recording(self) -> bool:
        """Whether it records, or will as soon as it can."""
        return self._standby.has_begun

    @property
    def is_gap_stored(self) -> bool:
        """Whether what was missing before it began to record, and since, is stored as a gap or as bad samples. A source
        without tags misses nothing."""
        return self._outages.is_gap_stored or not self._tags.tags

    @property
    def is_connected(self) -> bool:
        """Whether it is connected, or warm where it stands by."""
        return self._state in CONNECTED_STATES

    def note_file_problems(self, problems: Sequence[TagFileProblem]) -> None:
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
            polls_total=self._source.polls_total,
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
            self._become(SourceEvent.START)
            self._failures.begin_life()
            error = await self._error_of(self._one_life())
            assert error is not None, "a life ends only by an exception"
            self._become(SourceEvent.DOWN)
            self._retry.clear()
            self._outages.lose(_text(error))
            await self._error_of(self._outages.finish_life())
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

    def _came_up(self) -> None:
        self._connects_total += self._state is not State.STANDBY
        self._become(SourceEvent.UP)
        self._outages.came_up()

    def _got_value(self, _: int) -> None:
        """Called for the first good value of this life."""
        self._failures.note_value(time.monotonic())
        self._outages.got_value()

    def _end_wait(self) -> None:
        self._outages.end_wait()

    def _note_removed(self, tags: Sequence[int]) -> None:
        self._outages.note_removed(tags)

    def _became_warm(self) -> None:
        """Called again and again while the source stands by."""
        if self._state is State.STANDBY:
            return
        self._become(SourceEvent.WARM)
        self._connects_total += 1
        self._failures.note_value(time.monotonic())
        self._outages.stand_by()
        log.info("source stands by", extra={"action": "source_stands_by", "source": self.settings.name})

    async def _continue(self) -> None:
        """Before anything is recorded: continue where an earlier process of this node ended, or another gateway, if
        that recorded later. The time since then is an outage."""
        source, delivery, parts, stored = self._source, self._delivery, dict[str, Stored](), list[Newest]()
        is_renamed = False
        if self._stored is not None and self._search is not None:
            parts |= await asyncio.to_thread(self._stored.completeness, self.settings.name)
            if is_renamed := not parts:
                parts |= await asyncio.to_thread(self._stored.completeness_of_others, self.settings.name, self.subjects)
            for stream, numbers in delivery.numbers_by_stream().items():
                newest = await self._search.newest_samples(stream, numbers)
                delivery.seed(newest)
                stored += newest.values()
            self._recorder.note_stored(max((known.good_ns for known in stored), default=0))
        own, led = {part: known for part, known in parts.items() if part != EVENTS_PART}, None
        if (lead := self._outages.earlier_lead) is not None:
            delivery.sampler.doubt_seeded()
            led = led_until(
                lead,
                own.get(BELIEVED_PART, own.get("")),
                stored,
                ahead_ns=source.clock.ahead_ns,
                undelivered_ns=undelivered_ns(self.settings),
                now_ns=time.time_ns(),
            )
        if led is not None:
            own.pop("", None)  # so that `led` replaces it in the store
        self._recorder.continue_from({} if is_renamed else own)
        if led is not None:
            await self._recorder.begin_complete("", led)
        for part, known in own.items() if is_renamed else ():
            await self._recorder.begin_complete(part, known)
        self._outages.begin(parts, led)

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
        is_first = not self._has_numbers.is_set()
        if offered is self._tags or is_first:  # otherwise a newer one was offered meanwhile
            self._delivery.offer_map(offered.tags, numbers)
            self._has_numbers.set()
            self._retry.set()  # a source that waits takes it over: what a removed tag has missed is declared
        if is_first:  # before a newer one replaces it: what the tags that end with it have missed is declared
            self._delivery.take_over_map(self._source.clock.now_ns())

    def _become(self, event: SourceEvent) -> None:
        self._state = next_state(self._state, event)


def _summary(problems: Sequence[TagFileProblem]) -> str:
    others = sum(problem.more or 1 for problem in problems[1:])
    return f"{problems[0]}{f' (and {others} more)' if others else ''}" if problems else ""


def _innermost(error: BaseException) -> BaseException:
    """The first error of a group, of groups in it too."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _text(error: BaseException) -> str:
    """The innermost error of a group, in one line."""
    error = _innermost(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]
