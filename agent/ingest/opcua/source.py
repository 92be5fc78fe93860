"""An OPC UA source: subscribes to the values of one server and delivers what it publishes.

Client, session, subscriptions and items are created at every connection; nothing is resumed. What the subscriptions of
the previous session still hold is fetched besides (`rescue`). Items are distributed over subscriptions (`groups`); one
that the server ends is replaced alone. Publications go into a bounded buffer that one task drains. When the store
refuses samples, the buffer fills, no Publish is sent, and the values queue at the server. If its queues overflow, the
status of the values shows that, and a gap fact is recorded.

Values and the server's own clock, which is an item of each subscription, prove that the server is alive. Without a
proof for `liveness_timeout_ms` the life ends, whatever the state of the connection (`liveness`). Nodes that the server
refuses, or reports as deleted, are parked and retried separately.

A new tag map is taken over in the running subscriptions: items are added and deleted, all others are not touched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup, timeout
from agent.ingest import quality
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import (
    ITEM_REFUSED,
    ITEM_RENEWED,
    NOTIFICATIONS_MISSING,
    SERVER_QUEUE_OVERFLOW,
    SUBSCRIPTION_LOST,
    VALUES_UNREADABLE,
    TagGap,
)
from agent.ingest.opcua.audit import Audit, Findings, is_missed
from agent.ingest.opcua.decode import Change, Changes, Publication
from agent.ingest.opcua.events import EventCollector
from agent.ingest.opcua.groups import Groups, ServerLimits
from agent.ingest.opcua.history import HistoryBackfill
from agent.ingest.opcua.monitoring import discarded, is_hole
from agent.ingest.opcua.plan import Absences
from agent.ingest.opcua.publisher import Publisher, Route
from agent.ingest.opcua.publishing import Header, Missing
from agent.ingest.opcua.rescue import LostSessions, Rescue, next_rescue
from agent.ingest.opcua.server_clock import CLOCK_JUMP_NS, DELAY_NS, ServerClock, ServerTime, SetBacks, read_ns, sent_ns
from agent.ingest.opcua.session import (
    HEARTBEAT_HANDLE,
    NOTIFICATIONS_PER_PUBLISH_MAX,
    Session,
    TooManySubscriptions,
    close_session,
    open_session,
)
from agent.ingest.opcua.subscription import CallSize, Subscription, log_parked
from agent.ingest.sampling import LAG_NS_MIN
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

log = logging.getLogger(__name__)

TICK_S = 0.25  # interval for what depends on time alone: values held back, heartbeats, parked nodes, life
# Between two log lines, and two readings of the clock, for malformed values. The clock drifts by 60 ms meanwhile.
UNREADABLE_EVERY_S = 60.0
FIRST_VALUE_S = 5.0  # a source counts as connected with its first value, or after this time
_NO_VALUE_YET = quality.GONE | {quality.BAD_WAITING_FOR_INITIAL_DATA}  # the node of a created item may not exist


class Buffered(NamedTuple):
    """A publication of a subscription. Everything that the server had up to `since_ns` was delivered before it, and by
    then its clock had been set back by `set_back_ns` in all."""

    subscription_id: int
    publication: Publication
    since_ns: int
    set_back_ns: int


class OpcuaSource:
    """One server. The object exists across connections. Between them it keeps the server's clock, the last proof of
    life, what is missing, and what the next session takes over."""

    def __init__(
        self,
        settings: OpcuaSourceSettings,
        delivery: Delivery,
        backfill: HistoryBackfill | None = None,
        events: EventCollector | None = None,
    ) -> None:
        self._settings, self._delivery = settings, delivery
        self.backfill, self.events = backfill, events
        self.read_tags = None  # a command can open a second session
        self.remarks = ""
        size = max(2, settings.buffer_values_max // NOTIFICATIONS_PER_PUBLISH_MAX)
        self._buffer: asyncio.Queue[Buffered] = asyncio.Queue(maxsize=size)
        self._clock, self._calls = ServerClock(), CallSize(settings.items_per_call_max)
        if backfill is not None:
            backfill.now_ns = self.now_ns
            delivery.on_gap(backfill.note_gap)
        if events is not None:
            events.clock, events.read_clock = self._clock, self._read_clock
        self._set_backs = SetBacks(self._clock, self.now_ns, self._declare)
        delivery.on_gap(self._set_backs.add)
        self._alive_before_s, self._alive_before_ns = 0.0, 0  # the last proof of life of earlier sessions
        self._publisher: Publisher | None = None
        self._subscriptions: list[Subscription] = []
        self._by_id: dict[int, Subscription] = {}
        self._groups = Groups(ServerLimits(), settings.items_per_subscription_max)
        self._limits = ServerLimits()
        self._points = dict(delivery.points)  # as the present items are monitored
        self._unreadable_due_s = 0.0
        self._refused: dict[int, int] = {}  # newly refused tags with their statuses, not yet recorded
        self._absences = Absences()
        # Values of a node that was deleted in an earlier process may have been undelivered for so long.
        undelivered_ns = settings.undelivered_ms(delivery.points.values()) * 1_000_000
        for tag, (status, lost_ns) in delivery.sampler.losses().items():  # in an earlier process
            if status & quality.CODE_BITS in quality.NO_ITEM:
                self._absences.begin([tag], ITEM_REFUSED, ServerTime(lost_ns - undelivered_ns, 0))
        self._auditor: Audit | None = None  # the audit of the present session
        self._lives: dict[
            int, ServerTime
        ] = {}  # last signs of life of the previous session's items, for tags without a value in this one
        self._lives_ended_ns = 0  # up to this time those items should have delivered everything
        self._has_open_gap = False  # a gap whose end is not known, to be committed in case this process is killed
        self._ended: list[
            tuple[list[int], int]
        ] = []  # tags of subscriptions that the server ended, and the last proof of life
        self._ends_recorded = asyncio.Event()
        self._server_start: object = None  # StartTime of the server of the present session
        self._built: ServerTime | None = None  # when the present session was complete
        self._lost_sessions = LostSessions(partial(close_session, settings))
        self._rescue: Rescue[Subscription] | None = None
        self.polls_missed_total = self.polls_late_total = 0  # nothing is polled

    @property
    def alive_s(self) -> float:
        """The last proof of life of this server, on our monotonic clock."""
        return max((one.liveness.alive_s for one in self._subscriptions), default=self._alive_before_s)

    @property
    def alive_ns(self) -> int:
        """The time on the server's clock up to which all values are delivered (`liveness`), by the subscription that is
        furthest behind; 0: not known."""
        known = [one.since_ns for one in self._subscriptions]
        if not any(one.liveness.complete_ns for one in self._subscriptions):
            return self._alive_before_ns
        return min(known)

    @property
    def is_complete(self) -> bool:
        """Whether all items of the present session exist."""
        return self._built is not None

    def retry(self) -> None:
        """Try the parked nodes now."""
        for one in self._subscriptions:
            one.plan.retry()

    @property
    def clock_ahead_ns(self) -> int | None:
        """By how much the server's clock is ahead of ours; None before it was read."""
        return self._clock.ahead_of_ns(time.monotonic_ns(), time.time_ns())

    def now_ns(self) -> int:
        """The time of this source's samples: the server's clock, as far as is known."""
        return self._clock.now_ns(time.monotonic_ns(), time.time_ns())

    async def run(self, on_up: Callable[[], None]) -> None:
        """One life: connect, subscribe, deliver until something breaks. Ends only by an exception."""
        settings = self._settings
        await self._take_over_map()
        try:
            async with open_session(settings) as session:
                started = await session.server_start()
                self._lost_sessions.begin(session, started)
                await self._read_clock(session)  # subscriptions created from now on date losses by it
                self._begin(session, await session.limits(), started)
                assert self._publisher is not None, "made in _begin"
                async with TaskGroup() as group:
                    group.create_permanent(self._drain(), name=f"{settings.name} drain")
                    group.create_permanent(self._publisher.run(), name=f"{settings.name} publish")
                    group.create_permanent(self._build_and_maintain(session, on_up), name=f"{settings.name} tend")
                    raise await session.lost
        except asyncio.CancelledError:  # a stop
            self._declare_open(self._absences.handles)
            raise

    def _begin(self, session: Session, limits: ServerLimits, server_start: object) -> None:
        """Replace everything of the previous session."""
        self._alive_before_s, self._alive_before_ns = self.alive_s, self.alive_ns
        if self._auditor is not None:  # otherwise the previous session was not complete
            items = [(one, tag) for one in self._subscriptions for tag in one.plan.live & self._points.keys()]
            self._lives = {tag: self._auditor.last_life(one, tag) for one, tag in items}
            self._lives_ended_ns, self._auditor = self.alive_ns, None
        self._rescue = self._rescue_of_session_before()
        self._server_start, self._built = server_start, None
        self._subscriptions, self._by_id, self._ended = [], {}, []
        self._limits = limits
        self._groups = Groups(limits, self._settings.items_per_subscription_max)
        values = Route(
            partial(self._decode, session), partial(self._take, session), partial(self._find_missing, session)
        )
        self._publisher = Publisher(session, self._settings.publish_requests, values, self._note_none_left)

    def _rescue_of_session_before(self) -> Rescue[Subscription] | None:
        """The rescue of the values that the previous session did not receive."""
        if self._publisher is None:
            return None
        built = None if self._built is None else self._subscriptions
        rescue = next_rescue(self._rescue, built, self._publisher.positions(), self._server_start, lambda _: None)
        if rescue is not None and rescue.has_olds and self.backfill is not None:
            self.backfill.await_rescue()
        return rescue

    async def finish(self) -> None:
        """Deliver what had arrived before the life ended."""
        self._set_backs.end_life()
        late = [] if self._publisher is None else self._publisher.leftover()
        while not self._buffer.empty():
            await self._deliver(self._buffer.get_nowait())
        for arrived in late:
            if isinstance(arrived, Missing):
                self._note_missing(arrived)
                continue
            await self._deliver(self._note_publication(arrived.header, arrived.content))
        await self._deliver_due()
        if self._built is not None:
            self._end_rescue()
        await self._take_over_map()
        if self.events is not None:
            await self.events.finish()

    async def _decode(self, session: Session, header: Header, body: bytes) -> Publication:
        """The values of a publication."""
        subscription = self._by_id.get(header.subscription_id)
        return await session.decode(body, () if subscription is None else subscription.elements)

    async def _take(self, session: Session, header: Header, publication: Publication) -> None:
        """Called for each publication in order. It is acknowledged when this returns."""
        if publication.values_lost and time.monotonic() >= self._unreadable_due_s:
            await self._log_unreadable(session, publication.values_lost)
        arrived = self._note_publication(header, publication)
        if publication.changes or publication.values_lost:
            await self._buffer.put(arrived)
        if self._rescue is not None and self._publisher is not None:  # after its values, which come before its end
            self._rescue.note_answer(header, self._publisher.positions().get(header.subscription_id, 0))

    def _note_publication(self, header: Header, publication: Publication) -> Buffered:
        """Take in what a publication shows about its subscription: signs of life, its clock, its end."""
        subscription = self._by_id.get(header.subscription_id)
        if subscription is None:
            return Buffered(header.subscription_id, publication, 0, 0)
        arrived = Buffered(header.subscription_id, publication, subscription.since_ns, subscription.set_back_ns)
        values, clock_ns, clock_moved = len(publication.changes), None, False
        if HEARTBEAT_HANDLE in publication.changes.handles:
            for change in publication.changes:
                if change.handle == HEARTBEAT_HANDLE:
                    values -= 1
                    if subscription.liveness.note_clock(change.value):
                        clock_ns, clock_moved = self._note_clock(subscription, change, header.publish_time_ns), True
        numbers = {} if self._publisher is None else self._publisher.positions()
        subscription.liveness.note_answer(
            *(time.monotonic(), sent_ns(header.publish_time_ns, self.now_ns(), self._clock), clock_ns),
            is_proof=values > 0 or clock_moved,
            more=header.more or header.is_early(numbers.get(header.subscription_id)),
        )
        if subscription.since_ns != arrived.since_ns:
            subscription.set_back_ns = self._clock.set_back_ns
        status = publication.status_change
        if status is not None and quality.is_bad(status) and status & quality.CODE_BITS not in quality.GONE:
            # The status of a deleted node ends nothing, and does not tell which node it is (python-opcua).
            subscription.ended = status_name(status)
        return arrived

    def _note_clock(self, subscription: Subscription, change: Change, publish_ns: int) -> int | None:
        """Take in a change of the server's clock. Returns its time in ns, None if it has none."""
        server_ns = change.source_time_ns or change.server_time_ns
        if not server_ns:
            return None
        at_ns = read_ns(server_ns, publish_ns)
        set_back_ns = self._clock.read(at_ns, time.monotonic_ns(), subscription.clock_least_ns)
        subscription.clock_least_ns = server_ns
        self._set_backs.read(at_ns, set_back_ns)
        return server_ns

    def _now(self) -> ServerTime:
        return ServerTime(self.now_ns(), self._clock.set_back_ns)

    async def _read_clock(self, session: Session) -> int:
        """Read the server's clock and return `now_ns`, so that a gap that ends now includes everything up to now. A
        published clock is late: without this, `now_ns` may be earlier than the lost values."""
        least_ns = self._clock.least_ns(time.monotonic_ns())
        server_ns = await session.clock_ns()
        if server_ns is not None:
            self._set_backs.read(server_ns, self._clock.read(server_ns, time.monotonic_ns(), least_ns))
        return self.now_ns()

    def _declare(self, gap: TagGap, count: int = 0, *, exact: bool = False) -> None:
        self._delivery.add_gap(gap.reason, gap.first_time_ns, gap.last_time_ns, count, gap.tags, exact=exact)

    async def _drain(self) -> None:
        """The only task that records: what has arrived, and what is due because time has passed."""
        await self._hold_first_values()
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
                await self._deliver_due()
                await self._rescue_due()
                await self._take_over_map()
                due_s = time.monotonic() + TICK_S

    async def _hold_first_values(self) -> None:
        """Hold back the first values after a stop until all items exist, so that one fact declares the gap before them.
        None is lost by this: the next process would find the same stop."""
        until_s = time.monotonic() + FIRST_VALUE_S
        while self._delivery.is_fact_expected and not self.is_complete and time.monotonic() < until_s:
            if self._rescue is not None or self._buffer.full():  # the rescue may have to end first
                break
            await asyncio.sleep(TICK_S)

    async def _take_over_map(self) -> None:
        """Take over a new tag map after everything that has arrived under the old one."""
        if not self._delivery.has_pending_map:
            return
        await self._deliver_buffered()
        if self._delivery.take_over_map(self.now_ns()):
            # What still arrives for the old number of a renumbered tag is discarded.
            renumbered = self._delivery.renumbered
            self._absences.keep(self._delivery.points, renumbered)
            for one in self._subscriptions:
                new = [renumbered[tag] for tag in one.plan.live if tag in renumbered]
                self._absences.begin(new, ITEM_RENEWED, one.since)
            await self._delivery.recorder.settle()

    async def _deliver_buffered(self) -> None:
        """Deliver what has arrived up to now."""
        for _ in range(self._buffer.qsize()):
            await self._deliver(self._buffer.get_nowait())

    async def _deliver(self, arrived: Buffered) -> None:
        publication = arrived.publication
        subscription = self._by_id.get(arrived.subscription_id)
        if subscription is None:
            return  # an old one that has ended: the new ones bring its values
        now_ns = self.now_ns()
        changes = publication.changes
        handles = set(changes.handles)
        repeated = len(changes) - len(handles)
        if not self._delivery.points.keys() >= handles:
            # Without the heartbeat, and without values of removed tags that were on their way.
            changes = changes.of_handles(self._delivery.points)
        marked = [change for change in changes if change.quality] if any(changes.qualities) else []
        if marked:
            self._note_overflow(subscription, arrived, marked, changes)
            log_parked(self._delivery, subscription.note_denied(marked))
        if repeated >= subscription.queue_size_least - 1:
            self._note_full(subscription, arrived, changes)
        is_old = self._rescue is not None and arrived.subscription_id in self._rescue.subscriptions
        if not is_old and not self._absences.handles.isdisjoint(handles):
            changes = self._note_absent(changes)
        if not is_old and not self._lives.keys().isdisjoint(handles):
            self._note_died(changes)
        samples = SampleColumns(changes.handles, changes.times_ns(now_ns), changes.values, changes.qualities)
        if self._rescue is not None:
            samples = self._without_duplicates(self._rescue, samples, is_old=is_old)
        await self._delivery.deliver(samples, now_ns, subscription.created_ns)
        if publication.values_lost:
            self._note_unreadable(subscription, arrived, now_ns)
        if is_old:
            await self._delivery.recorder.settle()
        elif marked:  # items of an old subscription are deleted anyway
            self._note_gone(subscription, arrived, marked)

    def _without_duplicates(
        self, rescue: Rescue[Subscription], samples: SampleColumns, *, is_old: bool
    ) -> SampleColumns:
        """The samples of an old or a new subscription that are to be delivered. Late ones are handed in here. Nothing
        is awaited before the others are handed in too, so that none is lost if the session ends."""
        if not is_old:
            return rescue.deduplicator.of_new(samples)
        refused = self._groups.unplaced.union(*(one.plan.parked for one in self._subscriptions))
        samples, late = rescue.deduplicator.of_old(samples, refused)
        rescue.values_total += len(samples.tags) + len(late.tags)
        self._delivery.hand_in_late(late)
        return samples

    async def _rescue_due(self) -> None:
        """End a rescue that is over, after everything that it brought is delivered."""
        now_s = time.monotonic()
        if self._rescue is not None and self._rescue.is_over(now_s):
            await self._deliver_buffered()
            self._end_rescue()
        elif self._rescue is not None and self._rescue.is_past(now_s):
            self._rescue = None

    async def _finish_rescue(self, rescue: Rescue[Subscription], session: Session) -> None:
        """Receive what the old subscriptions hold and delete them, because the server has no room for new ones beside
        them. The time between their last values and the first of the new ones is a gap."""
        olds = [*rescue.subscriptions.values()]
        rescue.built(time.monotonic())
        while not rescue.has_ended:  # ended by the task that records, after the last value
            self._check_life()
            await asyncio.sleep(TICK_S)
        await rescue.delete_useless(session)
        for old in olds:
            self._declare_missing(old)

    def _end_rescue(self) -> None:
        """End the rescue. What the old subscriptions should have brought and did not is a gap."""
        if self._rescue is None or self._rescue.has_ended:
            return
        ended = self._rescue.end(time.monotonic())
        assert self._publisher is not None, "made in _begin"
        for old in ended.all:
            self._publisher.forget(old.id)
            self._by_id.pop(old.id, None)
        for old in ended.short:
            self._declare_missing(old)
        live = set[int]().union(*(one.plan.live for one in self._subscriptions))
        rescued = live.intersection(set[int]().union(*(one.bridged for one in ended.whole))) - self._rescue.overflowed
        if self.backfill is not None:
            self.backfill.rescued(rescued, self._rescue.values_total)
        if ended.all:
            extra = {"source": self._settings.name, "values": self._rescue.values_total, "tags": len(rescued)}
            log.info(
                "the subscriptions of the lost session were read to their end",
                extra={"action": "values_rescued", **extra},
            )

    async def _log_unreadable(self, session: Session, count: int) -> None:
        """Log values that cannot be read, and read the clock. Limited, because a server may send some with each
        publication."""
        self._unreadable_due_s = time.monotonic() + UNREADABLE_EVERY_S
        extra = {"action": "values_unreadable", "source": self._settings.name, "count": count}
        log.warning("the server sent a malformed value; the values behind it cannot be read", extra=extra)
        await self._read_clock(session)

    def _note_unreadable(self, subscription: Subscription, arrived: Buffered, now_ns: int) -> None:
        """Declare the values behind a malformed one. They may be of any tag of the subscription and of any time since
        the last proof."""
        last_ns = now_ns + DELAY_NS  # the clock was read a while ago
        gap = TagGap(VALUES_UNREADABLE, arrived.since_ns, last_ns, tuple(sorted(subscription.plan.live)))
        self._declare(gap, arrived.publication.values_lost, exact=True)
        self._set_backs.declare(gap, self._clock.set_back_ns - arrived.set_back_ns)

    async def _deliver_due(self) -> None:
        now_ns = self.now_ns()
        refused, self._refused = self._refused, {}
        for tag, status in refused.items():
            if tag in self._delivery.points:
                since = self._absences.since(tag)
                since_ns = None if since is None else self._clock.in_new_times(since)
                await self._delivery.lose(status, now_ns, [tag], corrects=True, since_ns=since_ns)
        while self._ended:
            await self._deliver_buffered()  # values from before the end of a subscription are recorded before its loss
            tags, since_ns = self._ended[0]
            still = [now for tag in tags if (now := self._delivery.number(tag)) in self._delivery.points]
            await self._delivery.lose(quality.BAD_COMMUNICATION_ERROR, now_ns, still, since_ns=since_ns)
            self._ended.pop(0)
        self._ends_recorded.set()
        await self._delivery.deliver_due(now_ns)
        if self._has_open_gap:
            self._has_open_gap = False
            await self._delivery.recorder.flush_gaps(at_once=True)

    def _note_absent(self, changes: Changes) -> Changes:
        """Handle changes of absent tags: tags without an item, or whose item has not published yet. Returns the changes
        to deliver, without those that repeat a recorded loss."""
        gone = {change for change in changes if change.quality & quality.CODE_BITS in _NO_VALUE_YET}
        back = self._absences.handles & {change.handle for change in changes if change not in gone}
        for absence, tags in self._absences.publish(back).items():
            self._declare_since(absence.reason, absence.since, tags)
        known = {change for change in gone if self._delivery.sampler.is_lost(change.handle, change.quality)}
        return Changes.of(change for change in changes if change not in known) if known else changes

    def _note_died(self, changes: Changes) -> None:
        """Declare items of the previous session that were dead before the audit found it. Their first values in this
        session are, by their times, much older than the end of that session, and did not arrive in it."""
        sampler, died = self._delivery.sampler, dict[int, ServerTime]()
        for change in changes:
            tag, time_ns = change.handle, change.source_time_ns
            if tag not in self._lives or quality.is_bad(change.quality):
                continue
            life = self._lives.pop(tag)
            # The clock of a device may be behind that of its server.
            is_old = time_ns + sampler.lag_ns(tag) + LAG_NS_MIN < self._lives_ended_ns
            is_new = max(life.time_ns, sampler.last(tag).source_time_ns) < time_ns
            is_comparable = life.set_back_ns == self._clock.set_back_ns
            monitoring = self._delivery.points[tag].monitoring
            if is_old and is_new and is_comparable and is_missed(sampler, tag, change, monitoring):
                died[tag] = life
        if died:
            self._declare_since(ITEM_RENEWED, min(died.values()), sorted(died))

    def _note_gone(self, subscription: Subscription, arrived: Buffered, changes: Iterable[Change]) -> None:
        """Park tags whose nodes do not exist any more. Their items will give no value, so new ones are to be
        created."""
        gone = {c.handle: c.quality for c in changes if c.quality & quality.CODE_BITS in quality.GONE}
        news = subscription.plan.died(gone, time.monotonic_ns())
        begun = self._absences.begin(news, ITEM_REFUSED, ServerTime(arrived.since_ns, arrived.set_back_ns))
        self._delivery.sampler.mark_lost(news)  # the bad samples of the server are recorded already
        log_parked(self._delivery, {tag: news[tag] for tag in begun})

    def _act_on(self, subscription: Subscription, findings: Findings) -> None:
        """Replace the items that an audit has found dead."""
        gone = subscription.plan.died(findings.gone, time.monotonic_ns())
        dead = subscription.plan.renew(findings.dead)
        for tags, reason in ((gone, ITEM_REFUSED), (dead, ITEM_RENEWED)):
            for tag in tags:
                self._absences.begin([tag], reason, findings.since[tag])
        self._note_parked(gone)
        self._declare_open(dead)
        if dead:
            extra = {"action": "items_dead", "source": self._settings.name, **self._delivery.named(dead)}
            log.warning("the server does not publish changes of these values; items are created again", extra=extra)

    def _note_overflow(
        self, subscription: Subscription, arrived: Buffered, marked: Iterable[Change], changes: Iterable[Change]
    ) -> None:
        """Declare the values that the server has discarded, by its overflow bit: those between the last one and the
        marked one."""
        overflowed = {one.handle: one for one in marked if quality.has_overflowed(one.quality)}
        times: dict[int, list[int]] = {tag: [] for tag in overflowed}
        for one in changes if overflowed else ():
            if one.handle in times and one.source_time_ns >= overflowed[one.handle].source_time_ns:
                times[one.handle].append(one.source_time_ns)
        if self._rescue is not None:
            self._rescue.overflowed.update(overflowed)
        for tag, change in overflowed.items():
            before_ns = self._delivery.sampler.last(tag).source_time_ns
            sampling_ms = subscription.sampling_ms(tag, self._delivery.points[tag])
            count = discarded(before_ns, times[tag], sampling_ms)
            self._declare_discarded(tag, arrived, before_ns, change.source_time_ns, count)

    def _declare_discarded(self, tag: int, arrived: Buffered, before_ns: int, after_ns: int, count: int) -> None:
        """Declare that the server discarded values of a tag between `before_ns` (0: no value) and `after_ns`. If these
        are not in order, its clock was set back in between, and the values may have times from before or after that."""
        if 0 < before_ns <= after_ns:
            gap = TagGap(SERVER_QUEUE_OVERFLOW, before_ns, after_ns, (tag,))
            self._declare(gap, count)
            return
        set_back_ns = self._clock.set_back_ns - arrived.set_back_ns
        first_ns = min(arrived.since_ns - set_back_ns, after_ns)
        self._declare(TagGap(SERVER_QUEUE_OVERFLOW, first_ns, after_ns, (tag,)), count)
        last_ns = max(arrived.since_ns, self.now_ns() + CLOCK_JUMP_NS)
        gap = TagGap(SERVER_QUEUE_OVERFLOW, arrived.since_ns, last_ns, (tag,))
        if before_ns and not set_back_ns:  # the set-back was not read yet: declare by the clock as it was
            self._declare(gap)
        self._set_backs.declare(gap, set_back_ns)

    def _note_full(self, subscription: Subscription, arrived: Buffered, changes: Changes) -> None:
        """Declare possible losses before full queues: some servers (asyncua, python-opcua) discard values silently."""
        full = {
            tag for tag, count in Counter(changes.handles).items() if 1 < subscription.queue_sizes.get(tag, 0) <= count
        }
        times: dict[int, list[int]] = {tag: [] for tag in full}
        for tag, time_ns, status in zip(
            changes.handles, changes.times_ns(self.now_ns()), changes.qualities, strict=True
        ):
            if tag in full:
                times[tag].append(time_ns)
                if quality.has_overflowed(status):
                    full.discard(tag)  # this server reports overflows
        for tag in sorted(full):
            before_ns, first_ns = self._delivery.sampler.last(tag).source_time_ns, times[tag][0]
            point = self._delivery.points[tag]
            # asyncua claims to sample as rarely as it publishes, and sends every change.
            sampling_ms = min(subscription.asked_ms(point), subscription.sampling_ms(tag, point))
            if before_ns > first_ns or is_hole(before_ns, first_ns, sampling_ms):
                self._declare_discarded(tag, arrived, before_ns, first_ns, 0)

    async def _find_missing(self, session: Session, missing: Missing) -> None:
        """Notifications did not arrive and the server does not hold them any more. If the session ends here, `finish`
        notes them."""
        await self._read_clock(session)
        self._note_missing(missing)

    def _note_missing(self, missing: Missing) -> None:
        subscription = self._by_id.get(missing.subscription_id)
        if subscription is None:
            return
        count = missing.last - missing.first + 1  # each held at least one value
        self._declare_missing(subscription, count)
        if self._rescue is not None:
            self._rescue.mark_incomplete(subscription.id)
        extra = {"action": "notifications_missing", "source": self._settings.name, "count": count}
        log.warning("notifications of the server did not arrive, and it does not hold them any more", extra=extra)

    def _declare_missing(self, subscription: Subscription, count: int = 0) -> None:
        """Declare at least `count` lost values of a subscription since its last sign of life. Those of an old
        subscription are lost up to the time when the new items were created."""
        until = None if subscription in self._subscriptions else self._built
        self._declare_since(NOTIFICATIONS_MISSING, subscription.since, sorted(subscription.plan.live), count, until)

    def _declare_since(
        self, reason: str, since: ServerTime, tags: Iterable[int], count: int = 0, until: ServerTime | None = None
    ) -> None:
        """Declare at least `count` lost values of these tags from `since` until `until`, by default now."""
        until = until or self._now()
        gap = TagGap(reason, since.time_ns, until.time_ns, tuple(tags))
        self._declare(gap, count)
        self._set_backs.declare(gap, until.set_back_ns - since.set_back_ns, until.time_ns)

    def _declare_open(self, tags: Iterable[int]) -> None:
        """Declare renewed items among these tags now, because no bad sample shows the next process that they are
        missing."""
        for absence, those in self._absences.among(tags).items():
            if absence.reason == ITEM_RENEWED:
                first_ns, now_ns = absence.since.time_ns, self.now_ns()
                self._delivery.add_gap(ITEM_RENEWED, first_ns, now_ns, 0, those, exact=False, is_over=False)
                self._has_open_gap = True

    def _note_none_left(self) -> None:
        """The server reports that this session has no subscription, without having reported their ends."""
        for subscription in self._subscriptions:
            subscription.ended = subscription.ended or "BadNoSubscription"

    async def _build_and_maintain(self, session: Session, on_up: Callable[[], None]) -> None:
        """Build the subscriptions, then look after them: parked nodes, signs of life. History and events have tasks of
        their own, which end with the life."""
        assert self._publisher is not None, "made in _begin"
        if self._rescue is not None:
            await self._rescue.begin(session, self._publisher, self._adopt)
        async with TaskGroup() as group:
            if self.events is not None:
                await self.events.begin(session, self._publisher, group)
            await self._build(session)
            on_up()
            group.create_task(self._lost_sessions.run(), name=f"{self._settings.name} lost sessions")
            if self.backfill is not None:
                group.create_permanent(self.backfill.run(session), name=f"{self._settings.name} backfill")
            if self.events is not None:
                group.create_permanent(self.events.run(session, self._publisher), name=f"{self._settings.name} events")
            group.create_permanent(self._audit(session), name=f"{self._settings.name} audit")
            await self._maintain(session)

    async def _build(self, session: Session) -> None:
        """Create all subscriptions and items, and wait for a value."""
        await self._follow_map(session)
        namespaces = await session.namespaces()
        for subscription in list(self._subscriptions):
            await self._update_items(session, subscription, namespaces)
        if self._rescue is not None:
            self._rescue.built(time.monotonic())
        await self._read_clock(session)
        self._built = self._now()
        session.keep_subscriptions()
        built_s = time.monotonic()
        while self._delivery.is_value_expected and time.monotonic() - built_s < FIRST_VALUE_S:
            self._check_life()
            await asyncio.sleep(TICK_S)

    def _adopt(self, old: Subscription) -> None:
        """Decode and deliver what an old subscription publishes."""
        self._by_id[old.id] = old

    async def _maintain(self, session: Session) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._rescue is not None:
                await self._rescue.delete_useless(session)
            self._check_life()
            for subscription in list(self._subscriptions):
                if subscription.ended:
                    await self._replace(session, subscription)
            await self._follow_map(session)
            for subscription in list(self._subscriptions):
                await self._update_items(session, subscription)

    async def _audit(self, session: Session) -> None:
        """Check whether items still publish. A task of its own, because a Read may take as long as the time-out."""
        audit = self._auditor = Audit(session, self._delivery.sampler, self._limits.nodes_per_read, self._now)
        while True:
            await asyncio.sleep(TICK_S)
            for subscription in list(self._subscriptions):
                if not self._buffer.empty():  # what was published may still be in it
                    break
                findings = await audit.check(subscription, self._points)
                if subscription in self._subscriptions:  # otherwise it was replaced meanwhile
                    self._act_on(subscription, findings)

    def _check_life(self) -> None:
        """Raise SourceLost if a subscription gives no sign of life."""
        now_s = time.monotonic()
        for subscription in self._subscriptions:
            if self._buffer.full():
                subscription.liveness.excuse(now_s)  # this side holds the server back
            if subscription.give_up_clock(now_s):
                extra = {"action": "clock_stands", "source": self._settings.name}
                log.warning(
                    "the server does not notify changes of its clock; any answer counts as a sign of life", extra=extra
                )
            silent_s = subscription.liveness.silent_s(now_s)
            if silent_s > subscription.silence_max_s:
                raise SourceLost(
                    f"{self._settings.url} is connected, but for {silent_s:.0f} s it has sent no value and its clock has "
                    "not moved"
                )

    async def _follow_map(self, session: Session) -> None:
        """Distribute the tags of a new map over subscriptions, and open more if needed. Items that are to be monitored
        differently are created again."""
        points = self._delivery.points
        if points is self._points and self._subscriptions:
            return
        other = [tag for tag, point in points.items() if tag in self._points and self._points[tag] != point]
        self._points = points
        before, groups = self._groups.unplaced, self._groups.want(points)
        while len(self._subscriptions) < len(groups):
            try:
                self._subscriptions.append(await self._opened(session))
            except TooManySubscriptions:
                if not self._subscriptions:
                    raise
                self._groups.limit_count(len(self._subscriptions))
                groups = self._groups.want(points)
        for subscription, handles in zip(self._subscriptions, groups, strict=True):
            subscription.plan.want(handles)
            self._absences.begin(subscription.plan.renew(other), ITEM_RENEWED, subscription.since)
        unplaced = self._groups.unplaced - before
        self._absences.begin(unplaced, ITEM_REFUSED, self._now())
        self._note_parked(dict.fromkeys(unplaced, quality.BAD_TOO_MANY_MONITORED_ITEMS))

    async def _update_items(
        self, session: Session, subscription: Subscription, namespaces: Sequence[str] | None = None
    ) -> None:
        """Delete and create the items of a subscription that are due. The time in which a tag had no item is a gap."""
        set_back_ns = self._clock.set_back_ns
        refused = await subscription.update_items(self._points, namespaces)
        if refused:
            begun_ns = subscription.created_ns or subscription.opened.time_ns
            self._absences.begin(refused, ITEM_REFUSED, ServerTime(begun_ns, set_back_ns))
            self._note_parked(refused)
        created = subscription.plan.take_created()
        if self._absences.among(created):
            await self._read_clock(session)  # if the session ends here, the next one declares the absences
        for absence, tags in self._absences.among(created & subscription.plan.live).items():
            self._declare_since(absence.reason, absence.since, tags)
            self._absences.declare(tags)

    async def _opened(self, session: Session) -> Subscription:
        subscription = Subscription(session, self._settings, self._limits, self.now_ns, self._calls)
        subscription.clock_least_ns = self._clock.least_ns(time.monotonic_ns())
        subscription.set_back_ns = self._clock.set_back_ns
        try:
            await self._open(subscription)
        except TooManySubscriptions:
            if self._rescue is None:
                raise
            await self._finish_rescue(self._rescue, session)
            await subscription.open()
        assert self._publisher is not None, "made in _begin"
        self._by_id[subscription.id] = subscription
        self._publisher.begin(subscription.id)
        await subscription.watch_clock()
        return subscription

    async def _open(self, subscription: Subscription) -> None:
        """Create a subscription. If the server has no room, close the lost sessions and try again."""
        try:
            await subscription.open()
        except TooManySubscriptions:
            await self._lost_sessions.close()
            await subscription.open()

    async def _replace(self, session: Session, old: Subscription) -> None:
        """Replace a subscription that the server has ended. Its tags are lost meanwhile."""
        old.check_age()
        extra = {"action": "subscription_lost", "source": self._settings.name, "why": old.ended}
        log.warning("the server ended a subscription; a new one is created", extra=extra)
        self._ended.append((sorted(old.plan.live), old.since_ns))
        self._ends_recorded.clear()
        assert self._publisher is not None, "made in _begin"
        self._publisher.forget(old.id)
        await self._ends_recorded.wait()  # the loss is recorded before the first value of the new one
        place = self._subscriptions.index(old)
        new = self._subscriptions[place] = await self._opened(session)
        new.plan.want(old.plan.wanted)
        await self._update_items(session, new)
        await self._read_clock(session)
        self._declare_since(SUBSCRIPTION_LOST, old.since, sorted(old.plan.live))

    def _note_parked(self, news: dict[int, int]) -> None:
        """Log newly refused nodes, and have them recorded as bad."""
        log_parked(self._delivery, news)
        self._refused.update(news)  # recorded by the draining task, because only that one records
