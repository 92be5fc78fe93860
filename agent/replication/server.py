"""The serving shell: answers the requests of peers from the store, each as its own task, and waits for nobody.

It does what `sender` decides.  A request that names a wrong response topic, or comes from a stranger, gets no answer and is
counted; everything else gets one, be it an error of the table.  A fetch that finds nothing is parked until its stream grows
or its patience ends; a newer fetch of the same consumer takes its place.  Facts are read in a reader thread, so that a slow
disk delays nobody's answer but the one that needs it; a confirmation is written while the page is read.

The server holds no state that outlives a request but the parked fetches: killed and started again, it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agent.replication import sender
from agent.replication.carrier import Incoming
from agent.replication.errors import MalformedMessage, TransportError
from agent.replication.link import Link
from agent.replication.page import Refuse
from agent.replication.ports import Consumer, ServingStore
from agent.replication.protocol import (
    Answer,
    BoundsAnswer,
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    CursorAnswer,
    FetchAnswer,
    FetchFacts,
    GetBounds,
    GetCursor,
    ListStreams,
    Request,
    StreamEntry,
    StreamsAnswer,
    decode_request,
    encode_answer,
    encode_error,
    start_of,
)
from agent.replication.reading import PageAsked, PageRead, read_page
from agent.replication.sender import Arrival, Caller, ConsumerView, Drop, DropReason, LogView, Park
from agent.replication.topics import request_topic, response_topic
from agent.replication.waiters import Waiters

REQUESTS_PER_ZONE_MAX = 64
"""Requests of one zone in hand, parked ones included; what comes beyond is dropped and asked for again."""
READER_THREADS = 2
"""One page being read while another waits for the disk; each has a connection of its own."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """Counted since the start."""

    requests: Mapping[str, int]
    refusals: Mapping[str, int]
    drops: Mapping[str, int]
    facts_sent: int
    bytes_sent: int
    parked: int


class Server:
    """Serves the peers of one link.  `exports` maps each peer zone to the streams it may read, `refusals` the store's errors that
    are the asker's doing to their codes; any other of `store_errors` is answered `store_unavailable`."""

    def __init__(
        self,
        link: Link,
        store: ServingStore,
        exports: Mapping[str, frozenset[str]],
        store_errors: tuple[type[Exception], ...],
        refusals: Mapping[type[Exception], str] | None = None,
    ) -> None:
        self._refused_as = dict(refusals or {})
        self._link = link
        self._store = store
        self._exports = dict(exports)
        self._peers = frozenset(exports)
        self._store_errors = store_errors
        self._epoch = store.epoch.hex()
        self._group: asyncio.TaskGroup | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._in_hand: Counter[str] = Counter()
        self._waiters = Waiters()
        self._requests: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._drops: Counter[str] = Counter()
        self._facts_sent = 0
        self._bytes_sent = 0
        for zone in exports:
            link.route(request_topic(store.zone, zone), self._arrived)

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            dict(self._requests),
            dict(self._refusals),
            dict(self._drops),
            self._facts_sent,
            self._bytes_sent,
            self._waiters.count(),
        )

    async def run(self) -> None:
        """Serve until cancelled; requests in hand are then given up, their askers ask again."""
        loop = asyncio.get_running_loop()

        def committed(ends: Mapping[str, int]) -> None:  # in the store's writer thread
            if self._waiters.anybody():
                loop.call_soon_threadsafe(self._waiters.wake, dict(ends))

        unsubscribe = self._store.on_commit(committed)
        try:
            with ThreadPoolExecutor(READER_THREADS, "bsfg-serve") as self._reader:
                async with asyncio.TaskGroup() as self._group:
                    await asyncio.get_running_loop().create_future()  # until cancelled
        finally:
            self._group = None
            unsubscribe()

    # --------------------------------------------------------------------------------------------------------- arrivals

    def _arrived(self, incoming: Incoming) -> None:
        arrival = Arrival(incoming.topic, incoming.response_topic, incoming.correlation, incoming.is_retained)
        caller = sender.check_arrival(arrival, self._store.zone, self._peers)
        if isinstance(caller, Drop):
            self._drop(caller.reason, incoming.topic)
        elif self._group is None or self._in_hand[caller.zone] >= REQUESTS_PER_ZONE_MAX:
            self._drop(DropReason.TOO_MANY_REQUESTS, incoming.topic)
        else:
            self._in_hand[caller.zone] += 1
            self._group.create_task(self._handle(caller, incoming), name=f"serve {caller.zone}")

    def _drop(self, reason: DropReason, topic: str) -> None:
        if not self._drops[reason.value]:
            _log.warning("request_dropped", extra={"reason": reason.value, "topic": topic})
        self._drops[reason.value] += 1

    async def _handle(self, caller: Caller, incoming: Incoming) -> None:
        operation = ""
        try:
            request = decode_request(incoming.payload)
            operation = str(type(request).__struct_config__.tag)
            self._requests[operation] += 1
            if incoming.expiry_s is None:
                outcome: bytes | Refuse | Drop = Refuse("bad_request", "the property MessageExpiryInterval is missing")
            else:
                outcome = await self._answer(caller, request)
        except MalformedMessage as error:
            operation = error.operation
            outcome = Refuse(error.code, error.why)
        except self._store_errors as error:
            outcome = self._store_refused(caller, error)
        except TransportError as error:
            self._not_sent(caller, error)
            return
        finally:
            self._in_hand[caller.zone] -= 1
        if isinstance(outcome, Drop):
            self._drops[outcome.reason.value] += 1
            return
        if isinstance(outcome, Refuse):
            self._refusals[outcome.code] += 1
            outcome = encode_error(self._store.zone, self._epoch, operation, outcome.code, outcome.message)
        self._send(caller, outcome)

    def _store_refused(self, caller: Caller, error: Exception) -> Refuse:
        if (code := self._refused_as.get(type(error))) is not None:
            return Refuse(code, str(error))
        _log.warning("store_error_while_serving", extra={"peer": caller.zone, "reason": str(error)})
        return Refuse("store_unavailable", "the store cannot answer now")

    def _send(self, caller: Caller, payload: bytes) -> None:
        topic = response_topic(self._store.zone, caller.zone, caller.instance)
        try:
            self._link.require().publish_answer(topic, payload, caller.correlation)
            self._bytes_sent += len(payload)
        except TransportError as error:
            self._not_sent(caller, error)

    def _not_sent(self, caller: Caller, error: TransportError) -> None:
        """The asker will ask again."""
        self._drops["answer_not_sent"] += 1
        _log.debug("answer_not_sent", extra={"peer": caller.zone, "reason": str(error)})

    # ------------------------------------------------------------------------------------------------------- operations

    async def _answer(self, caller: Caller, request: Request) -> bytes | Refuse | Drop:
        outcome: Answer | Refuse
        match request:
            case FetchFacts():
                return await self._fetch(caller, request)
            case ConfirmReceipt():
                outcome = await self._confirm_receipt(caller, request)
            case GetCursor():
                outcome = self._get_cursor(caller, request)
            case GetBounds():
                outcome = self._get_bounds(caller, request)
            case ListStreams():
                streams = self._exported(caller)
                unix_ms = time.time_ns() // 1_000_000
                outcome = StreamsAnswer(
                    store_zone=self._store.zone, epoch=self._epoch, streams=streams, unix_ms=unix_ms
                )
        return outcome if isinstance(outcome, Refuse) else encode_answer(outcome, [])

    async def _fetch(self, caller: Caller, request: FetchFacts) -> bytes | Refuse | Drop:
        arrived_ms = _now_ms()
        store = self._store
        exports = self._exports[caller.zone]
        consumer = _view(store.consumer(request.consumer_name))
        owned = 0 if consumer else sum(1 for each in store.consumers() if each.zone == caller.zone)
        admitted = sender.admit_fetch(request, caller.zone, exports, consumer, owned)
        if isinstance(admitted, Refuse):
            return admitted
        stream = admitted.stream
        log = LogView(self._epoch, store.end_offset(stream))
        refusal = sender.check_offsets(log, request.epoch, request.after_offset, request.confirm)
        if refusal is not None:
            return self._told_ahead(caller, request.consumer_name, request.epoch, refusal)
        if admitted.must_register:
            name, start = request.consumer_name, start_of(request)
            registered = await asyncio.wrap_future(store.register_consumer(name, caller.zone, stream, start))
            _log.info("consumer_registered", extra={"consumer": name, "peer": caller.zone, "stream": stream})
            consumer = _view(registered)
        assert consumer is not None
        confirming = self._start_confirm(request.consumer_name, admitted.confirm)
        if request.after_offset is None and confirming is not None:
            consumer = ConsumerView(consumer.zone, stream, await confirming)
        position = consumer.frontier if request.after_offset is None else request.after_offset
        read = await self._read_when_due(caller, request, stream, position, arrived_ms)
        may_run_ahead = request.after_offset is not None and isinstance(read, PageRead) and bool(read.batches)
        if confirming is not None and not may_run_ahead:
            await confirming
        if not isinstance(read, PageRead):
            return read
        store.seen(request.consumer_name, is_at_end=max(position, read.last_offset) >= read.end_offset)
        frontier = self._frontier(request.consumer_name, consumer)
        self._facts_sent += read.facts
        return self._pack(stream, frontier, read)

    def _told_ahead(self, caller: Caller, name: str, epoch: str | None, refusal: Refuse) -> Refuse:
        """A peer that speaks of this very epoch and of offsets beyond its end: either it is wrong, or this store was restored from
        an old copy. The store decides whether to believe it (decision 0030)."""
        if epoch == self._epoch and refusal.code in {"confirm_beyond_log", "offset_beyond_log"}:
            self._store.peer_is_ahead(caller.zone, f"consumer {name} of {caller.zone} has read more: {refusal.message}")
        return refusal

    def _start_confirm(self, name: str, confirm: Confirm | None) -> asyncio.Future[int] | None:
        if confirm is None:
            return None
        confirming = asyncio.wrap_future(self._store.confirm(name, confirm.last_offset, confirm.first_offset))
        confirming.add_done_callback(_seen)  # where the page fails first, nobody waits for this
        return confirming

    def _frontier(self, name: str, before: ConsumerView) -> int:
        """The frontier as it is now, durable: another request may have moved it while this one waited, and a page that is read
        ahead does not wait for the confirmation that came with its request, an fsync for each page."""
        consumer = self._store.consumer(name)
        return before.frontier if consumer is None else consumer.frontier

    async def _read_when_due(
        self, caller: Caller, request: FetchFacts, stream: str, position: int, arrived_ms: int
    ) -> PageRead | Refuse | Drop:
        """Wait for facts as long as the request says, then read; the connection's packet size of that moment counts."""
        until_ms = arrived_ms + request.wait_ms
        has_waited = False
        while True:
            parked = self._waiters.count(caller.zone)
            end_offset = self._store.end_offset(stream)
            decision = sender.decide_fetch(request, stream, position, end_offset, parked, until_ms, _now_ms())
            if isinstance(decision, Refuse):
                return decision
            if not isinstance(decision, Park):
                break
            key = (caller.zone, request.consumer_name)
            has_waited = True
            wait_s = max(0, decision.until_ms - _now_ms()) / 1000
            self._store.seen(request.consumer_name, is_at_end=True, waits_ms=int(wait_s * 1000))
            if await self._waiters.wait(key, stream, wait_s, lambda: self._store.end_offset(stream) > position):
                return Drop(DropReason.SUPERSEDED)
        packet_bytes_max = self._link.require().packet_bytes_max
        asked = PageAsked(decision.plan, caller.zone, request.definitions_known, packet_bytes_max)
        if has_waited:  # what it waited for was written a moment ago and lies in memory: the hop would take longer
            return read_page(self._store, asked)
        return await asyncio.get_running_loop().run_in_executor(self._reader, read_page, self._store, asked)

    def _pack(self, stream: str, frontier: int, read: PageRead) -> bytes:
        answer = FetchAnswer(
            store_zone=self._store.zone,
            epoch=self._epoch,
            stream=stream,
            frontier=frontier,
            end_offset=read.end_offset,
            batches=read.entries,
            omitted=read.omitted,
            holes=read.holes,
            definitions=read.definitions,
            more=read.last_offset < read.end_offset,
        )
        return encode_answer(answer, read.batches)

    async def _confirm_receipt(self, caller: Caller, request: ConfirmReceipt) -> Answer | Refuse:
        store = self._store
        consumer = _view(store.consumer(request.consumer_name))
        admitted = sender.admit_confirm(request, caller.zone, self._exports[caller.zone], consumer)
        if isinstance(admitted, Refuse):
            return admitted
        log = LogView(self._epoch, store.end_offset(admitted.stream))
        refusal = sender.check_offsets(log, request.epoch, None, admitted.confirm)
        if refusal is not None:
            return self._told_ahead(caller, request.consumer_name, request.epoch, refusal)
        confirming = self._start_confirm(request.consumer_name, admitted.confirm)
        assert confirming is not None
        return ConfirmAnswer(store_zone=store.zone, epoch=self._epoch, cursor_advanced_to=await confirming)

    def _get_cursor(self, caller: Caller, request: GetCursor) -> Answer | Refuse:
        consumer = _view(self._store.consumer(request.consumer_name))
        refusal = sender.check_consumer(request.consumer_name, caller.zone, self._exports[caller.zone], consumer)
        if refusal is not None:
            return refusal
        assert consumer is not None
        return CursorAnswer(
            store_zone=self._store.zone,
            epoch=self._epoch,
            consumer_name=request.consumer_name,
            stream=consumer.stream,
            frontier=consumer.frontier,
            end_offset=self._store.end_offset(consumer.stream),
        )

    def _get_bounds(self, caller: Caller, request: GetBounds) -> Answer | Refuse:
        for entry in self._exported(caller):
            if entry.name == request.stream:
                first, end = entry.first_offset, entry.end_offset
                return BoundsAnswer(
                    store_zone=self._store.zone,
                    epoch=self._epoch,
                    stream=entry.name,
                    first_offset=first,
                    end_offset=end,
                )
        return Refuse("stream_not_exported", f"stream {request.stream!r} is not exported to {caller.zone}")

    def _exported(self, caller: Caller) -> list[StreamEntry]:
        """The streams this zone may read; one that is exported but holds nothing yet is listed as empty."""
        held = self._store.streams()
        bounds = {stream.name: stream for stream in held}
        entries = []
        for name in sorted(self._exports[caller.zone]):
            stream = bounds.get(name)
            first, end = (stream.first_offset, stream.end_offset) if stream is not None else (1, 0)
            entries.append(StreamEntry(name=name, first_offset=max(first, 1), end_offset=end))
        return entries


def _view(consumer: Consumer | None) -> ConsumerView | None:
    return None if consumer is None else ConsumerView(consumer.zone, consumer.stream, consumer.frontier)


def _seen(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
