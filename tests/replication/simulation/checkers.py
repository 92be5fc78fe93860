"""What must hold in every store, checked from outside after each commit, after each restart, and at the end.

    once          no batch is stored twice in a stream, and no fact under two names
    dense         offsets have no gaps; a store that was reopened holds what it held
    order         batches of one life arrive in the order in which they were sealed, except those that were skipped
    chain         each batch names one that its zone sealed before it, and has the same bytes in every store
    frontier      never moves back, never passes the end of the log, and a confirmation never names more than the
                  requester holds durably
    skipped       a node has what the log of the machine that it reads has up to its position, or has reported it
    holes         what a peer reports as gone is gone: released by retention, or damaged by the disk
    lost          at the end every batch that a peer ever held has arrived, except what was reported as gone
    acknowledged  at the end every acknowledged fact is at every sink, and in its own store at the acknowledged offset
    version       nothing is accepted from a peer of another major version
    refused       what a node refuses overlaps other facts that it holds of the same life, and that life ran twice
    echo          no page has facts of the zone that asks
    home          at the end a node has all facts of its own zone that its peers hold intact
    equal         with anti-entropy, at the end every batch that a peer holds intact is intact here
    proven        no receiver takes an answer that its broker forged
    fenced        no instance confirms for a consumer once another instance has its lease
    forged        no store holds facts that an attacker made, except the attacker's own

The network itself checks that everything converges within a bound. A checker that finds a violation raises Violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from agent.batch import NO_DIGEST, Kind, Origin, open_samples, parse
from agent.columns import BatchError
from agent.fact_store import FactStore
from agent.lease import NO_LEASE, Lease
from agent.pages import Declined, OriginRange
from agent.positions import Position
from tests.replication.simulation import stepped

if TYPE_CHECKING:
    from tests.replication.simulation.network import Node, Pull

STREAM = "facts.telemetry"
EVERYTHING = 2**40
_RECORD = (
    """CREATE TEMP TABLE inserted AS
SELECT stream, first_offset, last_offset, origin, first_sequence, count, digest, previous_digest FROM batch LIMIT 0""",
    """CREATE TEMP TRIGGER record_inserted AFTER INSERT ON main.batch BEGIN
    INSERT INTO inserted VALUES (NEW.stream, NEW.first_offset, NEW.last_offset, NEW.origin, NEW.first_sequence,
        NEW.count, NEW.digest, NEW.previous_digest);
END""",
)
"""A temporary table of every batch inserted: one may be released within the commit in which it arrived."""
_ROWS = """SELECT b.first_offset, b.last_offset, o.zone, o.life, b.first_sequence, b.count, b.digest, b.previous_digest
FROM {} b JOIN named_origin o ON o.id = b.origin JOIN stream s ON s.id = b.stream
WHERE s.name = ? AND b.first_offset > ? ORDER BY b.first_offset"""


_BODIES = """SELECT b.body, b.digest FROM batch b JOIN stream s ON s.id = b.stream WHERE s.name = ?
UNION ALL SELECT r.body, r.digest FROM repaired r JOIN stream s ON s.id = r.stream WHERE s.name = ?"""


class Violation(AssertionError):
    """What a checker found."""


class Key(NamedTuple):
    """The identity of a batch. The digest is part of it, because a restored store may write another batch under the
    same sequences."""

    origin: Origin
    first_sequence: int
    digest: bytes


@dataclass(slots=True)
class Row:
    """A batch as one store holds it."""

    first_offset: int
    last_offset: int
    key: Key
    last_sequence: int
    previous_digest: bytes


@dataclass
class Log:
    """Every batch that a node's stream held, by offset, without those that a restored image removed."""

    rows: list[Row] = field(default_factory=list)
    keys: set[Key] = field(default_factory=set)
    ends: dict[tuple[Origin, int], bytes] = field(default_factory=dict)
    highest: dict[Origin, int] = field(default_factory=dict)
    frontiers: dict[str, int] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return self.rows[-1].last_offset if self.rows else 0

    def add(self, row: Row) -> None:
        """Append a batch."""
        self.rows.append(row)
        self.keys.add(row.key)
        self.ends[row.key.origin, row.last_sequence] = row.key.digest
        self.highest[row.key.origin] = max(row.last_sequence, self.highest.get(row.key.origin, 0))

    def overlaps(self, row: Row) -> bool:
        """Whether other facts of the same life are held under sequences of a batch."""
        origin, first = row.key.origin, row.key.first_sequence
        if first > self.highest.get(origin, 0):  # as nearly all
            return False
        return any(
            kept.key.origin == origin and kept.key.first_sequence <= row.last_sequence and first <= kept.last_sequence
            for kept in self.rows
        )

    def between(self, first_offset: int, last_offset: int) -> list[Row]:
        """Batches that touch a range of offsets."""
        return [row for row in self.rows if row.first_offset <= last_offset and first_offset <= row.last_offset]


class Offered(NamedTuple):
    """A page handed to a store: its batches and holes, and which machine served it in which life."""

    sealed: Sequence[bytes]
    holes: Sequence[tuple[int, int, str]]
    served: tuple[str, int]


class Checkers:
    """One for each world."""

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self.logs: dict[str, Log] = {}
        self.gone: set[Key] = set()
        """Reported as gone by a peer, or removed by a restored image before another store had them."""
        self.acknowledged: set[Key] = set()
        self.forged: set[Key] = set()
        """Sealed by an attacker on a relay that was taken over."""
        self.damaged_origins: set[Origin] = set()
        """Origins of batches that a disk has damaged somewhere: what lies between such a batch and the head before it
        may have no signature any more that proves it to the next zone."""
        self.is_hostile = False
        """Whether there was one: pages of an attacker promise no order, and no truth about holes."""
        self.forks: set[Origin] = set()
        """Lives that may run twice, because their memory was put back."""
        self.refused: dict[str, set[Key]] = {}
        """By node, the batches that it refused and reported because it holds others of that life."""
        self._offered: dict[str, dict[tuple[Pull, Position], Offered]] = {}
        self._announced_holes: dict[tuple[str, int, int, int], list[Row]] = {}
        self._gone_sequences: dict[Origin, set[int]] = {}
        self._declined_sequences: dict[tuple[str, Origin], set[int]] = {}
        """By node, what it declined because no signature covered it."""
        self._gap_sequences: dict[tuple[str, Origin], set[int]] = {}
        """By node, the sequences before a batch that came without them."""
        self.durable: dict[tuple[str, str, str, bytes], int] = {}
        """How far a peer's log was ever durable at its receiver: by (receiving zone, peer, stream, life)."""
        self._uncertain: dict[str, list[Row]] = {}
        self._acknowledged_ranges: dict[str, list[tuple[int, int]]] = {}
        self._values: dict[str, dict[int, object]] = {}
        self._sealed: set[Key] = set()
        self._ends: dict[tuple[str, int], dict[bytes, set[bytes]]] = {}
        """By zone and last sequence of a batch, its digest, by life."""

    def failed(self, text: str) -> Violation:
        """A violation to raise. It is also kept, because a future only logs what its callback raises."""
        self.violation = self.violation or Violation(text)
        return self.violation

    # --- after each commit

    def committed(self, node: Node) -> None:
        """A store has committed."""
        log = self.logs.setdefault(node.name, Log())
        store = node.running
        if store.end_offset(STREAM) > log.end_offset:
            for row in _rows(store, "inserted", log.end_offset):
                self._check_row(node, log, row)
        self._resolve(node, log)
        for consumer in store.consumers.all():
            before = log.frontiers.get(consumer.name, 0)
            if not before <= consumer.frontier <= store.end_offset(consumer.stream):
                raise self.failed(f"frontier: {consumer.name} at {node.name} from {before} to {consumer.frontier}")
            log.frontiers[consumer.name] = consumer.frontier

    def _check_row(self, node: Node, log: Log, row: Row) -> None:
        where = f"{node.name} offset {row.first_offset}"
        origin = row.key.origin
        if row.first_offset != log.end_offset + 1:
            raise self.failed(f"dense: {where} where {log.end_offset + 1} is next")
        if row.key in self.forged:
            if node.attacker is None:
                raise self.failed(f"forged: {where} holds {row.key}, which {origin.zone} never recorded")
            log.add(row)
            return
        if row.key in log.keys or log.overlaps(row):
            raise self.failed(f"once: {where} holds {row.key} again")
        highest = log.highest.get(origin, 0)
        if row.key.first_sequence > highest + 1:  # a gap; one before the first batch is where a zone before declined
            skipped = self._gap_sequences.setdefault((node.name, origin), set())
            skipped.update(range(highest + 1, row.key.first_sequence))
        is_late = row.key.first_sequence <= highest
        if is_late and not self.is_hostile and not self._is_reported(node, row.key):
            raise self.failed(f"order: {where} holds {row.key} after {highest}")
        self._check_chain(where, row)
        log.add(row)

    def _is_reported(self, node: Node, key: Key) -> bool:
        """Whether a batch was reported as gone or declined, or was skipped when a later one of its life arrived."""
        late = (self._declined_sequences, self._gap_sequences)
        return key in self.gone or any(key.first_sequence in place.get((node.name, key.origin), ()) for place in late)

    def _check_chain(self, where: str, row: Row) -> None:
        zone, life = row.key.origin.zone, row.key.origin.life
        if (row.key.first_sequence == 1) != (row.previous_digest == NO_DIGEST):
            raise self.failed(f"chain: {where} begins at {row.key.first_sequence} after {row.previous_digest.hex()}")
        if row.key in self._sealed:
            return
        before = self._ends.get((zone, row.key.first_sequence - 1))
        if before is not None and row.previous_digest not in set().union(*before.values()):
            raise self.failed(f"chain: {where}: {row.key} does not follow a batch before it")
        ends = self._ends.setdefault((zone, row.last_sequence), {}).setdefault(life, set())
        if ends and row.key.origin not in self.forks:
            raise self.failed(f"chain: {where}: {row.key} is not the batch that its life sealed")
        self._sealed.add(row.key)
        ends.add(row.key.digest)

    # --- events

    def append_acknowledged(self, node: Node, first_offset: int, values: Sequence[object]) -> None:
        """An append was answered as durable at these offsets; `committed` looks its batches up."""
        last_offset = first_offset + len(values) - 1
        self._values.setdefault(node.name, {}).update(enumerate(values, first_offset))
        self._acknowledged_ranges.setdefault(node.name, []).append((first_offset, last_offset))

    def _resolve(self, node: Node, log: Log) -> None:
        for first_offset, last_offset in self._acknowledged_ranges.pop(node.name, ()):
            if last_offset > log.end_offset:
                raise self.failed(
                    f"acknowledged: offsets {first_offset} to {last_offset} of {node.name} are not in its file"
                )
            self.acknowledged.update(row.key for row in log.between(first_offset, last_offset))

    def confirmation_arrived(self, receiver: Node, peer: Node, stream: str, life: bytes, offset: int) -> None:
        """A confirmation arrived at a peer."""
        durable = self.durable.get((receiver.zone, peer.zone, stream, life), 0)
        if offset > durable:
            raise self.failed(
                f"frontier: {receiver.name} confirms {offset} of {stream} to {peer.name}, {durable} is durable"
            )

    def lease_held(self, node: Node, consumer: str, lease: Lease) -> None:
        """The store granted a lease or found the shown one in force; called in the order of its decisions."""
        leases = self.logs[node.name].leases
        leases[consumer] = max(lease, leases.get(consumer, NO_LEASE), key=lambda held: held.epoch)

    def confirmation_durable(self, node: Node, consumer: str, instance: str, lease: int | None) -> None:
        """A confirmation of an instance is durable at a peer. It was sent under this lease; 0 requests one. The holder
        may show a lower one, because each of two machines of the peer counts its own."""
        in_force = self.logs[node.name].leases.get(consumer, NO_LEASE)
        if lease != 0 and (lease or 0) < in_force.epoch and instance != in_force.holder:
            raise self.failed(
                f"fenced: {instance} confirms for {consumer} at {node.name} under lease {lease}, in force is {in_force}"
            )

    def holes_announced(self, peer: Node, holes: Sequence[tuple[int, int, str]]) -> None:
        """A peer is about to report holes. Their batches are looked up now, because an older copy may have replaced the
        peer's store by the time the page is stored."""
        for first, last, _ in holes:
            announced = self._announced_holes.setdefault((peer.name, peer.life, first, last), [])
            for row in self.logs[peer.name].between(first, last):
                if row.key not in self.gone and row.key not in peer.damaged and row.last_offset > peer.released_offset:
                    raise self.failed(f"holes: {peer.name} reports that {row.key} is gone, and it is not")
                announced.append(row)
            if peer.world.values is not None:
                peer.world.values.told_gone(peer, first, last)

    def hidden(self, relay: Node, first_offset: int, last_offset: int) -> None:
        """An attacker is about to name facts as gone that are not."""
        self._announced_holes[relay.name, relay.life, first_offset, last_offset] = []

    def page_offered(self, pull: Pull, position: Position, page: Offered) -> None:
        """A page is handed to a store. If the node dies between commit and answer, `reopened` checks the page."""
        self._offered.setdefault(pull.node.name, {})[pull, position] = page

    def _check_pages_durable_at_death(self, node: Node) -> None:
        """Check the pages that were durable when the node died. Their position shows which they are, and incidents show
        what it reported."""
        for (pull, position), page in self._offered.pop(node.name, {}).items():
            if position not in node.running.inbound.trail(pull.peer.zone, STREAM):
                continue
            self._add_gone(page)
            self.facts_refused(node, page.sealed, _reported(node, "refused"))

    def _add_gone(self, page: Offered) -> None:
        for first, last, _ in page.holes:
            announced = (*page.served, first, last)
            for row in (
                self._announced_holes.get(announced, ()) if self.is_hostile else self._announced_holes[announced]
            ):
                self.gone.add(row.key)
                self._gone_sequences.setdefault(row.key.origin, set()).update(
                    range(row.key.first_sequence, row.last_sequence + 1)
                )

    def put_answered(self, pull: Pull, position: Position) -> None:
        """A store has answered for a page."""
        self._offered[pull.node.name].pop((pull, position), None)

    def page_stored(self, pull: Pull, lives: Sequence[Position], page: Offered) -> None:
        """A page is durable, and the position in each of its lives with it."""
        self.note_durable(pull, lives)
        self._add_gone(page)

    def note_durable(self, pull: Pull, lives: Sequence[Position]) -> None:
        """The position in each of these lives is durable."""
        for position in lives:
            key = (pull.node.zone, pull.peer.zone, pull.stream, position.life)
            self.durable[key] = max(position.offset, self.durable.get(key, 0))

    def check_skipped(self, node: Node, machines: Sequence[Node], offset: int, page: Offered) -> None:
        """A page is durable, and what it reports is noted: the log of the machine that served it has nothing before
        this offset that the node does not have, and has not reported."""
        if self.is_hostile or page.served not in {(machine.name, machine.life) for machine in machines}:
            return  # the machine is gone, and its log
        log, held = self.logs[page.served[0]], self.logs[node.name].keys | self.gone
        for row in log.rows:
            if row.last_offset > offset:
                break
            key = row.key
            if key in held or key.origin.zone == node.zone or self._has_reported(node.name, key):
                continue
            if key.first_sequence not in self._declined_sequences.get((node.name, key.origin), ()):
                raise self.failed(f"skipped: {node.name} is at {offset} of {page.served[0]} and has no {key}")

    def facts_refused(self, node: Node, sealed: Sequence[bytes], ranges: Sequence[OriginRange]) -> None:
        """A node has refused facts of a page and reported their ranges."""
        if node.attacker is not None:
            return  # it refuses what contradicts the facts it has forged
        reported = {
            (Origin(sequences.zone, sequences.life), n)
            for sequences in ranges
            for n in range(sequences[2], sequences[3] + 1)
        }
        for batch in map(parse, sealed if reported else ()):
            header = batch.header
            key = Key(header.origin, header.first_sequence, batch.digest)
            if (header.origin, header.first_sequence) not in reported:
                continue
            overlaps = self.logs[node.name].overlaps(Row(0, 0, key, header.last_sequence, header.previous_digest))
            if not overlaps or header.origin not in self.forks:
                raise self.failed(f"refused: {node.name} refuses {key}")
            self.refused.setdefault(node.name, set()).add(key)

    def facts_declined(self, node: Node, declined: Sequence[Declined]) -> None:
        """A node has left out facts that their origin did not prove, and reported them; they may come later."""
        for _, _, sequences, _ in declined:
            self._note_declined(node, sequences)

    def _note_declined(self, node: Node, sequence_range: OriginRange) -> None:
        sequences = self._declined_sequences.setdefault(
            (node.name, Origin(sequence_range.zone, sequence_range.life)), set()
        )
        sequences.update(range(sequence_range.first_sequence, sequence_range.last_sequence + 1))

    def _has_reported(self, node: str, key: Key) -> bool:
        """Whether a node reported a batch as refused or unproven, or holds others of a life that ran twice."""
        if key in self.refused.get(node, ()) or self._is_unproven(node, key):
            return True
        return key.origin in self.forks and any(
            row.key.origin == key.origin and row.key.first_sequence <= key.first_sequence <= row.last_sequence
            for row in self.logs[node].rows
        )

    def _is_unproven(self, node: str, key: Key) -> bool:
        """Whether a node declined a batch of an origin of which batches are damaged."""
        declined = self._declined_sequences.get((node, key.origin), ())
        return key.origin in self.damaged_origins and key.first_sequence in declined

    def died_in_commit(self, node: Node) -> None:
        """A node dies in a commit; `reopened` finds out whether the commit is durable."""
        self._uncertain[node.name] = _rows(node.running, "inserted", self.logs[node.name].end_offset)

    def reopened(self, node: Node, *, is_old: bool) -> None:
        """A store was reopened: it must hold what it held, except what retention has deleted. `is_old`: from restored
        files, so without what it held since."""
        store, released = node.running, node.released_offset
        stepped.writer_of(store).execute("PRAGMA temp_store = MEMORY")
        for statement in _RECORD:
            stepped.writer_of(store).execute(statement)
        found = {row.first_offset: row for row in _rows(store, "batch", 0)}
        if is_old:
            self._restored(node, [*found.values()])
        log = self.logs.setdefault(node.name, Log())
        for row in log.rows:
            if row.last_offset > released and found.get(row.first_offset) != row:
                raise self.failed(
                    f"acknowledged: {row.key} was durable at {node.name} and is missing after the restart"
                )
        found = {row.first_offset: row for row in self._uncertain.pop(node.name, ())} | found
        for row in sorted(found.values(), key=lambda row: row.first_offset):
            if log.end_offset < row.first_offset <= store.end_offset(STREAM):
                self._check_row(node, log, row)
        self.committed(node)
        self._check_pages_durable_at_death(node)
        for pull in node.pulls:
            self.note_durable(pull, store.inbound.trail(pull.peer.zone, pull.stream))

    def cloned(self, node: Node, twin: Node) -> None:
        """A second machine starts from a copy of a node's files."""
        self.logs[twin.name] = deepcopy(self.logs[node.name])
        self._values[twin.name] = dict(self._values.get(node.name, {}))

    def retired(self, node: Node) -> None:
        """A machine is stopped for good; what no other store has is gone with it."""
        others = set[Key]().union(*(log.keys for name, log in self.logs.items() if name != node.name))
        self.gone |= self.logs[node.name].keys - others
        for pending in (self._acknowledged_ranges, self._uncertain):
            pending.pop(node.name, None)

    def _restored(self, node: Node, found: list[Row]) -> None:
        """What only this node held, and the restored image lacks, is gone."""
        released, before = node.released_offset, self.logs[node.name]
        self.logs[node.name] = log = Log()
        for row in [row for row in before.rows if row.last_offset <= released] + found:
            log.add(row)
        held = set[Key]().union(*(log.keys for log in self.logs.values()))
        self.gone |= before.keys - held

        # Values of facts that the image lacks are forgotten, also where the image has others at their offsets: it may
        # be of a life before the one that it replaces.
        values, known = self._values.get(node.name, {}), {(row.first_offset, row.key) for row in before.rows}
        same = [row for row in log.rows if (row.first_offset, row.key) in known]
        kept = {offset for row in same for offset in range(row.first_offset, row.last_offset + 1)}
        self._values[node.name] = {offset: value for offset, value in values.items() if offset in kept}

    # --- the end

    def check_end(self, nodes: list[Node]) -> None:
        """Everything has converged: each receiver has what its peers had."""
        for node in nodes:
            self._check_bytes(node)
            for pull in node.pulls:
                if pull.is_fenced:
                    continue  # its log ends where it was fenced
                wanted = {key for key in self.logs[pull.peer.name].keys if key.origin.zone != node.zone}
                missing = wanted - self.logs[node.name].keys - self.gone
                if missing := {key for key in missing if not self._has_reported(node.name, key)}:
                    raise self.failed(
                        f"lost: {len(missing)} batches of {pull.peer.name} never came to {node.name}: {min(missing, key=str)}"
                    )
        for node in nodes:
            if node.is_sink and not any(pull.is_fenced for pull in node.pulls):
                missing = {key for key in self.acknowledged if key.origin.zone != node.zone} - self.gone
                missing -= self.logs[node.name].keys
                if missing := {key for key in missing if not any(self._has_reported(log, key) for log in self.logs)}:
                    raise self.failed(
                        f"acknowledged: {len(missing)} batches are not at {node.name}: {min(missing, key=str)}"
                    )

    def differences(self, nodes: list[Node]) -> Iterator[str]:
        """Batches that a peer holds intact and a node does not: once reported as gone, or damaged by the node's disk.
        Read from the tables."""
        intact = {node.name: _intact(node.running) for node in nodes}
        for node in nodes:
            for sequences in _reported(node, "declined"):  # also what only a comparison requested, and declined
                self._note_declined(node, sequences)
            for pull in node.pulls:
                held = self.logs[node.name].keys
                wanted = {key for key in intact[pull.peer.name] if key.origin.zone != node.zone or key in held}
                wanted = {key for key in wanted if key in held or not self._is_unproven(node.name, key)}
                if lacks := wanted - intact[node.name]:
                    yield f"equal: {node.name} lacks {len(lacks)} batches of {pull.peer.name}: {min(lacks, key=str)}"

    def lost_at_home(self, nodes: list[Node]) -> Iterator[str]:
        """A node's own batches that a peer holds intact and the node does not, unless it has no room for them."""
        for node in [node for node in nodes if not node.running.is_nearly_full(STREAM)]:
            keys = self.logs[node.name].keys
            for pull in [pull for pull in node.pulls if not pull.is_fenced]:
                theirs = self.logs[pull.peer.name].keys
                own = {key for key in theirs - keys if key.origin.zone == node.zone}
                own = {key for key in own if not self._has_reported(node.name, key)}
                if own and (lost := own & _intact(pull.peer.running)):
                    name = pull.peer.name
                    yield f"home: {node.name} lacks {len(lost)} batches of its own at {name}: {min(lost, key=str)}"

    def _check_bytes(self, node: Node) -> None:
        """A store serves what was sealed, byte for byte."""
        page = node.running.read(STREAM, 0, EVERYTHING, EVERYTHING)
        values, acknowledged = list[object](), self._values.get(node.name, {})
        for stored in page.batches:
            batch = parse(stored.sealed)
            key = Key(batch.header.origin, batch.header.first_sequence, batch.digest)
            if key not in self._sealed:
                raise self.failed(f"chain: {node.name} serves {key}, which no store sealed")
            if batch.header.kind is Kind.SAMPLES:
                values += open_samples(batch).values
                for offset, value in enumerate(open_samples(batch).values, stored.first_offset):
                    if acknowledged.get(offset, value) != value:
                        raise self.failed(
                            f"acknowledged: {node.name} has {value} at {offset}, {acknowledged[offset]} was acknowledged"
                        )
        self._check_once(node, values)

    def _check_once(self, node: Node, values: Sequence[object]) -> None:
        if len(values) != len(set(values)):
            twice = [value for value, count in Counter(values).items() if count > 1]
            raise self.failed(f"once: {node.name} holds facts twice: {twice}")


def _intact(store: FactStore) -> set[Key]:
    """The batches that are as they were sealed, in their rows or as repaired copies."""
    found, stream = set[Key](), (STREAM,)
    for body, digest in stepped.writer_of(store).execute(_BODIES, stream * 2):
        with suppress(BatchError):
            batch = parse(body + digest)
            found.add(Key(batch.header.origin, batch.header.first_sequence, batch.digest))
    return found


def _reported(node: Node, kind: str) -> list[OriginRange]:
    """The ranges of the stream in a node's incidents of a kind."""
    found = []
    for incident in node.running.reader.incidents():
        if incident.kind == kind and incident.subject.startswith(f"{STREAM} "):
            _, _, origin, first, _, last = incident.subject.replace(",", "").split(" ")
            zone, life = origin.split("/")
            found.append(OriginRange(zone, bytes.fromhex(life), int(first), int(last)))
    return found


def _rows(store: FactStore, table: str, after_offset: int) -> list[Row]:
    """The rows of a table, read on the writer's connection and not through the code under test."""
    origins: dict[tuple[str, bytes], Origin] = {}
    rows = []
    found = stepped.writer_of(store).execute(_ROWS.format(table), (STREAM, after_offset)).fetchall()
    for first, last, zone, life, sequence, count, digest, previous in found:
        origin = origins.setdefault((zone, life), Origin(zone, life))
        rows.append(Row(first, last, Key(origin, sequence, digest), sequence + count - 1, previous))
    return rows
