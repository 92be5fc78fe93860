"""Receives the events of one server and records them as messages, alongside the live values.

Events have a subscription of their own in the session of the source. So a refusal that concerns events costs no value,
and the end of their subscription does not end the session. Publications go into a bounded buffer that one task drains.
While it is full, no Publish is sent, and the server queues.

The subscription outlives its session, like those of values (`reconnect`), and what it queued arrives in the next one.
If it cannot be kept, the events since it was complete are declared missing. The state of all conditions is requested
again after each new subscription, after a loss, and when the server asks for it (`conditions`). The collector exists
across sessions, because the known conditions show which of them ended in between. Nothing is written to the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from agent.concurrency import TaskGroup, timeout
from agent.ingest import quality
from agent.ingest.completeness import Moment, Stored
from agent.ingest.errors import SourceLost
from agent.ingest.gap import (
    CLOCK_SET_BACK,
    EVENTS_PART,
    ITEM_GONE,
    NOT_DELIVERED,
    SERVER_QUEUE_OVERFLOW,
    SOURCE_LOST,
    Gap,
)
from agent.ingest.opcua.decode import PublishHeader
from agent.ingest.opcua.events.conditions import AcceptedEvents, QueueWatch, RefreshPlan, RetainedConditions
from agent.ingest.opcua.events.event_fields import (
    QUEUE_OVERFLOW,
    REFRESH_END,
    REFRESH_REQUIRED,
    REFRESH_START,
    EventField,
    EventPublication,
    OpcuaEvent,
    decode_events,
)
from agent.ingest.opcua.events.event_message import absent_message, condition_names, event_message, refresh_message
from agent.ingest.opcua.events.event_service import EventService, standard_type_name
from agent.ingest.opcua.publisher import Publisher, Route
from agent.ingest.opcua.publishing import Missing
from agent.ingest.opcua.session import OpcuaSession
from agent.ingest.opcua.subscriptions.item_plan import Created, ItemPlan
from agent.ingest.opcua.subscriptions.liveness import Liveness
from agent.ingest.recorder import Recorder
from agent.ingest.source_clock import SourceClock
from agent.message import Message
from agent.settings.opcua_address import STANDARD_URI, NodeAddress, parse_node_address
from agent.settings.sources import SERVER_OBJECT, OpcuaSourceSettings
from agent.status_codes import status_name

log = logging.getLogger(__name__)

MS = 1_000_000  # nanoseconds
TICK_S = 0.25  # interval for what depends on time alone: parked nodes, refreshes, life
BUFFER_PUBLICATIONS_MAX = 16  # of at most 1,000 events each
STABLE_S = 10.0  # a subscription that lasted this long is replaced at once when it ends
TYPES_MAX = 10_000  # event types with known names; a server has hundreds
BAD_REFRESH_IN_PROGRESS, BAD_NOTHING_TO_DO, BAD_SUBSCRIPTION_ID_INVALID = 0x8097_0000, 0x800F_0000, 0x8028_0000

REFRESH_EVENTS = (REFRESH_START, REFRESH_END, REFRESH_REQUIRED)


class _Subscription:
    """A subscription to events, and its items."""

    def __init__(self, number: int, silence_max_s: float) -> None:
        self.id, self.silence_max_s = number, silence_max_s
        self.ended = ""  # why the server ended it
        self.opened_s, self.opened = time.monotonic(), Moment(0)  # opened: on the server's clock
        self.liveness = Liveness(self.opened_s)
        self.is_read = False  # the server's clock was read since its items were created
        self.has_items = False
        self.fields: dict[int, Sequence[EventField]] = {}
        self.queue_sizes: dict[int, int] = {}
        self.watch = QueueWatch(self.queue_sizes)


class _Arrived(NamedTuple):
    """A publication with events, and the moment of its arrival on the server's clock. `more`: the server has more to
    send at once. Everything up to `since` was delivered before it."""

    content: EventPublication
    more: bool
    now: Moment
    since: Moment


class EventCollector:
    """Receives the events of an OPC UA source. `recorder` is its own, because another task records the values."""

    def __init__(self, settings: OpcuaSourceSettings, recorder: Recorder) -> None:
        self._settings, self._recorder = settings, recorder
        self._notifiers = dict(enumerate(settings.event_notifiers, 1))
        # The Server object sends the events about a refresh. If it is not configured, it is monitored for these only.
        self._nodes = {**self._notifiers}
        if SERVER_OBJECT not in self._notifiers.values():
            self._nodes[len(self._notifiers) + 1] = SERVER_OBJECT
        self._buffer: asyncio.Queue[_Arrived] = asyncio.Queue(maxsize=BUFFER_PUBLICATIONS_MAX)
        self._unrecorded: _Arrived | None = None  # taken out of the buffer when the session ended
        self._conditions, self._refresh = RetainedConditions(), RefreshPlan()
        self._reported_retained: list[str] | None = None  # conditions in the last fact about a refresh
        self._type_names: dict[str, str] = {}
        self._logged: dict[str, str] = {}  # the last logged reason of each matter
        self._events_total = 0
        self._complete: Moment | None = None  # up to when all events are delivered; None: not known
        self._last_event_ns = 0
        self._missing: tuple[Moment, str] | None = None  # since when events are missing, and why; None: none are
        self._refused_since: dict[int, Moment] = {}  # by handle of a node whose events the server refuses
        self.clock = SourceClock()  # replaced by that of the source
        self._publisher: Publisher | None = None
        self._begin_subscription(0)

    def _begin_subscription(self, number: int, slower: float = 1.0) -> None:
        """Replace everything of the previous subscription, except the time since which events are missing. `slower`:
        the revised time between keep-alives divided by the requested one."""
        if self._missing is None and self._complete is not None:
            self._missing = self._complete, SOURCE_LOST
        self._subscription = _Subscription(number, slower * self._settings.liveness_timeout_ms / 1000)
        self._plan = ItemPlan(self._nodes, 1, self._settings.parked_retry_ms * MS)
        self._conditions.abandon()

    def continue_from(self, stored: Mapping[str, Stored], reason: str) -> None:
        """For this reason, nothing was recorded since its events were complete; if that is not known, since its values
        were."""
        self._recorder.continue_from({EVENTS_PART: stored[EVENTS_PART]} if EVENTS_PART in stored else {})
        known = stored.get(EVENTS_PART, stored.get(""))
        if known is not None:
            self._missing = self.clock.earlier(known), reason

    @property
    def kept_ids(self) -> list[int]:
        """The subscription that the next session may take over."""
        return [self._subscription.id] if self._subscription.id and not self._subscription.ended else []

    def note_transfer(self, status: int) -> None:
        """The server has answered for the subscription to be taken over."""
        if quality.is_bad(status):
            self._subscription.ended = status_name(status)

    def statistics(self) -> tuple[int, int, int, int]:
        """Events received, a lower bound of those lost, unix ms of the last one, and retained conditions."""
        counts = self._events_total, self._recorder.lost_total
        return *counts, self._last_event_ns // 1_000_000, len(self._conditions.retained)

    async def begin_life(self, session: OpcuaSession, publisher: Publisher, group: TaskGroup, *, is_kept: bool) -> None:
        """Called in each life before anything is published. `is_kept`: the subscription continues. A task in `group`
        records what arrives."""
        self._publisher = publisher
        missing = self.clock.now() if self._missing is None else self._missing[0]
        await self._recorder.begin_complete(EVENTS_PART, self.clock.stored(missing))
        draining = self._drain(session, EventService(session.library))
        group.create_permanent(draining, name=f"{self._settings.name} events drain")
        subscription = self._subscription
        if not is_kept or not self.kept_ids or self._plan.parked or not subscription.has_items:
            publisher.forget(subscription.id)  # what arrived of it in the session before, too
            self._begin_subscription(0)
            if is_kept and subscription.id:
                await session.delete_subscription(subscription.id)
            return
        subscription.liveness.excuse(time.monotonic())
        if self._conditions.is_refreshing:
            self._conditions.abandon()
            self._refresh.want(time.monotonic())
        publisher.adopt(subscription.id, self._route(subscription, session))
        if await publisher.republish(subscription.id) == BAD_SUBSCRIPTION_ID_INVALID:
            subscription.ended = status_name(BAD_SUBSCRIPTION_ID_INVALID)
        else:
            publisher.begin_subscription(subscription.id, self._route(subscription, session))

    async def finish(self) -> None:
        """Record what had arrived before the session ended, and wait for the commit."""
        if self._unrecorded is not None:
            await self._record(self._unrecorded)
        while not self._buffer.empty():
            await self._record(self._buffer.get_nowait())
        await self._recorder.drain()

    async def end_recording(self) -> None:
        """This process ends. Store up to when the events are complete."""
        await self._note_complete()
        if self._complete is not None and self._missing is None:
            self._declare_as_it_was(self.clock.spans(self._complete, self.clock.now())[1:])
        await self._recorder.end_recording()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _route(self, subscription: _Subscription, session: OpcuaSession) -> Route:
        """The route of a subscription in this session."""

        async def decode(_: PublishHeader, body: bytes) -> EventPublication:
            return decode_events(body, subscription.fields, session.reader)

        return Route(decode, partial(self._take_publication, subscription), partial(self._note_missing, session))

    async def _take_publication(
        self, subscription: _Subscription, header: PublishHeader, content: EventPublication
    ) -> None:
        """Called for each publication in its turn; the server gets its acknowledgement when this returns."""
        if subscription is not self._subscription:
            return
        if content.status_change is not None and quality.is_bad(content.status_change):
            subscription.ended = status_name(content.status_change)
        arrived = _Arrived(content, header.more, self.clock.now(), self._complete or subscription.opened)
        if content.events or content.unreadable:
            await self._buffer.put(arrived)  # if the session ends before, the server still holds it, or it is missing
        self._note_life(subscription, header)

    def _note_life(self, subscription: _Subscription, header: PublishHeader) -> None:
        before = subscription.liveness.complete
        subscription.liveness.note_answer(
            time.monotonic(),
            self.clock.sent(header.publish_time_ns, subscription.liveness.seen),
            None,
            is_proof=True,  # any answer proves life
            more=header.more or (self._publisher is not None and self._publisher.is_early(header)),
        )
        if subscription.liveness.complete != before:
            self._complete = subscription.liveness.complete

    def _declare_missed(self, now: Moment) -> None:
        """Declare the events missed before this subscription, if any were."""
        missing, self._missing = self._missing, None
        if missing is not None:
            since, why = missing
            self._declare(why, since, now)

    async def _note_missing(self, session: OpcuaSession, missing: Missing) -> None:
        """A publication did not arrive, and the server does not hold it any more."""
        if missing.subscription_id == self._subscription.id:
            since = self._complete or self._subscription.opened
            self._lose(NOT_DELIVERED, since, await self.clock.read(session))

    async def _drain(self, session: OpcuaSession, service: EventService) -> None:
        """The only task that records."""
        while True:
            try:
                async with timeout(TICK_S):
                    arrived = self._unrecorded = await self._buffer.get()
            except TimeoutError:
                self._recorder.hand_in_gaps()
                await self._recorder.settle()
                await self._note_complete()
                continue
            await self._learn_types(arrived.content.events, session, service)
            await self._record(arrived)

    async def _note_complete(self) -> None:
        is_known = self._missing is None and not self._refused_since
        if self._complete is not None and is_known and self._subscription.is_read:
            await self._recorder.note_complete({EVENTS_PART: self.clock.stored(self._complete)})

    async def _record(self, arrived: _Arrived) -> None:
        self._unrecorded = None  # nothing is awaited until all of it is handed in
        content = arrived.content
        self._note_losses(arrived)
        refresh_events = [event for event in content.events if event.is_of(*REFRESH_EVENTS)]
        others = [event for event in content.events if not event.is_of(*REFRESH_EVENTS, QUEUE_OVERFLOW)]
        # Lazily, because whether an event is wanted depends on the conditions that were accepted before it.
        events = (event for event in others if self._is_wanted(event))
        taken = self._conditions.take_publication(events, refresh_events, more=arrived.more)
        self._recorder.hand_in_gaps()
        for message, time_ns in self._messages(taken, arrived.now.time_ns):
            self._recorder.hand_in_message(self._settings.events_stream, message, time_ns)
        self._events_total += len(taken.events)
        self._last_event_ns = max([self._last_event_ns, *(event.time_ns for event in others)])
        if taken.is_refresh_required:
            self._refresh.want(time.monotonic())
        if taken.is_complete:
            self._refresh.complete()
        await self._recorder.settle()

    def _is_wanted(self, event: OpcuaEvent) -> bool:
        """Whether an event is of a configured node and severe enough. A known condition is followed to its end,
        whatever the severity."""
        if event.handle not in self._notifiers:
            return False
        severity = event.fields.get("severity", 1_000)
        return severity >= self._settings.events_severity_min or self._conditions.knows(event)

    def _messages(self, taken: AcceptedEvents, now_ns: int) -> list[tuple[Message, int]]:
        source, zone, names = self._settings.name, self._recorder.zone, self._type_names
        found = [
            (event_message(event, source, zone, names, now_ns, is_refreshed=index in taken.refreshed), event.time_ns)
            for index, event in enumerate(taken.events)
        ]
        found += [(absent_message(condition, source, zone, names, now_ns), now_ns) for condition in taken.absent]
        if taken.is_complete and (retained := condition_names(self._conditions.retained)) != self._reported_retained:
            self._reported_retained = retained
            found.append((refresh_message(retained, source, zone, now_ns), now_ns))
        return [(message, time_ns or now_ns) for message, time_ns in found]

    async def _learn_types(self, events: Sequence[OpcuaEvent], session: OpcuaSession, service: EventService) -> None:
        """Read the names of event types that are not known yet."""
        types = {str(event.fields["event_type"]) for event in events if "event_type" in event.fields}
        new = sorted(types - self._type_names.keys())
        if not new or len(self._type_names) > TYPES_MAX:
            return
        asked: list[tuple[str, NodeAddress, int]] = []
        for text in new:
            self._type_names[text] = ""
            try:
                node = parse_node_address(text)
            except ValueError:  # the server does not have its namespace
                continue
            if node.namespace_uri == STANDARD_URI and isinstance(node.identifier, int):
                self._type_names[text] = standard_type_name(node.identifier)
            elif (index := node.index(session.reader.namespaces)) is not None:
                asked.append((text, node, index))
        if asked:
            names = await service.type_names([(node, index) for _, node, index in asked])
            self._type_names.update(zip((text for text, _, _ in asked), names, strict=True))

    def _note_losses(self, arrived: _Arrived) -> None:
        content = arrived.content
        last_ns = max(arrived.now.time_ns, *(event.time_ns for event in content.events), 0)  # a clock may be set ahead
        now = arrived.now._replace(time_ns=last_ns)
        if self._subscription.watch.take_publication(content.events, more=arrived.more):
            self._lose(SERVER_QUEUE_OVERFLOW, arrived.since, now)
        if content.unreadable:
            self._lose(NOT_DELIVERED, arrived.since, now)

    def _lose(self, reason: str, since: Moment, now: Moment) -> None:
        """Declare lost events, and request the conditions again, because their changes may be among them."""
        self._declare(reason, since, now)
        if self._conditions.is_refreshing:
            self._conditions.mark_incomplete()
            self._refresh.repeat_later(time.monotonic())
        else:
            self._refresh.want(time.monotonic())

    def _declare(self, reason: str, since: Moment, now: Moment) -> None:
        span, *before = self.clock.spans(since, now)
        self._recorder.add_gap(Gap(self._settings.name, reason, *span, 0, count_exact=False))
        self._declare_as_it_was(before)

    def _declare_as_it_was(self, spans: Sequence[tuple[int, int]]) -> None:
        """Declare a loss in the times of the clock as it was before it was set."""
        for span in spans:
            self._recorder.add_gap(Gap(self._settings.name, CLOCK_SET_BACK, *span, 0, count_exact=False))

    # --- asking -------------------------------------------------------------------------------------------------------

    async def run(self, session: OpcuaSession, publisher: Publisher) -> None:
        """Keep a subscription with its items, and ask for refreshes, once the values are subscribed and until the life
        ends. A SourceLost raised here ends the life."""
        service = EventService(session.library)
        pause_s = 0.0
        while True:
            subscription = self._subscription
            if not subscription.id or subscription.ended or self._is_silent():
                await asyncio.sleep(pause_s)
                pause_s = min(max(TICK_S, pause_s * 2), self._settings.parked_retry_ms / 1000)
                if not await self._open(session, publisher):
                    continue
            elif time.monotonic() - subscription.opened_s > STABLE_S:
                pause_s = 0.0
            await self._create_due(session, service)
            if self._subscription.has_items and not self._subscription.is_read:
                now = await self.clock.read(session)
                self._subscription.is_read = True
                self._declare_missed(now)
                refused = self._plan.parked & self._notifiers.keys()
                self._refused_since = {**dict.fromkeys(refused, now), **self._refused_since}
            await self._refresh_due(service)
            await asyncio.sleep(TICK_S)

    def _is_silent(self) -> bool:
        """Whether the subscription gives no sign of life, not even a keep-alive, although this side does not hold it
        back."""
        if self._buffer.full():
            self._subscription.liveness.excuse(time.monotonic())
        return self._subscription.liveness.silent_s(time.monotonic()) > self._subscription.silence_max_s

    async def _open(self, session: OpcuaSession, publisher: Publisher) -> bool:
        """Create a subscription, in place of one that ended. False if the server refuses it."""
        lost = self._subscription
        if lost.id:
            self._log_once("subscription", "event_subscription_lost", lost.ended or "it gave no sign of life")
            publisher.forget(lost.id)
            self._begin_subscription(0)
        opened = self.clock.now()
        try:
            created = await session.create_subscription()
        except SourceLost as error:  # if the session has ended, its other tasks notice that
            self._log_once("subscription", "events_refused", str(error))
            return False
        self._begin_subscription(created.id, created.slower)
        self._subscription.opened = opened
        self._complete = self._complete or opened  # the subscription may end before it shows more
        self._subscription.liveness.open(opened)
        publisher.begin_subscription(created.id, self._route(self._subscription, session))
        await session.namespaces()
        return True

    async def _create_due(self, session: OpcuaSession, service: EventService) -> None:
        """Monitor the nodes that are due. A refused one is tried again later."""
        subscription = self._subscription
        while handles := self._plan.next_call(time.monotonic_ns()):
            (handle,) = handles
            node = self._nodes[handle]
            index = node.index(await session.namespaces())
            status = quality.BAD_NODE_ID_UNKNOWN
            if index is not None:
                types = () if handle in self._notifiers else REFRESH_EVENTS
                expect = partial(subscription.fields.__setitem__, handle)
                found = await service.create_item(subscription.id, handle, node, index, expect, types)
                status = found.status
                if not quality.is_bad(status):
                    subscription.queue_sizes[handle] = found.queue_size
                    subscription.has_items = True
                    self._refresh.begin_subscription(time.monotonic())
                    if found.left_out and not types:
                        self._log_once(f"fields {handle}", "event_fields_left_out", ", ".join(found.left_out))
            if not quality.is_bad(status) and handle in self._refused_since:
                now = await self.clock.read(session)
                self._declare(ITEM_GONE, self._refused_since.pop(handle), now)
            refused = self._plan.answered([handle], [Created(status)], time.monotonic_ns())
            if refused:
                name = self._settings.events[handle - 1] if handle in self._notifiers else "Server"
                self._log_once(f"node {handle}", "events_refused", f"{name}: {status_name(status)}")

    async def _refresh_due(self, service: EventService) -> None:
        """Request the state of all conditions again, if that is due."""
        now_s = time.monotonic()
        if self._conditions.is_refreshing and self._refresh.is_overdue(now_s):
            self._conditions.abandon()
            self._log_once("refresh", "conditions_not_refreshed", "the server did not send the end of the refresh")
        if self._conditions.is_refreshing or not self._subscription.has_items or not self._refresh.is_due(now_s):
            return
        self._refresh.asked(now_s)
        self._conditions.ask()
        status = await service.refresh(self._subscription.id)
        if not quality.is_bad(status):
            return
        if status == BAD_NOTHING_TO_DO:  # S2OPC: no condition is retained, and there is neither start nor end
            ends = [OpcuaEvent(0, {"event_type": f"i={type_id}"}) for type_id in (REFRESH_START, REFRESH_END)]
            since = self._complete or self._subscription.opened
            await self._buffer.put(_Arrived(EventPublication(ends), more=False, now=self.clock.now(), since=since))
            return
        self._conditions.abandon()
        if status == BAD_REFRESH_IN_PROGRESS:
            self._refresh.want(now_s)
        else:
            self._refresh.refuse()
            self._log_once("refresh", "conditions_not_refreshed", status_name(status))

    def _log_once(self, matter: str, action: str, why: str) -> None:
        """Log each reason of a matter once."""
        if self._logged.get(matter) != why:
            self._logged[matter] = why
            log.warning(LINES[action], extra={"action": action, "source": self._settings.name, "why": why})


LINES = {
    "events_refused": "the server refuses events; values continue, and it is asked again later",
    "event_fields_left_out": "the server does not have all fields of events; the others are recorded",
    "event_subscription_lost": "the subscription to events ended; a new one is created",
    "conditions_not_refreshed": "the server does not send the state of its conditions again",
}
