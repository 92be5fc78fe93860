"""A second judge, which identifies a fact by its value: the harness gives each fact a value of its own, so no name that
the product gives to a batch can hide that a fact was lost, stored twice or released unread.

    lost        at the end a node has every value that a peer holds intact, and that no hole reported to it
    home        the same, for values of the node's own zone that a restore or a wiped disk has taken from it
    doubled     no store holds a value twice
    unread      what is released because every consumer has confirmed it was durable at each of them, or reported to it
    refused     a value is missing because the node holds others under sequences of its batch, of one life that ran
                twice, and an incident of the node names that life as refused or forked

It excuses nothing else for a life or a fork. Values that were only on a disk that is gone are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.batch import Kind, Origin, open_samples, parse
from agent.columns import BatchError
from agent.pages import intersect
from tests.replication.simulation import stepped

if TYPE_CHECKING:
    from tests.replication.simulation.network import Node

STREAM = "facts.telemetry"
_RECORD = (
    "CREATE TEMP TABLE arrived AS SELECT stream, first_offset, last_offset, body, digest FROM batch LIMIT 0",
    """CREATE TEMP TRIGGER record_arrived AFTER INSERT ON main.batch BEGIN
    INSERT INTO arrived VALUES (NEW.stream, NEW.first_offset, NEW.last_offset, NEW.body, NEW.digest);
END""",
)
_ROWS = """SELECT b.first_offset, b.body, b.digest FROM {} b JOIN stream s ON s.id = b.stream
WHERE s.name = ? AND b.first_offset > ? ORDER BY b.first_offset"""

_FORKED = {"refused", "fork"}

Values = dict[int, int]
"""Values of one store by offset, released ones included."""


class ValueJudge:
    """One for each world. `found` counts what it found, by kind; it never ends a schedule."""

    def __init__(self) -> None:
        self.zone_of: dict[int, str] = {}
        """The zone that recorded a value."""
        self.held: dict[str, Values] = {}
        self._present: dict[str, Counter[int]] = {}
        """By node, how often its log holds a value."""
        self._ever: dict[str, set[int]] = {}
        """By zone, the values that were ever durable at one of its machines."""
        self.told: set[int] = set()
        """Values that a hole has reported as gone."""
        self._released: dict[str, int] = {}
        self._frontiers: dict[str, dict[str, int]] = {}
        """By node, the frontiers at the commit before: within a commit they also pass what it declares as expired."""
        self.found: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def _report(self, kind: str, text: str) -> None:
        self.found[kind] += 1
        self.examples.setdefault(kind, text)

    # --- stores

    def recorded(self, zone: str, values: Sequence[int]) -> None:
        """A zone is about to record facts with these values."""
        self.zone_of.update(dict.fromkeys(values, zone))

    def image_of(self, node: Node) -> Values:
        """What a copy of the node's files holds, made now."""
        return dict(self.held.get(node.name, {}))

    def reopened(self, node: Node, image: Values | None) -> None:
        """A store was opened. `image`: what the files were known to hold, if not those of the moment before."""
        for statement in _RECORD:
            stepped.writer_of(node.running).execute(statement)
        if image is not None:
            self.held[node.name] = dict(image)
        end, known = node.running.end_offset(STREAM), self.held.get(node.name, {})
        # Not read from the file again: there a batch may be damaged meanwhile, and a comparison repairs it.
        self.held[node.name] = {offset: value for offset, value in known.items() if offset <= end}
        self._present[node.name] = Counter(self.held[node.name].values())
        self._released[node.name] = node.released_offset
        self._frontiers[node.name] = {}
        self._note(node, "batch")

    def committed(self, node: Node) -> None:
        """A store has committed: rows may have arrived, and rows may have been released."""
        self._note(node, "arrived")
        stepped.writer_of(node.running).execute("DELETE FROM arrived")
        self._check_released(node)

    def died_in_commit(self, node: Node) -> None:
        """A node dies in a commit, which may be durable, and may have released what arrived in it."""
        self._ever.setdefault(node.zone, set()).update(value for _, value in _values(node, "arrived", 0))

    def _note(self, node: Node, table: str) -> None:
        held, present = self.held[node.name], self._present[node.name]
        ever, after = self._ever.setdefault(node.zone, set()), max(self.held[node.name], default=0)
        for offset, value in _values(node, table, after):
            held[offset] = value
            ever.add(value)
            present[value] += 1
            if present[value] == 2:
                self._report("doubled", f"{node.name} stores value {value} again at offset {offset}")

    def _check_released(self, node: Node) -> None:
        """What retention released because every consumer had passed it: at each consumer's zone it was durable once."""
        before, now = self._released.get(node.name, 0), node.released_offset
        frontiers = self._frontiers.get(node.name, {})
        self._frontiers[node.name] = {consumer.name: consumer.frontier for consumer in node.running.consumers.all()}
        self._released[node.name] = now
        values = [
            (offset, self.held[node.name][offset])
            for offset in range(before + 1, now + 1)
            if offset in self.held[node.name]
        ]
        for name, frontier in frontiers.items():
            zone = name.split(".")[0]
            durable = self._ever.get(zone, set())
            for offset, value in values:
                if (
                    offset <= frontier
                    and value not in durable
                    and self.zone_of[value] != zone
                    and value not in self.told
                ):
                    self._report("unread", f"{node.name} releases value {value} at {offset}, which {zone} never had")

    def told_gone(self, node: Node, first_offset: int, last_offset: int) -> None:
        """A hole of a node's log is about to be reported."""
        held = self.held.get(node.name, {})
        self.told.update(held[offset] for offset in range(first_offset, last_offset + 1) if offset in held)

    def cloned(self, node: Node, twin: Node) -> None:
        """A second machine starts from a copy of a node's files."""
        self.held[twin.name] = self.image_of(node)

    # --- the end

    def check_end(self, nodes: list[Node]) -> None:
        """Everything has converged: each node has what its peers hold intact."""
        for kind, text in self.missing(nodes):
            self._report(kind, text)

    def missing(self, nodes: list[Node]) -> Iterator[tuple[str, str]]:
        """The values that a node lacks and a peer holds intact: lost, home, or refused and said so."""
        spans = {node.name: _spans(node) for node in nodes}
        for node in nodes:
            here, present = node.running.reader.held(STREAM), self._present[node.name]
            forks = [
                f"{incident.subject} {incident.detail}"
                for incident in node.running.reader.incidents()
                if incident.kind in _FORKED
            ]
            for pull in node.pulls:
                theirs = {} if pull.is_fenced else spans[pull.peer.name]
                for value in sorted(value for value in theirs.keys() - self.told if not present[value]):
                    kind = "home" if self.zone_of[value] == node.zone else "lost"
                    origin, first, last = theirs[value]
                    is_said = any(str(origin) in fork for fork in forks)
                    # Not only facts with values: a notice takes a sequence, too.
                    held = [held.span for held in here.get(origin, ())]
                    if is_said and intersect(held, [(first, last)]):
                        kind = "refused"
                    yield kind, f"{node.name} lacks value {value}, which {pull.peer.name} holds"


def _spans(node: Node) -> dict[int, tuple[Origin, int, int]]:
    """The origin and sequences of the batch in which a node holds each readable value."""
    return {value: span for _, value, span in _placed(node, "batch", 0)}


def _values(node: Node, table: str, after_offset: int) -> Iterator[tuple[int, int]]:
    """The readable values in a table of batches, by offset, as recorded by the harness."""
    return ((offset, value) for offset, value, _ in _placed(node, table, after_offset))


def _placed(node: Node, table: str, after_offset: int) -> Iterator[tuple[int, int, tuple[Origin, int, int]]]:
    """The same, each with the origin and sequences of its batch."""
    known = node.world.values.zone_of if node.world.values else {}
    for first, body, digest in (
        stepped.writer_of(node.running).execute(_ROWS.format(table), (STREAM, after_offset)).fetchall()
    ):
        with suppress(BatchError):
            batch = parse(body + digest)
            if batch.header.kind is not Kind.SAMPLES:
                continue
            span = batch.header.origin, batch.header.first_sequence, batch.header.last_sequence
            for offset, value in enumerate(open_samples(batch).values, first):
                if value in known:
                    yield offset, int(value), span
