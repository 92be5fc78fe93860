"""Both cores back to back under a virtual clock and a bad network: a seeded loop over a heap of events.

The serving side is the product's consumer core, the receiving side its receiver. The sender's log and the receiver's
store are models kept as simple as possible, so that they do not hide an error of a core: the receiver's store appends
what it is given, without looking for duplicates. The checkers see only the two stores, after every change:

    order      of each life of the sender the receiver holds exactly offsets 1 to n, counting reported holes
    holes      what was reported as gone is gone: released by retention or damaged by the disk
    frontier   never moves back, and never passes what the receiver holds durably
    converges  once the faults stop, everything is stored and confirmed within a bound

Every fault has a name and is drawn from the seed, so a seed replays its failure.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from agent.batch import DIGEST_BYTES, Origin
from agent.lease import NO_LEASE, Denied, Lease, decide_lease
from agent.pages import Hole, Page, StoredBatch
from agent.positions import LifeList, LogLives, Position, Resolved, Trail, extended
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.errors import ERRORS, MalformedMessage
from agent.replication.protocol.messages import Answer, Confirm, FetchAnswer, FetchFacts
from agent.replication.pulling.page_check import check_page
from agent.replication.pulling.pull_events import (
    Append,
    Appended,
    AppendFailed,
    ArrivedPage,
    Effect,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    LinkUp,
    Note,
    PageArrived,
    ReceiverSettings,
    Tick,
)
from agent.replication.pulling.pull_runner import PullSettings, fetch_request
from agent.replication.pulling.receiver import Receiver
from agent.replication.serving import consumer_effects as effects
from agent.replication.serving.admission import Caller
from agent.replication.serving.consumer_core import ConsumerCore
from agent.replication.serving.outcomes import Outcome, Refuse
from agent.replication.serving.page import ReadPlan
from agent.replication.serving.reading import PageQuery, PageRead, read_page
from tests.replication.answers import encode_answer
from tests.replication.consumers import Registered
from tests.replication.stored import stored

STREAM = "facts.telemetry"
PULL = PullSettings("plant-a", STREAM, "idmz.facts.telemetry", frozenset({"plant-a"}), limit=100)
FAULTS_END_MS = 120_000
CONVERGED_BY_MS = 300_000
EVENTS_MAX = 200_000


class Violation(AssertionError):
    """What a checker found."""


@dataclass
class Faults:
    """Named faults and how often each occurs; a probability per message, or a mean interval in ms (0: never)."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_ms_max: int = 20
    receiver_crash_ms: int = 0
    sender_crash_ms: int = 0
    link_cut_ms: int = 0
    store_full_ms: int = 0
    append_ms_max: int = 5
    sender_replaced_ms: int = 0
    page_refused: float = 0.0
    retention_releases_unconfirmed_ms: int = 0
    batch_damaged_ms: int = 0
    injected: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        self.injected[name] = self.injected.get(name, 0) + 1


@dataclass
class Log:
    """One life of the sender's store."""

    life: str
    ends: list[int] = field(default_factory=list)  # last offset of each batch
    frontier: int | None = None  # of the one consumer, None while it is not registered
    lease: Lease = NO_LEASE
    released_offset: int = 0
    damaged: set[int] = field(default_factory=set)  # last offsets of batches that the disk has changed

    @property
    def lives(self) -> LogLives:
        """A log of this pair has one life."""
        life = bytes.fromhex(self.life)
        return LogLives(LifeList([(life, 1)] if self.ends else []), self.end_offset, life)

    def resolve(self, position: Position) -> Resolved:
        """What a position means in this log."""
        return self.lives.resolve(position, lambda *_: False)

    @property
    def end_offset(self) -> int:
        return self.ends[-1] if self.ends else 0

    def batches(self) -> list[tuple[int, int]]:
        """First and last offset of every batch that ever existed."""
        return list(zip([1, *(end + 1 for end in self.ends)], self.ends, strict=False))

    def has(self, last_offset: int) -> bool:
        """Whether the batch that ends there can still be read."""
        return last_offset > self.released_offset and last_offset not in self.damaged

    def read(self, after_offset: int, most: int) -> Page:
        """Read batches, and the holes before, between and after them, as a store does."""
        batches: list[StoredBatch] = []
        holes: list[Hole] = []
        origin = Origin("plant-a", bytes.fromhex(self.life))
        for first, last in self.batches():
            if last <= after_offset:
                continue
            if len(batches) == most:
                break
            if self.has(last):
                batches.append(stored(first, last, DIGEST_BYTES, origin))
                continue
            reason: Literal["expired", "damaged"] = "expired" if last <= self.released_offset else "damaged"
            if holes and (holes[-1].last_offset, holes[-1].reason) == (first - 1, reason):
                first = holes.pop().first_offset  # noqa: PLW2901  one hole
            holes.append(Hole(max(first, after_offset + 1), last, reason))
        return Page(batches, self.end_offset, tuple(holes))

    def lacks(self, first_offset: int, last_offset: int) -> bool:
        """Whether all of these offsets are gone."""
        held = [(first, last) for first, last in self.batches() if self.has(last)]
        is_held = any(first <= last_offset and first_offset <= last for first, last in held)
        return last_offset <= self.end_offset and not is_held


class Refused(Exception):
    """The store's refusal of an instance's lease."""


@dataclass(eq=False)
class Serving:
    """A request in the serving core, and the life of the receiver that sent it."""

    steps: effects.Steps
    fetch_id: int
    life: int


class World:
    """The two nodes, the network between them, and the checkers."""

    make_core: Callable[..., ConsumerCore] = ConsumerCore

    def __init__(
        self,
        seed: int,
        faults: Faults,
        make_receiver: Callable[..., Receiver] = Receiver,
        settings: ReceiverSettings | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.settings = settings or ReceiverSettings()
        self.make_receiver = make_receiver
        self.now_ms = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.events = 0
        # the sender: durable log, volatile parked fetches
        self.logs = [Log(self._life(0))]
        self.sender_life = 0
        self.parked: Serving | None = None
        # the receiver: durable facts and position, volatile core
        self.held: dict[str, list[tuple[int, int]]] = {}  # facts and holes, in order
        self.holes: dict[str, list[tuple[int, int]]] = {}
        self.position: Trail = ()
        self.receiver_life = 0
        self.link_is_up = False
        self.notes: list[Note] = []
        self._in_append: Append | None = None
        self.core = self._new_core()
        self._store_is_full = False
        self._tick_at: int | None = None

    # --- running

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, action))

    def run(self) -> None:
        """Run until faults have ended and everything has converged, or the bound is passed."""
        self._schedule_faults()
        self.at(0, self._link_up)
        self.at(0, self._produce)
        while self._heap:
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation(f"converges: {EVENTS_MAX} events by {self.now_ms} ms, a loop does not end")
            self.now_ms, _, action = heapq.heappop(self._heap)
            action()
            if self.now_ms > FAULTS_END_MS and self._has_converged():
                return
            if self.now_ms > CONVERGED_BY_MS:
                break
        raise Violation(
            f"converges: log ends {self.log.end_offset}, held {self._held_end()}, frontier {self.log.frontier}"
        )

    @property
    def log(self) -> Log:
        return self.logs[-1]

    @property
    def faults_are_on(self) -> bool:
        return self.now_ms < FAULTS_END_MS

    def _has_converged(self) -> bool:
        return self._held_end() == self.log.end_offset == (self.log.frontier or 0)

    def _held_end(self) -> int:
        runs = self.held.get(self.log.life, [])
        return runs[-1][1] if runs else 0

    # --- faults

    def _schedule_faults(self) -> None:
        for name, interval_ms, action in (
            ("receiver_crash", self.faults.receiver_crash_ms, self._crash_receiver),
            ("sender_crash", self.faults.sender_crash_ms, self._crash_sender),
            ("link_cut", self.faults.link_cut_ms, self._cut_link),
            ("store_full", self.faults.store_full_ms, self._fill_store),
            ("sender_replaced", self.faults.sender_replaced_ms, self._replace_sender),
            ("retention_releases_unconfirmed", self.faults.retention_releases_unconfirmed_ms, self._release),
            ("batch_damaged", self.faults.batch_damaged_ms, self._damage),
        ):
            if interval_ms:
                self._again(name, interval_ms, action)

    def _again(self, name: str, interval_ms: int, action: Callable[[], None]) -> None:
        def happen() -> None:
            if self.faults_are_on:
                self.faults.count(name)
                action()
                self._again(name, interval_ms, action)

        self.at(int(self.chance.expovariate(1 / interval_ms)) + 1, happen)

    def _crash_receiver(self) -> None:
        self.receiver_life += 1
        if self._in_append is not None and not self._store_is_full and self.chance.random() < 0.5:
            self._store(self._in_append)  # the transaction was committed, and the process died before the answer
        self._in_append = None
        self.core = self._new_core()
        self.link_is_up = False
        self._tick_at = None
        self.at(self.chance.randint(1, 3000), self._link_up)

    def _crash_sender(self) -> None:
        self.sender_life += 1
        self.parked = None

    def _cut_link(self) -> None:
        if self.link_is_up:
            self.link_is_up = False
            self._handle(LinkDown("broker connection lost"))
            self.at(self.chance.randint(1, 8000), self._link_up)

    def _fill_store(self) -> None:
        self._store_is_full = True
        self.at(self.chance.randint(10, 10_000), self._empty_store)

    def _empty_store(self) -> None:
        self._store_is_full = False

    def _replace_sender(self) -> None:
        self._crash_sender()
        self.logs.append(Log(self._life(len(self.logs))))

    def _release(self) -> None:
        """The sender's store is full: it drops its oldest facts, confirmed or not."""
        ends = [end for end in self.log.ends if end > self.log.released_offset]
        if ends:
            self.log.released_offset = self.chance.choice(ends)

    def _damage(self) -> None:
        """The disk changes a batch, an unconfirmed one if there is one."""
        ends = [end for end in self.log.ends if self.log.has(end)]
        unconfirmed = [end for end in ends if end > (self.log.frontier or 0)]
        if ends:
            self.log.damaged.add(self.chance.choice(unconfirmed or ends))

    @staticmethod
    def _life(number: int) -> str:
        return f"{number:032x}"

    # --- the sender, as its shell would drive the core

    def _produce(self) -> None:
        if self.faults_are_on:
            self.record()
            self._wake(self.parked)
            self.at(self.chance.choice((5, 50, 500, 5000)), self._produce)

    def record(self) -> None:
        """Record some more batches."""
        for _ in range(self.chance.randint(1, 6)):
            self.log.ends.append(self.log.end_offset + self.chance.randint(1, 30))

    def request_arrives(self, request: FetchFacts, fetch_id: int, life: int) -> None:
        core = self.make_core(
            Caller("idmz", f"life-{life}", b"12345678"), frozenset({STREAM}), "plant-a", self.log.life
        )
        self._serve(Serving(core.fetch(request, self.now_ms), fetch_id, life))

    def _serve(self, one: "Serving", result: Any = None) -> None:
        """Step the core until it parks the fetch or ends it."""
        while True:
            try:
                effect = one.steps.send(result)
            except StopIteration as over:
                self._end(over.value, one)
                return
            if isinstance(effect, effects.Park):
                self._supersede()
                self.parked = one
                self.at(effect.until_ms - self.now_ms, lambda: self._wake(one))
                return
            try:
                result = self._result(effect)
            except Refused as error:
                code = "fenced" if error.args == (Denied.FENCED,) else "lease_unknown"
                self._end(Refuse(code, "the lease is refused"), one)
                return

    def _result(self, effect: effects.Effect[Any]) -> Any:
        """The result that shell and store would give."""
        log = self.log
        match effect:
            case effects.FindConsumer():
                return None if log.frontier is None else Registered("idmz", STREAM, log.frontier, log.lease)
            case effects.RegisterConsumer():
                log.frontier = log.released_offset
                return Registered("idmz", STREAM, log.frontier, log.lease)
            case effects.GetStreamState():
                return effects.StreamState(log.lives, int(self.parked is not None), self.now_ms)
            case effects.Resolve(_, _, positions):
                return tuple((one, log.resolve(one)) for one in positions)
            case effects.HoldLease(_, _, shown):
                lease = decide_lease(log.lease, shown)
                if isinstance(lease, Denied):
                    raise Refused(lease)
                log.lease = lease
                return lease
            case effects.AnnounceLease():
                return self._supersede()
            case effects.StartConfirm():
                self._confirm(effect.confirm)
                return log.frontier
            case effects.AwaitConfirm(frontier):
                return frontier
            case effects.ReadPage(plan):
                return self.read_page(plan)
        return None  # it changes nothing that the model has

    def read(self, plan: ReadPlan) -> Page:
        return self.log.read(plan.after_offset, 8)

    def read_page(self, plan: ReadPlan) -> PageRead | Refuse:
        store: Any = SimpleNamespace(read=lambda *_, **__: self.read(plan), log=lambda _: self.log.lives)
        return read_page(store, PageQuery(plan, "idmz", 1_000_000))

    def _confirm(self, confirm: Confirm) -> None:
        log = self.log
        before = log.frontier or 0
        read = Position(bytes.fromhex(confirm.life), confirm.last_offset)
        log.frontier = max(before, log.resolve(read).offset)
        if log.frontier > max(before, self._held_end()):
            raise Violation(f"frontier: {log.frontier} confirmed, {self._held_end()} durable")

    def _wake(self, one: "Serving | None") -> None:
        if one is not None and one is self.parked:
            self.parked = None
            self._serve(one, effects.Parked(is_superseded=False, waited_ns=0))

    def _supersede(self) -> None:
        if (one := self.parked) is not None:
            self.parked = None
            self._serve(one, effects.Parked(is_superseded=True, waited_ns=0))

    def _end(self, outcome: Outcome, one: "Serving") -> None:
        answering = self.log.life
        match outcome:
            case Refuse():
                self._carry(lambda: self._answer_refused(outcome, one.fetch_id, answering, one.life))
            case (answer, attachment, *_):
                page = self._packed(answer, attachment)
                self._carry(lambda: self._answer_page(page, one.fetch_id, one.life))

    def _packed(self, answer: Answer, attachment: list[bytes]) -> ArrivedPage:
        """The page as the other end decodes it."""
        try:
            decoded, sealed = decode_answer(encode_answer(answer, attachment))
        except MalformedMessage as error:
            raise Violation(f"page: {error}") from error
        assert isinstance(decoded, FetchAnswer)
        kept = (decoded.runs(), decoded.holes)
        return check_page(decoded, sealed, PULL.peer_zone, STREAM, lambda _: kept)

    # --- the network

    def _carry(self, action: Callable[[], None]) -> None:
        faults = self.faults
        copies = 1
        if self.faults_are_on and self.chance.random() < faults.loss:
            faults.count("loss")
            copies = 0
        elif self.faults_are_on and self.chance.random() < faults.duplicate:
            faults.count("duplicate")
            copies = 2
        for _ in range(copies):
            most = faults.delay_ms_max if self.faults_are_on else min(faults.delay_ms_max, 1000)
            self.at(self.chance.randint(1, most), action)

    def _answer_page(self, page: ArrivedPage, fetch_id: int, life: int) -> None:
        if life == self.receiver_life and self.link_is_up:
            self._handle(PageArrived(fetch_id, page))

    def _answer_refused(self, refusal: Refuse, fetch_id: int, answering: str, life: int) -> None:
        if life == self.receiver_life and self.link_is_up:
            is_retryable = ERRORS[refusal.code].retryable
            self._handle(FetchFailed(fetch_id, refusal.code, refusal.message, is_retryable, answering))

    # --- the receiver, as its shell would drive the core

    def _new_core(self) -> Receiver:
        return self.make_receiver(self.settings, self.position)

    def _link_up(self) -> None:
        if not self.link_is_up:
            self.link_is_up = True
            self._handle(LinkUp())

    def _handle(self, event: Event) -> None:
        for effect in self.core.handle(event, self.now_ms, self.chance.random()):
            self._carry_out(effect)
        deadline_ms = self.core.deadline_ms
        if deadline_ms is not None and deadline_ms != self._tick_at:
            self._tick_at = deadline_ms
            life = self.receiver_life
            self.at(max(0, deadline_ms - self.now_ms), lambda: self._tick(life, deadline_ms))

    def _tick(self, life: int, deadline_ms: int) -> None:
        if life == self.receiver_life and self.core.deadline_ms is not None:
            if self._tick_at == deadline_ms:
                self._tick_at = None
            self._handle(Tick())

    def _carry_out(self, effect: Effect) -> None:
        life = self.receiver_life
        match effect:
            case Fetch():
                request = fetch_request(effect, PULL)
                sender_life = self.sender_life

                def arrive() -> None:
                    if sender_life == self.sender_life:
                        self.request_arrives(request, effect.fetch_id, life)

                self._carry(arrive)
            case Append():
                self._in_append = effect
                append_ms = self.chance.randint(1, self.faults.append_ms_max if self.faults_are_on else 5)
                self.at(append_ms, lambda: self._append_ends(effect, life))
            case Note():
                self.notes.append(effect)

    def _append_ends(self, effect: Append, life: int) -> None:
        if life != self.receiver_life:
            return  # decided when it crashed
        self._in_append = None
        if self._store_is_full:
            self._handle(AppendFailed("store full", is_retryable=True))
        elif self.faults_are_on and self.chance.random() < self.faults.page_refused:
            self.faults.count("page_refused")
            self._handle(AppendFailed("batch refused", is_retryable=False))
        else:
            self._store(effect)
            self._handle(Appended())

    def _store(self, effect: Append) -> None:
        life = effect.page.lives[-1].life.hex()
        runs = self.held.setdefault(life, [])
        found, holes = effect.page.content
        for first, last in found:
            expected = runs[-1][1] + 1 if runs else 1
            if first != expected:
                raise Violation(f"order: offsets {first} to {last} stored where {expected} is next")
            runs.append((first, last))
        self._check_holes(life, holes)
        self.position = extended(self.position, self.read_by(effect))

    def read_by(self, effect: Append) -> tuple[Position, ...]:
        """The positions that the receiver's store keeps with the page."""
        return effect.page.lives

    def _check_holes(self, life: str, holes: list[tuple[int, int, str]]) -> None:
        """A reported hole is really gone."""
        (log,) = [one for one in self.logs if one.life == life]
        for first, last, _ in holes:
            if not log.lacks(first, last):
                raise Violation(f"holes: offsets {first} to {last} were reported as gone, and are not")
            self.holes.setdefault(life, []).append((first, last))
