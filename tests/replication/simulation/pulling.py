"""The pulling side of a node: the product's `PullRunner`, with the world in the place of asyncio, broker and clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.batch import Batch
from agent.errors import StoreError
from agent.pages import PutResult, ReceivedPage
from agent.positions import Position, furthest
from agent.replication.protocol.codec import ArrivedAnswer, encode_request
from agent.replication.protocol.errors import TransportError, UnprovenAnswer
from agent.replication.protocol.messages import FetchFacts
from agent.replication.pulling.page_check import PageRefused
from agent.replication.pulling.pull_runner import PullRunner, PullSettings, not_sent
from agent.replication.pulling.receiving.pull_events import Append, Asking, Event, FetchFailed, LinkDown, LinkUp, Tick
from agent.signing.messages import MessagePlace
from tests.replication.simulation.checkers import STREAM, Offered, Violation
from tests.replication.simulation.comparing import PAGE_BYTES_MAX, Comparing, PeerRequester
from tests.replication.simulation.other_version import answer_of, request_of
from tests.replication.simulation.steps import Waiting, run
from tests.replication.simulation.trust import signer_of, zone_of

if TYPE_CHECKING:
    from tests.replication.simulation.node import Node

REPEATED_MS = 1_000


class _Batches(list[Batch]):
    """The batches of a page, with the version, the machine and the life from which it came."""

    version: str
    served: tuple[str, int]


class Pull:
    """One stream that a node pulls from a peer, in all lives of the node."""

    def __init__(self, node: Node, peer: Node, stream: str = STREAM) -> None:
        self.node = node
        self.peer = peer
        self.stream = stream
        self._runner: PullRunner | None = None
        self._is_handling = False
        self._is_linked = False
        self._tick_at: int | None = None
        self._answers = ("", ("", 0))  # version and machine of the answer that is being read
        self._is_forged = False  # whether the broker wrote it
        self.comparing = Comparing(self)

    def start(self) -> None:
        """The node has started; it reaches the broker after a while."""
        world = self.node.world
        self.comparing.stop()
        nodes = [zone for zone in sorted(world.zones) if zone_of(zone) == zone_of(self.peer.zone)]
        shared = () if len(nodes) == 1 else (*nodes, zone_of(self.peer.zone))
        settings = PullSettings(
            self.peer.zone,
            self.stream,
            self._consumer_name,
            world.origins,
            receiver=replace(world.settings, page_bytes_max=PAGE_BYTES_MAX, repeated_ms=REPEATED_MS if shared else 0),
            shared_zones=shared,
        )
        store: Any = _WatchedStore(self)
        requester: Any = PeerRequester(self)
        self._runner = PullRunner(
            store,
            settings,
            requester,
            self._check,
            make_receiver=world.receiver,
            judge=self.node.judge,
        )
        self._is_linked = False
        self._tick_at = None
        self.node.after(world.chance.randint(1, 1_000), self.link_up)

    def link_up(self) -> None:
        if self.node.is_up and not self._is_linked:
            self._is_linked = True
            self.happened(LinkUp())

    def link_down(self) -> None:
        if self.node.is_up and self._is_linked:
            self._is_linked = False
            self.happened(LinkDown("broker connection lost"))

    @property
    def is_fenced(self) -> bool:
        """Whether another instance has taken the consumer's lease."""
        return self._runner is not None and self._runner.core.asking is Asking.FENCED

    def is_fenced_by_a_dead_instance(self) -> bool:
        """Whether no living instance has the lease: a late request of an earlier life of this node took it."""
        return self.node.is_up and self.is_fenced and all(twin.is_fenced for twin in self._twins())

    def left(self) -> str | None:
        """What is still missing."""
        if self.is_fenced and not self.is_fenced_by_a_dead_instance():
            return None
        store, peer, core = self.node.running, self.peer.running, self._runner.core if self._runner else None
        consumer = peer.consumers.get(self._consumer_name)
        trail = store.inbound.trail(self.peer.zone, self.stream)
        at = furthest([(position, peer.resolve(self.stream, position)) for position in trail]).offset
        end, frontier = peer.end_offset(self.stream), consumer.frontier if consumer else 0
        if at == end and frontier == end:
            return None
        reason = core.contact.lost_reason if core else None
        return (
            f"{self.node.name} has {at} of {end} of {self.stream} of {self.peer.name}, confirmed {frontier} ({reason})"
        )

    def _twins(self) -> Iterator[Pull]:
        """The pulls under the same consumer name."""
        for node in self.node.world.nodes:
            for pull in node.pulls:
                if pull is not self and (node.zone, pull.peer, pull.stream) == (self.node.zone, self.peer, self.stream):
                    yield pull

    @property
    def _consumer_name(self) -> str:
        return f"{self.node.zone}.{self.stream}"

    # --- as `Puller` does it

    def happened(self, event: Event) -> None:
        runner, node = self._runner, self.node
        assert runner is not None
        if self._is_forged and not (isinstance(event, FetchFailed) and event.code == UnprovenAnswer.code):
            raise Violation(f"proven: {node.name} takes a forged answer for {self.peer.name}'s: {event}")
        if self._is_handling:
            node.soon(lambda: self.happened(event))
            return
        self._is_handling = True
        try:
            for effect in runner.handle(event, node.receiver_now_ms(), node.world.chance.random()):
                if isinstance(effect, Append):
                    run(self._store(effect), node.soon)
                else:
                    self._send(effect.fetch_id, *runner.request(effect))
        finally:
            self._is_handling = False
        deadline_ms = runner.core.deadline_ms
        if deadline_ms is not None and deadline_ms != self._tick_at:
            self._tick_at = deadline_ms
            node.after(max(0, deadline_ms - node.receiver_now_ms()), lambda: self._tick(deadline_ms))

    def _tick(self, deadline_ms: int) -> None:
        if self._tick_at == deadline_ms:
            self._tick_at = None
            self.happened(Tick())

    def _send(self, fetch_id: int, request: FetchFacts, expiry_s: int) -> None:
        node, peer, world = self.node, self.peer, self.node.world
        payload, life = request_of(node.version, encode_request(request)), node.life
        place, sent_ms = MessagePlace(peer.zone, node.zone, node.instance, world.correlation()), world.now_ms

        def answer(machine: Node, answered: bytes) -> None:
            version, served = machine.version, (machine.name, machine.life)
            if machine.attacker is not None:
                answered = machine.attacker.spoiled(place, answered)
            answered = answer_of(version, answered, signer_of(machine.zone), place)
            passed_on = answered if world.broker is None else world.broker.passed_on(place, answered)
            is_forged = passed_on is not answered
            arrived = ArrivedAnswer(passed_on, place, node.judge.messages.refuses_answer)
            come = partial(self._answered, life, fetch_id, arrived, version, served, is_forged=is_forged)
            world.carry(machine, node, come)

        def heartbeat(machine: Node) -> None:
            world.carry(machine, node, partial(self._still_waits, life, fetch_id))

        def refused() -> None:
            if self._is_alive(life):
                self.happened(not_sent(fetch_id, TransportError(peer.zone, "no machine serves there now", "")))

        def arrive(machine: Node) -> None:
            if world.now_ms - sent_ms > expiry_s * 1_000:
                return  # the broker has dropped it
            if machine.serving is not None:
                answers = partial(answer, machine), partial(heartbeat, machine)
                machine.serving.request(node, place.instance, payload, place.correlation, *answers)
            elif machine is peer and not any(machine.serving for machine in world.machines(peer.zone)):
                world.carry(peer, node, refused)

        for machine in world.machines(peer.zone):  # every machine of the zone receives it
            world.carry(node, machine, partial(arrive, machine))

    def _is_alive(self, life: int) -> bool:
        return life == self.node.life and self.node.is_up and self._is_linked

    def _still_waits(self, life: int, fetch_id: int) -> None:
        if self._is_alive(life):
            self._runner.core.still_waits(fetch_id, self.node.receiver_now_ms())

    def _answered(
        self,
        life: int,
        fetch_id: int,
        arrived: ArrivedAnswer,
        version: str,
        served: tuple[str, int],
        *,
        is_forged: bool,
    ) -> None:
        if self._is_alive(life):
            self._answers = version, served
            self._is_forged = is_forged
            self.happened(self._runner.answered(fetch_id, arrived))
            self._is_forged = False

    def _check(self, check: Callable[[], ReceivedPage], _size: int) -> Awaitable[ReceivedPage]:
        """At once, or after a while where the node is slow."""
        world, checked = self.node.world, Future[ReceivedPage]()
        try:
            judged = check()
        except PageRefused as error:
            checked.set_exception(error)
            return Waiting(checked)
        batches = _Batches(judged.batches)
        judged = replace(judged, batches=batches)
        batches.version, batches.served = self._answers
        world.bytes_brought[self.node.name] += sum(len(batch.sealed) for batch in batches)
        if any(batch.header.origin.zone == self.node.zone for batch in batches):
            raise Violation(f"echo: {self.peer.name} sends {self.node.name} facts of its own")
        if world.faults.slow_consumer_ms_max and world.faults_are_on:
            world.injected["slow_consumer"] += 1
            delay_ms = world.chance.randint(0, world.faults.slow_consumer_ms_max)
            self.node.after(delay_ms, lambda: checked.set_result(judged))
        else:
            checked.set_result(judged)
        return Waiting(checked)

    async def _store(self, page: Append) -> None:
        assert self._runner is not None
        self.happened(await self._runner.store_page(page))


class _WatchedStore:
    """The node's store in this life, with its inbound part watched."""

    def __init__(self, pull: Pull) -> None:
        self._store = pull.node.running
        self.inbound = _WatchedInbound(pull)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _WatchedInbound:
    """The inbound part of a store; the checkers look at each page that it is given, and at the result."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._inbound = pull.node.running.inbound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbound, name)

    def put_page(self, page: ReceivedPage) -> Future[PutResult]:
        pull, check, batches = self._pull, self._pull.node.world.check, page.batches
        assert isinstance(batches, _Batches)
        if batches.version == "major":
            raise Violation(f"version: {pull.node.name} takes a page of another major version")
        putting = self._inbound.put_page(page)
        if pull.stream != STREAM:
            putting.add_done_callback(lambda future: future.exception() or check.note_durable(pull, page.read))
            return putting
        offered = Offered([batch.sealed for batch in batches], page.holes, batches.served)
        check.page_offered(pull, page.read[-1], offered)
        pull.node.world.check.facts_declined(pull.node, page.declined)
        putting.add_done_callback(partial(self._put, page.read, offered))
        return putting

    def _put(self, lives: Sequence[Position], offered: Offered, future: Future[PutResult]) -> None:
        """The page is durable, also if the node dies before it gets the answer."""
        pull, check = self._pull, self._pull.node.world.check
        check.put_answered(pull, lives[-1])
        if (error := future.exception()) is not None:
            assert isinstance(error, StoreError), error
            return
        result = future.result()
        check.page_stored(pull, lives, offered)
        machines = pull.node.world.machines(pull.peer.zone)

        def committed() -> None:
            """One commit may hold several pages: a page may be contradicted by the page before it."""
            check.facts_refused(pull.node, offered.sealed, result.refused)
            check.check_skipped(pull.node, machines, lives[-1].offset, offered)

        pull.node.soon(committed)  # the checkers look at the node's own file after the commit
        pull.node.world.injected["retention"] += sum(reason == "expired" for _, _, reason in offered.holes)
