"""FetchFacts, ConfirmReceipt and GetCursor: a durable reader's pages and how far it has come.

A fetch that finds nothing is parked until its stream grows or its patience ends; a newer fetch of the same consumer takes its
place. A slow disk delays nobody's answer but the one that needs it (see `nearness`); a confirmation is written while the page is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

from agent.lease import Lease, Shown, must_ask_anew
from agent.replication.protocol import (
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    Consumer,
    CursorAnswer,
    FetchAnswer,
    FetchFacts,
    GetCursor,
)
from agent.replication.serving import sender
from agent.replication.serving.operations.context import Context, Outcome, Reply
from agent.replication.serving.operations.first_readings import FirstReadings
from agent.replication.serving.page import Refuse
from agent.replication.serving.reading import PageAsked, PageRead
from agent.replication.serving.sender import AskStore, Caller, ConsumerView, Drop, DropReason, LogView, Park
from agent.replication.serving.waiters import Waiters
from agent.telemetry import Side, Span, Started

_log = logging.getLogger(__name__)


class Fetching:
    """Serves consumers of one link's peers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiters = Waiters()
        self._first_readings = FirstReadings(context.telemetry)

    def parked(self) -> int:
        """How many fetches wait for facts."""
        return self._waiters.count()

    def committed(self, loop: asyncio.AbstractEventLoop, ends: Mapping[str, int]) -> None:
        """Streams have grown; called in the store's writer thread."""
        if self._waiters.anybody():
            loop.call_soon_threadsafe(self._waiters.wake, dict(ends))

    async def fetch(self, caller: Caller, request: FetchFacts) -> Outcome:
        """A page, once there is one."""
        outcome = await self._fetch(caller, request)
        if isinstance(outcome, Refuse):
            self._first_readings.refused(request.consumer_name, outcome.code)
        return outcome

    async def _fetch(self, caller: Caller, request: FetchFacts) -> Outcome:
        arrived_ms = _now_ms()
        store = self._context.store
        exports = self._context.exports[caller.zone]
        consumer = _view(store.consumers.get(request.consumer_name))
        owned = 0 if consumer else sum(1 for each in store.consumers.all() if each.zone == caller.zone)
        admitted = sender.admit_fetch(request, caller.zone, exports, consumer, owned)
        if isinstance(admitted, Refuse):
            return admitted
        stream = admitted.stream
        log = LogView(self._context.epoch, store.end_offset(stream))
        refusal = sender.check_offsets(log, request.epoch, request.after_offset, request.confirm)
        if refusal is not None:
            return self._told_ahead(caller, request.consumer_name, request.epoch, refusal)
        if (differs := await self._differs(caller, request, stream)) is not None:
            return differs
        if admitted.must_register:
            name, start = request.consumer_name, request.starts
            registered = await asyncio.wrap_future(store.consumers.register(name, caller.zone, stream, start))
            self._first_readings.began(name, caller.zone, stream)
            _log.info("consumer_registered", extra={"consumer": name, "peer": caller.zone, "stream": stream})
            consumer = _view(registered)
        assert consumer is not None
        lease = await self._lease(caller, request.consumer_name, request.lease, consumer, request.lease_after)
        if must_ask_anew(lease, Shown(caller.instance, request.lease, request.lease_after)):
            return self._told_lease(request, stream, consumer, lease)
        shown = (
            None if request.lease is None else lease.epoch
        )  # from here on not 0, which would take another's place back
        confirming = self._start_confirm(caller, request.consumer_name, shown, admitted.confirm)
        if request.after_offset is None and confirming is not None:
            consumer = ConsumerView(consumer.zone, stream, await confirming)
        if (beginning := store.consumers.begin_serving(stream, caller.zone)) is not None:
            await asyncio.wrap_future(beginning)
        position = consumer.frontier if request.after_offset is None else request.after_offset
        read, waited_ns = await self._read_when_due(caller, request, stream, position, arrived_ms)
        may_run_ahead = request.after_offset is not None and isinstance(read, PageRead) and bool(read.batches)
        if confirming is not None and not may_run_ahead:
            await confirming
        if (
            left := _view(store.consumers.get(request.consumer_name))
        ) is not None:  # somebody else may have come meanwhile
            await self._lease(caller, request.consumer_name, shown, left)
        if not isinstance(read, PageRead):
            return read
        frontier = self._frontier(request.consumer_name, consumer)
        told = max(read.last_offset, frontier)  # who begins at the end takes the frontier for his place
        store.consumers.record_served(stream, caller.zone, told, read.end)
        is_at_end = max(position, read.last_offset) >= read.end_offset
        store.consumers.seen(request.consumer_name, is_at_end=is_at_end)
        if is_at_end:
            self._first_readings.reached_the_end(request.consumer_name)
        return self._page(stream, frontier, read, shown)._replace(waited_ns=waited_ns)

    async def confirm(self, caller: Caller, request: ConfirmReceipt) -> Outcome:
        """The frontier once the confirmation is durable."""
        store = self._context.store
        consumer = _view(store.consumers.get(request.consumer_name))
        admitted = sender.admit_confirm(request, caller.zone, self._context.exports[caller.zone], consumer)
        if isinstance(admitted, Refuse):
            return admitted
        log = LogView(self._context.epoch, store.end_offset(admitted.stream))
        refusal = sender.check_offsets(log, request.epoch, None, admitted.confirm)
        if refusal is not None:
            return self._told_ahead(caller, request.consumer_name, request.epoch, refusal)
        assert consumer is not None
        lease = await self._lease(caller, request.consumer_name, request.lease, consumer)
        shown = None if request.lease is None else lease.epoch
        confirming = self._start_confirm(caller, request.consumer_name, shown, admitted.confirm)
        assert confirming is not None
        return Reply(ConfirmAnswer(**self._context.own, cursor_advanced_to=await confirming, lease=shown), [])

    async def get_cursor(self, caller: Caller, request: GetCursor) -> Outcome:
        """Where a consumer stands."""
        store = self._context.store
        consumer = _view(store.consumers.get(request.consumer_name))
        exports = self._context.exports[caller.zone]
        refusal = sender.check_consumer(request.consumer_name, caller.zone, exports, consumer)
        if refusal is not None:
            return refusal
        assert consumer is not None
        answer = CursorAnswer(
            **self._context.own,
            consumer_name=request.consumer_name,
            stream=consumer.stream,
            frontier=consumer.frontier,
            end_offset=store.end_offset(consumer.stream),
        )
        return Reply(answer, [])

    # ---------------------------------------------------------------------------------------------------------- internal

    def _told_ahead(self, caller: Caller, name: str, epoch: str | None, refusal: Refuse) -> Refuse:
        """A peer that speaks of this very epoch and of offsets beyond its end: either it is wrong, or this store was restored from
        an old copy. The store decides whether to believe it (decision 0030)."""
        if epoch == self._context.epoch and refusal.code in {"confirm_beyond_log", "offset_beyond_log"}:
            why = f"consumer {name} of {caller.zone} has read more: {refusal.message}"
            self._context.store.peer_is_ahead(caller.zone, why)
        return refusal

    async def _differs(self, caller: Caller, request: FetchFacts, stream: str) -> Refuse | None:
        """A refusal where what the asker shows of this very epoch is not in the store, which must be an old copy then that has gone on
        (decision 0041). Nothing may be served then: the places the asker names are not those it means."""
        taken, held = request.taken, request.held
        if request.epoch is None:
            return None
        store = self._context.store
        end = None if taken is None else (taken.last_offset, bytes.fromhex(taken.digest))
        why = store.consumers.why_not_served(stream, caller.zone, max(request.told or 0, end[0] if end else 0))
        if why is None and (
            held is not None or (end is not None and not store.consumers.has_served(stream, caller.zone, end))
        ):
            shown = held and (held.last_sequence, bytes.fromhex(held.digest))
            why = await self._context.in_thread(store.contradiction, stream, end, shown)
        if why is None:
            return None
        store.peer_is_ahead(caller.zone, f"consumer {request.consumer_name} of {caller.zone}: {why}")
        return Refuse("history_differs", why)

    async def _lease(
        self, caller: Caller, name: str, epoch: int | None, consumer: ConsumerView, after: int | None = None
    ) -> Lease:
        """The lease under which this caller goes on, durable, or after which it has to ask; the store raises for one whose place was
        taken."""
        found = sender.check_lease(consumer, caller, epoch, after)
        if not isinstance(found, AskStore):
            return found
        lease = await asyncio.wrap_future(self._context.store.consumers.hold_lease(name, found.shown))
        if lease != consumer.lease:
            was = {"lease_before": consumer.lease.epoch, "lease": lease.epoch, "instance": lease.holder}
            _log.info("lease_taken", extra={"consumer": name, "peer": caller.zone, **was})
            self._waiters.supersede((caller.zone, name))  # it learns at once that it is fenced
        return lease

    def _told_lease(self, request: FetchFacts, stream: str, consumer: ConsumerView, lease: Lease) -> Reply:
        """Nothing but which lease is in force: the caller asked after another, or before it knew (decision 0036)."""
        end_offset = self._context.store.end_offset(stream)
        position = consumer.frontier if request.after_offset is None else request.after_offset
        answer = FetchAnswer(
            **self._context.own,
            stream=stream,
            frontier=consumer.frontier,
            end_offset=end_offset,
            more=end_offset > position,
            lease_in_force=lease.epoch,
        )
        return Reply(answer, [])

    def _start_confirm(
        self, caller: Caller, name: str, epoch: int | None, confirm: Confirm | None
    ) -> asyncio.Future[int] | None:
        if confirm is None:
            return None
        shown, first = Shown(caller.instance, epoch), confirm.first_offset
        confirming = asyncio.wrap_future(
            self._context.store.consumers.confirm(name, confirm.last_offset, first, shown=shown)
        )
        span = self._context.telemetry.start(
            Span.CONFIRM, Side.SERVING, consumer=name, peer=caller.zone, offset=confirm.last_offset
        )
        confirming.add_done_callback(
            partial(self._confirmed, span)
        )  # where the page fails first, nobody waits for this
        return confirming

    def _confirmed(self, span: Started, confirming: asyncio.Future[int]) -> None:
        telemetry = self._context.telemetry
        if confirming.cancelled():
            telemetry.discard(span, "the node is being stopped")
        elif (error := confirming.exception()) is not None:
            telemetry.fail(span, str(error))
        else:
            telemetry.stop(span)

    def _frontier(self, name: str, before: ConsumerView) -> int:
        """The frontier as it is now, durable: another request may have moved it while this one waited, and a page that is read
        ahead does not wait for the confirmation that came with its request, an fsync for each page."""
        consumer = self._context.store.consumers.get(name)
        return before.frontier if consumer is None else consumer.frontier

    async def _read_when_due(
        self, caller: Caller, request: FetchFacts, stream: str, position: int, arrived_ms: int
    ) -> tuple[PageRead | Refuse | Drop, int]:
        """Wait for facts as long as the request says, then read; the connection's packet size of that moment counts. Also returns
        how long it waited, in ns."""
        store, waiters = self._context.store, self._waiters
        until_ms = arrived_ms + request.wait_ms
        waited_ns = 0
        while True:
            end_offset, parked = store.end_offset(stream), waiters.count(caller.zone)
            decision = sender.decide_fetch(request, stream, position, end_offset, parked, until_ms, _now_ms())
            if isinstance(decision, Refuse):
                return decision, waited_ns
            if not isinstance(decision, Park):
                break
            key = (caller.zone, request.consumer_name)
            began_ns = time.monotonic_ns()
            wait_s = max(0, decision.until_ms - _now_ms()) / 1000
            store.consumers.seen(request.consumer_name, is_at_end=True, waits_ms=int(wait_s * 1000))
            is_superseded = await waiters.wait(key, stream, wait_s, lambda: store.end_offset(stream) > position)
            waited_ns += time.monotonic_ns() - began_ns
            if is_superseded:
                return Drop(DropReason.SUPERSEDED), waited_ns
        packet_bytes_max = self._context.link.require().packet_bytes_max
        asked = PageAsked(decision.plan, caller.zone, request.definitions_known, packet_bytes_max)
        return await self._context.page(asked), waited_ns

    def _page(self, stream: str, frontier: int, read: PageRead, lease: int | None) -> Reply:
        answer = FetchAnswer(
            **self._context.own,
            stream=stream,
            frontier=frontier,
            end_offset=read.end_offset,
            batches=read.entries,
            omitted=read.omitted,
            holes=read.holes,
            definitions=read.definitions,
            more=read.last_offset < read.end_offset,
            lease=lease,
            omitted_digest=read.omitted_digest.hex() if read.omitted_digest else None,
        )
        return Reply(answer, read.batches, read.facts)


def _view(consumer: Consumer | None) -> ConsumerView | None:
    return None if consumer is None else ConsumerView(consumer.zone, consumer.stream, consumer.frontier, consumer.lease)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
