"""An OPC UA source: keeps one server's wanted values subscribed and delivers what it publishes.

Client, session, subscription and items are built anew at every connect; nothing is resumed. Publications go into a
bounded buffer that one task drains. When the store refuses samples the buffer fills, the next Publish waits, and the
values queue at the server. Where its queues overflow, the status of the values says so, and that becomes a gap fact.

Values and the server's own clock, an item of the same subscription, prove that the server is alive: without a proof for
`liveness_timeout_ms` the life ends, whatever the state of the connection (`liveness`). Nodes that the server refuses,
or whose status says that they are gone, are parked and retried apart.

A new tag map is taken over in the running subscription: items are added and deleted, all others stay untouched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from agent.ingest import quality
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import SERVER_QUEUE_OVERFLOW
from agent.ingest.opcua.decode import Change, Publication
from agent.ingest.opcua.history import HistoryBackfill, HistoryPage, HistoryRange
from agent.ingest.opcua.liveness import Liveness, ServerClock
from agent.ingest.opcua.plan import Created, ItemPlan
from agent.ingest.opcua.session import (
    HEARTBEAT_HANDLE,
    NOTIFICATIONS_PER_PUBLISH_MAX,
    CallTooLarge,
    Session,
    open_session,
)
from agent.ingest.settings import OpcuaSourceSettings
from agent.message import Sample

log = logging.getLogger(__name__)

MS = 1_000_000  # nanoseconds
TICK_S = 0.25  # how often time alone is looked at: values held back, heartbeats, parked nodes, life


class OpcuaSource:
    """One server. The object outlives its connections; what it keeps between them is the time offset, nothing of the
    session."""

    def __init__(
        self, settings: OpcuaSourceSettings, delivery: Delivery, backfill: HistoryBackfill | None = None
    ) -> None:
        self._settings, self._delivery = settings, delivery
        self.backfill = backfill
        size = max(2, settings.buffer_values_max // NOTIFICATIONS_PER_PUBLISH_MAX)
        self._buffer: asyncio.Queue[Publication] = asyncio.Queue(maxsize=size)
        self._unbuffered: Publication | None = None  # one that was waiting for room when the session ended
        self._created_ns: int | None = None  # when items were last created: what comes then stood so at that time
        self._clock = ServerClock()
        self._liveness = Liveness(0.0)
        self._alive_before_ns = 0  # the last proof of life of the sessions before this one
        self._plan = ItemPlan((), 1, 1)
        self._refused: dict[int, int] = {}  # nodes newly refused and why, not recorded yet
        self.polls_missed_total = 0  # nothing is polled here; the field is there for whoever reads statistics

    @property
    def alive_s(self) -> float:
        """When this server last proved its life, on our monotonic clock."""
        return self._liveness.alive_s

    @property
    def alive_ns(self) -> int:
        """The same on the server's clock; 0: never."""
        return self._liveness.alive_ns or self._alive_before_ns

    def retry(self) -> None:
        """Ask for the parked nodes at once."""
        self._plan.retry()

    def now_ns(self) -> int:
        """The time of this source's samples: the server's clock, as far as we know it."""
        return time.time_ns() + self._clock.offset_ns

    async def run(self, on_up: Callable[[], None]) -> None:
        """One life: connect, subscribe, deliver until something breaks. Ends only by an exception."""
        settings = self._settings
        await self._retag()
        async with open_session(settings) as session:
            self._alive_before_ns = self.alive_ns
            self._liveness = Liveness(time.monotonic())
            self._plan = ItemPlan(self._delivery.points, settings.items_per_call_max, settings.parked_retry_ms * MS)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._drain(), name=f"{settings.name} drain")
                group.create_task(self._tend(session, on_up), name=f"{settings.name} tend")
                if self.backfill is not None:
                    read = partial(self._read_history, session)
                    group.create_task(self.backfill.run(read, self.now_ns), name=f"{settings.name} backfill")
                raise await session.lost

    async def finish(self) -> None:
        """Deliver what had arrived before the life ended."""
        late = [] if self._unbuffered is None else [self._unbuffered]
        self._unbuffered = None
        while not self._buffer.empty():
            await self._deliver(self._buffer.get_nowait())
        for publication in late:
            await self._deliver(publication)
        await self._deliver_due()
        await self._retag()

    async def _take(self, publication: Publication) -> None:
        """Called for each publication; the server gets its acknowledgement when this returns."""
        values, clock_moved = len(publication.changes), False
        for change in publication.changes:
            if change.handle == HEARTBEAT_HANDLE:
                values -= 1
                clock_moved |= self._see_clock(change)
        sent_ns = self._clock.proof_time_ns(0, time.time_ns())
        self._liveness.see(time.monotonic(), sent_ns, is_proof=values > 0 or clock_moved)
        if not publication.changes:
            return
        try:
            await self._buffer.put(publication)
        except asyncio.CancelledError:
            self._unbuffered = publication
            raise

    async def _drain(self) -> None:
        """The one task that records: what has arrived, and what time makes due."""
        due_s = time.monotonic() + TICK_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                    publication = await self._buffer.get()
            except TimeoutError:
                publication = None
            if publication is not None:
                await self._deliver(publication)
            if time.monotonic() >= due_s:
                await self._deliver_due()
                await self._retag()
                due_s = time.monotonic() + TICK_S

    async def _retag(self) -> None:
        """Take over a new tag map, behind all that has arrived under the old one."""
        if not self._delivery.is_wanted_new:
            return
        for _ in range(self._buffer.qsize()):
            await self._deliver(self._buffer.get_nowait())
        if self._delivery.retag(self.now_ns()):
            self._plan.want(self._delivery.points)
            await self._delivery.settle()

    async def _deliver(self, publication: Publication) -> None:
        now_ns = self.now_ns()
        wanted = self._delivery.points  # the heartbeat is not among them, nor is what was on its way from a removed tag
        changes = [change for change in publication.changes if change.handle in wanted]
        marked = [change for change in changes if change.quality]
        if marked:
            self._note_overflow(marked)
        samples = [
            Sample(handle, source or server or now_ns, value, status)
            for handle, value, status, source, server in changes
        ]
        await self._delivery.deliver(samples, now_ns, self._created_ns)
        if marked:
            self._note_gone(marked)

    async def _deliver_due(self) -> None:
        now_ns = self.now_ns()
        refused, self._refused = self._refused, {}
        for tag, status in refused.items():
            if tag not in self._delivery.points:
                continue
            await self._delivery.lose(status, now_ns, [tag], corrects=True)
        await self._delivery.deliver_due(now_ns)

    def _see_clock(self, change: Change) -> bool:
        """Take in the server's clock; True if it moved."""
        if not self._liveness.see_clock(change.value):
            return False
        if server_ns := change.source_time_ns or change.server_time_ns:
            self._clock.see(server_ns, time.time_ns())
        return True

    def _note_gone(self, changes: Iterable[Change]) -> None:
        """Nodes that do not exist any more: their items give no value again, so new ones are to be created."""
        gone = {c.handle: c.quality for c in changes if c.quality & quality.CODE_BITS in quality.GONE}
        news = self._plan.died(gone, time.monotonic_ns())
        self._delivery.sampler.mark_lost(news)  # the bad samples are recorded as the server sent them
        self._log_parked(news)

    def _note_overflow(self, changes: Iterable[Change]) -> None:
        """The server's word that it discarded values before these: between the last one we had and this one."""
        hit = [change for change in changes if quality.has_overflowed(change.quality)]
        if not hit:
            return
        tags = [change.handle for change in hit]
        first_ns = min(
            self._delivery.sampler.last_time_ns(tag) or change.source_time_ns
            for tag, change in zip(tags, hit, strict=True)
        )
        last_ns = max(change.source_time_ns for change in hit)
        self._delivery.add_gap(SERVER_QUEUE_OVERFLOW, first_ns, last_ns, len(hit), tags, exact=False)

    async def _tend(self, session: Session, on_up: Callable[[], None]) -> None:
        """Build the subscription, then look after it: parked nodes, signs of life."""
        await session.subscribe(self._take)
        self._plan.limit(await session.items_per_call_max())
        self._liveness.has_clock = not quality.is_bad(await session.create_heartbeat())
        await self._create_due(session)
        on_up()
        while True:
            await asyncio.sleep(TICK_S)
            if self._buffer.full():
                self._liveness.excuse(time.monotonic())  # this side holds the server back
            silent_s = self._liveness.silent_s(time.monotonic())
            if silent_s * 1000 > self._settings.liveness_timeout_ms:
                raise SourceLost(
                    f"{self._settings.url} is connected, but for {silent_s:.0f} s it has sent no value and its clock has "
                    "not moved"
                )
            await self._delete_due(session)
            await self._create_due(session)

    async def _read_history(
        self, session: Session, ranges: Sequence[HistoryRange], values_max: int
    ) -> Sequence[HistoryPage]:
        """One HistoryRead; a tag that the server or the tag map lacks has no history."""
        points, namespaces = self._delivery.points, await session.namespaces()
        indexes = {one.tag: points[one.tag].index(namespaces) for one in ranges if one.tag in points}
        known = [one for one in ranges if indexes.get(one.tag) is not None]
        nodes = [(points[one.tag], indexes[one.tag] or 0) for one in known]
        found = await session.read_history(known, nodes, values_max) if known else []
        pages = dict(zip((one.tag for one in known), found, strict=True))
        return [pages.get(one.tag, HistoryPage(quality.BAD_NODE_ID_UNKNOWN)) for one in ranges]

    async def _delete_due(self, session: Session) -> None:
        """Delete the items of removed tags, in calls the server takes."""
        while items := self._plan.next_deletion():
            try:
                await session.delete_items(items)
            except CallTooLarge as error:
                if self._plan.call_refused(len(items)):
                    continue
                raise SourceLost(f"{self._settings.url} refuses to delete even one item: {error}") from error
            self._plan.deleted(items)

    async def _create_due(self, session: Session) -> None:
        """Create every item whose time it is, in calls the server takes."""
        namespaces: list[str] | None = None
        while handles := self._plan.next_call(time.monotonic_ns()):
            if namespaces is None:
                namespaces = (
                    await session.namespaces()
                )  # read again for parked nodes: a server may learn a namespace late
            points = self._delivery.points
            handles = [handle for handle in handles if handle in points]  # the tag map may be a new one by now
            known = [(h, points[h], index) for h in handles if (index := points[h].index(namespaces)) is not None]
            try:
                self._created_ns = self.now_ns()
                results = await session.create_items(known) if known else []
            except CallTooLarge as error:
                if self._plan.call_refused(len(handles)):
                    continue
                raise SourceLost(f"{self._settings.url} refuses to monitor even one item: {error}") from error
            created = dict.fromkeys(handles, Created(quality.BAD_NODE_ID_UNKNOWN))  # a namespace the server has not
            created.update({handle: result for (handle, _, _), result in zip(known, results, strict=True)})
            news = self._plan.answered(handles, [created[handle] for handle in handles], time.monotonic_ns())
            self._note_parked(news)

    def _note_parked(self, news: dict[int, int]) -> None:
        """Nodes newly refused: once in the log, and as bad samples."""
        self._log_parked(news)
        self._refused.update(news)  # recorded by the draining task: only one task records

    def _log_parked(self, news: dict[int, int]) -> None:
        if not news:
            return
        extra = {
            "action": "tags_parked",
            "source": self._settings.name,
            "count": len(news),
            "statuses": sorted({f"0x{status:08X}" for status in news.values()}),
        }
        log.warning("nodes are refused by their server and parked", extra=extra)
