"""The subscriptions of one source: its items are distributed over them (`groups`), created, watched, and replaced.

They outlive their session. A subscription that the server has ended is replaced alone: its tags are lost meanwhile.
Nodes that the server refuses, or reports as deleted, are parked and retried separately. A new tag map is taken over in
the running subscriptions: items are added and deleted, all others are not touched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping

from agent.ingest import quality
from agent.ingest.completeness import Moment, earliest
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import ITEM_GONE, NOT_DELIVERED
from agent.ingest.opcua.address import TagPoint
from agent.ingest.opcua.decode import DataChange
from agent.ingest.opcua.publisher import Publisher
from agent.ingest.opcua.session import OpcuaSession, TooManySubscriptions
from agent.ingest.opcua.subscriptions.audit import Findings, is_missed
from agent.ingest.opcua.subscriptions.item_plan import NEVER_NS, Groups, ServerLimits
from agent.ingest.opcua.subscriptions.losses import Absences, Losses
from agent.ingest.opcua.subscriptions.subscription import CallSize, Subscription, log_parked
from agent.ingest.sampling import LAG_NS_MIN
from agent.ingest.source_clock import SourceClock
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

log = logging.getLogger(__name__)

BAD_SUBSCRIPTION_ID_INVALID = 0x8028_0000


class Subscriptions:
    """The subscriptions of values. `session` and `publisher` are those of the present life."""

    session: OpcuaSession
    publisher: Publisher

    def __init__(self, settings: OpcuaSourceSettings, delivery: Delivery, clock: SourceClock, losses: Losses) -> None:
        self._settings, self._delivery, self._clock, self._losses = settings, delivery, clock, losses
        self._all: list[Subscription] = []
        self._by_id: dict[int, Subscription] = {}  # also one that is being created
        self._groups = Groups(ServerLimits(), settings.items_per_subscription_max)
        self._limits, self._calls = ServerLimits(), CallSize(settings.items_per_call_max)
        self.points: Mapping[int, TagPoint] = dict(delivery.points)  # as the present items are monitored
        self.elements = frozenset[int]()  # tags whose value is one element of an array
        self.absences = Absences()
        self._room_due_s = 0.0  # when a refused subscription is asked for again
        self._complete_before: Moment | None = None  # of the subscriptions before
        self._alive_before_s = 0.0
        self._unseen: set[int] = set()  # tags with an item in the session before, and without a value in this one
        self._refused: dict[int, int] = {}  # newly refused tags with their statuses, not yet recorded
        self._ended: list[Subscription] = []  # that the server ended, and whose loss is not recorded
        self._ends_recorded = asyncio.Event()

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self._all))

    def get(self, subscription_id: int) -> Subscription | None:
        """The subscription with this number at the server."""
        return self._by_id.get(subscription_id)

    @property
    def alive_s(self) -> float:
        """The last proof of life, on our monotonic clock."""
        return max((subscription.liveness.alive_s for subscription in self._all), default=self._alive_before_s)

    @property
    def complete(self) -> Moment | None:
        """Up to when all values are delivered (`liveness`), by the subscription that is furthest behind; None: nothing
        has ever arrived."""
        if not any(subscription.liveness.complete for subscription in self._all):
            shown = (subscription.since for subscription in self._all if subscription.liveness.has_shown)
            return self._complete_before or earliest(shown, self._clock.now())
        return earliest((subscription.since for subscription in self._all), self._clock.now())

    @property
    def nodes_per_read(self) -> int:
        """How many nodes one Read may name; 0: no limit is declared."""
        return self._limits.nodes_per_read

    @property
    def is_settled(self) -> bool:
        """Whether no loss of a subscription is still to be recorded."""
        return not self._ended and not any(subscription.ended for subscription in self._all)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def begin_anew(self, session: OpcuaSession, publisher: Publisher, limits: ServerLimits) -> None:
        """Forget the subscriptions of the session before."""
        self._alive_before_s, self._complete_before = self.alive_s, self.complete
        self._unseen = set[int]().union(*(subscription.plan.live for subscription in self._all))
        self.session, self.publisher, self._limits = session, publisher, limits
        self._groups = Groups(limits, self._settings.items_per_subscription_max)
        self._all, self._by_id, self._ended = [], {}, []

    def resume(self, session: OpcuaSession, publisher: Publisher) -> None:
        """Continue with the same subscriptions in another session. Values of items without a queue are lost between."""
        self.session, self.publisher = session, publisher
        for subscription in self._all:
            subscription.resume(session)
            publisher.adopt(subscription.id)
            if subscription.unqueued:
                self._losses.add(NOT_DELIVERED, subscription.since, subscription.unqueued, self._clock.now())

    async def begin_publishing(self) -> None:
        """Recording begins with the subscriptions as they stand. What was absent or refused meanwhile is so from now
        on. Items that exist end what an earlier process found absent."""
        self._complete_before, self._unseen = None, set()
        parked = set(self._groups.unplaced).union(*(subscription.plan.parked for subscription in self._all))
        self._refused = {tag: status for tag, status in self._refused.items() if tag in parked}
        self._begin_absence(parked, self._clock.now())
        for subscription in self._all:
            self.absences.request(subscription.plan.live)
            subscription.begin_publishing()
        await self.session.enable_publishing(self.kept_ids)

    @property
    def kept_ids(self) -> list[int]:
        """The numbers of the subscriptions that the next session may take over."""
        return [subscription.id for subscription in self._all]

    def note_transfer(self, statuses: Iterable[int]) -> bool:
        """The server has answered for these (TransferSubscriptions). False if it gives none."""
        for subscription, status in zip(self._all, statuses, strict=True):
            if quality.is_bad(status):
                subscription.ended = status_name(status)
        return not all(subscription.ended for subscription in self._all)

    async def republish(self) -> None:
        """Receive what the server sent to the session before and did not arrive; then publish as before."""
        for subscription in self:
            if (
                not subscription.ended
                and await self.publisher.republish(subscription.id) == BAD_SUBSCRIPTION_ID_INVALID
            ):
                subscription.ended = status_name(BAD_SUBSCRIPTION_ID_INVALID)
        for subscription in self:
            if subscription.ended:
                await self._replace(subscription)
            else:
                self.publisher.begin_subscription(subscription.id)

    # --- building and maintaining ------------------------------------------------------------------------------------

    async def maintain(self) -> None:
        """Do what is due, at first everything: replace subscriptions that ended, follow the tag map, create items."""
        for subscription in self:
            if subscription.ended:
                subscription.check_age()
                await self._replace(subscription)
        await self._follow_map()
        for subscription in self:
            await self._update_items(subscription)

    def check_life(self, *, is_held_back: bool) -> None:
        """Raise SourceLost if a subscription gives no sign of life. `is_held_back`: this side holds the server back."""
        now_s = time.monotonic()
        for subscription in self._all:
            if is_held_back:
                subscription.liveness.excuse(now_s)
            if subscription.give_up_clock(now_s):
                extra = {"action": "clock_stands", "source": self._settings.name}
                log.warning(
                    "the server does not notify changes of its clock; any answer counts as a sign of life", extra=extra
                )
            silent_s = subscription.liveness.silent_s(now_s)
            if silent_s <= subscription.patience_s:
                continue
            if subscription.is_resumed and not all(kept.is_resumed for kept in self._all):  # the others go on
                subscription.ended, subscription.is_uncertain = "it was kept and sends nothing", True
            else:
                raise SourceLost(
                    f"{self.session.url} is connected, but for {silent_s:.0f} s it has sent no value and its clock has "
                    "not moved"
                )

    def retry(self) -> None:
        """Try the parked nodes now."""
        for subscription in self._all:
            subscription.plan.retry()

    def note_none_left(self) -> None:
        """The server reports that this session has no subscription, without having reported their ends."""
        for subscription in self._all:
            subscription.ended = subscription.ended or "BadNoSubscription"

    async def _follow_map(self) -> None:
        """Distribute the tags of a new map over subscriptions, and open more if needed. Items that are to be monitored
        differently are created again."""
        points, now_s = self._delivery.points, time.monotonic()
        is_room_due = now_s >= self._room_due_s and self._groups.lift_limit()
        if points is self.points and self._all and not is_room_due:
            return
        groups = self._groups.want(points)
        while len(self._all) < len(groups):
            try:
                self._all.append(await self._opened())
            except TooManySubscriptions:
                if not self._all:
                    raise
                self._groups.limit_count(len(self._all))
                # The server may keep subscriptions of a session before, for minutes.
                self._room_due_s = now_s + self._settings.parked_retry_ms / 1000
                groups = self._groups.want(points)
        # Not before: if the session is lost meanwhile, the next one that keeps its subscriptions has to follow the map.
        changed = [tag for tag, point in points.items() if tag in self.points and self.points[tag] != point]
        self.points = points
        self.elements = frozenset(tag for tag, point in points.items() if point.reading.is_element)
        for subscription, handles in zip(self._all, groups, strict=True):
            subscription.plan.want(handles)
            self._begin_absence(subscription.plan.renew(changed), subscription.since)
        unplaced = self._groups.take_unplaced()
        self._begin_absence(unplaced, self._clock.now())
        self._note_parked(dict.fromkeys(unplaced, quality.BAD_TOO_MANY_MONITORED_ITEMS))

    async def _update_items(self, subscription: Subscription) -> None:
        """Delete and create the items of a subscription that are due. A refused tag is absent since the source was
        complete without it."""
        since = earliest(filter(None, (subscription.opened, self._complete_before)), self._clock.now())
        begun = self._clock.now()
        try:
            await subscription.update_items(self.points, self.absences.request)
        finally:  # a later call may have ended the session
            if refused := subscription.take_refused():
                is_first = not subscription.liveness.complete and since is not None
                self._begin_absence(refused, since if is_first and since is not None else begun)
                self._note_parked(refused)
        if subscription.replaced is not None:
            self._losses.add(NOT_DELIVERED, *subscription.replaced, self._clock.now())
            subscription.replaced = None

    async def _opened(self) -> Subscription:
        subscription = Subscription(self.session, self._settings, self._limits, self._clock.now, self._calls)
        subscription.clock_least_ns = self._clock.least_ns()
        await subscription.open()
        self._by_id[subscription.id] = subscription
        self.publisher.begin_subscription(subscription.id)
        await subscription.watch_clock()
        return subscription

    async def _replace(self, old: Subscription) -> None:
        """Replace a subscription that has ended. Its tags are lost meanwhile."""
        extra = {"action": "subscription_lost", "source": self._settings.name, "why": old.ended}
        log.warning("the server ended a subscription; a new one is created", extra=extra)
        self._ended.append(old)
        self._ends_recorded.clear()
        self.publisher.forget(old.id)
        if old.is_uncertain:
            await self.session.delete_subscription(old.id)
        # What has arrived is delivered, and the loss is recorded, before the first value of the new one.
        await self._ends_recorded.wait()
        self._by_id.pop(old.id, None)
        place = self._all.index(old)
        new = await self._opened()
        _, lost = old.replaced or (None, frozenset[int]())
        # Also items that the server may have created: some may have published already, and so are not absent any more.
        new.replaced = old.since, lost.union(old.monitored)
        new.plan.want(old.plan.wanted)
        self._complete_before = self.complete
        self._all[place] = new
        await self._update_items(new)

    # --- what is recorded --------------------------------------------------------------------------------------------

    async def record_losses(self) -> None:
        """Called by the task that records: tags that the server refuses, and those of subscriptions that ended."""
        now = self._clock.now()
        refused, self._refused = self._refused, {}
        for tag, status in refused.items():
            if tag in self._delivery.points:
                since = self.absences.since(tag)
                since_ns = None if since is None else since.on(now)
                await self._delivery.lose(status, now.time_ns, [tag], corrects=True, since_ns=since_ns)
        while self._ended:
            old = self._ended[0]
            still = self._delivery.present(sorted(old.plan.live))
            await self._delivery.lose(quality.BAD_COMMUNICATION_ERROR, now.time_ns, still, since_ns=old.since.on(now))
            self._ended.pop(0)
        self._ends_recorded.set()

    def note_gone(self, subscription: Subscription, since: Moment, changes: Iterable[DataChange]) -> None:
        """Park tags whose nodes do not exist any more. Their items will give no value, so new ones are to be
        created."""
        gone = {c.handle: c.quality for c in changes if c.quality & quality.CODE_BITS in quality.GONE}
        news = subscription.plan.died(gone, time.monotonic_ns())
        begun = self.absences.begin_absence(news, since)
        self._delivery.sampler.mark_lost(news)  # the bad samples of the server are recorded already
        log_parked(self._delivery, {tag: news[tag] for tag in begun})

    def note_first(self, changes: Iterable[DataChange]) -> None:
        """Find items of the session before that were dead and not found by the audit. Their first values in this one
        differ, and are, by their times, much older than what that session was complete up to."""
        if not self._unseen:
            return
        sampler, complete, now = self._delivery.sampler, self._complete_before, self._clock.now()
        for change in changes:
            tag = change.handle
            if tag not in self._unseen or quality.is_bad(change.quality):
                continue
            self._unseen.discard(tag)
            last_ns = sampler.last(tag).source_time_ns
            # The clock of a device may be behind that of its server.
            newest_ns = change.source_time_ns + sampler.lag_ns(tag) + LAG_NS_MIN
            if complete is None or newest_ns >= complete.on(now) or not 0 < last_ns < change.source_time_ns:
                continue
            if is_missed(sampler, tag, change, self._delivery.points[tag].monitoring):
                self._losses.add(ITEM_GONE, Moment(last_ns, now.set_back_ns), [tag], now)

    def act_on(self, subscription: Subscription, findings: Findings) -> None:
        """Replace the items that an audit has found dead."""
        gone = subscription.plan.died(findings.gone, time.monotonic_ns())
        dead = subscription.plan.renew(findings.dead)
        for tag in [*gone, *dead]:
            self._begin_absence([tag], findings.since[tag])
        self._note_parked(gone)
        if dead:
            extra = {"action": "items_dead", "source": self._settings.name, **self._delivery.named(dead)}
            log.warning("the server does not publish changes of these values; items are created again", extra=extra)

    def park_too_large(self, subscription: Subscription, tags: Iterable[int]) -> None:
        """Monitor these tags no more, because their values keep those of others from arriving."""
        news = subscription.plan.died(dict.fromkeys(tags, quality.BAD_ENCODING_LIMITS_EXCEEDED), NEVER_NS)
        if not news:
            return
        self._begin_absence(news, subscription.since)
        self._refused.update(news)
        extra = {"action": "values_too_large", "source": self._settings.name, **self._delivery.named(list(news))}
        log.warning(
            "the values of these tags are too large; they are not read any more: take them out of the tag file, or give"
            " them an index_range, or make the values smaller and run `bsfg source retry`",
            extra=extra,
        )

    def renumber(self) -> None:
        """The delivery has taken over a new tag map. What still arrives for the old number of a renumbered tag is
        discarded, so it is absent until its new item publishes."""
        renumbered = self._delivery.renumbered
        self.absences.keep(self._delivery.points, renumbered)
        for subscription in self._all:
            self.absences.begin_absence(
                [renumbered[tag] for tag in subscription.plan.live if tag in renumbered], subscription.since
            )
            self.absences.request(subscription.plan.live)  # a tag may have its number of before, and its item, again

    def _begin_absence(self, tags: Iterable[int], since: Moment) -> None:
        """These tags are absent since then, as far as a map that was taken over meanwhile still has them."""
        self.absences.begin_absence(self._delivery.present(tags), since)

    def _note_parked(self, news: Mapping[int, int]) -> None:
        """Log newly refused nodes, and have them recorded as bad."""
        log_parked(self._delivery, news)
        self._refused.update(news)  # recorded by the draining task, because only that one records
