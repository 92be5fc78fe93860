"""Simulation of two nodes and their witness: the product's cores, with virtual clocks and a network with named faults.

A schedule is drawn from a seed: faults begin and end in its first part, then everything is healthy and must settle. The
checkers stand outside: they see who records with which term, and what was delivered to whom.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from agent.pair import (
    Begin,
    Claim,
    ClaimState,
    Lead,
    Leadership,
    LeadTimes,
    PairNames,
    PartnerWord,
    Role,
    Stop,
    Witness,
    WitnessWord,
)

MS = 1_000_000
BEAT_MS, TIMEOUT_MS, EXPIRY_MS = 300, 500, 1_000
TIMES = LeadTimes()
LEASE_MS, PATIENCE_MS = TIMES.lease_ns // MS, TIMES.patience_ns // MS
START_MS = (TIMES.start_patience_ns - TIMES.patience_ns) // MS
NEITHER_MS = 2 * PATIENCE_MS + LEASE_MS + 4 * BEAT_MS
"""No leader for so long, beyond the patience of a start, is a failure. A crash with a witness takes two seconds."""
FAULTS_MS, SETTLE_MS, STAY_MS = 40_000, 15_000, 10_000
LOOK_MS = 100
BOXES = ("plant-a", "plant-a-2")
WITNESS = "idmz"


class Violated(AssertionError):
    """A checker found what may not be."""


@dataclass
class Way:
    """One direction between two nodes."""

    is_cut: bool = False
    loss: float = 0.0
    delay_ms: tuple[int, int] = (5, 40)
    twice: float = 0.0


@dataclass
class Clock:
    """A clock that runs at its own rate from its own start."""

    start_ms: int
    rate: float

    def ns(self, true_ms: int) -> int:
        """What it shows."""
        return int((self.start_ms + true_ms * self.rate) * MS)


@dataclass
class Box:
    """A node: its core while it runs, and what outlives a restart: the numbers of its lives, and of its zone's."""

    name: str
    other: str
    clock: Clock
    wall_ms: int
    core: Leadership | None = None
    life: int = 0
    zone_term: int = 0
    fitness: int = 5
    frozen_until_ms: int = 0
    started_ms: int = 0
    instances: Any = field(default_factory=lambda: count(1))
    waiting: dict[str, int] = field(default_factory=dict)
    image: tuple[int, int] = (0, 0)

    @property
    def is_recording(self) -> bool:
        """Whether it records, as the core says."""
        return self.core is not None and self.core.is_recording

    def is_running(self, now_ms: int) -> bool:
        """Whether its process takes steps."""
        return self.core is not None and now_ms >= self.frozen_until_ms


class Simulation:
    """One schedule."""

    times = TIMES

    def __init__(self, seed: int, *, has_witness: bool = True) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.has_witness = has_witness
        self.ways = {
            (sender, receiver): Way()
            for sender in (*BOXES, WITNESS)
            for receiver in (*BOXES, WITNESS)
            if sender != receiver
        }
        self.boxes = {name: self._box(name, other) for name, other in (BOXES, BOXES[::-1])}
        self.stored: dict[str, Lead] = {}
        self.witness: Witness | None = None
        self.witness_clock = Clock(self.chance.randrange(10**6), 1 + self.chance.uniform(-0.01, 0.01))
        self.checks = Checks(self)
        self.log: list[str] = []
        if has_witness:
            self.start_witness()
        for box in self.boxes.values():
            self.at(self.chance.randrange(2_000), lambda box=box: self.start(box))
        self.at(0, self._look)

    def _box(self, name: str, other: str) -> Box:
        clock = Clock(self.chance.randrange(10**6), 1 + self.chance.uniform(-0.01, 0.01))
        # A clock without a battery counts from the start; then lives follow each other by one.
        return Box(name, other, clock, self.chance.choice((-(10**9), 0, 3_600_000)))

    # --- events

    def at(self, when_ms: int, call: Callable[[], None]) -> None:
        """Call back at a true time."""
        heapq.heappush(self._events, (max(when_ms, self.now_ms), next(self._order), call))

    def run(self, until_ms: int) -> None:
        """Carry out what is due."""
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, call = heapq.heappop(self._events)
            call()
        self.now_ms = until_ms

    def say(self, text: str) -> None:
        """A line of the schedule's log, printed when it fails."""
        self.log.append(f"{self.now_ms / 1000:8.2f} {text}")

    def send(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        """Deliver later, once, twice or never."""
        way = self.ways[sender, receiver]
        for _ in range(1 + (self.chance.random() < way.twice)):
            if not way.is_cut and self.chance.random() >= way.loss:
                self.at(self.now_ms + self.chance.randint(*way.delay_ms), deliver)

    def _look(self) -> None:
        self.checks.look()
        self.at(self.now_ms + LOOK_MS, self._look)

    # --- witness

    def witness_ms(self) -> int:
        """The clock of the witness."""
        return self.witness_clock.ns(self.now_ms) // MS

    def start_witness(self) -> None:
        """Start it with what it has stored."""
        self.witness = Witness(self.stored, self.witness_ms())
        self.say("witness starts")

    def _ask_witness(self, box: Box, claim: Claim, asked: int) -> None:
        if self.witness is None:
            return
        before = self.witness.leads.get("z", Lead())
        if self.witness.claim("z", claim, self.witness_ms()):
            self.stored = dict(self.witness.leads)
        lead = self.witness.leads["z"]
        self.checks.granted(before, lead)
        leader = lead.leader(claim, self.witness_ms())
        other = self.witness.other_claim("z", claim.node, self.witness_ms())
        remaining = (lead.ends_ms - self.witness_ms()) * MS
        said = WitnessWord(leader, lead.term, lead.highest, remaining, 0, other)
        self.send(WITNESS, box.name, lambda: self._when_awake(box, lambda: self._witness_answers(box, said, asked)))

    def _witness_answers(self, box: Box, said: WitnessWord, asked: int) -> None:
        if box.core is None or box.waiting.get(WITNESS) != asked:
            return
        del box.waiting[WITNESS]
        box.core.hear_witness(replace(said, heard_ns=asked))
        self.checks.witness_said(box, said.leader)
        self.step(box)

    # --- boxes

    def start(self, box: Box) -> None:
        """Start its process: its store begins a life by its wall clock."""
        if box.core is not None:
            return
        box.life = max(box.life + 1, box.wall_ms + self.now_ms)
        names = PairNames(box.name, f"i{next(box.instances)}", box.other)
        box.core = Leadership(names, box.clock.ns(self.now_ms), self.times, highest_term=box.zone_term)
        box.started_ms, box.waiting = self.now_ms, {}
        self.say(f"{box.name} starts")
        self._beat(box, names.instance)

    def stop(self, box: Box) -> None:
        """End its process without a farewell."""
        box.core = None
        self.say(f"{box.name} dies")

    def _when_awake(self, box: Box, call: Callable[[], None]) -> None:
        if self.now_ms < box.frozen_until_ms:
            self.at(box.frozen_until_ms, lambda: self._when_awake(box, call))
        else:
            call()

    def _beat(self, box: Box, instance: str) -> None:
        if box.core is None or box.core.names.instance != instance:
            return
        if self.now_ms < box.frozen_until_ms:
            self.at(box.frozen_until_ms, lambda: self._beat(box, instance))
            return
        self.step(box)
        now = box.clock.ns(self.now_ms)
        for asked in [to for to, at in box.waiting.items() if now - at >= TIMEOUT_MS * MS]:
            del box.waiting[asked]
        for to in (WITNESS, box.other) if self.has_witness else (box.other,):
            if to not in box.waiting:
                self._ask(box, to, now)
        self.at(self.now_ms + BEAT_MS, lambda: self._beat(box, instance))

    def _ask(self, box: Box, to: str, now: int) -> None:
        assert box.core is not None
        box.waiting[to] = now
        if to == WITNESS:
            claim = box.core.claim_for_witness(now)
            self.send(box.name, WITNESS, lambda: self._ask_witness(box, claim, now))
            return
        claim, says, sent_ms = box.core.claim_for_partner(now), box.core.witness_says(now), self.now_ms
        partner = self.boxes[to]
        self.send(
            box.name, to, lambda: self._when_awake(partner, lambda: self._asked(partner, claim, says, sent_ms, now))
        )

    def _asked(self, box: Box, claim: Claim, says: str | None, sent_ms: int, asked: int) -> None:
        if box.core is None or self.now_ms - sent_ms > EXPIRY_MS:
            return
        now, asker = box.clock.ns(self.now_ms), self.boxes[claim.node]
        box.core.hear_partner(PartnerWord(claim, says, now))
        self.checks.partner_said(box, claim)
        answer, own = box.core.claim_for_partner(now), box.core.witness_says(now)
        self.send(
            box.name, asker.name, lambda: self._when_awake(asker, lambda: self._answered(asker, answer, own, asked))
        )

    def _answered(self, box: Box, claim: Claim, says: str | None, asked: int) -> None:
        if box.core is None or box.waiting.get(claim.node) != asked:
            return
        del box.waiting[claim.node]
        box.core.hear_partner(PartnerWord(claim, says, asked))
        self.checks.partner_said(box, claim)
        self.step(box)

    def step(self, box: Box) -> None:
        """Let the core decide, and carry it out."""
        assert box.core is not None
        decision = box.core.step(box.clock.ns(self.now_ms), box.fitness, box.life + 1)
        if isinstance(decision, Begin):
            self.checks.begun(box, decision.term)
            box.life = box.zone_term = decision.term
            self.say(f"{box.name} begins {decision.term}: {decision.why}")
        elif isinstance(decision, Stop):
            self.say(f"{box.name} stops: {decision.why}")

    def switch(self, box: Box) -> None:
        """A planned switch, where a node would accept one."""
        if box.is_running(self.now_ms) and box.is_recording:
            assert box.core is not None
            word = box.core.partner_word(box.clock.ns(self.now_ms))
            if word is not None and word.claim.state is ClaimState.FOLLOWS:
                box.core.release(box.clock.ns(self.now_ms))
                self.say(f"{box.name} releases")


class Checks:
    """The checkers of one schedule."""

    def __init__(self, of: Simulation) -> None:
        self._of = of
        self._terms: dict[int, str] = {}
        self._highest = 0
        self._neither_ms = 0
        self._both_ms: int | None = None
        self._said_ms: dict[str, int] = {}
        self._heard_ms: dict[str, int] = {}
        self._witness_ms: dict[str, int] = {}
        self.longest_neither_ms = 0

    def begun(self, box: Box, term: int) -> None:
        """One leader for a term, and its term is above all of its own lives."""
        if self._terms.setdefault(term, box.name) != box.name:
            raise Violated(f"term {term} of {self._terms[term]} and {box.name}")
        if term <= box.life:
            raise Violated(f"{box.name} begins term {term}, has life {box.life}")

    def granted(self, before: Lead, after: Lead) -> None:
        """Terms rise at the witness, and another holder or term is above all before."""
        is_other = (before.node, before.instance, before.term) != (after.node, after.instance, after.term)
        if after.highest < self._highest or (after.node and is_other and after.term < self._highest):
            raise Violated(f"the witness went back: {before} to {after}")
        self._highest = after.highest

    def witness_said(self, box: Box, leader: str) -> None:
        """A node that keeps hearing that the other one leads does not record after a lease."""
        self._witness_ms[box.name] = self._of.now_ms
        if leader != box.other or not box.is_recording:
            self._said_ms.pop(box.name, None)

        else:
            since = self._said_ms.setdefault(box.name, self._of.now_ms)
            if self._of.now_ms - since > LEASE_MS:
                raise Violated(f"{box.name} records since {since}, and the witness says that {leader} leads")

    def partner_said(self, box: Box, claim: Claim) -> None:
        """When a box has heard that its partner records."""
        if claim.state is ClaimState.LEADS:
            self._heard_ms[box.name] = self._of.now_ms
        else:
            self._heard_ms.pop(box.name, None)

    def look(self) -> None:
        """What holds at any time."""
        of = self._of
        now, running = of.now_ms, [box for box in of.boxes.values() if box.is_running(of.now_ms)]
        recording = [box for box in running if box.is_recording]
        if recording or not running:
            self._neither_ms = now
        else:
            # A box that was just started or has just woken has a patience of its own.
            ready = min(max(box.started_ms + START_MS, box.frozen_until_ms) for box in running)
            waited = now - max(self._neither_ms, ready)
            self.longest_neither_ms = max(self.longest_neither_ms, waited)
            if waited > NEITHER_MS * 1.02 + LOOK_MS:
                raise Violated(f"nobody records for {waited} ms")
        hears = len(recording) == 2 and all(
            now - self._heard_ms.get(box.name, -(10**9)) < LEASE_MS for box in recording
        )
        if not hears:
            self._both_ms = None
        elif self._both_ms is None:
            self._both_ms = now
        elif now - self._both_ms > LEASE_MS + 2 * BEAT_MS:
            raise Violated("both record and hear each other")

    def settled(self) -> tuple[str, int]:
        """After the faults exactly one box records, with a term above all before that are known anywhere."""
        of = self._of
        leaders = [box for box in of.boxes.values() if box.is_recording]
        if len(leaders) != 1:
            raise Violated(f"{len(leaders)} boxes record")
        leader = leaders[0]
        assert leader.core is not None
        if leader.core.role is not Role.LEADS:
            raise Violated(f"the leader is {leader.core.role}")
        highest = max(box.zone_term for box in of.boxes.values())
        if leader.core.term < highest:
            raise Violated(f"{leader.name} leads with {leader.core.term}, and {highest} is known")
        return leader.name, leader.core.term


# --- faults


def _cut(of: Simulation, ends: tuple[str, str], *, both: bool) -> Callable[[], None]:
    ways = [of.ways[ends]] + ([of.ways[ends[::-1]]] if both else [])
    for way in ways:
        way.is_cut = True

    def heal() -> None:
        for way in ways:
            way.is_cut = False

    return heal


def _partition(of: Simulation) -> Callable[[], None]:
    ends = of.chance.choice(list(of.ways))
    return _cut(of, ends, both=True)


def _one_way(of: Simulation) -> Callable[[], None]:
    return _cut(of, of.chance.choice(list(of.ways)), both=False)


def _isolation(of: Simulation) -> Callable[[], None]:
    box = of.chance.choice(BOXES)
    heals = [_cut(of, ends, both=True) for ends in of.ways if ends[0] == box]
    return lambda: [heal() for heal in heals] and None


def _loss(of: Simulation) -> Callable[[], None]:
    way = of.chance.choice(list(of.ways.values()))
    way.loss, way.twice = of.chance.uniform(0.1, 0.9), of.chance.uniform(0, 0.3)

    def heal() -> None:
        way.loss, way.twice = 0.0, 0.0

    return heal


def _delay(of: Simulation) -> Callable[[], None]:
    way = of.chance.choice(list(of.ways.values()))
    way.delay_ms = (0, of.chance.choice((200, 600, 1_500)))

    def heal() -> None:
        way.delay_ms = (5, 40)

    return heal


def _freeze(of: Simulation) -> Callable[[], None]:
    box = of.chance.choice(list(of.boxes.values()))
    box.frozen_until_ms = max(box.frozen_until_ms, of.now_ms + of.chance.choice((1_000, 3_000, 10_000)))
    of.say(f"{box.name} freezes until {box.frozen_until_ms / 1000}")
    return lambda: None


def _crash(of: Simulation) -> Callable[[], None]:
    box = of.chance.choice(list(of.boxes.values()))
    of.stop(box)
    return lambda: of.start(box)


def _crash_of_both(of: Simulation) -> Callable[[], None]:
    for box in of.boxes.values():
        of.stop(box)
    return lambda: [of.start(box) for box in of.boxes.values()] and None


def _restore(of: Simulation) -> Callable[[], None]:
    """A box, or both, are put back to an image of the disk that was made before."""
    boxes = list(of.boxes.values()) if of.chance.random() < 0.5 else [of.chance.choice(list(of.boxes.values()))]
    for box in boxes:
        of.stop(box)
        box.life, box.zone_term = box.image
    of.say(f"restored: {[box.name for box in boxes]}")
    return lambda: [of.start(box) for box in boxes] and None


def _image(of: Simulation) -> Callable[[], None]:
    for box in of.boxes.values():
        box.image = box.life, box.zone_term
    return lambda: None


def _witness_restart(of: Simulation) -> Callable[[], None]:
    if of.has_witness:
        of.witness = None
        of.say("witness dies")
    return lambda: of.start_witness() if of.has_witness and of.witness is None else None


def _clock_jump(of: Simulation) -> Callable[[], None]:
    box = of.chance.choice(list(of.boxes.values()))
    box.wall_ms += of.chance.choice((-7_200_000, -5_000, 3_600_000))
    if box.core is not None and of.chance.random() < 0.5:
        box.life = max(box.life + 1, box.wall_ms + of.now_ms)  # its store begins a life by itself
        of.say(f"{box.name} begins life {box.life} by itself")
    return lambda: None


def _unfit(of: Simulation) -> Callable[[], None]:
    box = of.chance.choice(list(of.boxes.values()))
    box.fitness = of.chance.choice((-1, 0, 4, 6))
    of.say(f"{box.name} has fitness {box.fitness}")

    def heal() -> None:
        box.fitness = 5

    return heal


def _switch(of: Simulation) -> Callable[[], None]:
    for box in of.boxes.values():
        of.switch(box)
    return lambda: None


FAULTS: dict[str, Callable[[Simulation], Callable[[], None]]] = {
    "partition": _partition,
    "one way": _one_way,
    "isolation": _isolation,
    "loss": _loss,
    "delay": _delay,
    "freeze": _freeze,
    "crash": _crash,
    "crash of both": _crash_of_both,
    "restore": _restore,
    "image": _image,
    "witness restart": _witness_restart,
    "clock jump": _clock_jump,
    "unfit": _unfit,
    "switch": _switch,
}


def play(seed: int, names: tuple[str, ...] = tuple(FAULTS), *, has_witness: bool = True) -> Simulation:
    """Play the schedule of a seed. Raises Violated with its log."""
    of = Simulation(seed, has_witness=has_witness)
    chance = random.Random(seed + 1)
    heals: list[Callable[[], None]] = []

    def begin(name: str, for_ms: int) -> None:
        of.say(f"fault: {name} for {for_ms / 1000}")
        heal = FAULTS[name](of)
        heals.append(heal)
        of.at(of.now_ms + for_ms, heal)

    for _ in range(chance.randint(1, 8)):
        name, for_ms = chance.choice(names), chance.choice((300, 2_000, 8_000, 20_000))
        of.at(chance.randrange(FAULTS_MS), lambda name=name, for_ms=for_ms: begin(name, for_ms))
    try:
        of.run(FAULTS_MS)
        for heal in heals:
            heal()
        for way in of.ways.values():
            way.is_cut, way.loss, way.twice, way.delay_ms = False, 0.0, 0.0, (5, 40)
        for box in of.boxes.values():
            of.start(box)
        of.say("all is healthy")
        of.run(FAULTS_MS + SETTLE_MS)
        leader = of.checks.settled()
        of.run(FAULTS_MS + SETTLE_MS + STAY_MS)
        if of.checks.settled() != leader:
            raise Violated(f"after {leader} leads {of.checks.settled()}")  # noqa: TRY301
    except Violated as error:
        raise Violated(f"SEED={seed}: {error}\n" + "\n".join(of.log[-40:])) from None
    return of
