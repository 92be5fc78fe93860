"""An OPC UA source that is polled: for servers whose subscriptions do not work.

All values are read at fixed intervals, in calls that the server accepts. A value with the time of the previous one is
not delivered again; one that cannot be read is tried again after `parked_retry_ms`. Missed polls are not made up. If
they were missed because the store refused samples, or if several were missed because the server was slow, a gap fact is
recorded. An answer to a Read proves life. A request that is not answered within `request_timeout_ms` ends the life.

A change that is undone between two polls is not seen, so subscriptions are preferable where they work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup
from agent.ingest import quality
from agent.ingest.completeness import Moment, Stored
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import POLLS_MISSED, STORE_REFUSED
from agent.ingest.opcua.decode import DataChange, DecodeError
from agent.ingest.opcua.history import HistoryBackfill
from agent.ingest.opcua.security.client import SessionKey
from agent.ingest.opcua.session import CallTooLarge, Ending, OpcuaSession, open_session, read_in_parts
from agent.ingest.opcua.subscriptions.subscription import log_parked
from agent.ingest.source_clock import SourceClock, boot_ns
from agent.message import Sample
from agent.settings.sources import OpcuaSourceSettings

MS = 1_000_000  # nanoseconds
_UNREADABLE = {quality.BAD_ENCODING_LIMITS_EXCEEDED, quality.BAD_DECODING_ERROR}
STANDBY_READ_S = 5.0  # between two readings of the clock, which show that the server is there
MISSED_MIN = 2  # missed polls in a row that become a gap; a single one is only counted


class OpcuaPollSource:
    """One server that is polled. The object exists across connections."""

    def __init__(
        self, settings: OpcuaSourceSettings, delivery: Delivery, backfill: HistoryBackfill | None = None
    ) -> None:
        self._settings, self._delivery = settings, delivery
        self.backfill, self.events = backfill, None
        self.read_tags = None  # a command can open a second session
        self.remarks, self.service_level = "", None
        self.clock = SourceClock(doubted=delivery.recorder.doubted)
        if backfill is not None:
            backfill.now_ns = self.clock.now_ns
            delivery.on_gap(backfill.note_gap)
        self._key: SessionKey | None = None  # of the last session
        self._started: object = None  # StartTime of its server
        self._bad: dict[int, int] = {}  # tags without a value in the last poll, with the status
        self._unread: set[int] = set()  # tags whose value could not be read even alone
        self._retry_s = 0.0  # when they are read again
        self._size = settings.items_per_call_max  # nodes in a call
        self.alive_s = 0.0
        self.complete: Moment | None = None
        self.polls_total = self.polls_missed_total = self.polls_late_total = 0

    def continue_from(self, stored: Mapping[str, Stored], _: str) -> None:
        """Compare the server's clock with what an earlier process saw."""
        if "" in stored:
            self.clock.continue_from(stored[""])

    def take_missed(self) -> bool:
        """Values are always missing, because nothing is subscribed."""
        return True

    def retry(self) -> None:
        """Read everything in the next poll."""
        self._retry_s = 0.0

    async def finish(self) -> None:
        """Take over a new tag map. There is nothing to deliver, because values are delivered when they are read."""
        await self._take_over_map()

    async def run(self, on_up: Callable[[], None]) -> None:
        """One life: connect, poll until something breaks. Ends only by an exception. The session of the last one is
        used again if it is still there, so that it does not occupy the server."""
        async with open_session(self._settings, key=self._key) as session:
            started, before = await session.server_start(), self._started
            self._key, self._started = None, started
            if session.is_reactivated and started != before:
                session.library.ending = Ending.KEEP  # it is not ours
                raise SourceLost(f"{self._settings.url} was restarted, and has another session under this token")
            try:
                async with TaskGroup() as group:
                    await self._live(session, group, on_up)
            finally:
                if started is not None and session.library.ending is Ending.CLOSE:
                    session.library.ending, self._key = Ending.KEEP, session.key

    async def _live(self, session: OpcuaSession, group: TaskGroup, on_up: Callable[[], None]) -> None:
        limits = await session.limits()
        self._size = min(self._settings.items_per_call_max, limits.nodes_per_read or self._size)
        group.create_permanent(self._poll(session, group, on_up), name=f"{self._settings.name} poll")
        raise await session.lost

    async def _take_over_map(self) -> None:
        if self._delivery.take_over_map(self.clock.now_ns()):
            self._bad = {tag: status for tag, status in self._bad.items() if tag in self._delivery.points}
            await self._delivery.recorder.settle()

    async def _poll(self, session: OpcuaSession, group: TaskGroup, on_up: Callable[[], None]) -> None:
        """Keep the grid, and the session while another gateway records."""
        while self._delivery.is_standby:
            await self._take_over_map()
            await self._read_clock(session)
            self.alive_s = time.monotonic()
            await self._delivery.stand_by(STANDBY_READ_S)
        if self.backfill is not None:
            group.create_permanent(self.backfill.run(session), name=f"{self._settings.name} backfill")
        interval_s = self._settings.poll_interval_ms / 1000
        start_ns, slot = boot_ns(), 0
        is_up = False
        while True:
            refused_before, slot_ns = self._delivery.recorder.refused_total, self.clock.now_ns()
            await self._take_over_map()
            complete = await self._read_all(session)
            self.polls_total += 1
            await self._delivery.deliver_due(self.clock.now_ns())
            await self._delivery.note_complete({"": self.clock.stored(complete)})
            if not is_up:
                on_up()
                await self._delivery.deliver_due(self.clock.now_ns())  # the gap that ends now, not with the next poll
                is_up = True
            missed = int((boot_ns() - start_ns) / 1e9 / interval_s) - slot
            if missed > 0:
                self.polls_missed_total += missed
                if self._delivery.recorder.refused_total != refused_before:
                    self._note_gap(STORE_REFUSED, slot_ns, missed)
                elif missed >= MISSED_MIN:
                    self._note_gap(POLLS_MISSED, slot_ns, missed)
            slot += max(0, missed) + 1
            await asyncio.sleep(max(0.0, slot * interval_s - (boot_ns() - start_ns) / 1e9))

    async def _read_all(self, session: OpcuaSession) -> Moment:
        """Read every tag once, in as many calls as the server needs, after its clock. Namespaces are read again in each
        poll, because a server may add one late. Returns up to when the source is complete then."""
        namespaces = await session.namespaces()
        if time.monotonic() >= self._retry_s:
            self._unread, self._retry_s = set(), time.monotonic() + self._settings.parked_retry_ms / 1000
        first = await self._read_clock(session)
        self.complete = self.complete or first
        await self._delivery.recorder.begin_complete("", self.clock.stored(self.complete))
        tags = [tag for tag in self._delivery.points if tag not in self._unread]
        readings = [self._delivery.points[tag].reading for tag in tags]
        found, self._size = await read_in_parts(session, readings, namespaces, self._size)
        self.alive_s = time.monotonic()
        self._unread |= {tag for tag, change in zip(tags, found, strict=True) if change.quality in _UNREADABLE}
        await self._deliver(tags, found)
        # Not the time of arrival, which is later by what the line took. The tags of the last call were read by the poll
        # before until that call was answered.
        self.complete = first
        return first

    async def _read_clock(self, session: OpcuaSession) -> Moment:
        """A moment on the server's clock that is not later than what is read from now on."""
        least_ns, asked = self.clock.least_ns(), self.clock.now()
        try:
            clock = await session.read_clock()
        except CallTooLarge as error:
            raise SourceLost(f"{self._settings.url} refuses to read even one value: {error}") from error
        except DecodeError:
            return asked
        if clock.read_ns:
            self.clock.note_reading(clock.read_ns, least_ns)
        return Moment(clock.shown_ns, self.clock.set_back_ns) if clock.shown_ns else asked

    async def _deliver(self, tags: Sequence[int], found: Sequence[DataChange]) -> None:
        """Deliver the good values. A bad one is recorded once, until it is good again or bad for another reason."""
        now_ns = self.clock.now_ns()
        samples: list[Sample] = []
        bad: dict[int, int] = {}
        for tag, (_, value, status, source_ns, server_ns) in zip(tags, found, strict=True):
            if quality.is_bad(status):
                bad[tag] = status
            else:
                samples.append(Sample(tag, source_ns or server_ns or now_ns, value, status))
        await self._delivery.deliver(SampleColumns.of(samples), now_ns)
        log_parked(self._delivery, {tag: status for tag, status in bad.items() if self._bad.get(tag) != status})
        for tag in tags:
            self._bad.pop(tag, None)
        self._bad |= bad
        for tag, status in bad.items():
            await self._delivery.lose(status, now_ns, [tag], corrects=True)

    def _note_gap(self, reason: str, slot_ns: int, missed: int) -> None:
        interval_ns, tags = self._settings.poll_interval_ms * MS, list(self._delivery.points)
        first_ns, last_ns = slot_ns + interval_ns, slot_ns + missed * interval_ns
        self._delivery.add_gap(reason, first_ns, last_ns, missed * len(tags), tags, exact=False)
