"""What must hold in a plant with two gateways, beside what holds in every store (`simulation/checkers.py`).

    term     no two lives of the zone that have a fact have one term, unless a disk was put back that had granted it
    leader   one gateway leads after the faults, and stays
    quorum   a message that was answered as applied is stored, unless two disks that may have held it were lost
    hole     each number of the device is stored, or a gap fact or a bad sample covers its time on the clock of a gateway
    latest   of two samples of one time that of the higher life was the latest value, at every node

Numbers that both gateways recorded are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from agent.batch import Kind, open_messages, open_samples, parse
from agent.ingest import GAP_PREDICATE
from agent.ingest.gap import POLLS_MISSED
from agent.positions import begun_ms
from agent.query.latest import find_latest
from agent.query.scan import Scanner, parse_time_ns
from tests.replication.simulation.checkers import EVERYTHING, STREAM, Checkers, Violation
from tests.replication.simulation.stepped import WALL_START_MS

if TYPE_CHECKING:
    from tests.pair.plant import PlantNode, PlantWorld
    from tests.replication.simulation.node import Node

MS = 1_000_000
POLL_MS = 200
UNSEEN_MS_MAX = 300
"""A number that stands for longer is read: a poll takes place every 200 ms, and 40 ms pass until the answer."""
NO_VALUE = -1
LOOKS_MAX = 20
SKEW_MS_MAX = 30_000
"""A clock that is further ahead is not believed by `latest`."""

Span = tuple[int, int]
Sample = tuple[int, bytes, int, int]
"""Source time, life, offset and value; those of a quality that is not good have none."""


@dataclass
class Contents:
    """What a store holds: samples by value, the messages, and the spans of gap facts, in ms."""

    samples: list[Sample] = field(default_factory=list)
    """In the order of offsets."""
    last: list[int] = field(default_factory=list)
    """For each sample the place of the last one of its batch, which a look at the store divides from others."""
    messages: set[str] = field(default_factory=set)
    gaps: set[Span] = field(default_factory=set)
    lives: set[bytes] = field(default_factory=set)
    """Those of the zone."""


def contents_of(node: Node) -> Contents:
    """Read all of a store."""
    found = Contents()
    streams = (node.running.read(stream, 0, EVERYTHING, EVERYTHING) for stream in node.world.streams)
    for stored in chain.from_iterable(page.batches for page in streams):
        batch = parse(stored.sealed)
        life = batch.header.origin.life
        if batch.header.origin.zone == "mill":
            found.lives.add(life)
        if batch.header.kind is Kind.SAMPLES:
            for offset, row in enumerate(open_samples(batch).rows(), stored.first_offset):
                value = NO_VALUE if row.quality else int(row.value)  # type: ignore[arg-type]
                found.samples.append((row.source_time_ns, life, offset, value))
            found.last += [len(found.samples) - 1] * (len(found.samples) - len(found.last))
            continue
        for message in open_messages(batch):
            found.messages.add(message.envelope.message_id)
            if message.fact.predicate == GAP_PREDICATE:
                gap = json.loads(message.fact.object_json)
                first_ms, last_ms = parse_time_ns(gap["first_time"]) // MS, parse_time_ns(gap["last_time"]) // MS
                # The poll before those that were missed was made in time, and answered after them.
                found.gaps.add((first_ms - POLL_MS * (gap["reason"] == POLLS_MISSED), last_ms))
    return found


def uncovered(span: Span, gaps: Sequence[Span]) -> Iterator[int]:
    """The lengths of the parts of a span that no gap covers."""
    at, end = span
    for first, last in sorted(gaps):
        if first > at:
            yield min(first, end) - at
        at = max(at, last)
        if at >= end:
            return
    yield end - at


def _joined(gaps: Sequence[Span]) -> Iterator[range]:
    """The times that gaps cover, each once."""
    at = 0
    for first, last in sorted(gaps):
        yield range(max(first, at), max(last, at))
        at = max(at, last)


def bad_spans(samples: Iterable[Sample]) -> Iterator[Span]:
    """From each sample without a value to the next one that has one: a gap fact may die with the leader, and the series
    is bad all the same."""
    begun_ms: int | None = None
    for time_ns, value in sorted({(time_ns, value) for time_ns, *_, value in samples}):
        if value == NO_VALUE:
            begun_ms = time_ns // MS if begun_ms is None else begun_ms
        elif begun_ms is not None:
            yield begun_ms, time_ns // MS
            begun_ms = None


class PlantChecks(Checkers):
    """One for each world."""

    def __init__(self, world: PlantWorld) -> None:
        super().__init__()
        self._world = world
        self._leads = dict[bytes, tuple[str, int]]()
        """The lives with a term, by whom and when they were begun."""
        self.acknowledged_ms: dict[str, int] = {}
        """When a message was answered as applied."""
        self._destroyed: list[tuple[str, int, int]] = []
        """Disks, since when what came to them is lost, and when they were lost."""
        self.doubled = self.gaps = self.gap_ms = self.values = 0
        self.on_begin: Callable[[PlantNode], object] = lambda _: None
        """Called with each gateway that begins to lead."""

    def watch_lead(self, node: PlantNode) -> Any:
        """The store of a node, whose terms are watched."""
        return _WatchedLead(self, node)

    def term_begun(self, node: PlantNode, term: int, life: bytes) -> None:
        """A store has begun a life with a term."""
        self._world.say(f"{node.name} begins {term}")
        self._leads[life] = node.name, self._world.now_ms
        self.on_begin(node)

    def destroyed(self, name: str, since_ms: int) -> None:
        """A disk is lost, or back at what it was at `since_ms`."""
        self._destroyed.append((name, since_ms, self._world.now_ms))

    def check_end(self, nodes: list[Node]) -> None:
        """Everything has converged."""
        super().check_end(nodes)
        contents = {node.name: contents_of(node) for node in nodes}
        lives = set[bytes]().union(*(held.lives for held in contents.values()))
        leads = sorted(life for life in self._leads if life in lives and not self._was_forgotten(life))
        if twice := [b.hex() for a, b in pairwise(leads) if begun_ms(a) == begun_ms(b)]:
            raise Violation(f"term: {twice} have the term of another life")
        stored = set[str]().union(*(held.messages for held in contents.values()))
        for name, at_ms in self.acknowledged_ms.items():
            lost_at = {disk for disk, since_ms, lost_ms in self._destroyed if since_ms <= at_ms <= lost_ms}
            if name not in stored and len(lost_at) < 2:
                raise Violation(f"quorum: {name} of {at_ms} is lost, with {lost_at or 'no disk'}")
        self._check_series(contents)
        for node in nodes:
            self._check_latest(node, contents[node.name])

    def _was_forgotten(self, life: bytes) -> bool:
        """Whether the disk that granted a term was put back to before it: with a clock that is behind, the gateway may
        grant it again. The rest of the two lives orders them."""
        name, at_ms = self._leads[life]
        return any(disk == name and since_ms <= at_ms <= lost_ms for disk, since_ms, lost_ms in self._destroyed)

    def _check_once(self, node: Node, values: Sequence[object]) -> None:
        """Both gateways may have recorded a number."""

    def _check_series(self, contents: dict[str, Contents]) -> None:
        world, changes = self._world, self._world.device.changes
        values = {value for held in contents.values() for *_, value in held.samples} - {NO_VALUE}
        declared = set[Span]().union(*(held.gaps for held in contents.values()))
        gaps = sorted(declared | set(bad_spans(chain.from_iterable(held.samples for held in contents.values()))))
        offsets = {WALL_START_MS + ms for ms in world.wall_jumps_ms}
        # A gateway that has not heard the other one begins its gap at that one's newest sample, by that one's clock.
        unseen_ms = UNSEEN_MS_MAX + max(world.wall_jumps_ms) - min(world.wall_jumps_ms)
        self.gaps, self.values = len(gaps), len(values)
        self.gap_ms = sum(map(len, _joined(gaps)))
        if not values or max(values) != len(changes) - 1:
            raise Violation(f"hole: the last number is {len(changes) - 1}, stored is {max(values, default=None)}")
        for value in range(min(values), len(changes) - 1):
            span = changes[value : value + 2]
            if value not in values and all(
                max(uncovered((span[0] + by, span[1] + by), gaps), default=0) > unseen_ms for by in offsets
            ):
                near = [(first - WALL_START_MS, last - WALL_START_MS) for first, last in gaps]
                raise Violation(f"hole: {value} of {span} is stored nowhere, gaps {near}, {world.wall_jumps_ms}")

    def _check_latest(self, node: Node, found: Contents) -> None:
        """After each second sample of a time, and at the end."""
        lives = dict[int, bytes]()
        seconds = [at for at, sample in enumerate(found.samples) if lives.setdefault(sample[0], sample[1]) != sample[1]]
        self.doubled = max(self.doubled, len(seconds))
        if any(abs(ms) > SKEW_MS_MAX for ms in self._world.wall_jumps_ms):
            return
        for at in [found.last[second] for second in seconds[:LOOKS_MAX]] + [len(found.samples) - 1]:
            *place, _ = wanted = max(found.samples[: at + 1])
            scanner = Scanner(node.running.reader)
            scanner.ends = {STREAM: found.samples[at][2]}
            rows = find_latest(scanner, self._world.clock.time_ns(), streams=frozenset({STREAM}), zone="mill")
            latest = next(row.latest for row in rows if row.tag.subject == "tag:plant/count")
            if latest is None or [latest.source_time_ns, latest.life, latest.arrival.offset] != place:
                raise Violation(f"latest: {latest} at {node.name}, not {wanted}")


class _WatchedLead:
    """A store; the checkers see the terms that it begins."""

    def __init__(self, check: PlantChecks, node: PlantNode) -> None:
        self._check, self._node, self._store = check, node, node.running

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def take_lead(self, term: int) -> Future[bytes]:
        taking = self._store.take_lead(term)

        def taken(future: Future[bytes]) -> None:
            if future.exception() is None:
                self._check.term_begun(self._node, term, future.result())

        taking.add_done_callback(taken)
        return taking
