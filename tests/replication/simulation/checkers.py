"""What must be true of every store, looked at from outside after each commit, each restart and at the end.

    once        no batch lies twice in a stream, nor any fact under two names
    dense       offsets have no gaps, a store that was opened again holds what it held
    order       batches of one origin come in the order they were sealed in, save what was told to be gone and came another way
    chain       each batch names the one before it of its origin, and is the same bytes wherever it lies
    frontier    never moves back, never passes the end of the log, is never asked to pass what the asker holds durably
    position    how far a peer was read in one of its lives never moves back
    holes       what a peer says is gone is gone: released by retention, or damaged by the disk
    lost        at the end every batch a peer ever held is there, except what was told to be gone
    acknowledged  at the end what an appender was told is safe is everywhere it belongs, and at home where he was told
    resealed    a store gives another name only to what nobody else has
    version     nothing is taken from a peer of another major version
    refused     what a node passes over by name contradicts what it holds
    uncompared  what a node says it cannot compare it has released
    echo        nobody is sent facts of his own zone
    equal       where stores are compared, at the end every batch that a peer has whole is whole here
    fenced      nobody confirms in a consumer's name once another instance has its lease
    store       no store ends itself for what a peer says unless it is a copy, or has a twin (looked at by the nodes themselves)

That everything converges within a bound is checked by the network itself. A checker that is not content raises
Violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from agent.batch import NO_DIGEST, Kind, Origin, open_samples, parse
from agent.columns import BatchError
from agent.fact_store import FactStore
from agent.pages import OriginRange
from tests.replication.simulation import stepped

if TYPE_CHECKING:
    from tests.replication.simulation.network import Node, Pull

STREAM = "facts.telemetry"
EVERYTHING = 2**40
_WATCH = """
PRAGMA temp_store = MEMORY;
CREATE TEMP TABLE put AS SELECT stream, first_offset, last_offset, origin, first_sequence, count, digest, previous_digest FROM batch LIMIT 0;
CREATE TEMP TRIGGER put_batch AFTER INSERT ON main.batch BEGIN
    INSERT INTO put VALUES (NEW.stream, NEW.first_offset, NEW.last_offset, NEW.origin, NEW.first_sequence, NEW.count, NEW.digest,
        NEW.previous_digest);
END
"""
"""Beside the store's file, what was put into it: a batch may come and be released within one commit."""
_ROWS = """SELECT b.first_offset, b.last_offset, o.zone, o.epoch, b.first_sequence, b.count, b.digest, b.previous_digest
FROM {} b JOIN origin o ON o.id = b.origin JOIN stream s ON s.id = b.stream
WHERE s.name = ? AND b.first_offset > ? ORDER BY b.first_offset"""


_BODIES = """SELECT b.body, b.digest FROM batch b JOIN stream s ON s.id = b.stream WHERE s.name = ?
UNION ALL SELECT r.body, r.digest FROM repaired r JOIN stream s ON s.id = r.stream WHERE s.name = ?"""


class Violation(AssertionError):
    """A checker's complaint."""


class Key(NamedTuple):
    """A batch for ever: its origin and its first sequence; and its digest, for a store that was put back may write
    another one."""

    origin: Origin
    first_sequence: int
    digest: bytes


@dataclass(slots=True)
class Row:
    """A batch as it lies in one store."""

    first_offset: int
    last_offset: int
    key: Key
    last_sequence: int
    previous_digest: bytes


@dataclass
class Log:
    """Everything one node's stream was ever seen to hold, in the order of offsets; what a restored image took away is
    gone."""

    rows: list[Row] = field(default_factory=list)
    keys: set[Key] = field(default_factory=set)
    ends: dict[tuple[Origin, int], bytes] = field(default_factory=dict)
    highest: dict[Origin, int] = field(default_factory=dict)
    frontiers: dict[str, int] = field(default_factory=dict)
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return self.rows[-1].last_offset if self.rows else 0

    def add(self, row: Row) -> None:
        """One more batch at the end."""
        self.rows.append(row)
        self.keys.add(row.key)
        self.ends[row.key.origin, row.last_sequence] = row.key.digest
        self.highest[row.key.origin] = max(row.last_sequence, self.highest.get(row.key.origin, 0))

    def contradicts(self, row: Row) -> bool:
        """Whether a batch cannot be of the history that is here: its sequences are here as other batches, or what it
        follows is, or what is here behind it follows another."""
        origin, first = row.key.origin, row.key.first_sequence
        if any(
            one.key.origin == origin and one.key.first_sequence <= row.last_sequence and first <= one.last_sequence
            for one in self.rows
        ):
            return row.key not in self.keys
        behind = origin, row.last_sequence + 1
        if any(
            (one.key.origin, one.key.first_sequence) == behind and one.previous_digest != row.key.digest
            for one in self.rows
        ):
            return True
        follows = self.ends.get((origin, first - 1))
        return follows is not None and follows != row.previous_digest

    def between(self, first_offset: int, last_offset: int) -> list[Row]:
        """Batches that touch a range of offsets."""
        return [row for row in self.rows if row.first_offset <= last_offset and first_offset <= row.last_offset]


class Offered(NamedTuple):
    """A page on its way into a store: its batches and holes, and which machine served it in which life."""

    sealed: Sequence[bytes]
    holes: Sequence[tuple[int, int, str]]
    served: tuple[str, int]


class Checkers:
    """One for each world."""

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self.logs: dict[str, Log] = {}
        self.gone: set[Key] = set()
        """Told to be gone by somebody, or taken away by a restored image before anybody else had it."""
        self.acknowledged: set[Key] = set()
        self.forks: set[Origin] = set()
        """Whose store was put back to an old copy without a trace, and wrote other facts under the same sequences."""
        self.passed_over: dict[str, set[Key]] = {}
        """What a node was offered and refused by name, since it holds another history."""
        self.uncompared: dict[str, set[OriginRange]] = {}
        """Of what a node says that it may have been offered other facts than it held, and has released."""
        self._offered: dict[str, dict[tuple[Pull, str, int], Offered]] = {}
        self._told_gone: dict[tuple[str, int, int, int], list[Row]] = {}
        self._gone_sequences: dict[Origin, set[int]] = {}
        self._refused_sequences: dict[tuple[str, Origin], set[int]] = {}
        self.durable: dict[tuple[str, str, str], int] = {}
        """How far an asker's stream of a peer's epoch was ever durable: (asking zone, peer, epoch)."""
        self._perhaps: dict[str, list[Row]] = {}
        self._told: dict[str, list[tuple[int, int]]] = {}
        self._values: dict[str, dict[int, object]] = {}
        self.renamed = 0
        """Batches that a store sealed anew under the epoch in which it went on."""
        self._sealed: set[Key] = set()
        self._ends: dict[tuple[Origin, int], set[bytes]] = {}

    def complaint(self, text: str) -> Violation:
        """What is wrong, to be raised; remembered, for whoever is called by a future may raise in vain."""
        self.violation = self.violation or Violation(text)
        return self.violation

    # ------------------------------------------------------------------------------------------------ after each commit

    def committed(self, node: Node) -> None:
        """A store has committed."""
        log = self.logs.setdefault(node.name, Log())
        store = node.running
        if store.end_offset(STREAM) > log.end_offset:
            for row in _rows(store, "put", log.end_offset):
                self._check_row(node, log, row)
        self._resolve(node, log)
        for consumer in store.consumers.all():
            before = log.frontiers.get(consumer.name, 0)
            if not before <= consumer.frontier <= store.end_offset(STREAM):
                raise self.complaint(
                    f"frontier: {consumer.name} at {node.name} from {before} to {consumer.frontier}, end {log.end_offset}"
                )
            log.frontiers[consumer.name] = consumer.frontier

    def _check_row(self, node: Node, log: Log, row: Row) -> None:
        where = f"{node.name} offset {row.first_offset}"
        origin = row.key.origin
        if row.first_offset != log.end_offset + 1:
            raise self.complaint(f"dense: {where} where {log.end_offset + 1} is next")
        if row.key in log.keys or log.contradicts(row):
            raise self.complaint(f"once: {where} holds {row.key} again")
        if row.key.first_sequence <= log.highest.get(origin, 0) and not self._was_named(node, row.key):
            raise self.complaint(f"order: {where} holds {row.key} behind {log.highest[origin]}")
        self._check_chain(where, row)
        log.add(row)

    def _was_named(self, node: Node, key: Key) -> bool:
        """Whether somebody has said that a batch is gone; or, where there are two histories of its origin, that what
        the other one has in its place is, or the node that it passes that over."""
        if key in self.gone or key.origin not in self.forks:
            return key in self.gone
        named = self._gone_sequences.get(key.origin, set()), self._refused_sequences.get((node.name, key.origin), set())
        return any(key.first_sequence in one for one in named)

    def _check_chain(self, where: str, row: Row) -> None:
        if (row.key.first_sequence == 1) != (row.previous_digest == NO_DIGEST):
            raise self.complaint(f"chain: {where} begins at {row.key.first_sequence} after {row.previous_digest.hex()}")
        if row.key in self._sealed:
            return
        before = self._ends.get((row.key.origin, row.key.first_sequence - 1))
        if before is not None and row.previous_digest not in before:
            raise self.complaint(f"chain: {where}: {row.key} does not follow the batch before it")
        ends = self._ends.setdefault((row.key.origin, row.last_sequence), set())
        if ends and row.key.origin not in self.forks:
            raise self.complaint(f"chain: {where}: {row.key} is not the batch that its origin sealed")
        self._sealed.add(row.key)
        ends.add(row.key.digest)

    # ----------------------------------------------------------------------------------------------------- what happens

    def told(self, node: Node, first_offset: int, values: Sequence[object]) -> None:
        """An appender was told that its facts are durable, and where; which they are is seen after the commit."""
        last_offset = first_offset + len(values) - 1
        self._values.setdefault(node.name, {}).update(enumerate(values, first_offset))
        self._told.setdefault(node.name, []).append((first_offset, last_offset))

    def _resolve(self, node: Node, log: Log) -> None:
        for first_offset, last_offset in self._told.pop(node.name, ()):
            if last_offset > log.end_offset:
                raise self.complaint(
                    f"acknowledged: offsets {first_offset} to {last_offset} of {node.name} are not in its file"
                )
            self.acknowledged.update(row.key for row in log.between(first_offset, last_offset))

    def confirms(self, asker: Node, peer: Node, epoch: str | None, offset: int) -> None:
        """A confirmation arrived at a peer."""
        durable = self.durable.get((asker.zone, peer.zone, epoch or ""), 0)
        if epoch is not None and offset > durable:
            raise self.complaint(f"frontier: {asker.name} confirms {offset} to {peer.name}, {durable} is durable")

    def leased(self, node: Node, consumer: str, lease: int) -> None:
        """An instance was given a lease, or shown that its own is in force; told in the order of the store's
        decisions."""
        leases = self.logs[node.name].leases
        leases[consumer] = max(lease, leases.get(consumer, 0))

    def confirmed(self, node: Node, consumer: str, lease: int | None) -> None:
        """A confirmation is durable at a peer; it came with this lease, or asked for one."""
        in_force = self.logs[node.name].leases.get(consumer, 0)
        if lease != 0 and (lease or 0) < in_force:
            raise self.complaint(
                f"fenced: {consumer} at {node.name} confirms under lease {lease}, {in_force} is in force"
            )

    def tells(self, peer: Node, holes: Sequence[tuple[int, int, str]]) -> None:
        """A peer is about to say that facts of its log are gone. What they were is looked up now: by the time somebody
        has stored this, the peer's store may have been put back to another log."""
        for first, last, _ in holes:
            told = self._told_gone.setdefault((peer.name, peer.life, first, last), [])
            for row in self.logs[peer.name].between(first, last):
                if row.key not in self.gone and row.key not in peer.damaged and row.last_offset > peer.released_offset:
                    raise self.complaint(f"holes: {peer.name} tells that {row.key} is gone, and it is not")
                told.append(row)

    def offers(self, pull: Pull, epoch: str, offset: int, page: Offered) -> None:
        """A page is handed to a store. Should its node die when it is durable and before it says so, it is looked at
        afterwards."""
        self._offered.setdefault(pull.node.name, {})[pull, epoch, offset] = page

    def _durable_unsaid(self, node: Node) -> None:
        """Pages that were durable when the node died, by the position that they moved; what it has said of them is in
        its incidents."""
        for (pull, epoch, offset), page in self._offered.pop(node.name, {}).items():
            position = node.running.inbound.peer_position(pull.peer.zone, STREAM)
            if position is None or position.epoch.hex() != epoch or position.offset < offset:
                continue
            self._gone(page)
            self.refused(node, page.sealed, _named(node, "refused"))
            self.could_not_compare(node, _named(node, "uncompared"))

    def _gone(self, page: Offered) -> None:
        for first, last, _ in page.holes:
            for row in self._told_gone[*page.served, first, last]:
                self.gone.add(row.key)
                self._gone_sequences.setdefault(row.key.origin, set()).update(
                    range(row.key.first_sequence, row.last_sequence + 1)
                )

    def answered(self, pull: Pull, epoch: str, offset: int) -> None:
        """A store has said what became of a page."""
        self._offered[pull.node.name].pop((pull, epoch, offset), None)

    def stored(self, pull: Pull, epoch: str, offset: int, page: Offered) -> None:
        """A page is durable, and the position with it."""
        asker, peer = pull.node, pull.peer
        key = (asker.zone, peer.zone, epoch)
        self.durable[key] = max(offset, self.durable.get(key, 0))
        positions = self.logs[asker.name].positions
        before = positions.get((peer.zone, epoch), 0)
        if offset <= before:
            raise self.complaint(f"position: {asker.name} is at {before} of {peer.name} and goes back to {offset}")
        positions[peer.zone, epoch] = offset
        self._gone(page)

    def refused(self, node: Node, sealed: Sequence[bytes], ranges: Sequence[OriginRange]) -> None:
        """A node has passed over facts of a page, by name."""
        named = {(Origin(one.zone, one.epoch), n) for one in ranges for n in range(one[2], one[3] + 1)}
        for batch in map(parse, sealed if named else ()):
            header = batch.header
            key = Key(header.origin, header.first_sequence, batch.digest)
            if (header.origin, header.first_sequence) not in named:
                continue
            if not self.logs[node.name].contradicts(Row(0, 0, key, header.last_sequence, header.previous_digest)):
                raise self.complaint(f"refused: {node.name} passes over {key}, which it could hold")
            self.passed_over.setdefault(node.name, set()).add(key)
            sequences = self._refused_sequences.setdefault((node.name, header.origin), set())
            sequences.update(range(header.first_sequence, header.last_sequence + 1))

    def could_not_compare(self, node: Node, ranges: Sequence[OriginRange]) -> None:
        """A node has named facts that it may have been offered as others than it held."""
        for one in ranges:
            found = [row for row in self.logs[node.name].rows if _touches(one, row.key, row.last_sequence)]
            if not any(row.last_offset <= node.released_offset or row.key in node.damaged for row in found):
                raise self.complaint(f"uncompared: {node.name} says so of {one}, of which it has released nothing")
            self.uncompared.setdefault(node.name, set()).add(one)

    def _has_named(self, node: str, key: Key) -> bool:
        """Whether a node has said of a batch that it passes it over, or of its sequences that it could not compare
        them; in which case those of its own are not there to be compared with."""
        if key in self.passed_over.get(node, ()):
            return True
        rows = [row for row in self.logs[node].rows if row.key.origin == key.origin]
        return any(_touches(one, key, key.first_sequence) for one in self.uncompared.get(node, ())) and any(
            row.key.first_sequence <= key.first_sequence <= row.last_sequence for row in rows
        )

    def perhaps(self, node: Node) -> None:
        """A node dies in a commit; whether it is durable is known when it comes back."""
        self._perhaps[node.name] = _rows(node.running, "put", self.logs[node.name].end_offset)

    def reopened(self, node: Node, *, is_old: bool) -> None:
        """A store was opened again: what it held is there, but for what retention has deleted. `is_old`, with files
        that were restored: what it held since is not."""
        store, released = node.running, node.released_offset
        for statement in _WATCH.strip().split(";\n", 2):
            stepped.writer_of(store).execute(statement)
        found = {row.first_offset: row for row in _rows(store, "batch", 0)}
        if is_old:
            self._restored(node, [*found.values()])
        self._renamed(node, found)
        log = self.logs.setdefault(node.name, Log())
        for row in log.rows:
            if row.last_offset > released and found.get(row.first_offset) != row:
                raise self.complaint(f"acknowledged: {row.key} was durable at {node.name} and is not there any more")
        found = {row.first_offset: row for row in self._perhaps.pop(node.name, ())} | found
        for row in sorted(found.values(), key=lambda row: row.first_offset):
            if log.end_offset < row.first_offset <= store.end_offset(STREAM):
                self._check_row(node, log, row)
        self.committed(node)
        self._durable_unsaid(node)
        positions = dict[tuple[str, str], int]()  # where it was in epochs that were left is known in memory alone
        for pull in node.pulls:
            position = store.inbound.peer_position(pull.peer.zone, STREAM)
            if position is not None:
                zone, epoch = pull.peer.zone, position.epoch.hex()
                key = (node.zone, zone, epoch)
                self.durable[key] = max(position.offset, self.durable.get(key, 0))
                positions[zone, epoch] = self.logs[node.name].positions.get((zone, epoch), 0)
        self.logs[node.name].positions = positions

    def _renamed(self, node: Node, found: dict[int, Row]) -> None:
        """What a store has sealed anew, as the first facts of an epoch that begins, in the same places: nobody else may
        have it under the name that it had. That it is what it was is seen by what was told of those places."""
        before, now = self.logs.get(node.name), node.running.origin
        if before is None or now in before.highest:
            return
        names = dict[Key, Key]()
        for row in before.rows:
            one = found.get(row.first_offset)
            if one is not None and one.key.origin == now and one.last_offset == row.last_offset:
                names[row.key] = one.key
        others = {
            key: name for name, log in self.logs.items() for key in log.keys if name != node.name and key in names
        }
        if others:
            raise self.complaint(f"resealed: {node.name} gives another name to what others have: {others}")
        log = self.logs[node.name] = replace(before, rows=[], keys=set(), ends={}, highest={})
        for row in before.rows:
            log.add(found[row.first_offset] if row.key in names else row)
            if row.key in names:
                self._check_chain(node.name, found[row.first_offset])
        self.acknowledged = {names.get(key, key) for key in self.acknowledged}
        self.renamed += len(names)

    def cloned(self, node: Node, twin: Node) -> None:
        """A second machine begins with all that a node's files hold, which is about to be stopped; from then on there
        may be two histories."""
        self.forks.add(node.running.origin)
        self.logs[twin.name] = deepcopy(self.logs[node.name])
        self._values[twin.name] = dict(self._values.get(node.name, {}))

    def retired(self, node: Node) -> None:
        """A machine is stopped for good by its people; what nobody else has is on its disk, and they know it."""
        others = set[Key]().union(*(log.keys for name, log in self.logs.items() if name != node.name))
        self.gone |= self.logs[node.name].keys - others
        for pending in (self._told, self._perhaps):
            pending.pop(node.name, None)

    def _restored(self, node: Node, found: list[Row]) -> None:
        """What only this node held, and the image does not, is gone, and nobody can help that."""
        released, before = node.released_offset, self.logs[node.name]
        self.logs[node.name] = log = Log()
        for row in [row for row in before.rows if row.last_offset <= released] + found:
            log.add(row)
        held = set[Key]().union(*(one.keys for one in self.logs.values()))
        self.gone |= before.keys - held

        values = self._values.get(node.name, {})
        self._values[node.name] = {offset: value for offset, value in values.items() if offset <= log.end_offset}

    # ---------------------------------------------------------------------------------------------------------- the end

    def check_end(self, nodes: list[Node]) -> None:
        """Everything has converged: who asked whom has what he had."""
        for node in nodes:
            self._check_bytes(node)
            for pull in node.pulls:
                if pull.is_fenced:
                    continue  # its log ends where it was told so
                wanted = {key for key in self.logs[pull.peer.name].keys if key.origin.zone != node.zone}
                missing = wanted - self.logs[node.name].keys - self.gone
                if missing := {key for key in missing if not self._has_named(node.name, key)}:
                    raise self.complaint(
                        f"lost: {len(missing)} batches of {pull.peer.name} never came to {node.name}: {min(missing, key=str)}"
                    )
        for node in nodes:
            if node.is_sink and not any(pull.is_fenced for pull in node.pulls):
                missing = {key for key in self.acknowledged if key.origin.zone != node.zone} - self.gone
                missing -= self.logs[node.name].keys
                if missing := {key for key in missing if not any(self._has_named(one, key) for one in self.logs)}:
                    raise self.complaint(
                        f"acknowledged: {len(missing)} batches are not at {node.name}: {min(missing, key=str)}"
                    )

    def unequal(self, nodes: list[Node]) -> Iterator[str]:
        """What a node lacks that a peer of its has whole: everything it was told was gone and is there again, and what
        its own disk has changed. As the tables have it, bit by bit."""
        whole = {node.name: _whole(node.running) for node in nodes}
        for node in nodes:
            for pull in node.pulls:
                held = self.logs[node.name].keys
                wanted = {key for key in whole[pull.peer.name] if key.origin.zone != node.zone or key in held}
                if lacks := wanted - whole[node.name]:
                    yield f"equal: {node.name} lacks {len(lacks)} batches that {pull.peer.name} has whole: {min(lacks, key=str)}"

    def _check_bytes(self, node: Node) -> None:
        """What a store serves is what was sealed, byte for byte."""
        page = node.running.read(STREAM, 0, EVERYTHING, EVERYTHING)
        values, told = list[object](), self._values.get(node.name, {})
        for one in page.batches:
            batch = parse(one.sealed)
            key = Key(batch.header.origin, batch.header.first_sequence, batch.digest)
            if key not in self._sealed:
                raise self.complaint(f"chain: {node.name} serves {key}, which nobody sealed")
            if batch.header.kind is Kind.SAMPLES:
                values += open_samples(batch).values
                for offset, value in enumerate(open_samples(batch).values, one.first_offset):
                    if told.get(offset, value) != value:
                        raise self.complaint(
                            f"acknowledged: {node.name} has {value} at {offset}, {told[offset]} was told"
                        )
        if len(values) != len(set(values)):
            twice = [value for value, count in Counter(values).items() if count > 1]
            raise self.complaint(f"once: {node.name} has facts twice, under whatever name: {twice}")


def _whole(store: FactStore) -> set[Key]:
    """The batches that are as they were sealed, in their places or beside them."""
    found, stream = set[Key](), (STREAM,)
    for body, digest in stepped.writer_of(store).execute(_BODIES, stream * 2):
        with suppress(BatchError):
            batch = parse(body + digest)
            found.add(Key(batch.header.origin, batch.header.first_sequence, batch.digest))
    return found


def _named(node: Node, kind: str) -> list[OriginRange]:
    """The sequences that a node's incidents of a kind name."""
    found = []
    for one in node.running.incidents():
        if one.kind == kind:
            _, _, origin, first, _, last = one.subject.replace(",", "").split(" ")
            zone, epoch = origin.split("/")
            found.append(OriginRange(zone, bytes.fromhex(epoch), int(first), int(last)))
    return found


def _touches(one: OriginRange, key: Key, last_sequence: int) -> bool:
    is_origin = (key.origin.zone, key.origin.epoch) == (one.zone, one.epoch)
    return is_origin and key.first_sequence <= one.last_sequence and one.first_sequence <= last_sequence


def _rows(store: FactStore, table: str, after_offset: int) -> list[Row]:
    """The table as it is, with the connection that wrote it: not through what is tested."""
    origins: dict[tuple[str, bytes], Origin] = {}
    rows = []
    found = stepped.writer_of(store).execute(_ROWS.format(table), (STREAM, after_offset)).fetchall()
    for first, last, zone, epoch, sequence, count, digest, previous in found:
        origin = origins.setdefault((zone, epoch), Origin(zone, epoch))
        rows.append(Row(first, last, Key(origin, sequence, digest), sequence + count - 1, previous))
    return rows
