"""One subscription and its items: they are created, revised and deleted, and created again if their node was deleted.

It outlives its session: the same object, with the same items, continues in the next one (`resume`). If the server ends
a subscription, it is replaced by a new one with the same items, while the others continue. If it was ended within
seconds of its creation, the session ends, because the next one would not last longer.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.ingest import quality
from agent.ingest.completeness import Moment
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.address import TagPoint
from agent.ingest.opcua.decode import DataChange
from agent.ingest.opcua.session import HEARTBEAT_INTERVAL_MS, CallTooLarge, ItemRequest, OpcuaSession
from agent.ingest.opcua.subscriptions.item_plan import Created, ItemPlan, ServerLimits
from agent.ingest.opcua.subscriptions.liveness import Liveness
from agent.ingest.opcua.subscriptions.monitoring import publishing_ms_of, queue_size_for
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

log = logging.getLogger(__name__)

MS = 1_000_000  # nanoseconds
SIGNS_MISSED_MAX = 3  # intervals to wait for a server that publishes, or samples its clock, more slowly than requested
RESUMED_S = 1.0  # and so long for a line and a server that have just come back
ENDED_EARLY_S = 10.0  # a subscription that ended so soon would be ended again


@dataclass(slots=True)
class CallSize:
    """How many items one call may create within the time-out, as far as is known. It is kept across sessions, because a
    call that is not answered in time ends its session and would end the next one too."""

    items_max: int


class RevisedItems:
    """How the server monitors the items of a subscription, by handle."""

    def __init__(self) -> None:
        self.queue_sizes: dict[int, int] = {}
        self.queue_size_least = sys.maxsize  # of the queues that hold more than one value
        self.unqueued: set[int] = set()  # whose queue holds one value, so that older ones are lost unnoticed
        self.sampling_ms: dict[int, float] = {}  # the revised interval, if it is not the requested one
        self.are_queues_short = False

    def note_created(self, handle: int, asked_ms: float, created: Created) -> None:
        """An item was created."""
        self.queue_sizes[handle] = created.queue_size
        if created.sampling_ms == asked_ms:
            self.sampling_ms.pop(handle, None)
        else:
            self.sampling_ms[handle] = created.sampling_ms
        if created.queue_size > 1:
            self.queue_size_least = min(self.queue_size_least, created.queue_size)
            self.unqueued.discard(handle)
        else:
            self.unqueued.add(handle)


class Subscription:
    """One subscription at the server. `now` gives the server's clock as far as is known."""

    def __init__(
        self,
        session: OpcuaSession,
        settings: OpcuaSourceSettings,
        limits: ServerLimits,
        now: Callable[[], Moment],
        calls: CallSize,
    ) -> None:
        self._session, self._settings, self._now, self._calls = session, settings, now, calls
        self.id = 0
        self.ended = ""  # why the server ended it
        self.liveness = Liveness(time.monotonic())
        self.silence_max_s = settings.liveness_timeout_ms / 1000
        self.plan = ItemPlan((), calls.items_max, settings.parked_retry_ms * MS)
        self.plan.limit(limits.items_per_call)
        # When the last creation of items began. Unchanged values are back since then.
        self.created_ns: int | None = None
        self.is_resumed = False  # it was kept, and has not given a sign of life since
        self.is_uncertain = False  # items were requested, and the answer has not arrived
        self.denied: set[int] = set()  # handles that this user may not read, or could not
        self._refused: dict[int, int] = {}  # newly parked handles with their statuses
        self.items = RevisedItems()
        self.publishing_ms = float(settings.publishing_interval_ms)
        self._slowest_ms = 0.0  # the slower of publishing and of sampling the clock
        self._slower = 1.0  # revised time between keep-alives divided by the requested one
        self.opened = Moment(0)  # on the server's clock as known
        self.has_backlog = False  # its queues filled at the server while it did not publish, and have not all arrived
        # Since when the live items of the one that it replaces are missing, until it has its own.
        self.replaced: tuple[Moment, frozenset[int]] | None = None
        self.clock_least_ns: int | None = None  # lower bound of the next reading of the clock, unless it is set back

    async def open(self) -> None:
        """Create the subscription."""
        self.opened = self._now()
        self.liveness = Liveness(time.monotonic())  # creating it may have been tried before
        self.liveness.open(self.opened)
        self.id, self.publishing_ms, self._slower = await self._session.create_subscription()

    def begin_publishing(self) -> None:
        """It publishes from now on. What it showed before said nothing about its values."""
        before, self.liveness = self.liveness, Liveness(time.monotonic())
        self.liveness.has_clock, self.liveness.sampling_ns = before.has_clock, before.sampling_ns
        self.opened = self._now()
        self.liveness.open(self.opened)
        self.created_ns = self.opened.time_ns
        self.has_backlog = True

    def resume(self, session: OpcuaSession) -> None:
        """Continue in this session. The server has a few publishing intervals for a sign of life."""
        self._session, self.is_resumed = session, True
        self.liveness.excuse(time.monotonic())
        if self.is_uncertain:
            self.ended = "an answer about its items did not arrive"

    @property
    def patience_s(self) -> float:
        """How long it may be silent."""
        if not self.is_resumed or not self.liveness.has_clock:
            return self.silence_max_s
        return min(self.silence_max_s, SIGNS_MISSED_MAX * self._slowest_ms / 1000 + RESUMED_S)

    async def watch_clock(self) -> None:
        """Monitor the server's clock. If the server gives signs of life more slowly than requested, silence may last
        longer."""
        clock = await self._session.create_heartbeat(self.id)
        self.liveness.has_clock = not quality.is_bad(clock.status)
        asked_ms = max(self._settings.publishing_interval_ms, HEARTBEAT_INTERVAL_MS)
        self._slowest_ms = max(self.publishing_ms, publishing_ms_of(clock.sampling_ms, HEARTBEAT_INTERVAL_MS))
        if self._slowest_ms > asked_ms:
            self._wait_for(SIGNS_MISSED_MAX * self._slowest_ms / 1000)
        if not self.liveness.has_clock:
            self._wait_for_keep_alives()

    def give_up_clock(self, now_s: float) -> bool:
        """Accept any answer as a sign of life from now on, if the clock stands still (see `Liveness`)."""
        is_given_up = self.liveness.give_up_clock(now_s, self.silence_max_s)
        if is_given_up:
            self._wait_for_keep_alives()
        return is_given_up

    def _wait_for_keep_alives(self) -> None:
        """Wait for keep-alives, the only sign of life in a quiet plant, as long as the server has revised them."""
        self._wait_for(self._slower * self._settings.liveness_timeout_ms / 1000)

    def _wait_for(self, silence_s: float) -> None:
        """Allow this much silence, if it is more than before."""
        if silence_s > self.silence_max_s:
            self.silence_max_s = silence_s
            extra = {"action": "publishing_slow", "source": self._settings.name, "silence_s": silence_s}
            log.warning("the server publishes rarely, so its silence is noticed late", extra=extra)

    def check_age(self) -> None:
        """Raise SourceLost for a subscription that was ended early."""
        if time.monotonic() - self.liveness.begun_s < ENDED_EARLY_S:
            raise SourceLost(f"{self._session.url} ended a subscription at once: {self.ended}")

    @property
    def since(self) -> Moment:
        """The time up to which all values are proven to be delivered. Losses begin here."""
        if self.replaced is not None:
            return self.replaced[0]
        return self.liveness.complete or self.opened

    def sampling_ms(self, handle: int, point: TagPoint) -> float:
        """The revised sampling interval of an item."""
        return self.items.sampling_ms.get(handle, self.asked_ms(point))

    @property
    def monitored(self) -> frozenset[int]:
        """The handles that may have published: while an answer about items is awaited, all."""
        return frozenset(self.plan.wanted) if self.is_uncertain else self.plan.live

    @property
    def unqueued(self) -> frozenset[int]:
        """The handles whose older values are lost while no Publish is sent."""
        return self.plan.live & self.items.unqueued

    def note_denied(self, changes: Iterable[DataChange]) -> dict[int, int]:
        """Note denied handles among changes that are not good. Returns the new ones with their statuses."""
        news = {
            change.handle: change.quality
            for change in changes
            if change.quality & quality.CODE_BITS in quality.DENIED and change.handle not in self.denied
        }
        self.denied |= news.keys()
        return news

    async def update_items(
        self,
        points: Mapping[int, TagPoint],
        on_request: Callable[[Sequence[int]], None],
    ) -> None:
        """Delete and create the items that are due. `on_request` is called ahead of each creation. Then `take_refused`,
        also if this raises."""
        await self._delete_due()
        await self._create_due(points, on_request)

    def take_refused(self) -> dict[int, int]:
        """The handles that were parked since this was asked before, with their statuses."""
        taken, self._refused = self._refused, {}
        return taken

    async def _delete_due(self) -> None:
        while items := self.plan.next_deletion():
            try:
                await self._session.delete_items(self.id, items)
            except CallTooLarge as error:
                if self.plan.call_refused(len(items)):
                    continue
                raise SourceLost(f"{self._session.url} refuses to delete even one item: {error}") from error
            self.plan.deleted(items)

    async def _create_due(self, points: Mapping[int, TagPoint], on_request: Callable[[Sequence[int]], None]) -> None:
        begun_ns, namespaces = self._now().time_ns, list[str]()
        while handles := self.plan.next_call(time.monotonic_ns()):
            self.created_ns = begun_ns  # for all calls, because values of the first arrive before the last is made
            # Read again for parked nodes, because a server may add a namespace late.
            namespaces = namespaces or await self._session.namespaces()
            on_request(handles)
            self.is_uncertain = True  # until the answer has arrived
            try:
                results = await self._create(handles, points, namespaces)
            except CallTooLarge as error:
                self.is_uncertain = False
                if self.plan.call_refused(len(handles)):
                    continue
                raise SourceLost(f"{self._session.url} refuses to monitor even one item: {error}") from error
            except SourceLost as error:
                if isinstance(error.__cause__, TimeoutError):
                    self._note_slow(len(handles))
                raise
            self.is_uncertain = False
            created = [results[handle] for handle in handles]
            self._refused |= self.plan.answered(handles, created, time.monotonic_ns())

    async def _create(
        self, handles: Sequence[int], points: Mapping[int, TagPoint], namespaces: Sequence[str]
    ) -> dict[int, Created]:
        # The default is for namespaces that the server does not have.
        results = dict.fromkeys(handles, Created(quality.BAD_NODE_ID_UNKNOWN))
        requests = [request for handle in handles if (request := self._request(handle, points[handle], namespaces))]
        if any(request.index_range for request in requests) and await self._session.ignores_ranges():
            # These are refused, because their values would be whole arrays.
            whole = [request.handle for request in requests if request.index_range]
            results |= dict.fromkeys(whole, Created(quality.BAD_INDEX_RANGE_INVALID))
            requests = [request for request in requests if not request.index_range]
        answers = await self._session.create_items(self.id, requests) if requests else []
        for request, created in zip(requests, answers, strict=True):
            results[request.handle] = created
            self._note_created(request, created, points[request.handle])
        return results

    def _request(self, handle: int, point: TagPoint, namespaces: Sequence[str]) -> ItemRequest | None:
        """The item to create; None if the server does not have the namespace."""
        reading = point.reading
        index = reading.address.index(namespaces)
        if index is None:
            return None
        asked_ms = self.asked_ms(point)
        size = point.monitoring.queue_size or self._settings.queue_size or queue_size_for(asked_ms, self.publishing_ms)
        return ItemRequest(
            handle,
            reading.address,
            index,
            reading.index_range,
            asked_ms,
            size,
            point.monitoring,
        )

    def asked_ms(self, point: TagPoint) -> float:
        """The sampling interval to request."""
        asked_ms = point.monitoring.sampling_interval_ms
        return float(self._settings.sampling_interval_ms if asked_ms is None else asked_ms)

    def _note_created(self, request: ItemRequest, created: Created, point: TagPoint) -> None:
        if quality.is_bad(created.status):
            return
        self.items.note_created(request.handle, request.sampling_ms, created)
        self.liveness.sampling_ns = max(self.liveness.sampling_ns, int(created.sampling_ms * MS))
        needed = queue_size_for(created.sampling_ms, self.publishing_ms)
        if created.queue_size < needed and not (point.monitoring.queue_size or self._settings.queue_size):
            self._note_short(created.queue_size, needed)

    def _note_slow(self, count: int) -> None:
        """Create items in smaller calls in the next session."""
        self._calls.items_max = max(1, count // 2)
        extra = {"action": "calls_slow", "source": self._settings.name, "count": count, "next": self._calls.items_max}
        log.warning(
            "the server did not create these items within request_timeout_ms; the calls get smaller", extra=extra
        )

    def _note_short(self, size: int, needed: int) -> None:
        """Log short queues, once for each subscription."""
        if self.items.are_queues_short:
            return
        self.items.are_queues_short = True
        extra = {"action": "queues_short", "source": self._settings.name, "queue_size": size, "needed": needed}
        log.warning("the server's queues are too short for a stall of ten seconds", extra=extra)


def log_parked(delivery: Delivery, news: Mapping[int, int]) -> None:
    """Log the tags that a server refuses from now on: one line for each status."""
    by_status: dict[int, list[int]] = {}
    for tag, status in news.items():
        by_status.setdefault(status, []).append(tag)
    for status, tags in by_status.items():
        extra = {"action": "tags_parked", "source": delivery.source, "status": status_name(status)}
        log.warning("the server refuses these tags; they are tried again later", extra=extra | delivery.named(tags))
