"""An OPC UA source: keeps one server's wanted values subscribed and delivers what it publishes.

Client, session, subscriptions and items are built anew at every connect; nothing is resumed. What the subscriptions of
the session before still hold is fetched beside that (`rescue`). Items are spread over subscriptions (`groups`); one
that the server ends is replaced alone. Publications go into a bounded buffer that one task drains. When the store
refuses samples the buffer fills, no Publish is sent, and the values queue at the server. Where its queues overflow, the
status of the values says so, and that becomes a gap fact.

Values and the server's own clock, an item of each subscription, prove that the server is alive: without a proof for
`liveness_timeout_ms` the life ends, whatever the state of the connection (`liveness`). Nodes that the server refuses,
or whose status says that they are gone, are parked and retried apart.

A new tag map is taken over in the running subscriptions: items are added and deleted, all others stay untouched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from agent.columns import SampleColumns
from agent.ingest import quality
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import (
    NOTIFICATIONS_MISSING,
    SERVER_QUEUE_OVERFLOW,
    SUBSCRIPTION_LOST,
    VALUES_UNREADABLE,
    TagGap,
)
from agent.ingest.opcua.decode import Change, Changes, Publication
from agent.ingest.opcua.events import EventCollector
from agent.ingest.opcua.groups import Groups, ServerLimits
from agent.ingest.opcua.history import HistoryBackfill
from agent.ingest.opcua.liveness import ServerClock
from agent.ingest.opcua.monitoring import discarded, is_hole
from agent.ingest.opcua.publisher import Publisher, Route
from agent.ingest.opcua.publishing import Header, Missing, subscription_of
from agent.ingest.opcua.rescue import Old, Rescue
from agent.ingest.opcua.session import (
    HEARTBEAT_HANDLE,
    NOTIFICATIONS_PER_PUBLISH_MAX,
    Session,
    open_session,
)
from agent.ingest.opcua.subscription import Subscription, log_parked
from agent.ingest.settings import OpcuaSourceSettings
from agent.status_codes import status_name

log = logging.getLogger(__name__)

TICK_S = 0.25  # how often time alone is looked at: values held back, heartbeats, parked nodes, life
FIRST_VALUE_S = 5.0  # a source counts as connected with its first value; one that gives none, after this


class Companion(Protocol):
    """Work beside the live values of a source: reading history, receiving events. It slows itself: what it asks of the
    server and hands to the store comes on top of the live values."""

    def note_gap(self, gap: TagGap) -> None:
        """Values of these tags are missing between two times. Called as soon as the end of the gap is known, and must
        not wait."""

    async def run(self, session: Session, publisher: Publisher) -> None:
        """Runs in each life once everything is subscribed, until it is cancelled with it. A subscription of its own is
        made by `session` and routed by `publisher`. A SourceLost raised here ends the life."""

    async def finish(self) -> None:
        """Deliver what had arrived before the life ended."""


class OpcuaSource:
    """One server. The object outlives its connections; what it keeps between them is the time offset and the last proof
    of life, nothing of the session."""

    def __init__(
        self,
        settings: OpcuaSourceSettings,
        delivery: Delivery,
        backfill: HistoryBackfill | None = None,
        events: EventCollector | None = None,
    ) -> None:
        self._settings, self._delivery = settings, delivery
        self.backfill, self.events = backfill, events
        self.read_tags = None  # a server takes a second session
        self._companions: list[Companion] = [one for one in (backfill, events) if one is not None]
        if backfill is not None:
            backfill.now_ns = self.now_ns
        for companion in self._companions:
            delivery.on_gap(companion.note_gap)
        size = max(2, settings.buffer_values_max // NOTIFICATIONS_PER_PUBLISH_MAX)
        self._buffer: asyncio.Queue[Publication] = asyncio.Queue(maxsize=size)
        self._clock = ServerClock()
        self._alive_before_s, self._alive_before_ns = 0.0, 0  # the last proof of life of the sessions before this one
        self._publisher: Publisher | None = None
        self._subscriptions: list[Subscription] = []
        self._by_id: dict[int, Subscription] = {}
        self._groups = Groups(ServerLimits(), settings.items_per_subscription_max)
        self._limits = ServerLimits()
        self._points = dict(delivery.points)  # as the items of this session are monitored
        self._refused: dict[int, int] = {}  # tags newly refused and why, not recorded yet
        self._ended: list[tuple[list[int], int]] = []  # tags of subscriptions that were ended, and the last proof
        self._ends_recorded = asyncio.Event()
        self._server_start: object = None  # in the server's words; None until everything of a session is built
        self._rescue: Rescue[Subscription] | None = None
        self.polls_missed_total = self.polls_late_total = 0  # nothing is polled here

    @property
    def alive_s(self) -> float:
        """When this server last proved its life, on our monotonic clock."""
        return max((one.liveness.alive_s for one in self._subscriptions), default=self._alive_before_s)

    @property
    def alive_ns(self) -> int:
        """Up to when everything that the server had is delivered, on its clock (`liveness`), of the subscription that
        is furthest behind; 0: never."""
        known = [one.liveness.complete_ns or one.opened_ns for one in self._subscriptions]
        if not any(one.liveness.complete_ns for one in self._subscriptions):
            return self._alive_before_ns
        return min(known)

    def retry(self) -> None:
        """Ask for the parked nodes at once."""
        for one in self._subscriptions:
            one.plan.retry()

    def now_ns(self) -> int:
        """The time of this source's samples: the server's clock, as far as we know it."""
        return time.time_ns() + self._clock.offset_ns

    async def run(self, on_up: Callable[[], None]) -> None:
        """One life: connect, subscribe, deliver until something breaks. Ends only by an exception."""
        settings = self._settings
        await self._retag()
        async with open_session(settings) as session:
            self._begin(session, await session.limits())
            assert self._publisher is not None, "made in _begin"
            async with asyncio.TaskGroup() as group:
                group.create_task(self._drain(), name=f"{settings.name} drain")
                group.create_task(self._publisher.run(), name=f"{settings.name} publish")
                group.create_task(self._tend(session, on_up), name=f"{settings.name} tend")
                raise await session.lost

    def _begin(self, session: Session, limits: ServerLimits) -> None:
        """Nothing of the session before this one stays."""
        self._alive_before_s, self._alive_before_ns = self.alive_s, self.alive_ns
        self._rescue = self._rescue_of_session_before(limits)
        self._subscriptions, self._by_id, self._ended = [], {}, []
        self._limits = limits
        self._groups = Groups(limits, self._settings.items_per_subscription_max)
        values = Route(partial(self._decode, session), self._take)
        self._publisher = Publisher(
            *(session, self._settings.publish_requests, values, self._note_missing, self._note_none_left)
        )

    def _rescue_of_session_before(self, limits: ServerLimits) -> Rescue[Subscription] | None:
        """The rescue of the values that the session before did not receive, if it was built, and if the server has room
        for the old subscriptions beside the new ones."""
        started, self._server_start = self._server_start, None
        if started is None or self._publisher is None:
            return None
        numbers = self._publisher.positions()
        olds = {one.id: Old(one, numbers[one.id]) for one in self._subscriptions if one.id in numbers and not one.ended}
        if not olds or 0 < limits.subscriptions_per_session < 2 * len(numbers):
            return None
        if self.backfill is not None:
            self.backfill.await_rescue()
        others = [number for number in numbers if number not in olds and number not in self._publisher.routed]
        before = None if self._rescue is None else self._rescue.seam
        return Rescue(olds, others, started, time.monotonic(), before)

    async def finish(self) -> None:
        """Deliver what had arrived before the life ended."""
        late = [] if self._publisher is None else self._publisher.leftover()
        while not self._buffer.empty():
            await self._deliver(self._buffer.get_nowait())
        for arrived in late:
            if isinstance(arrived, Missing):
                await self._note_missing(arrived)
                continue
            self._see(arrived.header, arrived.content)
            await self._deliver(arrived.content)
        await self._deliver_due()
        self._end_rescue()
        await self._retag()
        for companion in self._companions:
            await companion.finish()

    async def _decode(self, session: Session, body: bytes) -> Publication:
        """The values of a publication."""
        subscription = self._by_id.get(subscription_of(body))
        return await session.decode(body, () if subscription is None else subscription.elements)

    async def _take(self, header: Header, publication: Publication) -> None:
        """Called for each publication in its turn; the server gets its acknowledgement when this returns."""
        self._see(header, publication)
        if publication.changes or publication.values_lost:
            await self._buffer.put(publication)
        if self._rescue is not None and self._publisher is not None:  # behind its values, which count before its end
            self._rescue.see(header, self._publisher.positions().get(header.subscription_id, 0))

    def _see(self, header: Header, publication: Publication) -> None:
        """What a publication says of the life of its subscription."""
        subscription = self._by_id.get(header.subscription_id)
        if subscription is None:
            return
        values, clock_ns, clock_moved = len(publication.changes), None, False
        if HEARTBEAT_HANDLE in publication.changes.handles:
            for change in publication.changes:
                if change.handle == HEARTBEAT_HANDLE:
                    values -= 1
                    if subscription.liveness.see_clock(change.value):
                        clock_ns, clock_moved = self._see_clock(change), True
        numbers = {} if self._publisher is None else self._publisher.positions()
        subscription.liveness.see(
            *(time.monotonic(), self._clock.proof_time_ns(header.publish_time_ns, time.time_ns()), clock_ns),
            is_proof=values > 0 or clock_moved,
            more=header.more or header.is_early(numbers.get(header.subscription_id)),
        )
        status = publication.status_change
        if status is not None and quality.is_bad(status):
            subscription.ended = status_name(status)

    def _see_clock(self, change: Change) -> int | None:
        """Take in the server's clock, which has moved; its time in ns, None if it has none."""
        server_ns = change.source_time_ns or change.server_time_ns
        if server_ns:
            self._clock.see(server_ns, time.time_ns())
        return server_ns or None

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
                await self._rescue_due()
                await self._retag()
                due_s = time.monotonic() + TICK_S

    async def _retag(self) -> None:
        """Take over a new tag map, behind all that has arrived under the old one."""
        if not self._delivery.has_pending_map:
            return
        await self._deliver_buffered()
        if self._delivery.retag(self.now_ns()):
            await self._delivery.settle()

    async def _deliver_buffered(self) -> None:
        """What has arrived up to now."""
        for _ in range(self._buffer.qsize()):
            await self._deliver(self._buffer.get_nowait())

    async def _deliver(self, publication: Publication) -> None:
        subscription = self._by_id.get(publication.subscription_id)
        if subscription is None:
            return  # an old one that is over: the new ones bring its values
        now_ns = self.now_ns()
        changes = publication.changes
        handles = set(changes.handles)
        repeated = len(changes) - len(handles)
        if not self._delivery.points.keys() >= handles:
            # The heartbeat is not wanted, nor is what was on its way from a removed tag.
            changes = changes.of_handles(self._delivery.points)
        marked = [change for change in changes if change.quality] if any(changes.qualities) else []
        if marked:
            self._note_overflow(subscription, marked, changes)
        if repeated >= subscription.queue_size_least - 1:
            self._note_full(subscription, changes)
        samples = SampleColumns(changes.handles, changes.times_ns(now_ns), changes.values, changes.qualities)
        is_old = self._rescue is not None and publication.subscription_id in self._rescue.subscriptions
        if self._rescue is not None:
            samples = self._at_seam(self._rescue, samples, is_old=is_old)
        await self._delivery.deliver_columns(samples, now_ns, subscription.created_ns)
        if publication.values_lost:
            self._note_unreadable(subscription, publication, now_ns)
        if is_old:
            await self._delivery.settle()
        elif marked:  # old items are deleted in any case
            self._note_gone(subscription, marked)

    def _at_seam(self, rescue: Rescue[Subscription], samples: SampleColumns, *, is_old: bool) -> SampleColumns:
        """The samples that are delivered, of those that an old or a new subscription brings. Late ones are handed in,
        and nothing is awaited before the others are: an end of the session loses none."""
        if not is_old:
            return rescue.seam.of_new(samples)
        refused = self._groups.unplaced.union(*(one.plan.parked for one in self._subscriptions))
        samples, late = rescue.seam.of_old(samples, refused)
        rescue.values_total += len(samples.tags) + len(late.tags)
        self._delivery.hand_in_late(late)
        return samples

    async def _rescue_due(self) -> None:
        """End a rescue whose old subscriptions have given everything, behind all that they gave."""
        now_s = time.monotonic()
        if self._rescue is not None and self._rescue.is_over(now_s):
            await self._deliver_buffered()
            self._end_rescue()
        elif self._rescue is not None and self._rescue.is_past(now_s):
            self._rescue = None

    def _end_rescue(self) -> None:
        """Nothing of the old subscriptions is taken any more. What they should have given and did not is a gap."""
        if self._rescue is None or self._rescue.has_ended:
            return
        ended = self._rescue.end(time.monotonic())
        assert self._publisher is not None, "made in _begin"
        for old in ended.all:
            self._publisher.forget(old.id)
            self._by_id.pop(old.id, None)
        for old in ended.short:
            self._note_break(old, 0)
        live = set[int]().union(*(one.plan.live for one in self._subscriptions))
        rescued = live.intersection(set[int]().union(*(one.bridged for one in ended.whole))) - self._rescue.overflowed
        if self.backfill is not None:
            self.backfill.rescued(rescued, self._rescue.values_total)
        if ended.all:
            extra = {"source": self._settings.name, "values": self._rescue.values_total, "tags": len(rescued)}
            log.info("lost subscriptions were read to their end", extra={"action": "values_rescued", **extra})

    def _note_unreadable(self, subscription: Subscription, publication: Publication, now_ns: int) -> None:
        """Values behind a malformed one: whose they are is not known, nor when they were; some of the subscription."""
        tags = sorted(subscription.plan.live)
        times_ns = [time_ns for time_ns in publication.changes.times_ns(now_ns) if time_ns] or [now_ns]
        first_ns, last_ns = min(times_ns), max(*times_ns, now_ns)
        self._delivery.add_gap(VALUES_UNREADABLE, first_ns, last_ns, publication.values_lost, tags, exact=True)
        extra = {"action": "values_unreadable", "source": self._settings.name, "count": publication.values_lost}
        log.warning("the server sent a malformed value; the values behind it cannot be read", extra=extra)

    async def _deliver_due(self) -> None:
        now_ns = self.now_ns()
        refused, self._refused = self._refused, {}
        for tag, status in refused.items():
            if tag in self._delivery.points:
                await self._delivery.lose(status, now_ns, [tag], corrects=True)
        while self._ended:
            await self._deliver_buffered()  # what a subscription gave before its end comes before its loss
            tags, since_ns = self._ended[0]
            still = [tag for tag in tags if tag in self._delivery.points]
            await self._delivery.lose(quality.BAD_COMMUNICATION_ERROR, now_ns, still, since_ns=since_ns or None)
            self._ended.pop(0)
        self._ends_recorded.set()
        await self._delivery.deliver_due(now_ns)

    def _note_gone(self, subscription: Subscription, changes: Iterable[Change]) -> None:
        """Nodes that do not exist any more: their items give no value again, so new ones are to be created."""
        gone = {c.handle: c.quality for c in changes if c.quality & quality.CODE_BITS in quality.GONE}
        news = subscription.plan.died(gone, time.monotonic_ns())
        self._delivery.sampler.mark_lost(news)  # the bad samples are recorded as the server sent them
        log_parked(self._delivery, news)

    def _note_overflow(self, subscription: Subscription, marked: Iterable[Change], changes: Sequence[Change]) -> None:
        """The server's word that it discarded values before these: between the last one we had and this one."""
        overflowed = {one.handle: one for one in marked if quality.has_overflowed(one.quality)}
        times: dict[int, list[int]] = {tag: [] for tag in overflowed}
        for one in changes if overflowed else ():
            if one.handle in times and one.source_time_ns >= overflowed[one.handle].source_time_ns:
                times[one.handle].append(one.source_time_ns)
        if self._rescue is not None:
            self._rescue.overflowed.update(overflowed)
        for tag, change in overflowed.items():
            before_ns = self._delivery.sampler.last_time_ns(tag)
            sampling_ms = subscription.sampling_ms(tag, self._delivery.points[tag])
            count, is_exact = discarded(before_ns, times[tag], sampling_ms)
            first_ns = before_ns or change.source_time_ns
            self._delivery.add_gap(SERVER_QUEUE_OVERFLOW, first_ns, change.source_time_ns, count, [tag], exact=is_exact)

    def _note_full(self, subscription: Subscription, changes: Changes) -> None:
        """Some servers (asyncua, python-opcua) discard values without a word: as many as a queue holds may be the rest
        of more."""
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
                    full.discard(tag)  # this server says it
        for tag in sorted(full):
            before_ns, first_ns = self._delivery.sampler.last_time_ns(tag), times[tag][0]
            point = self._delivery.points[tag]
            # asyncua says that it samples as rarely as it publishes, and sends every change.
            if is_hole(before_ns, first_ns, min(subscription.asked_ms(point), subscription.sampling_ms(tag, point))):
                self._delivery.add_gap(SERVER_QUEUE_OVERFLOW, before_ns, first_ns, 0, [tag], exact=False)

    async def _note_missing(self, missing: Missing) -> None:
        """A notification was sent and never came, and the server does not hold it any more."""
        subscription = self._by_id.get(missing.subscription_id)
        if subscription is None:
            return
        count = missing.last - missing.first + 1  # each held a value at least
        self._note_break(subscription, count)
        if self._rescue is not None:
            self._rescue.spoil(subscription.id)
        extra = {"action": "notifications_missing", "source": self._settings.name, "count": count}
        log.warning("notifications of the server never came, and it does not hold them any more", extra=extra)

    def _note_break(self, subscription: Subscription, count: int) -> None:
        """At least so many notifications of a subscription are lost, since its last sign of life."""
        since_ns, tags = subscription.liveness.complete_ns or self.now_ns(), sorted(subscription.plan.live)
        self._delivery.add_gap(NOTIFICATIONS_MISSING, since_ns, self.now_ns(), count, tags, exact=False)

    def _note_none_left(self) -> None:
        """The server says that this session has no subscription, and did not say before that they ended."""
        for subscription in self._subscriptions:
            subscription.ended = subscription.ended or "BadNoSubscription"

    async def _tend(self, session: Session, on_up: Callable[[], None]) -> None:
        """Build the subscriptions, then look after them: parked nodes, signs of life. Companions run beside."""
        if self._rescue is not None:
            assert self._publisher is not None, "made in _begin"
            await self._rescue.begin(session, self._publisher, self._adopt)
        await self._follow_map(session)
        namespaces = await session.namespaces()
        for subscription in list(self._subscriptions):
            self._note_parked(await subscription.tend(self._points, namespaces))
        if self._rescue is not None:
            self._rescue.built()
        self._server_start = await session.server_start()
        session.keep_subscriptions()
        built_s = time.monotonic()
        while self._delivery.is_value_expected and time.monotonic() - built_s < FIRST_VALUE_S:
            self._check_life()
            await asyncio.sleep(TICK_S)
        on_up()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_after(session), name=f"{self._settings.name} look after")
            assert self._publisher is not None, "made in _begin"
            for companion in self._companions:
                group.create_task(companion.run(session, self._publisher), name=f"{self._settings.name} companion")

    def _adopt(self, old: Subscription) -> None:
        """What an old subscription publishes is read as that of a new one."""
        self._by_id[old.id] = old

    async def _look_after(self, session: Session) -> None:
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
                self._note_parked(await subscription.tend(self._points))

    def _check_life(self) -> None:
        """Raise SourceLost if a subscription gives no sign of life any more."""
        now_s = time.monotonic()
        for subscription in self._subscriptions:
            if self._buffer.full():
                subscription.liveness.excuse(now_s)  # this side holds the server back
            silent_s = subscription.liveness.silent_s(now_s)
            if silent_s > subscription.silence_max_s:
                raise SourceLost(
                    f"{self._settings.url} is connected, but for {silent_s:.0f} s it has sent no value and its clock has "
                    "not moved"
                )

    async def _follow_map(self, session: Session) -> None:
        """Spread what the tag map wants over subscriptions, more of them if need be. Items that are to be monitored in
        another way are created anew."""
        points = self._delivery.points
        if points is self._points and self._subscriptions:
            return
        other = [tag for tag, point in points.items() if tag in self._points and self._points[tag] != point]
        self._points = points
        before = self._groups.unplaced
        for index, handles in enumerate(self._groups.want(points)):
            if index == len(self._subscriptions):
                self._subscriptions.append(await self._opened(session))
            self._subscriptions[index].plan.want(handles)
            self._subscriptions[index].plan.renew(other)
        self._note_parked(dict.fromkeys(self._groups.unplaced - before, quality.BAD_TOO_MANY_MONITORED_ITEMS))

    async def _opened(self, session: Session) -> Subscription:
        subscription = Subscription(session, self._settings, self._limits, self.now_ns)
        await subscription.open()
        assert self._publisher is not None, "made in _begin"
        self._by_id[subscription.id] = subscription
        self._publisher.begin(subscription.id)
        await subscription.watch_clock()
        return subscription

    async def _replace(self, session: Session, old: Subscription) -> None:
        """Put a new subscription in the place of one that the server has ended. Its tags are lost meanwhile."""
        old.check_age()
        extra = {"action": "subscription_lost", "source": self._settings.name, "why": old.ended}
        log.warning("the server ended a subscription; it is created anew", extra=extra)
        lost, lost_ns = sorted(old.plan.live), old.liveness.complete_ns
        self._ended.append((lost, lost_ns))
        self._ends_recorded.clear()
        assert self._publisher is not None, "made in _begin"
        self._publisher.forget(old.id)
        await self._ends_recorded.wait()  # the loss stands before the first value of the new one
        place = self._subscriptions.index(old)
        new = self._subscriptions[place] = await self._opened(session)
        new.plan.want(old.plan.wanted)
        self._note_parked(await new.tend(self._points))
        if lost_ns:
            self._delivery.add_gap(SUBSCRIPTION_LOST, lost_ns, self.now_ns(), 0, lost, exact=False)

    def _note_parked(self, news: dict[int, int]) -> None:
        """Nodes newly refused: once in the log, and as bad samples."""
        log_parked(self._delivery, news)
        self._refused.update(news)  # recorded by the draining task: only one task records
