"""Zones, the network between them and the faults, driven by one heap of events.

A node has a real store (`stepped`) and the product's server and pull runner (`serving`, `pulling`). Requests and
answers travel as bytes, a commit ends with its event, and a node that dies loses what was only in memory. All
randomness comes from the seed, so a seed replays a world event by event.
"""

from __future__ import annotations

import heapq
import itertools
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import _base as futures
from dataclasses import dataclass
from pathlib import Path

from agent.replication.pulling.receiving.pull_events import ReceiverSettings
from agent.replication.pulling.receiving.receiver import Receiver
from tests.replication.simulation import comparing, serving, stepped, trust
from tests.replication.simulation.broker import TakenOverBroker
from tests.replication.simulation.checkers import STREAM, Checkers, Violation
from tests.replication.simulation.faults import Faults
from tests.replication.simulation.node import Node
from tests.replication.simulation.pulling import Pull
from tests.replication.simulation.relay import TakenOver
from tests.replication.simulation.trust import signer_of, zone_of
from tests.replication.simulation.values import ValueJudge

FAULTS_END_MS = 12_000
CONVERGED_WITHIN_MS = 180_000
"""After the faults: what blocks is tried again once a minute, and a chain of five passes it on four times."""
EVENTS_MAX = 60_000
LOOK_MS = 500
COMPARE_MS = 5_000


@dataclass(frozen=True, slots=True)
class Topology:
    """Which node pulls from which, as (receiver, peer), and which record facts. A node is named like its zone, except
    those of a pair (`trust.PAIR`)."""

    pulls: tuple[tuple[str, str], ...]
    producers: tuple[str, ...]

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(zone for pull in self.pulls for zone in reversed(pull)))


_CHAIN = ("plant", "idmz", "enterprise", "cloud", "archive")


def _chain(length: int) -> Topology:
    return Topology(tuple((_CHAIN[at + 1], _CHAIN[at]) for at in range(length - 1)), ("plant",))


TOPOLOGIES: dict[str, Topology] = {
    "chain_2": _chain(2),
    "chain_3": _chain(3),
    "chain_4": _chain(4),
    "chain_5": _chain(5),
    "diamond": Topology((("idmz", "plant"), ("enterprise", "plant"), ("enterprise", "idmz")), ("plant",)),
    "plants": Topology(
        (("idmz", "plant-a"), ("idmz", "plant-b"), ("idmz", "plant-c")), ("plant-a", "plant-b", "plant-c")
    ),
    "two_readers": Topology(
        (("idmz", "plant"), ("cloud", "plant"), ("cloud", "idmz"), ("enterprise", "idmz"), ("enterprise", "cloud")),
        ("plant",),
    ),
    "site": Topology(
        (("idmz", "plant-a"), ("idmz", "plant-b"), ("idmz", "plant-c"), ("enterprise", "idmz")),
        ("plant-a", "plant-b", "plant-c"),
    ),
    "pair": Topology(
        (("mill-1", "mill-2"), ("mill-2", "mill-1"), ("idmz", "mill-1"), ("idmz", "mill-2")),
        ("mill-1", "mill-2"),
    ),
    "both_ways": Topology((("idmz", "plant"), ("plant", "idmz")), ("plant", "idmz")),
    "ring": Topology((("idmz", "plant"), ("enterprise", "idmz"), ("plant", "enterprise")), ("plant", "enterprise")),
}


class World:
    """One schedule. `run` ends when everything has converged; raises Violation."""

    streams: tuple[str, ...] = (STREAM,)
    faults_end_ms = FAULTS_END_MS
    events_max = EVENTS_MAX

    def __init__(
        self,
        seed: int,
        topology: Topology,
        faults: Faults,
        folder: Path,
        receiver: Callable[..., Receiver] = Receiver,
        settings: ReceiverSettings | None = None,
        values: ValueJudge | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.folder = folder
        self.receiver = receiver
        self.settings = settings or ReceiverSettings(twins_ms=30_000)  # the ten minutes are longer than a schedule
        self.clock = stepped.Clock()
        self.disks = stepped.Disks()
        self.check = Checkers()
        self.values = values
        self.injected: Counter[str] = Counter()
        self.bytes_brought: Counter[str] = Counter()
        """By node, of the batches in the pages that it received."""
        self.events = 0
        self.facts = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.started_by_hand = 0
        self._is_over = False
        self._broken: dict[tuple[str, str], int] = {}
        self._twinned: Node | None = None
        self._unequal = "not compared yet"
        self._correlations = itertools.count()
        self.broker = TakenOverBroker(self) if faults.taken_over_broker else None
        self.producers = len(topology.producers)
        self.zones = frozenset(topology.zones)
        self.origins = self.zones.union(map(zone_of, self.zones))
        for zone in topology.zones:
            signer_of(zone)  # made before this world's chance replaces the system's
        self.nodes = self._make_nodes(topology)

    def _make_nodes(self, topology: Topology) -> list[Node]:
        serving_zones = {peer for _, peer in topology.pulls}
        nodes = {zone: Node(self, zone, zone, is_sink=zone not in serving_zones) for zone in topology.zones}
        for receiver, peer in topology.pulls:
            nodes[receiver].pulls.append(Pull(nodes[receiver], nodes[peer]))
        for zone in topology.producers:
            nodes[zone].is_producer = True
        if self.faults.serving_twin:
            twinned = serving_zones
            if self.faults.twins_diverge:
                twinned = serving_zones.intersection(topology.producers)
            elif self.faults.relays_diverge:
                twinned = serving_zones.intersection(receiver for receiver, _ in topology.pulls)
            if twinned:
                self._twinned = self.chance.choice([nodes[zone] for zone in sorted(twinned)])
        found = list(nodes.values())
        if self.faults.fenced_twin:
            for node in [node for node in found if node.is_sink]:
                twin = Node(self, node.zone, f"{node.zone}-twin", is_sink=True)
                twin.pulls = [Pull(twin, pull.peer) for pull in node.pulls]
                found.append(twin)
                self.injected["fenced_twin"] += 1
        return found

    # --- running

    def run(self) -> None:
        """Run until the faults have ended and everything has converged. Raises Violation."""
        with stepped.stepped(self.clock, self.chance, self.disks) as patch:
            comparing.install(patch)
            serving.install(patch)
            trust.install(patch)
            patch.setattr(futures.LOGGER, "exception", self._callback_failed)
            try:
                for node in self.nodes:
                    node.make()
                    node.start()
                self._schedule_faults()
                self._run()
                if self.values is not None:
                    self.values.check_end(self.nodes)
                self.check.check_end(self.nodes)
            finally:
                for node in self.nodes:
                    node.abandon()
                shutil.rmtree(self.folder, ignore_errors=True)

    def _callback_failed(self, _: str, callback: object) -> None:
        """A future logs what its callback raises: a checker that breaks is not one that finds nothing."""
        self.check.failed(f"callback: {callback}: {sys.exc_info()[1]!r}")

    def _run(self) -> None:
        self.at(self.faults_end_ms, self._end_faults)
        while not self._is_over:
            self.events += 1
            if self.events > self.events_max:
                raise Violation(f"converges: {self.events_max} events by {self.now_ms} ms, a loop does not end")
            self.clock.now_ms, _, action = heapq.heappop(self._heap)
            action()
            if self.check.violation is not None:
                raise self.check.violation

    def _look(self) -> None:
        """Check whether everything has converged since the faults ended."""
        for node in self.nodes:
            if any(pull.is_fenced_by_a_dead_instance() for pull in node.pulls):
                node.kill("idle")  # as an operator does: a fenced receiver continues when its process is restarted
                self.started_by_hand += 1
        left = list(self._left()) or list(self._unsaid())
        if left and self.now_ms > self.faults_end_ms + CONVERGED_WITHIN_MS:
            raise Violation(f"converges: not within {CONVERGED_WITHIN_MS} ms: {'; '.join(left)}")
        self._is_over = not left
        self.at(LOOK_MS, self._look)

    def _left(self) -> Iterator[str]:
        """What has not converged yet."""
        down = [node for node in self.nodes if not node.is_up]
        if down:
            yield f"{down[0].name} is down"
            return
        for node in self.nodes:
            for pull in node.pulls:
                if (left := pull.left()) is not None:
                    yield left
        if self.faults.anti_entropy_ms and not self._are_equal():
            yield self._unequal
        yield from self.check.lost_at_home(self.nodes)

    def _unsaid(self) -> Iterator[str]:
        """What a node lacks of its own and has not said yet: its next comparison brings it home, or finds the fork. At
        the bound the judge decides."""
        if self.values is not None and self.now_ms <= self.faults_end_ms + CONVERGED_WITHIN_MS - LOOK_MS:
            yield from (text for kind, text in self.values.missing(self.nodes) if kind == "home")

    def _are_equal(self) -> bool:
        """Whether anti-entropy has nothing left to repair; checked once between two rounds, because it reads all
        stores."""
        if (self.now_ms - self.faults_end_ms) % COMPARE_MS == LOOK_MS * 2:
            self._unequal = next(self.check.differences(self.nodes), "")
        return not self._unequal

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, action))

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms

    @property
    def faults_are_on(self) -> bool:
        return self.now_ms < self.faults_end_ms

    def correlation(self) -> bytes:
        """A unique correlation for a request."""
        return next(self._correlations).to_bytes(8)

    def machines(self, zone: str) -> list[Node]:
        """All machines of a zone."""
        return [node for node in self.nodes if node.zone == zone]

    # --- the network

    def carry(self, source: Node, target: Node, action: Callable[[], None]) -> None:
        """Carry a message from one node to another, unless a fault prevents it."""
        faults, chance = self.faults, self.chance
        if not self.faults_are_on:
            self.at(chance.randint(1, 10), action)
            return
        if self._broken.get((source.name, target.name), 0) > self.now_ms:
            return
        if chance.random() < faults.loss:
            self.injected["loss"] += 1
            return
        copies = 1
        if chance.random() < faults.duplicate:
            self.injected["duplicate"] += 1
            copies = 2
        for _ in range(copies):
            delay_ms = chance.randint(1, 20)
            if faults.delay_ms_max:
                self.injected["delay"] += 1
                delay_ms = chance.randint(1, faults.delay_ms_max)
            if chance.random() < faults.reorder:
                self.injected["reorder"] += 1
                delay_ms += chance.randint(50, 8_000)  # beyond a request's time-out, so that the next one overtakes it
            self.at(delay_ms, action)

    # --- faults

    def _schedule_faults(self) -> None:
        faults = self.faults
        for name, interval_ms, action in (
            ("partition_one_way", faults.partition_one_way_ms, self._cut_one_way),
            ("partition_two_way", faults.partition_two_way_ms, self._cut),
            ("crash", faults.crash_ms, self._hits(self._kill)),
            ("torn_store", faults.torn_store_ms, self._hits(lambda node: node.kill("torn"))),
            ("full_disk", faults.full_disk_ms, self._hits(Node.fill)),
            ("restored_image", faults.restored_image_ms, self._hits(Node.restore)),
            ("restored_grown", faults.restored_grown_ms, self._hits(Node.restore_grown)),
            ("restored_whole", faults.restored_whole_ms, self._hits(Node.restore_whole)),
            ("resumed_memory", faults.resumed_memory_ms, self._hits(Node.resume_memory)),
            ("wiped", faults.wiped_ms, self._hits(Node.wipe)),
            ("log_lost", faults.log_lost_ms, self._hits(Node.lose_log)),
            ("clock_jump", faults.clock_jump_ms, self._jump),
            ("version_major", faults.version_major_ms, self._upgrade),
            ("damage", faults.damage_ms, self._hits(Node.damage)),
            ("anti_entropy", faults.anti_entropy_ms, self._compare),
        ):
            if interval_ms:
                self._again(name, interval_ms, action)
        if self._twinned is not None:
            node = self._twinned
            last_ms = 2_000 if faults.twins_diverge or faults.relays_diverge else 7_000
            self.at(self.chance.randint(300, last_ms), lambda: self._begin_twin(node))
        if faults.taken_over_relay:
            self._take_over()
        if faults.version_minor:
            self.chance.choice(self.nodes).version = "minor"
            self.injected["version_minor"] += 1

    def _take_over(self) -> None:
        """A relay, if there is one, is taken over for a while; then its machine is installed again."""
        served = {pull.peer.zone for node in self.nodes for pull in node.pulls}
        # A node of a pair is no relay of the facts of its zone: it has a key to sign them.
        relays = [node for node in self.nodes if node.pulls and node.zone in served and node.zone == zone_of(node.zone)]
        if not relays:
            return
        relay = self.chance.choice(relays)
        readers = sorted({node.zone for node in self.nodes for pull in node.pulls if pull.peer is relay})
        victims = frozenset(self.chance.sample(readers, self.chance.randint(1, len(readers))))
        begins_ms = self.chance.randint(300, 4_000)
        self.at(begins_ms, lambda: relay.take_over(TakenOver(relay, victims)))
        self.at(self.chance.randint(8_000, self.faults_end_ms - 500), relay.install_anew)

    def _begin_twin(self, node: Node) -> None:
        """A second machine serves, pulls and records under a node's name: a clone, or one with its own store. One of
        the two is stopped for good before the faults end."""
        if not node.is_up:
            self.at(200, lambda: self._begin_twin(node))
            return
        twin = Node(self, node.zone, f"{node.name}-2", is_sink=False)
        twin.is_producer = node.is_producer
        twin.pulls = [Pull(twin, pull.peer) for pull in node.pulls]
        diverge = self.faults.twins_diverge or self.faults.relays_diverge
        if (
            self.faults.twins_diverge
        ):  # only one of the two has the source, so no facts of its own contradict what the other serves
            self.chance.choice((node, twin)).is_producer = False
        if diverge or self.chance.random() < 0.7:
            twin.clone(node)
        else:
            twin.make()
        self.injected["serving_twin"] += 1
        self.nodes.append(twin)
        if diverge:  # until most receivers reach them again, both have pages to serve
            self.hide(node, self.now_ms + self.chance.randint(3_000, 5_000))
        twin.start()
        stopped, left = (node, twin) if self.chance.random() < 0.5 else (twin, node)
        least_ms = 6_000 if diverge else 500
        self.at(self.chance.randint(least_ms, self.faults_end_ms - self.now_ms), lambda: self._stop_twin(stopped, left))

    def _stop_twin(self, stopped: Node, left: Node) -> None:
        stopped.retire()
        self.nodes.remove(stopped)
        for node in self.nodes:
            for pull in node.pulls:
                if pull.peer is stopped:
                    pull.peer = left

    def _again(self, name: str, interval_ms: int, action: Callable[[], bool]) -> None:
        def happen() -> None:
            if self.faults_are_on:
                self.injected[name] += action()
                self._again(name, interval_ms, action)

        self.at(int(self.chance.expovariate(1 / interval_ms)) + 1, happen)

    def _end_faults(self) -> None:
        self._broken.clear()
        for node in self.nodes:
            node.end_faults()
        self.at(LOOK_MS, self._look)
        self.at(1, self._compare_all if self.faults.anti_entropy_ms else self._bring_home)

    def _pull(self) -> Pull:
        return self.chance.choice([pull for node in self.nodes for pull in node.pulls])

    def _cut_one_way(self) -> bool:
        pull = self._pull()
        ends = (pull.node.name, pull.peer.name)
        self._broken[ends if self.chance.random() < 0.5 else ends[::-1]] = self.now_ms + self.chance.randint(500, 6_000)
        return True

    def _cut(self) -> bool:
        """The broker or the network is away; a connected node may or may not notice."""
        pull, length_ms = self._pull(), self.chance.randint(500, 5_000)
        ends = (pull.node.name, pull.peer.name)
        self._broken[ends] = self._broken[ends[::-1]] = self.now_ms + length_ms
        if self.chance.random() < 0.6:
            pull.link_down()
            self.at(length_ms, pull.link_up)
        return True

    def hide(self, node: Node, until_ms: int) -> None:
        """Most receivers cannot reach a node for a while; the node itself can pull from others."""
        for receiver in self.nodes:
            for pull in receiver.pulls:
                if pull.peer.zone == node.zone and self.chance.random() < 0.8:
                    for machine in self.machines(node.zone):
                        self._broken[receiver.name, machine.name] = self._broken[machine.name, receiver.name] = until_ms

    def _jump(self) -> bool:
        """Set a clock hours or years forward or back."""
        return self.chance.choice(self.nodes).jump(self.chance.choice((-1, 1)) * 10 ** self.chance.randint(4, 11))

    def _compare(self) -> bool:
        return self._pull().comparing.begin()

    def _compare_all(self) -> None:
        for node in self.nodes:
            for pull in node.pulls:
                pull.comparing.begin()
        self.at(COMPARE_MS, self._compare_all)

    def _bring_home(self) -> None:
        for node in self.nodes:
            node.bring_home()
        self.at(COMPARE_MS, self._bring_home)

    def _upgrade(self) -> bool:
        return self.chance.choice(self.nodes).upgrade()

    def _kill(self, node: Node) -> bool:
        return node.kill(self.chance.choice(("idle", "committed")))

    def _hits(self, action: Callable[[Node], bool]) -> Callable[[], bool]:
        """Apply a fault to a random node; False if it is down, or the fault could not be applied."""

        def hit() -> bool:
            node = self.chance.choice(self.nodes)
            return node.is_up and action(node)

        return hit
