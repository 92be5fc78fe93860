"""An OPC UA source: subscribes to the values of one server and delivers what it publishes.

A lost connection is followed by the steps of `reconnect`: the session is activated again, or its subscriptions are
transferred to a new one, and what they queued meanwhile arrives; or everything is created anew. Publications go into a
bounded buffer that one task drains. When the store refuses samples, the buffer fills, no Publish is sent, and the
values queue at the server. If its queues overflow, the status of the values shows that.

Values and the server's own clock, which is an item of each subscription, prove that the server is alive. Without a
proof for `liveness_timeout_ms` the life ends, whatever the state of the connection (`liveness`). They also say up to
when the source is complete, which is where each gap begins (`losses`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup, timeout
from agent.ingest import quality
from agent.ingest.completeness import Moment, Stored
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceError, SourceLost
from agent.ingest.gap import NOT_DELIVERED, SERVER_QUEUE_OVERFLOW
from agent.ingest.opcua.decode import Changes, DataChange, Publication, PublishHeader
from agent.ingest.opcua.events import EventCollector
from agent.ingest.opcua.history import HistoryBackfill
from agent.ingest.opcua.publisher import Publisher, Route
from agent.ingest.opcua.publishing import Missing, Sequencer
from agent.ingest.opcua.reconnect import ReconnectOutcome, ReconnectStep, RedundantServers, next_step
from agent.ingest.opcua.security.client import SessionKey
from agent.ingest.opcua.session import (
    HEARTBEAT_HANDLE,
    NOTIFICATIONS_PER_PUBLISH_MAX,
    Ending,
    OpcuaSession,
    open_session,
)
from agent.ingest.opcua.subscriptions.audit import Audit
from agent.ingest.opcua.subscriptions.collection import Subscriptions
from agent.ingest.opcua.subscriptions.losses import Losses
from agent.ingest.opcua.subscriptions.monitoring import is_hole
from agent.ingest.opcua.subscriptions.subscription import Subscription, log_parked
from agent.ingest.source_clock import SourceClock, read_ns
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

log = logging.getLogger(__name__)

TICK_S = 0.25  # interval for what depends on time alone: values held back, heartbeats, parked nodes, life
UNREADABLE_EVERY_S = 60.0  # between two log lines about malformed values
LEVEL_INTERVAL_S = 10.0  # between two readings of the server's ServiceLevel
STOP_READ_S = 1.0  # for the server's clock, at a stop
QUEUED_NS = 10 * 10**9  # until the queues of the server have arrived, when it begins to publish
SEEK_S = 5.0  # for the first notification of a subscription: some publishing intervals
FIRST_VALUE_S = 5.0  # a source counts as connected with its first value, or after this time
_NO_VALUE_YET = quality.GONE | {quality.BAD_WAITING_FOR_INITIAL_DATA}  # the node of a created item may not exist
_ENDINGS = {
    ReconnectStep.REACTIVATE: Ending.KEEP,
    ReconnectStep.TRANSFER: Ending.LEAVE_SUBSCRIPTIONS,
    ReconnectStep.REBUILD: Ending.CLOSE,
}


class Buffered(NamedTuple):
    """A publication of a subscription. Everything that the server had up to `since` was delivered before it. `back`:
    tags whose new item has published. `is_backlog`: it was queued while another gateway recorded."""

    subscription_id: int
    publication: Publication
    since: Moment
    back: AbstractSet[int] = frozenset()
    is_backlog: bool = False


class KeptSession(NamedTuple):
    """What the next session needs of this one: its key, the StartTime of its server, and whether it may have a
    subscription whose creation was not answered."""

    key: SessionKey
    server_start: object
    has_unknown: bool


class OpcuaSource:
    """One server. The object exists across connections."""

    read_tags = None  # a command can open a second session
    remarks = ""
    polls_total = polls_missed_total = polls_late_total = 0  # nothing is polled

    def __init__(
        self,
        settings: OpcuaSourceSettings,
        delivery: Delivery,
        backfill: HistoryBackfill | None = None,
        events: EventCollector | None = None,
    ) -> None:
        self._settings, self._delivery = settings, delivery
        self.backfill, self.events = backfill, events
        size = max(2, settings.buffer_values_max // NOTIFICATIONS_PER_PUBLISH_MAX)
        self._buffer: asyncio.Queue[Buffered] = asyncio.Queue(maxsize=size)
        self.clock, self._losses = SourceClock(doubted=delivery.recorder.doubted), Losses()
        self._subscriptions = Subscriptions(settings, delivery, self.clock, self._losses)
        if backfill is not None:
            backfill.now_ns = self.clock.now_ns
            delivery.on_gap(backfill.note_gap)
        if events is not None:
            events.clock = self.clock
        self._servers = RedundantServers([settings.url, *settings.urls])
        self._is_away = True  # no server was reached in the last life
        self.service_level: int | None = None  # of the server that is read
        self._step = ReconnectStep.REBUILD  # of the next life, or the present one
        self._is_proven = False  # by a sign of life in this life
        self._has_missed = True  # the subscriptions are not those of before the outage
        self._kept: KeptSession | None = None
        self._publisher: Publisher | None = None
        self._sequencer = Sequencer()
        self._unreadable_due_s = 0.0

    @property
    def alive_s(self) -> float:
        """The last proof of life of this server, on our monotonic clock."""
        return self._subscriptions.alive_s

    @property
    def complete(self) -> Moment | None:
        """Up to when all values are delivered; None: not known."""
        return self._subscriptions.complete

    def take_missed(self) -> bool:
        """Whether values are missing that no kept subscription has brought, since this was asked before."""
        missed, self._has_missed = self._has_missed, False
        return missed

    def retry(self) -> None:
        """Try the parked nodes now."""
        self._subscriptions.retry()

    def continue_from(self, stored: Mapping[str, Stored], reason: str) -> None:
        """Continue after an earlier process that was complete up to these times, by part. `reason`: why there was none
        since."""
        self._subscriptions.absences.keep((), {})
        if (values := stored.get("")) is not None:
            self.clock.continue_from(values)
        numbers = {tag.definition.subject: number for number, tag in self._delivery.tags.items()}
        for part, state in stored.items():
            if part in numbers:
                self._subscriptions.absences.begin_absence([numbers[part]], Moment(state.complete_ns))
        if self.events is not None:
            self.events.continue_from(stored, reason)

    # --- lives -------------------------------------------------------------------------------------------------------

    async def run(self, on_up: Callable[[], None]) -> None:
        """One life: connect, subscribe, deliver until something breaks. Ends only by an exception."""
        await self._take_over_map()
        if self._is_away and self._servers.others:
            await self._choose_server({})
        self._is_away, self.service_level = True, None
        key = self._kept.key if self._kept is not None and self._step is ReconnectStep.REACTIVATE else None
        self._is_proven = False
        try:
            async with open_session(replace(self._settings, url=self._servers.url), key=key) as session:
                self._is_away, session.is_publishing = False, not self._delivery.is_standby
                try:
                    await self._begin_life(session)
                    await self._live(session, on_up)
                except asyncio.CancelledError:  # a stop: the clock may have been set since it was read last
                    with suppress(SourceError, TimeoutError):
                        async with timeout(STOP_READ_S):
                            await self.clock.read(session)
                    raise
                finally:
                    self._end_life(session)
        except SourceLost:
            if key is not None and key.was_refused:  # and then the connection broke
                self._step = next_step(ReconnectStep.REACTIVATE, ReconnectOutcome.REFUSED)
            raise

    async def _live(self, session: OpcuaSession, on_up: Callable[[], None]) -> None:
        assert self._publisher is not None, "made in _begin"
        async with TaskGroup() as group:
            group.create_permanent(self._drain(), name=f"{self._settings.name} drain")
            group.create_permanent(self._publisher.run(), name=f"{self._settings.name} publish")
            group.create_permanent(self._build_and_maintain(session, on_up), name=f"{self._settings.name} tend")
            raise await session.lost

    async def _begin_life(self, session: OpcuaSession) -> None:
        """Find the step of this life, and take over the subscriptions or forget them."""
        started, kept = await session.server_start(), self._kept
        is_other = kept is None or started != kept.server_start
        if session.is_reactivated and is_other:
            session.library.ending = Ending.KEEP  # it is not ours
            self._step, self._kept = ReconnectStep.REBUILD, None
            raise SourceLost(f"{session.url} was restarted, and has another session under this token")
        if not session.is_reactivated and self._step is ReconnectStep.REACTIVATE:
            self._step = next_step(self._step, ReconnectOutcome.REFUSED)
        if is_other:
            self._step = next_step(self._step, ReconnectOutcome.RESTARTED)
        limits = await session.limits()
        now = await self.clock.read(session)  # subscriptions created from now on date losses by it
        if not self._delivery.is_standby:
            await self._delivery.recorder.begin_complete("", self.clock.stored(now))
        if self._step is ReconnectStep.TRANSFER and not await self._transfer(session):
            self._step = next_step(self._step, ReconnectOutcome.REFUSED)
        if self._step is ReconnectStep.REBUILD:
            self._sequencer, self._has_missed = Sequencer(), True
        decode, take = partial(self._decode, session), partial(self._take_publication, session)
        values = Route(decode, take, self._note_missing)
        self._publisher = Publisher(
            session, self._settings.publish_requests, values, self._subscriptions.note_none_left, self._sequencer
        )
        if self._step is ReconnectStep.REBUILD:
            self._subscriptions.begin_anew(session, self._publisher, limits)
        else:
            self._subscriptions.resume(session, self._publisher)
        extra = {"action": "session_opened", "source": self._settings.name, "step": self._step.value}
        log.info("session opened", extra=extra)

    async def _transfer(self, session: OpcuaSession) -> bool:
        """Take over the subscriptions into this session. False if the server gives none of values."""
        ids = self._subscriptions.kept_ids
        events = [] if self.events is None else self.events.kept_ids
        if not ids:
            return False
        statuses = await session.transfer_subscriptions([*ids, *events])
        if self.events is not None and events:
            self.events.note_transfer(statuses[-1])
        return self._subscriptions.note_transfer(statuses[: len(ids)])

    def _end_life(self, session: OpcuaSession) -> None:
        """Note what the next life can begin with, and what becomes of this session."""
        # Another server is read from now on, or nothing of this session was recorded.
        if session.url != self._servers.url or self._delivery.is_standby:
            self._step, self._kept = ReconnectStep.REBUILD, None
            return
        # If the connection broke, something may have been left at the server.
        may_keep = self._is_proven or (self._step is ReconnectStep.REBUILD and not session.is_connected)
        self._step = next_step(self._step, ReconnectOutcome.PROVEN if may_keep else ReconnectOutcome.SILENT)
        if session.start is None:
            self._step = ReconnectStep.REBUILD
        if session.library.ending is Ending.CLOSE:
            session.library.ending = _ENDINGS[self._step]
        self._kept = KeptSession(session.key, session.start, session.library.creating > 0)

    async def finish(self) -> None:
        """Deliver what had arrived before the life ended."""
        late = [] if self._publisher is None else self._publisher.take_rest()
        while not self._buffer.empty():
            await self._deliver(self._buffer.get_nowait())
        for arrived in late:
            await self._deliver(self._note_publication(arrived.header, arrived.content))
        self._declare_until(self.clock.now())
        await self._deliver_due()
        await self._take_over_map()
        await self._note_complete()
        if self.events is not None:
            await self.events.finish()

    async def _build_and_maintain(self, session: OpcuaSession, on_up: Callable[[], None]) -> None:
        """Build the subscriptions, then look after them: parked nodes, signs of life. History and events have tasks of
        their own, which end with the life."""
        assert self._publisher is not None, "made in _begin"
        async with TaskGroup() as group:
            if self._delivery.is_standby:
                await self._stand_by(session)
            if self.events is not None:
                await self.events.begin_life(
                    session, self._publisher, group, is_kept=self._step is not ReconnectStep.REBUILD
                )
            if session.is_reactivated and self._kept is not None and self._kept.has_unknown:
                await self._publisher.seek(SEEK_S)  # each shows itself by its first notification, and is deleted
            if self._step is not ReconnectStep.REBUILD:
                await self._subscriptions.republish()
            await self._subscriptions.maintain()
            await self.clock.read(session)
            await self._wait_for_value()
            on_up()
            if self.backfill is not None:
                group.create_permanent(self.backfill.run(session), name=f"{self._settings.name} backfill")
            if self.events is not None:
                group.create_permanent(self.events.run(session, self._publisher), name=f"{self._settings.name} events")
            group.create_permanent(self._audit(session), name=f"{self._settings.name} audit")
            group.create_permanent(self._watch_level(session), name=f"{self._settings.name} level")
            while True:
                await asyncio.sleep(TICK_S)
                self._subscriptions.check_life(is_held_back=self._buffer.full())
                await self._declare_losses(session)
                await self._subscriptions.maintain()

    async def _stand_by(self, session: OpcuaSession) -> None:
        """Build the subscriptions with publishing disabled, and keep them while another gateway records. Each sends
        keep-alives (OPC 10000-4, 5.14.1.1), and its items queue what is newest at the server."""
        while self._delivery.is_standby:
            if not self._subscriptions.is_settled:
                raise SourceLost(f"{session.url} ended a subscription")
            await self._subscriptions.maintain()
            await self._delivery.stand_by(TICK_S)
            self._subscriptions.check_life(is_held_back=False)
        await self._delivery.recorder.begin_complete("", self.clock.stored(await self.clock.read(session)))
        self._delivery.sampler.skip_recorded(self.clock.now_ns() + QUEUED_NS)
        await self._subscriptions.begin_publishing()

    async def _watch_level(self, session: OpcuaSession) -> None:
        """Read the server's ServiceLevel now and then, and go to a better server if it is low."""
        while True:
            with suppress(SourceLost):  # a Read that is not answered in time ends nothing
                self.service_level = await session.service_level()
            levels = {session.url: self.service_level}
            if self._servers.needs_another(self.service_level) and await self._choose_server(levels):
                raise SourceLost(f"{session.url} has service level {self.service_level}; another server is read")
            await asyncio.sleep(LEVEL_INTERVAL_S)

    async def _choose_server(self, levels: Mapping[str, int | None]) -> bool:
        """Ask the servers whose level is not among these, and choose one. True if it is another one."""
        urls = [url for url in (self._servers.url, *self._servers.others) if url not in levels]
        async with TaskGroup() as group:
            asked = {url: group.create_task(self._level_of(url), name=f"level of {url}") for url in urls}
        is_other = self._servers.choose({**levels, **{url: task.result() for url, task in asked.items()}})
        if is_other:
            self._step, self._kept = ReconnectStep.REBUILD, None
            extra = {"action": "server_chosen", "source": self._settings.name, "url": self._servers.url}
            log.warning("another of the redundant servers is read", extra=extra)
        return is_other

    async def _level_of(self, url: str) -> int | None:
        """The ServiceLevel of a server; None if it does not answer."""
        try:
            async with open_session(replace(self._settings, url=url)) as session:
                return await session.service_level()
        except SourceError:
            return None

    async def _wait_for_value(self) -> None:
        built_s = time.monotonic()
        while self._delivery.is_value_expected and time.monotonic() - built_s < FIRST_VALUE_S:
            self._subscriptions.check_life(is_held_back=self._buffer.full())
            await asyncio.sleep(TICK_S)

    async def _audit(self, session: OpcuaSession) -> None:
        """Check whether items still publish. A task of its own, because a Read may take as long as the time-out."""
        audit = Audit(session, self._delivery.sampler, self._subscriptions.nodes_per_read, self.clock.now)
        while True:
            await asyncio.sleep(TICK_S)
            if self._publisher is not None and self._publisher.has_too_large:
                self._publisher.has_too_large = False
                for subscription in self._subscriptions:
                    self._subscriptions.park_too_large(
                        subscription, await audit.too_large(subscription, self._subscriptions.points)
                    )
            for subscription in self._subscriptions:
                if not self._buffer.empty():  # what was published may still be in it
                    break
                findings = await audit.check(subscription, self._subscriptions.points)
                if subscription in self._subscriptions:  # otherwise it was replaced meanwhile
                    self._subscriptions.act_on(subscription, findings)

    # --- what arrives ------------------------------------------------------------------------------------------------

    async def _decode(self, session: OpcuaSession, _: PublishHeader, body: bytes) -> Publication:
        """The values of a publication."""
        return await session.decode(body, self._subscriptions.elements)

    async def _take_publication(self, session: OpcuaSession, header: PublishHeader, publication: Publication) -> None:
        """Called for each publication in order. It is acknowledged when this returns."""
        if publication.values_lost and time.monotonic() >= self._unreadable_due_s:
            self._unreadable_due_s = time.monotonic() + UNREADABLE_EVERY_S
            extra = {"action": "values_unreadable", "source": self._settings.name, "count": publication.values_lost}
            log.warning("the server sent a malformed value; the values behind it cannot be read", extra=extra)
        subscription = self._subscriptions.get(header.subscription_id)
        if subscription is None:
            if not session.library.creating:  # in an earlier connection, and the answer did not arrive
                await session.delete_subscription(header.subscription_id)
            return
        arrived = self._note_publication(header, publication)
        if (
            publication.changes or publication.values_lost or subscription.is_resumed
        ) and not self._delivery.is_standby:
            await self._buffer.put(arrived)

    def _note_publication(self, header: PublishHeader, publication: Publication) -> Buffered:
        """Take in what a publication shows about its subscription: signs of life, its clock, its end."""
        subscription = self._subscriptions.get(header.subscription_id)
        if subscription is None:
            return Buffered(header.subscription_id, publication, Moment(0))
        back = self._subscriptions.absences.among(set(publication.changes.handles))
        arrived = Buffered(header.subscription_id, publication, subscription.since, back, subscription.has_backlog)
        subscription.has_backlog &= header.more or not header.has_data
        values, clock, clock_moved, seen = len(publication.changes), None, False, subscription.liveness.seen
        if HEARTBEAT_HANDLE in publication.changes.handles:
            for change in publication.changes:
                if change.handle == HEARTBEAT_HANDLE:
                    values -= 1
                    if subscription.liveness.note_clock(change.value):
                        clock, clock_moved = self._note_clock(subscription, change, header.publish_time_ns), True
        self._is_proven |= values > 0 or clock_moved or not subscription.liveness.has_clock
        subscription.liveness.note_answer(
            time.monotonic(),
            self.clock.sent(header.publish_time_ns, seen),
            clock,
            is_proof=values > 0 or clock_moved or self._delivery.is_standby,
            more=header.more or (self._publisher is not None and self._publisher.is_early(header)),
        )
        status = publication.status_change
        if status is not None and quality.is_bad(status) and status & quality.CODE_BITS not in quality.GONE:
            # The status of a deleted node ends nothing, and does not tell which node it is (python-opcua).
            subscription.ended = status_name(status)
        return arrived

    def _note_clock(self, subscription: Subscription, change: DataChange, publish_ns: int) -> Moment | None:
        """Take in a change of the server's clock. Returns what it shows, None if it has no time."""
        server_ns = change.source_time_ns or change.server_time_ns
        if not server_ns:
            return None
        self.clock.note_reading(read_ns(server_ns, publish_ns), subscription.clock_least_ns)
        subscription.clock_least_ns = server_ns
        return self.clock.moment(server_ns, subscription.liveness.seen)

    async def _note_missing(self, missing: Missing) -> None:
        """Notifications did not arrive and the server does not hold them any more."""
        subscription = self._subscriptions.get(missing.subscription_id)
        if subscription is None:
            return
        count = missing.last - missing.first + 1  # each held at least one value
        self._losses.add(NOT_DELIVERED, subscription.since, subscription.monitored, self.clock.now())
        extra = {"action": "notifications_missing", "source": self._settings.name, "count": count}
        log.warning("notifications of the server did not arrive, and it does not hold them any more", extra=extra)

    # --- what is recorded --------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """The only task that records: what has arrived, and what is due because time has passed."""
        due_s = time.monotonic() + TICK_S
        while True:
            try:
                async with timeout(max(0.0, due_s - time.monotonic())):
                    arrived = await self._buffer.get()
            except TimeoutError:
                arrived = None
            if arrived is not None:
                await self._deliver(arrived)
            if time.monotonic() >= due_s:
                await self._take_over_map()
                if not self._delivery.is_standby:
                    await self._deliver_due()
                    await self._note_complete()
                due_s = time.monotonic() + TICK_S

    async def _take_over_map(self) -> None:
        """Take over a new tag map after everything that has arrived under the old one."""
        if not self._delivery.has_pending_map:
            return
        await self._deliver_buffered()
        if self._delivery.take_over_map(self.clock.now_ns()):
            self._subscriptions.renumber()
            await self._delivery.recorder.settle()

    async def _deliver_buffered(self) -> None:
        """Deliver what has arrived up to now."""
        for _ in range(self._buffer.qsize()):
            await self._deliver(self._buffer.get_nowait())

    async def _declare_losses(self, session: OpcuaSession) -> None:
        """End the open losses at a reading of the server's clock."""
        if self._losses:
            self._declare_until(await self.clock.read(session))

    def _declare_until(self, now: Moment) -> None:
        for gap in self._losses.take_gaps(now, self.clock.spans):
            self._delivery.add_gap(gap.reason, gap.first_time_ns, gap.last_time_ns, 0, gap.tags, exact=False)

    async def _deliver_due(self) -> None:
        await self._deliver_buffered()  # values from before the end of a subscription are recorded before its loss
        await self._subscriptions.record_losses()
        await self._delivery.deliver_due(self.clock.now_ns())

    async def _note_complete(self) -> None:
        """Store up to when everything is delivered and declared."""
        complete = self.complete
        if complete is None or self._buffer.full() or self._losses or not self._subscriptions.is_settled:
            return
        await self._deliver_buffered()  # may hold what was delivered up to then
        absences = self._subscriptions.absences
        parts = {"": self.clock.stored(complete)}
        subjects = self._delivery.subjects(absences.tags)
        for subject, tag in zip(subjects, absences.tags, strict=True):
            parts[subject] = self.clock.stored(absences.since(tag) or complete)
        await self._delivery.note_complete(parts)

    async def _deliver(self, arrived: Buffered) -> None:
        publication, subscription = arrived.publication, self._subscriptions.get(arrived.subscription_id)
        if subscription is None:
            return  # it was replaced
        now_ns = self.clock.now_ns()
        if subscription.is_resumed:  # the first sign of life since then
            subscription.is_resumed = False
            if not subscription.ended:
                self._delivery.regain(subscription.plan.live - self._subscriptions.absences.tags, now_ns)
        changes = publication.changes
        handles = set(changes.handles)
        repeated = len(changes) - len(handles)
        if not self._delivery.points.keys() >= handles:
            # Without the heartbeat, and without values of removed tags that were on their way.
            changes = changes.of_handles(self._delivery.points)
        marked = [change for change in changes if change.quality] if any(changes.qualities) else []
        if marked:
            overflowed = [change.handle for change in marked if quality.has_overflowed(change.quality)]
            self._lose(SERVER_QUEUE_OVERFLOW, arrived, overflowed)
            log_parked(self._delivery, subscription.note_denied(marked))
        if repeated >= subscription.items.queue_size_least - 1:
            self._lose(SERVER_QUEUE_OVERFLOW, arrived, self._full(subscription, changes))
        if not self._subscriptions.absences.tags.isdisjoint(handles):
            changes = self._without_known_losses(changes, arrived.back)
        self._subscriptions.note_first(changes)
        if publication.values_lost:  # of any tag of the subscription
            self._losses.add(NOT_DELIVERED, arrived.since, subscription.monitored, self.clock.now())
        samples = SampleColumns(changes.handles, changes.times_ns(now_ns), changes.values, changes.qualities)
        await self._delivery.deliver(samples, now_ns, subscription.created_ns)
        if marked:
            self._subscriptions.note_gone(subscription, arrived.since, marked)

    def _lose(self, reason: str, arrived: Buffered, tags: Iterable[int]) -> None:
        """Values of these tags that the server had before this publication may be lost; what a backlog lost was for
        the other gateway to record."""
        if (tags := list(tags)) and not arrived.is_backlog:
            self._losses.add(reason, arrived.since, tags, self.clock.now())

    def _full(self, subscription: Subscription, changes: Changes) -> list[int]:
        """The tags whose queue was full after a hole: some servers (asyncua, python-opcua) discard values silently."""
        counts = Counter(changes.handles)
        full = {tag for tag, count in counts.items() if 1 < subscription.items.queue_sizes.get(tag, 0) <= count}
        first_ns: dict[int, int] = {}
        for tag, time_ns, status in zip(
            changes.handles, changes.times_ns(self.clock.now_ns()), changes.qualities, strict=True
        ):
            first_ns.setdefault(tag, time_ns)
            if quality.has_overflowed(status):
                full.discard(tag)  # this server reports overflows
        found = []
        for tag in sorted(full):
            before_ns = self._delivery.sampler.last(tag).source_time_ns
            point = self._delivery.points[tag]
            # asyncua claims to sample as rarely as it publishes, and sends every change.
            sampling_ms = min(subscription.asked_ms(point), subscription.sampling_ms(tag, point))
            if before_ns > first_ns[tag] or is_hole(before_ns, first_ns[tag], sampling_ms):
                found.append(tag)
        return found

    def _without_known_losses(self, changes: Changes, back: AbstractSet[int]) -> Changes:
        """End the absence of tags whose new item has published (`back`). Returns the changes to deliver, without those
        that repeat a recorded loss."""
        absences = self._subscriptions.absences
        gone = {change for change in changes if change.quality & quality.CODE_BITS in _NO_VALUE_YET}
        absences.end_absence(back - {change.handle for change in gone}, self._losses, self.clock.now())
        known = {change for change in gone if self._delivery.sampler.is_lost(change.handle, change.quality)}
        return Changes.of(change for change in changes if change not in known) if known else changes
