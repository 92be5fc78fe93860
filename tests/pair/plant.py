"""Simulation of a plant with two gateways: their product's runners of the pair, sources and stores, a device, and a
node above that is their witness.

`tests.replication.simulation` has stores, pulls and network; here each gateway also has an event loop (`node_loop`), in
which `PairRunner`, `LeadDesk` and `Ingest` run as in a node. The device is a Modbus register that counts; only its line
is simulated. Its values and the operational facts are two streams, pulled apart. Programs append messages with acks =
"quorum". A schedule of named faults is drawn from a seed; then
everything is healthy, one gateway leads, the device stops and `plant_checks` judges what is stored.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self
from unittest import mock

from agent.append_contract import AppendOutcome
from agent.concurrency import TaskGroup, timeout
from agent.errors import StoreError
from agent.health.consumer_lag import PullLag
from agent.ingest import Ingest, IngestPorts
from agent.ingest.errors import SourceLost
from agent.ingest.modbus import source as modbus_source
from agent.ingest.supervision import supervisor
from agent.ingest.tags import watch
from agent.ingest.tags.file import load_tag_maps
from agent.message import OPERATIONAL_STREAM, Envelope, Fact, Message
from agent.node.health_recorder import RecordedHealth
from agent.node.node import _zone_term
from agent.node.pairing import LeadDesk, PairPorts, PairRunner, partner_lacks
from agent.node.pairing.runner import ZONE_PART, SwitchRefused
from agent.node.stored_samples import StoredSamples
from agent.pair import Role
from agent.replication.mqtt import PeerReply
from agent.replication.protocol.codec import decode_request, encode_request
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.messages import ClaimLead
from agent.replication.pulling.receiving.pull_events import Event, PageArrived
from agent.replication.pulling.receiving.receiver import Receiver
from agent.replication.serving import Caller, Refuse, store_name_of
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.pair import PairSettings
from agent.settings.sources import ModbusSourceSettings
from tests.pair.node_loop import NodeLoop
from tests.pair.plant_checks import POLL_MS, PlantChecks
from tests.replication.simulation.checkers import STREAM, Violation
from tests.replication.simulation.faults import Faults
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.replication.simulation.node import Node
from tests.replication.simulation.pulling import Pull
from tests.replication.simulation.trust import PAIR

BOXES, WITNESS = tuple(PAIR), "idmz"
SLOT_MS = 100
"""The device answers at full 100 ms, so that two gateways that both ask it often have a time in common."""
EXPIRY_MS = 1_000
FAULTS_MS, SETTLE_MS, STAY_MS = 20_000, 15_000, 3_000
SKEWS_MS = (0, 0, 0, 0, 100, -1_500, 3_600_000)


class Device:
    """A register that counts up at random times. It keeps each number for two polls at least."""

    def __init__(self, world: PlantWorld) -> None:
        self._world = world
        self.changes = list[int]()
        """When each number began, from 0."""
        self.cut_off = set[str]()
        self.slow_ms = 0
        """By what it answers later than at once."""
        self._count()

    def _count(self) -> None:
        self.changes.append(self._world.now_ms)
        if self._world.now_ms < self._world.stops_ms:
            self._world.at(self._world.chance.randint(2 * POLL_MS, 6 * POLL_MS), self._count)


class DeviceLine:
    """The line of a gateway to the device, in place of `agent.ingest.modbus.line.Line`."""

    hold_ms: Mapping[int, int] = {}
    is_shared, late_text, remarks = False, "", ""

    def __init__(self, node: PlantNode) -> None:
        self._node, self.is_open = node, False

    async def __aenter__(self) -> Self:
        await self._travel()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_open = False

    async def keep_open(self, _: float) -> None:
        """It is as good as an answer."""
        await self._travel()

    async def end_poll(self) -> None:
        """It stays open."""

    async def read_bytes(self, _: object) -> bytes:
        """The register, as it is when the answer arrives."""
        await self._travel()
        return struct.pack(">I", len(self._node.world.device.changes) - 1)

    async def _travel(self) -> None:
        world = self._node.world
        slot_ms = SLOT_MS - world.now_ms % SLOT_MS
        await asyncio.sleep((slot_ms + world.device.slow_ms) / 1_000)  # tidy: the way there and back
        self.is_open = self._node.name not in world.device.cut_off
        if not self.is_open:
            raise SourceLost("the device does not answer")


class LeadRequester:
    """Asks another node who leads, over the world's network."""

    def __init__(self, node: PlantNode, peer: PlantNode) -> None:
        self._node, self._peer = node, peer

    async def ask(self, request: ClaimLead, timeout_s: float) -> PeerReply:
        """As `Requester.ask`."""
        node, peer, world, life = self._node, self._peer, self._node.world, self._node.life
        payload, sent_ms = encode_request(request), world.now_ms
        answered = asyncio.get_running_loop().create_future()

        async def answer() -> None:
            outcome = await peer.desk.answer(Caller(node.name, node.instance, b"c" * 8), decode_request(payload))
            world.carry(peer, node, lambda: node.life == life and node.after(0, partial(arrive, outcome)))

        def ask() -> None:
            if peer.is_up and world.now_ms - sent_ms <= EXPIRY_MS:
                peer.after(0, lambda: peer.loop.start(answer()) if peer.desk else None)

        def arrive(outcome: Any) -> None:
            if not answered.done():
                answered.set_result(outcome)

        world.carry(node, peer, ask)
        try:
            async with timeout(timeout_s):
                outcome = await answered
        except TimeoutError:
            raise TransportError(peer.name, "no answer") from None
        if isinstance(outcome, Refuse):
            raise TransportError(peer.name, outcome.message)
        return PeerReply(outcome.answer, [])


class PlantPull(Pull):
    """A pull whose lag is sampled once a second, as a node's record of its health does."""

    lag: PullLag
    recorded: RecordedHealth | None = None
    """Outlives the process; a restored disk brings back an older one."""
    has_answered = False
    is_stuck = False
    """None of its requests arrives, and no answer."""
    slow_ms = 0
    """By what its requests are late."""
    _life = -1
    """Of the process that has started it: none after one that began when its peer was gone."""

    def start(self) -> None:
        super().start()
        self._life = self.node.life
        self.begin_lag()
        self.node.after(1_000, self._record)

    def begin_lag(self) -> None:
        """With what an earlier process has recorded of it."""
        now_ms = time.time_ns() // 1_000_000
        has_read = self._runner is not None and self._runner.core.place.offset
        behind_s = self.recorded.behind_s(self.peer.name, self.stream, now_ms) if self.recorded and has_read else 0.0
        self.lag, self.has_answered = PullLag(time.monotonic(), behind_s), False

    def _send(self, *request: Any) -> None:
        if not self.is_stuck:
            self.node.after(self.slow_ms, partial(super()._send, *request))

    def _answered(self, *answer: Any, **named: Any) -> None:
        if not self.is_stuck:
            super()._answered(*answer, **named)

    def _still_waits(self, *heartbeat: Any) -> None:
        if not self.is_stuck:
            super()._still_waits(*heartbeat)

    def happened(self, event: Event) -> None:
        self.has_answered = self.has_answered or isinstance(event, PageArrived)
        super().happened(event)

    def unseen_s(self) -> float:
        """As `StatusCollector.unseen_s`."""
        assert self._runner is not None
        level_ms = self._runner.core.contact.level_ms if self._life == self.node.life else None
        return self.lag.unseen_s(time.monotonic(), None if level_ms is None else level_ms / 1_000)

    def _lag_s(self) -> float:
        assert self._runner is not None
        core, is_connected = self._runner.core, self.has_answered and self._runner.core.contact.lost_reason is None
        end = self._runner.peer_end_offset
        return self.lag.sample(time.monotonic(), core.place.offset, end, is_connected=is_connected)

    def _record(self) -> None:
        key = f"peer/{self.peer.name}/{self.stream}/lag_seconds"
        self.recorded = RecordedHealth(time.time_ns() // 1_000_000, {key: self._lag_s()})
        self.node.after(1_000, self._record)


class PlantNode(Node):
    """A gateway of the plant, or its witness."""

    world: PlantWorld
    pulls: list[PlantPull]  # type: ignore[assignment]
    loop: NodeLoop | None = None
    desk: LeadDesk
    runner: PairRunner | None = None
    ingest: Ingest | None = None
    frozen_until_ms = 0
    pulls_of_gone: tuple[PlantPull, ...] = ()
    """From the partner that is dead for ever."""
    first_term = 0
    """With which the zone was led before, as the first process of a gateway knows."""
    copied_ms = 0
    """When the copy was made to which its disk is put back."""

    def start(self, **how: Any) -> None:
        """The store, the pulls, and the tasks of the process."""
        super().start(**how)
        if self._store is None:
            return
        if self.world.now_ms == 0:  # each gateway once had all that the other one had recorded, which is released
            self.first_term = 1
            self._store.appends.set_completeness(ZONE_PART, {ZONE_PART: (time.time_ns(), None)})
            self._commit()
        self.loop = NodeLoop(
            self.after, time.monotonic, lambda why: self.world.check.failed(f"ends: {self.name} {why}")
        )
        store, partner = self._store, next((box for box in BOXES if self.name in BOXES and box != self.name), "")
        claimants = dict.fromkeys(BOXES, "mill") if not partner else {partner: "mill"}
        name = store_name_of(store.zone, store.node, store.life)
        self.desk = LeadDesk(claimants, self.world.folder / f"{self.name}.json", lambda: name, partner)
        self.world.say(f"{self.name} starts")
        if partner:
            self.loop.start(self._live(partner))

    async def _live(self, partner: str) -> None:
        world, store, maps = self.world, self.running, self.world.tag_maps
        for pull in self.pulls_of_gone:
            pull.begin_lag()
        of_partner = [pull for pull in (*self.pulls, *self.pulls_of_gone) if pull.peer.name == partner]
        settings = world.source_of(self)
        self.ingest = Ingest(
            "mill",
            [settings],
            maps,
            IngestPorts(store.appends, StoredSamples(store.reader)),
            is_recording=False,
        )
        peers = {node.name: LeadRequester(self, node) for node in world.nodes}

        def lacks(ends: Mapping[str, int]) -> str:
            frontiers = {consumer.name: consumer.frontier for consumer in store.consumers.all()}
            return partner_lacks(partner, world.streams, ends, frontiers)

        ports = PairPorts(
            world.check.watch_lead(self),
            self.ingest,
            peers.get,  # type: ignore[arg-type]
            accepts=lambda: not store.refuses_appends,
            ends=lambda: {name: store.end_offset(name) for name in world.streams},
            lacks=lacks,
            unseen_s=lambda: max(pull.unseen_s() for pull in of_partner),
            zone_term=_zone_term(store) or self.first_term,
        )
        pair = NodeSettings(IdentitySettings("mill", name=self.name), pair=PairSettings(partner, WITNESS))
        self.runner = PairRunner(pair, ports, self.desk)
        async with TaskGroup() as group:
            self._ingesting = group.create_task(self.ingest.run(), name="ingest")
            self._pairing = group.create_task(self.runner.run(), name="pair")

    def abandon(self) -> None:
        """The process is gone, and all that was in its memory."""
        self.first_term = 0
        if self.loop is not None:
            self.loop.abandon()
        super().abandon()
        self.loop = None
        self.runner = self.ingest = None

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """As `Node.after`; a frozen process goes on when it wakes."""
        life = self.life

        def act() -> None:
            if life != self.life or self._store is None:
                return
            if self.world.now_ms < self.frozen_until_ms:
                self.world.at(self.frozen_until_ms - self.world.now_ms, act)
                return
            self._set_wall()
            action()

        self.world.at(delay_ms, act)

    @property
    def is_recording(self) -> bool:
        """Whether it leads, by its own opinion."""
        return self.runner is not None and self.runner._leadership.is_recording

    def _put_back(self, copy: Any, **how: Any) -> None:
        was_up = self.is_up
        super()._put_back(copy, **how)
        if was_up:
            self.world.check.destroyed(self.name, self.copied_ms)

    async def leave(self) -> None:
        """As a node ends that is stopped in order."""
        assert self.ingest is not None
        assert self.runner is not None
        self.ingest.stop()
        await self._ingesting
        self._pairing.cancel()
        await self.runner.leave()
        self.world.at(0, lambda: self.kill("idle"))

    async def switch(self) -> None:
        """A planned switch, if this node can make one."""
        if self.runner is not None:
            with suppress(SwitchRefused):
                await self.runner.switch()
                self.world.injected["switched"] += 1


@dataclass
class Way:
    """One direction between two nodes."""

    is_cut: bool = False
    loss: float = 0.0
    twice: float = 0.0
    delay_ms: int = 20


class PlantWorld(World):
    """One schedule: the faults of these names, as the seed draws them."""

    streams = (STREAM, OPERATIONAL_STREAM)
    faults_end_ms = FAULTS_MS
    stops_ms = FAULTS_MS + SETTLE_MS + STAY_MS
    events_max = 5_000_000
    receiver_class: type[Receiver] = Receiver
    check: PlantChecks
    nodes: list[PlantNode]  # type: ignore[assignment]

    def __init__(self, seed: int, folder: Path, names: tuple[str, ...] = ()) -> None:
        self._names = names or tuple(FAULTS)
        self.log = list[str]()
        self._heals = list[Callable[[], object]]()
        super().__init__(seed, TOPOLOGIES["pair"], Faults(), folder, self.receiver_class)
        self.ways = {(a.name, b.name): Way() for a in self.nodes for b in self.nodes if a is not b}
        self.check = PlantChecks(self)
        self.device = Device(self)
        self._leader = ""
        for box in self.boxes:
            box.wall_jump_ms = self.chance.choice(SKEWS_MS)
        self.wall_jumps_ms = [box.wall_jump_ms for box in self.boxes]
        self._messages = 0

    def _make_nodes(self, topology: Any) -> list[Node]:
        nodes = {name: PlantNode(self, name, name, is_sink=False) for name in (*BOXES, WITNESS)}
        for receiver, peer in topology.pulls:
            nodes[receiver].pulls += [PlantPull(nodes[receiver], nodes[peer], stream) for stream in self.streams]
        return list(nodes.values())

    @property
    def boxes(self) -> list[PlantNode]:
        """The gateways that are not dead for ever."""
        return [node for node in self.nodes if node.name in BOXES]

    def source_of(self, node: PlantNode) -> ModbusSourceSettings:
        """The device, as a gateway knows it."""
        return ModbusSourceSettings(
            "device", self.folder / "device.csv", 0, host=node.name, poll_interval_ms=POLL_MS, reconnect_delay_ms=200
        )

    def run(self) -> None:
        """Run the schedule. Raises Violation with its log."""
        clock, by_name = self.clock, {node.name: node for node in self.nodes}
        self.folder.mkdir(parents=True)
        (self.folder / "device.csv").write_text("tag,table,register,type,deadband\nplant/count,holding,1,uint32,0\n")
        self.tag_maps = load_tag_maps([self.source_of(self.nodes[0])])
        boot_ns = lambda _: clock.monotonic_ns()  # noqa: E731
        clocks = {name: getattr(clock, name) for name in ("monotonic", "monotonic_ns", "time_ns")}
        with (
            mock.patch.multiple(time, **clocks, time=lambda: clock.time_ns() / 1e9, clock_gettime_ns=boot_ns),
            mock.patch.object(asyncio, "to_thread", _at_once),
            mock.patch.object(supervisor, "random", self.chance),
            mock.patch.object(modbus_source, "random", self.chance),
            mock.patch.object(modbus_source, "Line", lambda settings, _=None: DeviceLine(by_name[settings.host])),
            mock.patch.object(watch, "watch_files", _never),
        ):
            try:
                super().run()
            except Violation as error:
                raise Violation("\n".join([str(error), *self.log[-60:]])) from None

    def say(self, text: str) -> None:
        """A line of the log, printed when the schedule fails."""
        self.log.append(f"{self.now_ms / 1000:8.3f} {text}")

    def carry(self, source: Node, target: Node, action: Callable[[], None]) -> None:
        """Deliver a message later, once, twice or never; to a frozen process when it wakes."""
        way, chance = self.ways[source.name, target.name], self.chance
        assert isinstance(target, PlantNode)

        def arrive() -> None:
            if self.now_ms < target.frozen_until_ms:
                self.at(target.frozen_until_ms - self.now_ms, arrive)
                return
            target._set_wall()
            action()

        for _ in range(1 + (chance.random() < way.twice)):
            if not way.is_cut and chance.random() >= way.loss:
                self.at(chance.randint(1, way.delay_ms), arrive)

    # --- the schedule

    def _schedule_faults(self) -> None:
        chance = self.chance
        self.at(chance.randint(1, 600), self._append)
        for _ in range(chance.randint(1, 7)):
            name, for_ms = chance.choice(self._names), chance.choice((300, 2_000, 6_000, 15_000))
            self.at(chance.randint(2_000, FAULTS_MS), partial(self._begin_fault, name, for_ms))

    def _begin_fault(self, name: str, for_ms: int) -> None:
        self.say(f"{name} for {for_ms / 1_000}")
        heal = FAULTS[name](self)
        if heal is not None:
            self.injected[name] += 1
            self._heals.append(heal)
            self.at(for_ms, partial(self._heal, heal))

    def _heal(self, heal: Callable[[], object]) -> None:
        if heal in self._heals:
            self._heals.remove(heal)
            heal()

    def _end_faults(self) -> None:
        for heal in list(self._heals):
            self._heal(heal)
        for node in self.nodes:
            node.frozen_until_ms = min(node.frozen_until_ms, self.now_ms)
        self.say("all is healthy")
        super()._end_faults()
        self.at(SETTLE_MS, self._settle)
        self.at(SETTLE_MS + STAY_MS, self._settle)

    def _settle(self) -> None:
        """One gateway leads, and stays."""
        leaders = [box for box in self.boxes if box.is_recording]
        roles = [box.runner._leadership.role for box in leaders if box.runner is not None]
        found = f"{[box.name for box in leaders]} {roles}"
        if roles != [Role.LEADS]:
            raise Violation(f"leader: {found}")
        if self._leader not in {"", found}:
            raise Violation(f"leader: {found}, before {self._leader}")
        self._leader = found

    def _left(self) -> Iterator[str]:
        if self.now_ms < self.stops_ms + 2_000:
            yield "the plant runs"
        else:
            yield from super()._left()

    def _append(self) -> None:
        """A program appends a message at one of the gateways."""
        if self.now_ms < self.stops_ms:
            box = self.chance.choice(self.boxes)
            box.after(0, partial(self._append_at, box))
            self.at(self.chance.randint(1, 1_500), self._append)

    def _append_at(self, box: PlantNode) -> None:
        self._messages += 1
        name = f"m{self._messages}"
        message = Message(Envelope(name, "mill", "*", self.now_ms), Fact(f"order:{name}", "ordered", b"{}"))

        def answered(future: Future[list[AppendOutcome]]) -> None:
            if future.exception() is None and future.result()[0].outcome == "applied":
                self.check.acknowledged_ms[name] = self.now_ms

        with suppress(StoreError):
            box.running.appends.append_messages(STREAM, [message], acks="quorum").add_done_callback(answered)


async def _at_once(work: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return work(*given, **named)


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


# --- faults: each returns what ends it, None if it could not be


Heal = Callable[[], object] | None


def _cut(of: PlantWorld, *ends: tuple[str, ...]) -> Heal:
    ways = [of.ways[pair] for pair in ends]
    pulls = [pull for node in of.nodes for pull in node.pulls if (node.name, pull.peer.name) in ends]
    is_noticed = of.chance.random() < 0.5
    for way in ways:
        way.is_cut = True
    for pull in pulls if is_noticed else ():
        pull.link_down()

    def heal() -> None:
        for way in ways:
            way.is_cut = False
        for pull in pulls if is_noticed else ():
            pull.link_up()

    return heal


def _partition(of: PlantWorld) -> Heal:
    ends = of.chance.choice(list(of.ways))
    return _cut(of, ends, ends[::-1])


def _cable(of: PlantWorld) -> Heal:
    """The gateways do not hear each other."""
    return _cut(of, BOXES, BOXES[::-1])


def _one_way(of: PlantWorld) -> Heal:
    return _cut(of, of.chance.choice(list(of.ways)))


def _isolation(of: PlantWorld) -> Heal:
    name = of.chance.choice((*BOXES, WITNESS))
    return _cut(of, *(ends for ends in of.ways if name in ends))


def _split_brain(of: PlantWorld) -> Heal:
    """Neither gateway hears anybody."""
    return _cut(of, *of.ways)


def _loss(of: PlantWorld) -> Heal:
    ends = of.chance.choice(list(of.ways))
    of.ways[ends] = Way(loss=of.chance.uniform(0.1, 0.7), twice=of.chance.uniform(0, 0.4))
    return lambda: of.ways.update({ends: Way()})


def _delay(of: PlantWorld) -> Heal:
    ends = of.chance.choice(list(of.ways))
    of.ways[ends] = Way(delay_ms=of.chance.choice((200, 600, 3_000)))
    return lambda: of.ways.update({ends: Way()})


def _lag(of: PlantWorld) -> Heal:
    """A pull of one stream is stuck or slow, while that of the other one goes on."""
    pull = of.chance.choice([pull for node in of.nodes for pull in node.pulls])
    pull.is_stuck, pull.slow_ms = of.chance.choice(((True, 0), (False, 400), (False, 2_000)))
    return partial(_end_lag, pull)


def _end_lag(*pulls: PlantPull) -> None:
    for pull in pulls:
        pull.is_stuck, pull.slow_ms = False, 0


def _freeze(of: PlantWorld) -> Heal:
    node = of.chance.choice(of.nodes)
    node.frozen_until_ms = of.now_ms + of.chance.choice((1_000, 3_000, 10_000))
    return lambda: None


def _crash(of: PlantWorld, *names: str, down_ms: int = 0) -> Heal:
    nodes = [node for node in of.nodes if node.name in names] or [of.chance.choice(of.nodes)]
    for node in nodes:
        node.down_ms_max = down_ms or of.chance.choice((300, 3_000, 6_000))
        how: Literal["committed", "torn"] = of.chance.choice(("committed", "torn"))
        of.say(f"{node.name} dies, {how}")
        node.kill(how)
    return lambda: None


def _restored(of: PlantWorld, *names: str) -> Heal:
    """The disk of a gateway, or of both, is put back to a copy that is made now."""
    boxes = [box for box in of.boxes if box.is_up and box.name in (names or (of.chance.choice(BOXES),))]
    copies = [(box, box._copy(), of.now_ms, [pull.recorded for pull in box.pulls]) for box in boxes]

    def heal() -> None:
        for box, copy, copied_ms, recorded in copies:
            of.say(f"{box.name} is put back to {copied_ms / 1_000}")
            box.copied_ms = copied_ms
            for pull, known in zip(box.pulls, recorded, strict=False):
                pull.recorded = known
            box._put_back(copy, is_whole=True)

    return heal if copies else None


def _dead(of: PlantWorld, name: str = "") -> Heal:
    """A gateway is gone for ever, with its disk."""
    if len(of.boxes) < 2:
        return None
    box = next((box for box in of.boxes if box.name == name), None) or of.chance.choice(of.boxes)
    of.say(f"{box.name} is gone")
    box.kill(of.chance.choice(("idle", "committed")))
    box.retire()
    of.check.destroyed(box.name, -1)
    of.nodes.remove(box)
    for node in of.nodes:
        node.pulls_of_gone = tuple(pull for pull in node.pulls if pull.peer is box)
        node.pulls = [pull for pull in node.pulls if pull.peer is not box]
    return lambda: None


def _cut_and_dead(of: PlantWorld, cut: Callable[[PlantWorld], Heal]) -> Heal:
    """The leader is cut off, records for a while, and is gone for ever."""
    leaders = [box.name for box in of.boxes if box.is_recording]
    if len(leaders) != 1 or len(of.boxes) < 2:
        return None
    of.at(of.chance.randint(500, 6_000), lambda: _dead(of, leaders[0]))
    return cut(of)


def _late_and_dead(of: PlantWorld) -> Heal:
    """The leader is gone for ever, and none has got its last facts of one stream, although those of the other came."""
    leaders = [box for box in of.boxes if box.is_recording]
    if len(leaders) != 1 or len(of.boxes) < 2:
        return None
    of.at(of.chance.randint(0, 6_000), lambda: _dead(of, leaders[0].name))
    return _withhold(of, leaders[0], of.chance.choice(of.streams))


def _withhold(of: PlantWorld, box: PlantNode, stream: str = OPERATIONAL_STREAM) -> Callable[[], object]:
    """None gets facts of this stream from this gateway."""
    pulls = [pull for node in of.nodes for pull in node.pulls]
    pulls = [pull for pull in pulls if (pull.peer, pull.stream) == (box, stream)]
    for pull in pulls:
        pull.is_stuck = True
    return partial(_end_lag, *pulls)


def _dead_at_begin(of: PlantWorld, *, is_late: bool = False) -> Heal:
    """The leader dies for a moment. Soon after the other one has begun, while the device is slow, it is dead, too, for
    a while or for ever. `is_late`: before that its operational facts come no more."""
    leaders = [box.name for box in of.boxes if box.is_recording]

    def begun(node: PlantNode) -> None:
        of.check.on_begin = lambda _: None
        if len(of.boxes) < 2:
            return
        of.device.slow_ms = of.chance.choice((0, 3_000))
        soon_ms = 600 + 2 * of.device.slow_ms
        if is_late:
            of.at(of.chance.randint(0, soon_ms), lambda: withhold(node))
        of.at(of.chance.randint(0, soon_ms * (1 + is_late)), lambda: die(node))

    def withhold(node: PlantNode) -> None:
        if of.faults_are_on:
            of._heals.append(_withhold(of, node))

    def die(node: PlantNode) -> None:
        of.device.slow_ms = 0
        of.chance.choice((_crash, _dead))(of, node.name)

    def heal() -> None:
        of.check.on_begin = lambda _: None

    if len(leaders) != 1 or len(of.boxes) < 2:
        return None
    of.check.on_begin = begun
    _crash(of, *leaders, down_ms=300)
    return heal


def _full(of: PlantWorld) -> Heal:
    return (lambda: None) if of.chance.choice(of.nodes).fill() else None


def _device_away(of: PlantWorld) -> Heal:
    names = of.chance.choice((BOXES[:1], BOXES[1:], BOXES))
    of.device.cut_off.update(names)
    return lambda: of.device.cut_off.difference_update(names)


def _in_order(of: PlantWorld, work: str) -> Heal:
    leaders = [box for box in of.boxes if box.is_recording]
    for box in leaders:
        box.loop.start(getattr(box, work)())
    return (lambda: None) if leaders else None


FAULTS: dict[str, Callable[[PlantWorld], Heal]] = {
    "partition": _partition,
    "cable": _cable,
    "one way": _one_way,
    "isolation": _isolation,
    "split brain": _split_brain,
    "loss": _loss,
    "delay": _delay,
    "late stream": _lag,
    "freeze": _freeze,
    "crash": _crash,
    "crash of both": lambda of: _crash(of, *BOXES),
    "restored": _restored,
    "both restored": lambda of: _restored(of, *BOXES),
    "dead for ever": _dead,
    "apart and dead": lambda of: _cut_and_dead(of, _cable),
    "alone and dead": lambda of: _cut_and_dead(of, _split_brain),
    "late and dead": _late_and_dead,
    "dead at begin": _dead_at_begin,
    "late at begin": partial(_dead_at_begin, is_late=True),
    "full disk": _full,
    "device away": _device_away,
    "switch": partial(_in_order, work="switch"),
    "stop": partial(_in_order, work="leave"),
}
