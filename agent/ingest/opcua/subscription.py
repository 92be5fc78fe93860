"""One subscription of a session, and the items in it: created, revised, deleted, and created anew when their node is
gone.

A subscription that the server has ended is replaced by a new one with the same items, while the others go on; one that
was ended within seconds of its creation ends the session, because the next would not live longer.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.ingest import quality
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.address import Reading, TagPoint
from agent.ingest.opcua.decode import Change
from agent.ingest.opcua.groups import ServerLimits
from agent.ingest.opcua.liveness import Liveness
from agent.ingest.opcua.monitoring import publishing_ms_of, queue_size_for
from agent.ingest.opcua.plan import Created, ItemPlan
from agent.ingest.opcua.server_clock import ServerTime
from agent.ingest.opcua.session import HEARTBEAT_INTERVAL_MS, CallTooLarge, ItemRequest, Session
from agent.settings.sources import OpcuaSourceSettings
from agent.status_codes import status_name

log = logging.getLogger(__name__)

MS = 1_000_000  # nanoseconds
SIGNS_MISSED_MAX = 3  # a server that publishes, or samples its clock, more slowly than asked is given so many intervals
ENDED_EARLY_S = 10.0  # a subscription that the server ends so soon would be ended again


@dataclass(slots=True)
class CallSize:
    """How many items one call may create in the time-out, as far as is known. Outlives the sessions: a call that was
    not answered in time ends its session, and the same call would end the next one."""

    items_max: int


class Subscription:
    """The items of one group at the server. `now_ns` is the server's clock as known."""

    def __init__(
        self,
        session: Session,
        settings: OpcuaSourceSettings,
        limits: ServerLimits,
        now_ns: Callable[[], int],
        calls: CallSize,
    ) -> None:
        self._session, self._settings, self._now_ns, self._calls = session, settings, now_ns, calls
        self.id = 0
        self.ended = ""  # why the server ended it
        self.liveness = Liveness(time.monotonic())
        self.silence_max_s = settings.liveness_timeout_ms / 1000
        self.plan = ItemPlan((), calls.items_max, settings.parked_retry_ms * MS)
        self.plan.limit(limits.items_per_call)
        self.created_ns: int | None = None  # when creating items last began: what stands still stood so at that time
        self.denied: set[int] = set()  # handles that this user may not read; some may be readable again
        self.elements: set[int] = set()  # handles whose value is one element of an array
        self.parts: dict[int, Reading] = {}  # handles whose item is on elements of an array
        self.queue_sizes: dict[int, int] = {}  # by handle, as the server revised them
        self.queue_size_least = sys.maxsize  # of those that hold more than the newest value
        self.publishing_ms = float(settings.publishing_interval_ms)
        self._slower = 1.0  # how many times as long as asked for the time between keep-alives is
        self.opened = ServerTime(0, 0)  # of the server's clock as known
        self.clock_least_ns: int | None = None  # what its next reading shows at least, unless the clock is set back
        self.set_back_ns = 0  # by how much the clock was set back in all, as of `since_ns`
        self._opened_s = 0.0
        self._unqueued: set[int] = set()  # items whose queue at the server holds one value: others vanish unseen
        self._sampling_ms: dict[int, float] = {}  # as the server revised it, where that is not what was asked
        self._queues_short = False

    async def open(self) -> None:
        """Create the subscription and its item on the server's clock."""
        self._opened_s, self.opened = time.monotonic(), ServerTime(self._now_ns(), self.set_back_ns)
        self.liveness = Liveness(self._opened_s)  # a server without room may have been waited for
        self.liveness.open(self.opened.time_ns)
        opened = await self._session.create_subscription()
        self.id, self.publishing_ms, self._slower = opened

    async def watch_clock(self) -> None:
        """Monitor the server's clock here. A server that gives signs of life more slowly than asked is waited for."""
        clock = await self._session.create_heartbeat(self.id)
        self.liveness.has_clock = not quality.is_bad(clock.status)
        asked_ms = max(self._settings.publishing_interval_ms, HEARTBEAT_INTERVAL_MS)
        slowest_ms = max(self.publishing_ms, publishing_ms_of(clock.sampling_ms, HEARTBEAT_INTERVAL_MS))
        if slowest_ms > asked_ms:
            self._wait_for(SIGNS_MISSED_MAX * slowest_ms / 1000)
        if not self.liveness.has_clock:
            self._wait_for_keep_alives()

    def give_up_clock(self, now_s: float) -> bool:
        """Judge by any answer from now on, if the clock stands (`Liveness`)."""
        is_given_up = self.liveness.give_up_clock(now_s, self.silence_max_s)
        if is_given_up:
            self._wait_for_keep_alives()
        return is_given_up

    def _wait_for_keep_alives(self) -> None:
        """They are the only sign of life in a quiet plant, and as rare as the server has them."""
        self._wait_for(self._slower * self._settings.liveness_timeout_ms / 1000)

    def _wait_for(self, silence_s: float) -> None:
        """Wait so long for a sign of life, if that is longer than before."""
        if silence_s > self.silence_max_s:
            self.silence_max_s = silence_s
            extra = {"action": "publishing_slow", "source": self._settings.name, "silence_s": silence_s}
            log.warning("the server publishes so rarely that its silence is noticed late", extra=extra)

    def check_age(self) -> None:
        """Raise SourceLost for a subscription that was ended early."""
        if time.monotonic() - self._opened_s < ENDED_EARLY_S:
            raise SourceLost(f"{self._settings.url} ended a subscription at once: {self.ended}")

    @property
    def since_ns(self) -> int:
        """Up to when everything that the server had is delivered, as far as it is proven; losses begin here."""
        return self.liveness.complete_ns or self.opened.time_ns

    @property
    def since(self) -> ServerTime:
        """That as a moment."""
        return ServerTime(self.since_ns, self.set_back_ns)

    def sampling_ms(self, handle: int, point: TagPoint) -> float:
        """The sampling interval of an item, as the server revised it."""
        return self._sampling_ms.get(handle, self.asked_ms(point))

    @property
    def bridged(self) -> frozenset[int]:
        """The handles whose values the server queues while none is sent."""
        return self.plan.live - self._unqueued

    def note_denied(self, changes: Iterable[Change]) -> dict[int, int]:
        """Take in what is not good. Returns the handles that are denied now and were not, with the status."""
        news = {
            one.handle: one.quality
            for one in changes
            if one.quality & quality.CODE_BITS in quality.DENIED and one.handle not in self.denied
        }
        self.denied |= news.keys()
        return news

    async def update_items(
        self, points: Mapping[int, TagPoint], namespaces: Sequence[str] | None = None
    ) -> dict[int, int]:
        """Delete and create what is due, in calls the server takes. Returns the handles newly parked, with status."""
        await self._delete_due()
        return await self._create_due(points, namespaces)

    async def _delete_due(self) -> None:
        while items := self.plan.next_deletion():
            try:
                await self._session.delete_items(self.id, items)
            except CallTooLarge as error:
                if self.plan.call_refused(len(items)):
                    continue
                raise SourceLost(f"{self._settings.url} refuses to delete even one item: {error}") from error
            self.plan.deleted(items)

    async def _create_due(self, points: Mapping[int, TagPoint], namespaces: Sequence[str] | None) -> dict[int, int]:
        news: dict[int, int] = {}
        begun_ns = self._now_ns()
        while handles := self.plan.next_call(time.monotonic_ns()):
            self.created_ns = begun_ns  # of all calls: values of the first come while others are under way
            if namespaces is None:  # read again for parked nodes: a server may learn a namespace late
                namespaces = await self._session.namespaces()
            handles = [handle for handle in handles if handle in points]  # the tag map may be a new one by now
            try:
                results = await self._create(handles, points, namespaces)
            except CallTooLarge as error:
                if self.plan.call_refused(len(handles)):
                    continue
                raise SourceLost(f"{self._settings.url} refuses to monitor even one item: {error}") from error
            except SourceLost as error:
                if isinstance(error.__cause__, TimeoutError):
                    self._note_slow(len(handles))
                raise
            news |= self.plan.answered(handles, [results[handle] for handle in handles], time.monotonic_ns())
        return news

    async def _create(
        self, handles: Sequence[int], points: Mapping[int, TagPoint], namespaces: Sequence[str]
    ) -> dict[int, Created]:
        """Create items by their first reading; those whose node does not exist by the next, if there is one."""
        results = dict.fromkeys(handles, Created(quality.BAD_NODE_ID_UNKNOWN))  # a namespace the server has not
        left, turn = list(handles), 0
        while left:
            requests = [
                request
                for handle in left
                if (request := self._request(handle, points[handle], points[handle].readings[turn], namespaces))
            ]
            if any(one.index_range for one in requests) and await self._session.ignores_ranges():
                whole = [
                    one.handle for one in requests if one.index_range
                ]  # better no value than the whole array for it
                results |= dict.fromkeys(whole, Created(quality.BAD_INDEX_RANGE_INVALID))
                requests = [one for one in requests if not one.index_range]
            self._expect(requests, [points[request.handle].readings[turn] for request in requests])
            answers = await self._session.create_items(self.id, requests) if requests else []
            found = {request.handle: answer for request, answer in zip(requests, answers, strict=True)}
            for request in requests:
                self._note_created(request, found[request.handle])
            # The status of the first reading stands where none exists: that is the address as it was written.
            results |= found if turn == 0 else {h: one for h, one in found.items() if not quality.is_bad(one.status)}
            await self._enlarge([r for r in requests if not quality.is_bad(found[r.handle].status)], found, points)
            turn += 1
            left = [
                handle
                for handle in left
                if results[handle].status & quality.CODE_BITS in quality.GONE and turn < len(points[handle].readings)
            ]
        return results

    def _request(self, handle: int, point: TagPoint, reading: Reading, namespaces: Sequence[str]) -> ItemRequest | None:
        """The item to create, None if the server has not its namespace."""
        index = reading.address.index(namespaces)
        if index is None:
            return None
        asked_ms = self.asked_ms(point)
        size = point.monitoring.queue_size or self._settings.queue_size or queue_size_for(asked_ms, self.publishing_ms)
        return ItemRequest(
            *(handle, reading.address, index, reading.index_range, asked_ms, size, point.monitoring),
        )

    def asked_ms(self, point: TagPoint) -> float:
        """The sampling interval that is asked for."""
        asked_ms = point.monitoring.sampling_interval_ms
        return float(self._settings.sampling_interval_ms if asked_ms is None else asked_ms)

    def _expect(self, requests: Sequence[ItemRequest], readings: Sequence[Reading]) -> None:
        """How the values of these items are to be read, known before the first: it may come ahead of the answer."""
        for request, reading in zip(requests, readings, strict=True):
            if reading.is_element:
                self.elements.add(request.handle)
            else:
                self.elements.discard(request.handle)
            self.parts.pop(request.handle, None)
            if reading.index_range:
                self.parts[request.handle] = reading

    def _note_created(self, request: ItemRequest, created: Created) -> None:
        if quality.is_bad(created.status):
            return
        self._note_queue(request.handle, created.queue_size)
        self.liveness.sampling_ns = max(self.liveness.sampling_ns, int(created.sampling_ms * MS))
        if created.sampling_ms == request.sampling_ms:
            self._sampling_ms.pop(request.handle, None)
        else:
            self._sampling_ms[request.handle] = created.sampling_ms
        if created.queue_size > 1:
            self._unqueued.discard(request.handle)
        else:
            self._unqueued.add(request.handle)

    def _note_queue(self, handle: int, size: int) -> None:
        self.queue_sizes[handle] = size
        if size > 1:
            self.queue_size_least = min(self.queue_size_least, size)

    async def _enlarge(
        self, requests: Sequence[ItemRequest], created: Mapping[int, Created], points: Mapping[int, TagPoint]
    ) -> None:
        """Give a longer queue to items that the server samples faster than asked, and say so once if it does not."""
        if self._settings.queue_size:
            return
        short: list[tuple[int, ItemRequest]] = []
        for request in requests:
            answer = created[request.handle]
            needed = queue_size_for(answer.sampling_ms, self.publishing_ms)
            if points[request.handle].monitoring.queue_size or answer.queue_size >= needed:
                continue
            if request.queue_size >= needed:
                self._note_short(answer.queue_size, needed)
                continue
            short.append((answer.item, replace(request, queue_size=needed)))
        size = self.plan.size
        for start in range(0, len(short), size):
            part = short[start : start + size]
            try:
                answers = await self._session.resize_queues(self.id, part)
            except CallTooLarge:  # the items are there: only their queues stay short
                answers = [Created(quality.BAD_TOO_MANY_MONITORED_ITEMS)] * len(part)
            for (_, request), answer in zip(part, answers, strict=True):
                if not quality.is_bad(answer.status):
                    self._note_queue(request.handle, answer.queue_size)
                if quality.is_bad(answer.status) or answer.queue_size < request.queue_size:
                    self._note_short(answer.queue_size, request.queue_size)

    def _note_slow(self, count: int) -> None:
        """The next session creates its items in smaller calls."""
        self._calls.items_max = max(1, count // 2)
        extra = {"action": "calls_slow", "source": self._settings.name, "count": count, "next": self._calls.items_max}
        log.warning(
            "the server did not create these items within request_timeout_ms; the calls get smaller", extra=extra
        )

    def _note_short(self, size: int, needed: int) -> None:
        """Once for each subscription."""
        if self._queues_short:
            return
        self._queues_short = True
        extra = {"action": "queues_short", "source": self._settings.name, "queue_size": size, "needed": needed}
        log.warning("the server's queues do not last through a stall of ten seconds", extra=extra)


def log_parked(delivery: Delivery, news: Mapping[int, int]) -> None:
    """Log the tags that a server refuses from now on: one line for each status."""
    by_status: dict[int, list[int]] = {}
    for tag, status in news.items():
        by_status.setdefault(status, []).append(tag)
    for status, tags in by_status.items():
        extra = {"action": "tags_parked", "source": delivery.source, "status": status_name(status)}
        log.warning("the server refuses these tags; they are tried again later", extra=extra | delivery.named(tags))
