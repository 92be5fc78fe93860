"""The pulling side of a node, as `puller` drives the receiver's core: one stream of one peer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent.batch import Origin, parse
from agent.fact_store.log.errors import StoreError
from agent.pages import LastBatch, PeerPosition, PutResult
from agent.replication.protocol.codec import decode_answer, encode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import Confirm, ErrorAnswer, FetchFacts, HeldEnd, TakenEnd
from agent.replication.protocol.page_check import PageContent, PageRefused, check_batches, check_page
from agent.replication.protocol.pull_events import (
    Append,
    Appended,
    AppendFailed,
    Asking,
    Effect,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    LinkUp,
    Note,
    PageArrived,
    Tick,
)
from agent.replication.pulling.receiver import Receiver
from tests.replication.simulation.checkers import STREAM, Offered, Violation
from tests.replication.simulation.comparing import Comparing
from tests.replication.simulation.other_version import answer_of, request_of

if TYPE_CHECKING:
    from tests.replication.simulation.node import Node

LIMIT = 65_536
PAGE_BYTES_MAX = 1_500
"""A handful of the batches made here, so that a backlog is many pages."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A page's content, and why it was refused, if it was; from which version it came, and from which machine in which life."""

    content: PageContent
    refused: PageRefused | None
    version: str
    served: tuple[str, int]


class Pull:
    """One stream that a node pulls from a peer, in all lives of the node."""

    def __init__(self, node: Node, peer: Node) -> None:
        self.node = node
        self.peer = peer
        self.notes: list[Note] = []
        self._core: Receiver | None = None
        self._is_linked = False
        self._tick_at: int | None = None
        self.comparing = Comparing(self)

    def start(self) -> None:
        """The node has started; the broker is reached in a while."""
        store, world = self.node.running, self.node.world
        self.comparing.stop()
        position = store.inbound.peer_position(self.peer.zone, STREAM)
        epoch, offset = (position.epoch.hex(), position.offset) if position is not None else (None, 0)
        known = {str(origin): count for origin, count in store.definition_counts().items()}
        taken = None if position is None or position.last_batch is None else LastBatch(*position.last_batch)
        self._core = world.receiver(world.settings, epoch, offset, known, None, taken)
        self._is_linked = False
        self._tick_at = None
        self.node.after(world.chance.randint(1, 1_000), self.link_up)

    def link_up(self) -> None:
        if self.node.is_up and not self._is_linked:
            self._is_linked = True
            self._tell(LinkUp())

    def link_down(self) -> None:
        if self.node.is_up and self._is_linked:
            self._is_linked = False
            self._tell(LinkDown("broker connection lost"))

    @property
    def is_fenced(self) -> bool:
        """Whether another instance under the consumer's name has taken this one's place."""
        return self._core is not None and self._core.asking is Asking.FENCED

    def is_fenced_for_nobody(self) -> bool:
        """Whether it was fenced by an instance that is gone: a request of an earlier life of its own came late."""
        return self.node.is_up and self.is_fenced and all(one.is_fenced for one in self._twins())

    def left(self) -> str | None:
        """What there is still to do, if there is something."""
        if self.is_fenced and not self.is_fenced_for_nobody():
            return None
        store, peer = self.node.running, self.peer.running
        position, consumer = (
            store.inbound.peer_position(self.peer.zone, STREAM),
            peer.consumers.get(self._consumer_name),
        )
        end = (peer.epoch, peer.end_offset(STREAM))
        at = (position.epoch, position.offset) if position else (peer.epoch, 0)
        if self._core is not None and self._core.epoch is not None and (peer.epoch.hex() == self._core.epoch):
            at = (
                peer.epoch,
                self._core.stored_offset,
            )  # back in an epoch it had left, at its end: nothing moves on the disk
        frontier = consumer.frontier if consumer else 0
        if (at == end and frontier == end[1]) or end[1] == 0:
            return None
        reason = self._core.lost_reason if self._core else None
        return f"{self.node.name} has {at[1]} of {end[1]} of {self.peer.name}, confirmed {frontier} ({reason})"

    # ------------------------------------------------------------------------------------------------------------- internal

    def _twins(self) -> Iterator[Pull]:
        """Who pulls under the same consumer name."""
        for node in self.node.world.nodes:
            for pull in node.pulls:
                if pull is not self and (node.zone, pull.peer) == (self.node.zone, self.peer):
                    yield pull

    @property
    def _consumer_name(self) -> str:
        return f"{self.node.zone}.{STREAM}"

    def _tell(self, event: Event) -> None:
        core, node = self._core, self.node
        assert core is not None
        for effect in core.handle(event, node.receiver_now_ms(), node.world.chance.random()):
            self._carry_out(effect)
        deadline_ms = core.deadline_ms
        if deadline_ms is not None and deadline_ms != self._tick_at:
            self._tick_at = deadline_ms
            node.after(max(0, deadline_ms - node.receiver_now_ms()), lambda: self._tick(core, deadline_ms))

    def _tick(self, core: Receiver, deadline_ms: int) -> None:
        if core is self._core and self._tick_at == deadline_ms:
            self._tick_at = None
            self._tell(Tick())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Fetch():
                self._fetch(effect)
            case Append():
                delay_ms = self.node.world.faults.slow_consumer_ms_max
                if delay_ms and self.node.world.faults_are_on:
                    self.node.world.injected["slow_consumer"] += 1
                    self.node.after(self.node.world.chance.randint(0, delay_ms), lambda: self._put(effect))
                else:
                    self._put(effect)
            case Note():
                self.notes.append(effect)

    def _fetch(self, effect: Fetch) -> None:
        node, peer, world = self.node, self.peer, self.node.world
        request = FetchFacts(
            consumer_name=self._consumer_name,
            stream=STREAM,
            limit=LIMIT,
            bytes_max=min(effect.bytes_max, PAGE_BYTES_MAX),
            wait_ms=effect.wait_ms,
            epoch=effect.epoch,
            after_offset=effect.after_offset,
            confirm=None if effect.confirm_offset is None else Confirm(last_offset=effect.confirm_offset),
            definitions_known=dict(effect.definitions_known),
            lease=effect.lease,
            lease_after=effect.lease_after,
            taken=effect.last_batch
            and TakenEnd(last_offset=effect.last_batch.last_offset, digest=effect.last_batch.digest.hex()),
            held=self._held(effect.epoch) if effect.must_show else None,
            told=effect.after_offset if effect.epoch is not None else None,
        )
        payload, life, fetch_id = request_of(node.version, encode_request(request)), node.life, effect.fetch_id
        instance, sent_ms = f"{node.name}-{life}", world.now_ms
        expires_ms = (
            effect.wait_ms + world.settings.answer_timeout_ms
        ) // 1_000 * 1_000 + 1_000  # the broker drops it then

        def answer(machine: Node, answered: bytes) -> None:
            version, served = machine.version, (machine.name, machine.life)
            arrived = answer_of(version, answered)
            world.carry(machine, node, lambda: self._answered(life, fetch_id, arrived, version, served))

        def refused() -> None:
            self._failed(life, FetchFailed(fetch_id, "transport", "nobody serves there now", is_retryable=True))

        def arrive(machine: Node) -> None:
            if world.now_ms - sent_ms > expires_ms:
                return
            if machine.serving is not None:
                machine.serving.request(node, instance, payload, partial(answer, machine))
            elif machine is peer and not any(one.serving for one in world.machines(peer.zone)):
                world.carry(peer, node, refused)

        for machine in world.machines(peer.zone):  # whoever serves under the zone's name hears it
            world.carry(node, machine, partial(arrive, machine))

    def _held(self, epoch: str | None) -> HeldEnd | None:
        origin = Origin(self.peer.zone, bytes.fromhex(epoch or ""))
        ranges = self.node.running.held(STREAM).get(origin)
        return HeldEnd(last_sequence=ranges[-1].last_sequence, digest=ranges[-1].last_digest.hex()) if ranges else None

    def _failed(self, life: int, event: FetchFailed) -> None:
        if life == self.node.life and self.node.is_up and self._is_linked:
            self._tell(event)

    def _answered(self, life: int, fetch_id: int, payload: bytes, version: str, served: tuple[str, int]) -> None:
        if life != self.node.life or not self.node.is_up or not self._is_linked:
            return
        zones = self.node.world.zones
        try:
            answer, sealed = decode_answer(payload)
            if isinstance(answer, ErrorAnswer):
                error = answer.error
                reason = f"{error.code}: {error.message}"
                self._tell(FetchFailed(fetch_id, error.code, reason, error.retryable, answer.epoch))
                return
            page = check_page(
                *(answer, sealed, self.peer.zone, STREAM, zones),
                lambda content: _Arrived(content, self._refused(content), version, served),
            )
        except MalformedMessage as error:
            code, is_final = error.code, error.code == "unsupported_version"
            self._tell(FetchFailed(fetch_id, code, f"unreadable answer: {error.why}", is_retryable=not is_final))
        except PageRefused as error:
            self._tell(FetchFailed(fetch_id, "page_refused", str(error), is_retryable=False))
        else:
            self._tell(PageArrived(fetch_id, page))

    def _put(self, effect: Append) -> None:
        arrived = effect.page.content
        assert isinstance(arrived, _Arrived)
        if arrived.version == "major":
            raise Violation(f"version: {self.node.name} takes a page of another major version")
        if arrived.refused is not None:
            self._told_soon(AppendFailed(str(arrived.refused), is_retryable=False))
            return
        definitions = []
        for page in (*effect.definitions_before, effect.page):
            assert isinstance(page.content, _Arrived)
            definitions += page.content.content.definitions
        position = PeerPosition(bytes.fromhex(effect.epoch), effect.offset, effect.page.last_batch)
        holes = list(arrived.content.holes)
        try:
            putting = self.node.running.inbound.put_batches(
                self.peer.zone,
                STREAM,
                [parse(one) for one in arrived.content.sealed],
                definitions,
                position,
                holes=holes,
            )
        except StoreError as error:
            self._told_soon(AppendFailed(str(error), is_retryable=error.retryable))
        else:
            life = self.node.life
            offered = Offered(arrived.content.sealed, holes, arrived.served)
            self.node.world.check.offers(self, effect.epoch, effect.offset, offered)
            putting.add_done_callback(lambda future: self._stored(life, effect, offered, future))

    def _stored(self, life: int, effect: Append, offered: Offered, future: Future[PutResult]) -> None:
        """Durable, whether somebody is left to hear of it or not."""
        error, check = future.exception(), self.node.world.check
        check.answered(self, effect.epoch, effect.offset)
        if error is None:
            result = future.result()
            check.stored(self, effect.epoch, effect.offset, offered)
            check.refused(self.node, offered.sealed, result.refused)
            check.could_not_compare(self.node, result.uncompared)
            self.node.world.injected["retention"] += sum(reason == "expired" for _, _, reason in offered.holes)
            event: Event = Appended()
        else:
            assert isinstance(error, StoreError), error
            event = AppendFailed(str(error), is_retryable=error.retryable)
        if life == self.node.life:
            self._told_soon(event)

    def _told_soon(self, event: Event) -> None:
        core = self._core
        self.node.soon(lambda: self._tell(event) if core is self._core else None)

    def _refused(self, content: PageContent) -> PageRefused | None:
        try:
            batches = check_batches(content.entries, content.sealed, STREAM, self.node.world.zones, is_opened=True)
        except PageRefused as error:
            return error
        if any(batch.header.origin.zone == self.node.zone for batch in batches):
            raise Violation(f"echo: {self.peer.name} sends {self.node.name} facts of its own")
        return None
