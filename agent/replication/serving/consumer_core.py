"""The serving core: the order in which FetchFacts, ConfirmReceipt and GetCursor are checked, written and read. A core:
no IO, no clock.

Each request is a generator that yields effects (`consumer_effects`) and is sent their results. The safety of facts
depends on the order of the steps, so each step that matters for it names its decision (docs/decisions).
`operations.consumers` carries the effects out; the simulation runs the same core and the same shell.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeVar

from agent.lease import Lease, LeaseClaim, decide_lease, must_claim_again
from agent.pages import Consumer
from agent.positions import Position, furthest
from agent.replication.protocol.messages import (
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
from agent.replication.serving import consumer_effects as effects
from agent.replication.serving.admission import (
    Caller,
    admit_fetch,
    check_consumer,
    check_consumer_name,
    decide_fetch,
)
from agent.replication.serving.consumer_effects import Confirming, Effect, Steps
from agent.replication.serving.outcomes import Drop, DropReason, Refuse, Reply, StoreName
from agent.replication.serving.reading import PageRead

_T = TypeVar("_T")
_Some = Generator[Effect[Any], Any, _T]


@dataclass(frozen=True, slots=True)
class ConsumerCore:
    """Serves one request of `caller`, which may read the streams in `exports`. `store_name`: the first fields of every
    answer."""

    caller: Caller
    exports: AbstractSet[str]
    store_name: StoreName

    def fetch(self, request: FetchFacts, arrived_ms: int) -> Steps:
        """FetchFacts: a page, once there is one or `wait_ms` has passed."""
        node, name = self.caller.node, request.consumer_name
        consumer = yield from effects.FindConsumer(name)
        stream = admit_fetch(request, node, self.exports, consumer)
        if isinstance(stream, Refuse):
            return stream
        # A position of another copy of this log neither releases facts nor selects any.
        after = yield from self._resolve(request, stream)
        if isinstance(after, Refuse):
            return after
        if consumer is None:
            consumer = yield from effects.RegisterConsumer(name, node, stream, request.starts)
        # 0036: the lease is checked before anything is done in the consumer's name.
        claim = LeaseClaim(self.caller.instance, request.lease, request.lease_after)
        lease = yield from self._take_lease(name, consumer, claim)
        if must_claim_again(lease, claim):
            return (yield from self._name_lease(request, consumer, lease))
        # 0036: from here on the claim names the lease that the caller holds. Claiming 0 again would take the lease back
        # from another instance.
        claim = LeaseClaim(self.caller.instance, None if request.lease is None else lease.epoch)
        confirming: Confirming | None = None
        if request.confirm is not None:  # written while the page is read
            confirming = yield from effects.StartConfirm(name, node, request.confirm, claim)
        frontier, is_ahead = consumer.frontier, after is not None
        if after is None:
            if confirming is not None:  # 0022: the page begins after the frontier, which must be durable first
                frontier = yield from effects.AwaitConfirm(confirming, node)
            now = yield from effects.GetStreamState(stream, node)
            after = Position(now.log.at(frontier), frontier)
        position = after.offset
        read, waited_ns = yield from self._read_when_due(request, stream, position, arrived_ms + request.wait_ms)
        if confirming is not None:
            # A page that is read ahead does not wait for the fsync of the confirmation. If the confirmation has already
            # failed, the request fails.
            is_ahead = is_ahead and isinstance(read, PageRead) and bool(read.batches)
            yield from effects.CheckConfirm(confirming) if is_ahead else effects.AwaitConfirm(confirming, node)
        # Look the consumer up again. 0036: another instance may have taken the lease while this fetch waited or read.
        # Another request may have moved the frontier; the value read here is durable.
        if (consumer := (yield from effects.FindConsumer(name))) is not None:
            yield from self._take_lease(name, consumer, claim)
            frontier = consumer.frontier
        if not isinstance(read, PageRead):
            return read
        yield from effects.NoteServed(name, max(position, read.last_offset) >= read.end_offset)
        return self._page(stream, frontier, read, claim.epoch, after)._replace(waited_ns=waited_ns)

    def confirm(self, request: ConfirmReceipt) -> Steps:
        """ConfirmReceipt: the frontier, once the confirmation is durable."""
        name = request.consumer_name
        consumer = yield from self._find_own(name)
        if isinstance(consumer, Refuse):
            return consumer
        # 0036: the store compares the lease once more in the transaction that confirms.
        lease = yield from self._take_lease(name, consumer, LeaseClaim(self.caller.instance, request.lease))
        claim = LeaseClaim(self.caller.instance, None if request.lease is None else lease.epoch)
        confirming = yield from effects.StartConfirm(name, self.caller.node, request.confirm, claim)
        frontier = yield from effects.AwaitConfirm(confirming, self.caller.node)
        return Reply(ConfirmAnswer(**self.store_name, cursor_advanced_to=frontier, lease=claim.epoch), [])

    def get_cursor(self, request: GetCursor) -> Steps:
        """GetCursor: a consumer's stream and frontier, and the end of the stream."""
        consumer = yield from self._find_own(request.consumer_name)
        if isinstance(consumer, Refuse):
            return consumer
        now = yield from effects.GetStreamState(consumer.stream, self.caller.node)
        answer = CursorAnswer(
            **self.store_name,
            consumer_name=request.consumer_name,
            stream=consumer.stream,
            frontier=consumer.frontier,
            end_offset=now.log.end_offset,
        )
        return Reply(answer, [])

    def unregister(self, request: UnregisterConsumer) -> Steps:
        """UnregisterConsumer: remove the consumer, even if its stream is no longer exported to the node."""
        name, node = request.consumer_name, self.caller.node
        if (refusal := check_consumer_name(name, node)) is not None:
            return refusal
        # 0036: the store compares the lease in the transaction that removes the consumer.
        claim = LeaseClaim(self.caller.instance, request.lease)
        was_registered = yield from effects.Unregister(name, node, claim)
        return Reply(UnregisterAnswer(**self.store_name, was_registered=was_registered), [])

    # --------------------------------------------------------------------------------------------------------- internal

    def _find_own(self, name: str) -> _Some[Consumer | Refuse]:
        """The consumer, if the caller's node may use it."""
        consumer = yield from effects.FindConsumer(name)
        return check_consumer(name, self.caller.node, self.exports, consumer)

    def _resolve(self, request: FetchFacts, stream: str) -> _Some[Position | Refuse | None]:
        """The position after which the page begins; None: after the frontier. A position that is not known here as it
        is, is refused; a whole trail is read on from where it is valid furthest."""
        named = request.trail if request.trail is not None else [request.after] if request.after is not None else None
        if named is None:
            return None
        node = self.caller.node
        resolved = yield from effects.Resolve(stream, node, tuple(point.position for point in named))
        found = furthest(resolved)
        if resolved and resolved[-1][1].how != "exact":
            read = resolved[-1][0]
            what = f"{stream} up to offset {read.offset} of life {read.life.hex()}"
            why = (
                f"consumer {request.consumer_name} of {node} has read {what}; in this log are its first {found.offset}"
            )
            yield from effects.ReportRestored(node, f"{why}: this store was put back, or another machine answered")
            if request.trail is None:
                return Refuse("life_unknown", f"{what} is not in this log as it is")
        return found

    def _take_lease(self, name: str, consumer: Consumer, claim: LeaseClaim) -> _Some[Lease]:
        """The lease in force after the claim, durable. Nearly always the claim changes nothing, and the answer comes
        from memory; otherwise the store decides, and raises an error for a caller that is refused."""
        if decide_lease(consumer.lease, claim) is consumer.lease:
            return consumer.lease
        lease = yield from effects.HoldLease(name, self.caller.node, claim)
        if lease != consumer.lease:
            yield from effects.AnnounceLease(name, self.caller.node, consumer.lease, lease)
        return lease

    def _name_lease(self, request: FetchFacts, consumer: Consumer, lease: Lease) -> _Some[Reply]:
        """An answer with only the lease in force: the caller named another one in `lease_after` (0036)."""
        now = yield from effects.GetStreamState(consumer.stream, self.caller.node)
        position = consumer.frontier if request.after is None else request.after.offset
        answer = FetchAnswer(
            **self.store_name,
            stream=consumer.stream,
            frontier=consumer.frontier,
            end_offset=now.log.end_offset,
            more=now.log.end_offset > position,
            lease_in_force=lease.epoch,
        )
        return Reply(answer, [])

    def _read_when_due(
        self, request: FetchFacts, stream: str, position: int, until_ms: int
    ) -> _Some[tuple[PageRead | Refuse | Drop, int]]:
        """The page, once there are facts or the wait is over; and the time waited, in ns."""
        node, waited_ns = self.caller.node, 0
        while True:
            now = yield from effects.GetStreamState(stream, node)
            due = decide_fetch(request, stream, position, now.log.end_offset, now.parked_of_node, until_ms, now.now_ms)
            if isinstance(due, Refuse):
                return due, waited_ns
            if due is not None:
                signers = None if request.signers_known is None else tuple(request.signers_known)
                reading = effects.ReadPage(due, node, signers, tuple(request.held))
                return (yield from reading), waited_ns
            asked_by = self.caller.answer_to, self.caller.correlation
            parked = yield from effects.Park(request.consumer_name, node, stream, position, until_ms, *asked_by)
            waited_ns += parked.waited_ns
            if parked.is_superseded:
                return Drop(DropReason.SUPERSEDED), waited_ns

    def _page(self, stream: str, frontier: int, read: PageRead, lease: int | None, after: Position) -> Reply:
        answer = FetchAnswer(
            **self.store_name,
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
