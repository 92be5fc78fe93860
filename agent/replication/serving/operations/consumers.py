"""FetchFacts, ConfirmReceipt, GetCursor and UnregisterConsumer: the order in which they are checked, written and read.

The safety of facts depends on the order of the steps, so each step that matters for it names its decision
(docs/decisions). A fetch that finds nothing is parked (`waiters`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from agent.lease import Lease, LeaseClaim, decide_lease, must_claim_again
from agent.pages import Consumer
from agent.positions import Position, furthest
from agent.replication.protocol.messages import (
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    CursorAnswer,
    FetchAnswer,
    FetchFacts,
    GetCursor,
    LogPosition,
    UnregisterAnswer,
    UnregisterConsumer,
)
from agent.replication.serving.admission import Caller, admit_fetch, check_consumer, check_consumer_name, decide_fetch
from agent.replication.serving.operations.context import Context
from agent.replication.serving.operations.waiters import Waiters
from agent.replication.serving.outcomes import Drop, DropReason, Outcome, Refuse, Reply
from agent.replication.serving.reading import PageQuery, PageRead
from agent.replication.serving.turns import Use

_log = logging.getLogger(__name__)

REPORTED_MS = 600_000
"""Between two reports that a node has read another log. Each is a commit, and a peer repeats it with each request."""


class Consumers:
    """Serves consumers of one link's peers. Its operations raise the store's errors."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiters = Waiters(context)
        self._reported_ms: dict[str, int] = {}
        self._commit_waiters = set[str]()  # nodes that wait for their next commit

    def parked(self) -> int:
        """How many fetches wait for facts."""
        return self._waiters.count()

    def committed(self, loop: asyncio.AbstractEventLoop, ends: Mapping[str, int]) -> None:
        """Streams have grown. Called in the store's writer thread."""
        if self._waiters.has_any():
            loop.call_soon_threadsafe(self._waiters.wake, dict(ends))

    async def fetch(self, caller: Caller, request: FetchFacts) -> Outcome:
        """FetchFacts: a page, once there is one or `wait_ms` has passed."""
        context, node, name = self._context, caller.node, request.consumer_name
        until_ms, consumer = context.now_ms() + request.wait_ms, context.store.consumers.get(name)
        stream = admit_fetch(request, node, context.peers[node].exports, consumer)
        if isinstance(stream, Refuse):
            return stream
        # A position of another copy of this log neither releases facts nor selects any.
        after = await self._resolve(caller, request, stream)
        if isinstance(after, Refuse):
            return after
        if consumer is None:
            consumer = await self._register(node, stream, request)
        # 0036: the lease is checked before anything is done in the consumer's name.
        claim = LeaseClaim(caller.instance, request.lease, request.lease_after)
        lease = await self._take_lease(caller, name, consumer, claim)
        if must_claim_again(lease, claim):
            return self._name_lease(request, consumer, lease)
        # 0036: from here on the claim names the lease that the caller holds. Claiming 0 again would take the lease back
        # from another instance.
        claim = LeaseClaim(caller.instance, None if request.lease is None else lease.epoch)
        confirming: asyncio.Future[int] | None = None
        if request.confirm is not None:  # written while the page is read
            confirming = self._start_confirm(name, request.confirm, claim)
        frontier, is_ahead = consumer.frontier, after is not None
        if after is None:
            if confirming is not None:  # 0022: the page begins after the frontier, which must be durable first
                frontier = await self._confirmed(confirming, node)
            after = Position(context.store.log(stream).at(frontier), frontier)
        position = after.offset
        read, waited_ns = await self._read_when_due(caller, request, stream, position, until_ms)
        if confirming is not None:
            # A page that is read ahead does not wait for the fsync of the confirmation. If the confirmation has already
            # failed, the request fails.
            if not (is_ahead and isinstance(read, PageRead) and read.batches):
                await self._confirmed(confirming, node)
            elif confirming.done():
                confirming.result()
        # Look the consumer up again. 0036: another instance may have taken the lease while this fetch waited or read.
        # Another request may have moved the frontier; the value read here is durable.
        if (consumer := context.store.consumers.get(name)) is not None:
            await self._take_lease(caller, name, consumer, claim)
            frontier = consumer.frontier
        if not isinstance(read, PageRead):
            return read
        context.store.consumers.seen(name, is_at_end=max(position, read.last_offset) >= read.end_offset)
        return self._page(stream, frontier, read, claim.epoch, after)._replace(waited_ns=waited_ns)

    async def confirm(self, caller: Caller, request: ConfirmReceipt) -> Outcome:
        """ConfirmReceipt: the frontier, once the confirmation is durable."""
        name = request.consumer_name
        consumer = self._find_own(caller, name)
        if isinstance(consumer, Refuse):
            return consumer
        # 0036: the store compares the lease once more in the transaction that confirms.
        lease = await self._take_lease(caller, name, consumer, LeaseClaim(caller.instance, request.lease))
        claim = LeaseClaim(caller.instance, None if request.lease is None else lease.epoch)
        frontier = await self._confirmed(self._start_confirm(name, request.confirm, claim), caller.node)
        answer = ConfirmAnswer(**self._context.store_name, cursor_advanced_to=frontier, lease=claim.epoch)
        return Reply(answer, [])

    async def get_cursor(self, caller: Caller, request: GetCursor) -> Outcome:
        """GetCursor: a consumer's stream and frontier, and the end of the stream."""
        consumer = self._find_own(caller, request.consumer_name)
        if isinstance(consumer, Refuse):
            return consumer
        answer = CursorAnswer(
            **self._context.store_name,
            consumer_name=request.consumer_name,
            stream=consumer.stream,
            frontier=consumer.frontier,
            end_offset=self._context.store.end_offset(consumer.stream),
        )
        return Reply(answer, [])

    async def unregister(self, caller: Caller, request: UnregisterConsumer) -> Outcome:
        """UnregisterConsumer: remove the consumer, even if its stream is no longer exported to the node, and end its
        parked fetch."""
        context, name, node = self._context, request.consumer_name, caller.node
        if (refusal := check_consumer_name(name, node)) is not None:
            return refusal
        context.changed(node)
        # 0036: the store compares the lease in the transaction that removes the consumer.
        claim = LeaseClaim(caller.instance, request.lease)
        was_registered = await context.wrap(context.store.consumers.unregister(name, node, claim))
        self._waiters.supersede((node, name))
        _log.info("consumer_unregistered", extra={"consumer": name, "peer": node})
        return Reply(UnregisterAnswer(**context.store_name, was_registered=was_registered), [])

    # --------------------------------------------------------------------------------------------------------- internal

    def _find_own(self, caller: Caller, name: str) -> Consumer | Refuse:
        """The consumer, if the caller's node may use it."""
        consumer = self._context.store.consumers.get(name)
        return check_consumer(name, caller.node, self._context.peers[caller.node].exports, consumer)

    async def _resolve(self, caller: Caller, request: FetchFacts, stream: str) -> Position | Refuse | None:
        """The position after which the page begins; None: after the frontier. A position that is not known here as it
        is, is refused; a whole trail is read on from where it is valid furthest."""
        named = request.trail if request.trail is not None else [request.after] if request.after is not None else None
        if named is None:
            return None
        node = caller.node
        resolved = await self._context.resolve(node, stream, [point.position for point in named])
        found = furthest(resolved)
        if resolved and resolved[-1][1].how != "exact":
            read = resolved[-1][0]
            what = f"{stream} up to offset {read.offset} of life {read.life.hex()}"
            why = (
                f"consumer {request.consumer_name} of {node} has read {what}; in this log are its first {found.offset}"
            )
            self._report_restored(node, f"{why}: this store was put back, or another machine answered")
            if request.trail is None:
                return Refuse("life_unknown", f"{what} is not in this log as it is")
        return found

    def _report_restored(self, node: str, why: str) -> None:
        """Record that a node has read a log of this store that is not the one here, or further, with a limited
        frequency."""
        now_ms = self._context.now_ms()
        if now_ms - self._reported_ms.get(node, -REPORTED_MS) >= REPORTED_MS:
            self._reported_ms[node] = now_ms
            _log.warning("peer_read_more", extra={"peer": node, "reason": why})
            self._context.store.peer_reads_more(node, why)

    async def _register(self, node: str, stream: str, request: FetchFacts) -> Consumer:
        context, name = self._context, request.consumer_name
        context.changed(node)
        zone_max = context.limits_of(node).consumers_max
        registering = context.store.consumers.register(name, node, stream, request.starts, zone_max=zone_max)
        consumer = await context.wrap(registering)
        _log.info("consumer_registered", extra={"consumer": name, "peer": node, "stream": stream})
        return consumer

    async def _take_lease(self, caller: Caller, name: str, consumer: Consumer, claim: LeaseClaim) -> Lease:
        """The lease in force after the claim, durable. Nearly always the claim changes nothing, and the answer comes
        from memory; otherwise the store decides, and raises an error for a caller that is refused."""
        before, context = consumer.lease, self._context
        if decide_lease(before, claim) is before:
            return before
        context.changed(caller.node)
        lease = await context.wrap(context.store.consumers.hold_lease(name, claim))
        if lease != before:
            was = {"lease_before": before.epoch, "lease": lease.epoch, "instance": lease.holder}
            _log.info("lease_taken", extra={"consumer": name, "peer": caller.node, **was})
            self._waiters.supersede((caller.node, name))  # the parked instance asks again and is fenced
        return lease

    def _name_lease(self, request: FetchFacts, consumer: Consumer, lease: Lease) -> Reply:
        """An answer with only the lease in force: the caller named another one in `lease_after` (0036)."""
        end_offset = self._context.store.end_offset(consumer.stream)
        position = consumer.frontier if request.after is None else request.after.offset
        answer = FetchAnswer(
            **self._context.store_name,
            stream=consumer.stream,
            frontier=consumer.frontier,
            end_offset=end_offset,
            more=end_offset > position,
            lease_in_force=lease.epoch,
        )
        return Reply(answer, [])

    def _start_confirm(self, name: str, confirm: Confirm, claim: LeaseClaim) -> asyncio.Future[int]:
        """Pass a confirmation to the store without waiting until it is durable."""
        confirming = self._context.wrap(
            self._context.store.consumers.confirm(
                name,
                confirm.last_offset,
                confirm.first_offset,
                claim=claim,
                life=bytes.fromhex(confirm.life),
                digest=bytes.fromhex(confirm.digest),
                is_awaited=False,
            )
        )
        confirming.add_done_callback(_take_exception)
        return confirming

    async def _confirmed(self, confirming: asyncio.Future[int], node: str) -> int:
        """The frontier after a confirmation of a node, once it is durable."""
        if not confirming.done():
            self._commit_awaited(node)
        return await confirming

    def _commit_awaited(self, node: str) -> None:
        """Commit the awaited confirmations at once, at a limited rate for each node; its further confirmations share
        the next commit."""
        context, now_ms = self._context, self._context.now_ms()
        at_ms = context.pacer.ready_ms(Use.CONFIRMS, node, now_ms)
        if at_ms <= now_ms:
            context.pacer.spend(Use.CONFIRMS, node, 1, now_ms)
            context.store.consumers.commit_deferred()
        elif node not in self._commit_waiters:
            self._commit_waiters.add(node)
            context.call_later((at_ms - now_ms) / 1000, partial(self._commit_awaited_later, node))

    def _commit_awaited_later(self, node: str) -> None:
        self._commit_waiters.remove(node)
        self._commit_awaited(node)

    async def _read_when_due(
        self, caller: Caller, request: FetchFacts, stream: str, position: int, until_ms: int
    ) -> tuple[PageRead | Refuse | Drop, int]:
        """The page, once there are facts or the wait is over; and the time waited, in ns."""
        context, node, name, waited_ns = self._context, caller.node, request.consumer_name, 0
        while True:
            end_offset, parked = context.store.end_offset(stream), self._waiters.count_others(node, name)
            due = decide_fetch(request, stream, position, end_offset, parked, until_ms, context.now_ms())
            if isinstance(due, Refuse):
                return due, waited_ns
            if due is not None:
                held = context.held_by(node, request.held)
                query = PageQuery(due, held, context.packet_bytes_max, request.signers_known)
                return await context.page(node, query), waited_ns
            wait = await self._waiters.park(caller, name, stream, position, until_ms)
            waited_ns += wait.waited_ns
            if wait.is_superseded:
                return Drop(DropReason.SUPERSEDED), waited_ns

    def _page(self, stream: str, frontier: int, read: PageRead, lease: int | None, after: Position) -> Reply:
        answer = FetchAnswer(
            **self._context.store_name,
            stream=stream,
            frontier=frontier,
            end_offset=read.end_offset,
            batches=read.entries,
            omitted=read.omitted,
            holes=read.holes,
            more=read.last_offset < read.end_offset,
            lease=lease,
            after=LogPosition.of(Position(after.life, after.offset)),
            lives=[LogPosition.of(life) for life in read.lives],
            held_runs=list(read.held_runs),
            signers=read.signers,
        )
        return Reply(answer, read.batches, read.facts)


def _take_exception(confirming: asyncio.Future[int]) -> None:
    """A confirmation is not awaited if the page fails before."""
    if not confirming.cancelled():
        confirming.exception()
