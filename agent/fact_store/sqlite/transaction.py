"""One transaction: the writer's connection and a draft of the catalog, changed together.

All rows are written here, except for those of message ids (message_index.py). Callers decide first and write second:
work that is refused (raises Refused) must not have written anything, so that the rest of the group commit is not
affected. An SQLite error ends the whole transaction.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from agent.batch import DIGEST_BYTES, Batch, Definitions, Link, Origin, Sign, parse
from agent.columns import BatchError
from agent.fact_store.core import (
    Catalog,
    ConsumerState,
    OwnDefinitions,
    PageRow,
    StreamState,
    TailCache,
    TermRefused,
    Tip,
    is_mark_due,
    parse_row,
)
from agent.fact_store.sqlite.growing_rows import (
    KnownRows,
    StoredLives,
    held_of,
    origins_of,
    ranges_of,
    read_definitions,
    zone_number,
)
from agent.fact_store.sqlite.message_index import MessageIndex
from agent.fact_store.sqlite.queries import QUERIES, with_rows
from agent.fact_store.sqlite.typed_rows import ImpossibleValue
from agent.pages import (
    CERTIFICATES_OF_KEY_MAX,
    KEYS_OF_ZONE_MAX,
    BatchEnd,
    ComparedSums,
    DefinitionChain,
    HeldRange,
    HeldSum,
    OriginRange,
    SignerCertificate,
)
from agent.pages import count as count_of
from agent.positions import NUMBER_BYTES, Position, Resolved, begun_ms, drawn_life, extended
from agent.settings.store import ZoneLimit
from agent.signing.records import KEY_ID_BYTES, RecordSigner, sign_record

ROWS_AT_ONCE = 8
"""Batches inserted by one statement. For each statement SQLite releases Python's global lock and waits to get it
back."""
LIVES_OF_ZONE_MAX, LIVES_SEARCHED_MAX = 10_000, 100
"""Lives of one zone, a start a day for 27 years; and how many of the lowest are looked at for one without a fact."""
INCIDENTS_OF_KIND_MAX = 1_000
"""Subjects of one kind. Peers choose some of their names, so without a limit a peer could fill the disk."""
INCIDENTS_FIRST = 500
"""The first subjects of a kind, which are always kept: they show how a problem began."""
INCIDENTS_OTHERS = "others"
"""The subject that counts the removed ones."""
_INCIDENTS_REMOVED = 100
Execute = Callable[..., sqlite3.Cursor]
_INSERT_BATCHES = with_rows(QUERIES["insert_batch"], ROWS_AT_ONCE)


def holds_other(execute: Execute, stream: StreamState | None, offset: int, digest: bytes) -> bool:
    """Whether an intact batch at an offset of a stream is not one that ends there with this digest."""
    row = execute(QUERIES["select_at_offset"], {"stream": stream.id, "offset": offset}).fetchone() if stream else None
    if stream is None or row is None or (row[1], row[3]) == (offset, digest):
        return False
    batch = parse_row(stream.name, row)
    return isinstance(batch, Batch) and row[0] <= offset <= row[1]


def draw_life(before: bytes, number: int | None = None) -> bytes:
    """A life of this process. `before`: the highest life in the store's own table; `number`: a higher one, by default
    that of the clock."""
    chance = os.urandom(16) + time.time_ns().to_bytes(16) + os.getpid().to_bytes(8)
    return drawn_life(before, time.time_ns() // 1_000_000 if number is None else number, chance)


class Transaction:
    """Rows and catalog between BEGIN and COMMIT."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        catalog: Catalog,
        index: MessageIndex,
        now_unix_ms: int,
        age_ms: int,
        signer: RecordSigner | None = None,
        rows: KnownRows | None = None,
    ) -> None:
        self.catalog = catalog.draft()
        self.age_ms = age_ms
        self.signer = signer
        """The key with which this store signs what it records; None if it does not sign."""
        self.pair_zones = frozenset[str]()
        """Zones that two nodes record, so that their history may divide."""
        self.peers: Mapping[str, ZoneLimit] = {}
        self.batches_added = 0
        self.index = index
        self.now_unix_ms = now_unix_ms
        self._execute = connection.execute
        self._executemany = connection.executemany
        self._rows = rows or KnownRows()
        self._crowded = set[int]()  # zones that got a life beyond their limit

    @property
    def sign(self) -> Sign | None:
        """Makes the records of batches sealed in this transaction; None if this store does not sign."""
        if self.signer is None:
            return None
        return partial(sign_record, self.signer, signed_at_ms=self.now_unix_ms)

    # ---------------------------------------------------------------------------------------------------------- reading

    def message(self, stream: StreamState | None, key: bytes) -> tuple[bytes, int] | None:
        """Content digest and offset of the message first stored under an id, if there is one."""
        return None if stream is None else self.index.find(stream.id, key)

    def subject_offset(self, stream: StreamState | None, key: bytes) -> int:
        """Offset of the newest message about a subject; 0 if there is none, or if the stream does not record it."""
        row = self._execute(QUERIES["select_subject"], (stream.id, key)).fetchone() if stream else None
        return row[0] if row else 0

    def definition_id(self, zone: str, digest: bytes) -> int | None:
        """The id of a zone's definition; None if it is not stored."""
        row = self._execute(QUERIES["select_definition_id"], (zone, digest)).fetchone()
        return None if row is None else row[0]

    def definition_number(self, zone: str, definitions: Definitions) -> int | None:
        """How many definitions of a zone a digest stands for, which is what a batch that names it must say; None if
        they are not stored."""
        found = self._definition(self.definition_id(zone, definitions.digest))
        return None if found is None else int(found[3])

    def _definition(self, number: int | None) -> tuple[Any, ...] | None:
        """A definition by its id; None if its row is missing or damaged, so that a peer's copy is asked for."""
        try:
            row: tuple[Any, ...] | None = self._execute(QUERIES["select_definition"], (number,)).fetchone()
        except ImpossibleValue:
            return None
        return row

    def definition_bodies(self, zone: str, wanted: Definitions) -> list[bytes]:
        """Canonical JSON of definitions that are stored. Raises StoreDamaged."""
        chain = read_definitions(self._execute, zone, wanted.digest)
        return [] if chain is None else list(chain.bodies)

    def newest_definitions(self, zone: str, limit: int) -> list[Definitions]:
        """The definitions of a zone that were stored last, newest first."""
        rows = self._execute(QUERIES["select_newest_definitions"], (zone, limit)).fetchall()
        return [Definitions(number, digest) for number, digest in rows]

    def definition_count(self, zone: str) -> int:
        """How many definitions of a zone are stored."""
        return int(self._execute(QUERIES["select_definition_count"], (zone,)).fetchone()[0])

    def first_offset_at(self, stream: int, unix_ms: int) -> int:
        """An offset before which all facts were recorded before a time, by the wall clock; 0 if no mark is that old."""
        asked = {"stream": stream, "unix_ms": unix_ms}
        found: int | None = self._execute(QUERIES["select_start_at"], asked).fetchone()[0]
        return found or 0

    def batch_at(self, stream: int, origin: int, sequence: int) -> HeldRange | None:
        """The range of the stored batch that holds a sequence; None if retention has released it, or if its row is
        damaged."""
        row = self._execute(QUERIES["select_batch_at_sequence"], (stream, origin, sequence)).fetchone()
        if row is None or [type(value) for value in row] != [int, int, bytes, bytes] or row[0] + row[1] <= sequence:
            return None
        first_sequence, count, digest, previous_digest = row
        return HeldRange(first_sequence, first_sequence + count - 1, previous_digest, digest)

    def batch(self, stream: int, origin: int, first_sequence: int) -> Batch | None:
        """The batch that begins at a sequence; None if there is none, or if it is damaged."""
        row = self._execute(QUERIES["select_batch"], (stream, origin, first_sequence)).fetchone()
        try:
            return parse(row[0] + row[1]) if row is not None else None
        except (BatchError, TypeError):
            return None

    def place(self, stream: int, origin: int, first_sequence: int) -> tuple[int, int, int, bytes] | None:
        """First and last offset, count and digest of the batch that begins at a sequence, from its columns; None if
        there is none."""
        row: tuple[int, int, int, bytes] | None = self._execute(
            QUERIES["select_place"], (stream, origin, first_sequence)
        ).fetchone()
        return row if row is not None and [type(field) for field in row] == [int, int, int, bytes] else None

    def digest_before(self, stream: int, origin: int, sequence: int) -> bytes | None:
        """The previous digest in the batch that begins at a sequence; None if no batch begins there."""
        row = self._execute(QUERIES["select_successor"], (stream, origin, sequence)).fetchone()
        return row[0] if row else None

    def rows_at(self, stream: int, first_offset: int) -> Iterator[PageRow]:
        """The repaired copies of a batch and its row, in the order in which they are used. Raises sqlite3.Error."""
        yield from self._execute(QUERIES["select_repaired"], (stream, first_offset)).fetchall()
        yield from self._execute(QUERIES["select_page_row"], (stream, first_offset)).fetchall()

    def resolve(self, stream: str, position: Position) -> Resolved:
        """What a position in a stream's log means here."""
        known = self.catalog.streams.get(stream)
        of_stream = {"stream": known.id if known else 0}
        lives = StoredLives(lambda query, asked: self._execute(query, of_stream | asked).fetchall())
        log = self.catalog.log(stream, lives)
        return log.resolve(position, partial(holds_other, self._execute, known))

    def origin_number(self, origin: Origin) -> int | None:
        """The number of an origin; None if none of its facts was ever held."""
        if (known := self._rows.origins.get(origin)) is None:
            row = self._execute(QUERIES["select_origin"], (origin.zone, origin.life)).fetchone()
            if row is None:
                return None
            known = self._rows.origins[origin] = row[0]
        return known

    def origins_of(self, zone: str) -> dict[Origin, int]:
        """The origins of a zone with their numbers, in the order in which they were recorded."""
        return origins_of(self._execute, zone)

    def held(self, stream: int, origin: int | None) -> tuple[HeldRange, ...]:
        """The ranges of an origin that are held in a stream, or were before retention; both by number."""
        if origin is None:
            return ()
        if (known := self._rows.held.get((stream, origin))) is None:
            known = self._rows.held[stream, origin] = held_of(self._execute, stream, origin)
        return known

    def newest_held(self, stream: int) -> dict[Origin, tuple[HeldRange, ...]]:
        """The ranges of the newest origin of each zone in a stream."""
        return ranges_of(self._execute(QUERIES["select_newest_held"], (stream,)))

    def range_count(self, zone: str) -> int:
        """How many separate ranges of a zone are held, in all streams."""
        return int(self._execute(QUERIES["select_range_count"], {"zone": zone}).fetchone()[0])

    def damaged(self, stream: int) -> list[tuple[str, bytes, int, int]]:
        """Zone, life, first and last sequence of the batches of a stream that were found damaged and are not
        repaired."""
        return self._execute(QUERIES["select_damage"], (stream,)).fetchall()

    def newest_life(self, stream: int, zone: str) -> tuple[bytes, int]:
        """The newest life of a zone that is held in a stream, and where the last held range of any begins."""
        row = self._execute(QUERIES["select_newest_life"], {"stream": stream, "zone": zone}).fetchone()
        if row is None:
            return b"", 0
        number, life, start = row
        return life, max([start, *(held.first_sequence for held in self.held(stream, number))])

    def link(self, stream: str, zone: str) -> Link:
        """The link that the next batch of an own zone continues."""
        return self.catalog.link(stream, zone)

    def origins_between(self, stream: StreamState, after_offset: int, until_offset: int) -> list[dict[str, object]]:
        """Origins and sequences of the batches that begin after one offset and up to another."""
        rows = self._execute(QUERIES["select_origins_between"], (stream.id, after_offset, until_offset))
        return [OriginRange(*row).named() for row in rows]

    # ---------------------------------------------------------------------------------------------------------- writing

    def stream(self, name: str) -> StreamState:
        """The stream of this name; created if it does not exist."""
        if (known := self.catalog.streams.get(name)) is None:
            number = self._execute(QUERIES["insert_stream"], (name,)).fetchone()[0]
            known = self.catalog.streams[name] = StreamState(number, name)
        return known

    def origin(self, origin: Origin) -> int:
        """The number of an origin; assigned if it has none."""
        if (known := self.origin_number(origin)) is None:
            zone = zone_number(self._execute, origin.zone)
            known = self._execute(QUERIES["insert_origin"], (zone, origin.life)).fetchone()[0]
            self._rows.origins[origin] = known
            (lives,) = self._execute(QUERIES["update_lives"], (zone,)).fetchone()
            if lives > LIVES_OF_ZONE_MAX:
                self._crowded.add(zone)
        return known

    def forget_lives(self) -> None:
        """Delete the lowest lives without a fact here of each zone that has too many; the last step before the commit,
        when new lives have their facts. A log with facts of these that is read again may store them twice; a comparison
        does not fetch them (agent/fact_store/DESIGN.md)."""
        for zone in self._crowded:
            (lives,) = self._execute(QUERIES["select_lives"], (zone,)).fetchone()
            self._forget_lives(zone, lives - LIVES_OF_ZONE_MAX)
        self._crowded.clear()

    def _forget_lives(self, zone: int, count: int) -> None:
        asked = {"zone": zone, "limit": count + LIVES_SEARCHED_MAX, "forgotten": count}
        for number, life in self._execute(QUERIES["select_forgettable"], asked).fetchall():
            for (stream,) in self._execute(QUERIES["select_streams_of_origin"], (number,)).fetchall():
                self.set_held(stream, number, ())
            self._execute(QUERIES["delete_origin"], (number,))
            self._execute(QUERIES["update_forgotten"], {"zone": zone, "life": life})
        self._rows.forget()

    def set_compared(self, peer: str, stream: int, sums: Mapping[str, ComparedSums]) -> None:
        """Remember, by zone, sums of which a comparison with a peer found nothing to be fetched."""
        for zone, (floor, ours, theirs) in sums.items():
            values = (ours.ranges, ours.digest_sum.to_bytes(16), theirs.ranges, theirs.digest_sum.to_bytes(16))
            self._execute(QUERIES["insert_compared"], (peer, stream, floor, *values, zone))

    def add_batches(
        self,
        stream: StreamState,
        batches: Sequence[Batch],
        *,
        verified: Collection[int] = (),
        is_backlog: bool = False,
        writer: str = "",
    ) -> int:
        """Add batches at the end of a stream, in order; returns the offset of their first fact. `verified`: the
        positions of those whose record was verified. `is_backlog`: they are history that a peer had kept. `writer`: the
        zone that appended them, or that they were pulled from; "" for this one."""
        end_offset, bytes_total, rows = stream.end_offset, stream.bytes_total, []
        definitions = dict[tuple[str, Definitions], int | None]()
        for index, batch in enumerate(batches):
            header = batch.header
            first_offset, end_offset = end_offset + 1, end_offset + header.count
            bytes_total += len(batch.sealed)
            needed = header.origin.zone, header.definitions
            if needed not in definitions:
                definitions[needed] = self._definition_of(*needed)
            rows.append(
                (
                    stream.id, first_offset, end_offset, self.origin(header.origin), header.first_sequence, header.count,
                    header.time_min_ns, header.time_max_ns, header.kind, header.codec, definitions[needed],
                    bytes_total, batch.digest, header.previous_digest, self.now_unix_ms if index in verified else None,
                    None if writer in {"", header.origin.zone} else writer, memoryview(batch.sealed)[:-DIGEST_BYTES],
                )
            )  # fmt: skip
        whole = len(rows) - len(rows) % ROWS_AT_ONCE
        for at in range(0, whole, ROWS_AT_ONCE):
            self._execute(_INSERT_BATCHES, list(chain.from_iterable(rows[at : at + ROWS_AT_ONCE])))
        for row in rows[whole:]:
            self._execute(QUERIES["insert_batch"], row)
        self.add_use(stream.id, writer or self.catalog.names.zone, bytes_total - stream.bytes_total)
        marked = stream
        if is_mark_due(stream.mark_ms, self.age_ms, stream.mark_unix_ms, self.now_unix_ms) or (
            is_backlog and not stream.is_backlog
        ):
            marked = stream._replace(mark_ms=self.age_ms, mark_unix_ms=self.now_unix_ms, is_backlog=is_backlog)
            values = (stream.id, stream.end_offset + 1, stream.bytes_total, self.age_ms, self.now_unix_ms, is_backlog)
            self._execute(QUERIES["insert_mark"], values)
        if stream.newest_life is None or stream.newest_life[0] != self.catalog.life:
            self._execute(QUERIES["insert_life"], (stream.id, stream.end_offset + 1, self.catalog.life))
            marked = marked._replace(newest_life=(self.catalog.life, stream.end_offset + 1))
        self.catalog.streams[stream.name] = marked._replace(end_offset=end_offset, bytes_total=bytes_total)
        tails = self.catalog.tails
        tails[stream.id] = tails.get(stream.id, TailCache()).extended(batches, end_offset)
        for origin in {batches[index].header.origin for index in verified}:
            self._note_proven(origin)
        self.batches_added += len(batches)
        return stream.end_offset + 1

    def add_use(self, stream: int, zone: str, size: int) -> None:
        """Count bytes of a zone that came, or with a negative size are gone. Those of this node are the rest."""
        if zone in self.catalog.names.own_zones:
            return
        use = max(0, self.catalog.zone_uses.get((stream, zone), 0) + size)
        self.catalog.zone_uses[stream, zone] = use
        self._execute(QUERIES["upsert_zone_use"], (stream, zone, use))

    def _definition_of(self, zone: str, definitions: Definitions) -> int | None:
        """The id of the last definition that a batch needs; None for messages."""
        if not definitions.count:
            return None
        own = self.catalog.definitions_of(zone)
        return own.id if definitions == own.definitions else self.definition_id(zone, definitions.digest)

    def sign_with(self, signer: RecordSigner | None) -> None:
        """Sign with this key from this transaction on, and store its certificates, so that no batch of it is served
        without."""
        self.signer = signer
        if signer is not None and signer.certificate:
            for zone, certificate in {
                self.catalog.names.node: signer.message_certificate,
                self.catalog.names.zone: signer.certificate,
            }.items():
                self.add_signers([SignerCertificate(signer.key_id, certificate, is_trusted=True, zone=zone)])

    def add_damage(self, stream: int, origin: int, first_sequence: int, last_sequence: int) -> None:
        """Record a damaged batch; a repeat changes nothing."""
        self._execute(QUERIES["insert_damage"], (stream, origin, first_sequence, last_sequence))

    def remove_damage(self, stream: int, origin: int, first_sequence: int) -> None:
        """Remove the record of a damaged batch that is repaired or released."""
        self._execute(QUERIES["delete_damage"], (stream, origin, first_sequence))

    def add_signers(self, signers: Iterable[SignerCertificate], peer: str = "") -> None:
        """Store certificates that a peer has sent, so that they can be forwarded with the batches that their keys
        signed."""
        brought = set[str]()
        for key_id, certificate, is_trusted, zone in signers:
            assert len(key_id) == KEY_ID_BYTES
            # Each zone at each peer has its own places, so any number of keys of one zone displace none of another.
            place = "" if is_trusted else f"{peer}/{zone}"
            of = {"key_id": key_id, "peer": place, "limit": CERTIFICATES_OF_KEY_MAX}
            row = {**of, "certificate": certificate, "now": self.now_unix_ms}
            if self._execute(QUERIES["insert_signer"], row).rowcount:
                self._execute(QUERIES["delete_signers"], of)
                brought |= {place}
        for place in brought - {""}:
            self._execute(QUERIES["delete_signer_keys"], {"peer": place, "limit": KEYS_OF_ZONE_MAX})

    def set_compromised(self, since_ms: Mapping[bytes, int]) -> None:
        """Set the list of compromised keys: key id, and ms since 1970."""
        self._execute(QUERIES["delete_compromised"])
        self._executemany(QUERIES["insert_compromised"], list(since_ms.items()))

    def _note_proven(self, origin: Origin) -> None:
        """Record that a record of an origin was verified. Writes only the first time."""
        number = self.origin(origin)
        if not self._execute(QUERIES["select_is_proven"], (number,)).fetchone()[0]:
            self._execute(QUERIES["update_proven"], (number,))
        if origin.zone not in self.catalog.proven_zones:
            self._execute(QUERIES["update_proven_zone"], (number,))
            self.catalog.proven_zones |= {origin.zone}

    def add_repaired(self, stream: int, first_offset: int, batch: Batch) -> None:
        """Add a batch that is served in place of the damaged one at an offset."""
        body = memoryview(batch.sealed)[:-DIGEST_BYTES]
        last_offset = first_offset + batch.header.count - 1
        self._execute(QUERIES["insert_repaired"], (stream, first_offset, last_offset, batch.digest, body))

    def set_held(self, stream: int, origin: int, ranges: tuple[HeldRange, ...]) -> None:
        """Set the held ranges of an origin. Writes only the difference."""
        before = self.held(stream, origin)
        gone = {held.first_sequence for held in before} - {held.first_sequence for held in ranges}
        for first_sequence in gone:
            self._execute(QUERIES["delete_held"], (stream, origin, first_sequence))
        for held in set(ranges).difference(before):
            self._execute(
                QUERIES["insert_held"],
                (stream, origin, held.first_sequence, held.last_sequence, held.first_previous_digest, held.last_digest),
            )
        self._rows.held[stream, origin] = ranges
        if (stream, origin) not in self._rows.newest:
            self._set_held_before(stream, origin, before, ranges)

    def _set_held_before(
        self, stream: int, origin: int, before: tuple[HeldRange, ...], ranges: tuple[HeldRange, ...]
    ) -> None:
        """Keep what is held of all origins of a zone but the newest, whose own ranges have just changed."""
        place = self._execute(QUERIES["select_origin_place"], {"stream": stream, "origin": origin}).fetchone()
        zone, life, newest, newest_life, range_count, facts, digest_sum, start = place
        if newest == origin:
            self._rows.newest.add((stream, origin))
            return
        held = HeldSum(range_count, int.from_bytes(digest_sum))
        if not newest:
            newest = origin
        else:
            added_life, added = life, ranges
            if life > newest_life:  # what was the newest is now one of the others
                self._rows.newest.discard((stream, newest))
                added_life, added, newest = newest_life, self.held(stream, newest), origin
            held = held.minus(HeldSum.of(life, before)).plus(HeldSum.of(added_life, added))
            facts += count_of(part.span for part in added) - count_of(part.span for part in before)
            start = max([start, *(part.first_sequence for part in added)])
        values = (stream, zone, newest, held.ranges, facts, held.digest_sum.to_bytes(DIGEST_BYTES), start)
        self._execute(QUERIES["insert_held_before"], values)

    # ------------------------------------------------------------------------------------------------- own facts

    def begin_life(self, *, is_forked: bool = False) -> None:
        """Seal under a new life from here on. `is_forked`: the present one ran twice, or its clock jumped, so where it
        ends here does not say what was read of it."""
        catalog = self.catalog
        if is_forked:
            self._execute(QUERIES["update_forked"], (catalog.life,))
            catalog.forked |= {catalog.life}
        catalog.life = draw_life(catalog.highest_life)

    def take_lead(self, term: int) -> bytes:
        """Begin a life with this number, under which the zone is recorded from here on. In each stream its chain runs
        on from the end of the newest life that is held. Raises TermRefused."""
        catalog = self.catalog
        if not begun_ms(catalog.highest_life) < term < 2 ** (8 * NUMBER_BYTES):
            why = f"term {term} is not above {begun_ms(catalog.highest_life)}, the number of this store's highest life"
            raise TermRefused(why, "ask for a term above it")
        for stream in catalog.streams.values():
            if catalog.names.sealing_zone(stream.name) != catalog.names.zone:
                continue
            life, _ = self.newest_life(stream.id, catalog.names.zone)
            ranges = self.held(stream.id, self.origin_number(Origin(catalog.names.zone, life)))
            end = BatchEnd(ranges[-1].last_sequence, ranges[-1].last_digest) if ranges else None
            if end is not None and end != catalog.tips.get((catalog.names.zone, stream.name), Tip()).end:
                self._set_tip(stream, catalog.names.zone, end)
        catalog.life = draw_life(catalog.highest_life, term)
        return catalog.life

    def add_own(self, stream: StreamState, batches: Sequence[Batch], writer: str = "") -> int:
        """Add batches that were just sealed here on the stream's link; returns the offset of their first fact."""
        first, last = batches[0].header, batches[-1]
        zone, at = first.origin.zone, (first.origin.zone, stream.name)
        tip = self.link(stream.name, zone)
        assert (first.origin, first.first_sequence, first.previous_digest) == (
            tip.origin,
            tip.next_sequence,
            tip.digest,
        )
        number = self.origin(first.origin)
        ranges, sealed = self.held(stream.id, number), HeldRange.of(first, last.digest)
        sealed = sealed._replace(last_sequence=last.header.last_sequence)
        if ranges and ranges[-1].last_sequence + 1 == sealed.first_sequence:  # of this life nothing else is held
            *before, left = ranges
            sealed = left._replace(last_sequence=sealed.last_sequence, last_digest=sealed.last_digest)
            ranges = tuple(before)
        self.set_held(stream.id, number, (*ranges, sealed))
        if self.catalog.tips.get(at, Tip()).is_row:  # what is held of this life ends with the tip again
            self._execute(QUERIES["delete_tip"], (stream.id, zone))
        self.catalog.tips[at] = Tip(BatchEnd(last.header.last_sequence, last.digest))
        return self.add_batches(stream, batches, verified=range(len(batches) if self.signer else 0), writer=writer)

    def keep_tip(self, stream: StreamState, zone: str) -> None:
        """Write the tip of an own zone in a stream, because what is held of own lives will no longer end with it.
        Otherwise recovery finds it there, and no commit writes a row for it."""
        if not (tip := self.catalog.tips.get((zone, stream.name), Tip())).is_row:
            self._set_tip(stream, zone, tip.end)

    def _set_tip(self, stream: StreamState, zone: str, end: BatchEnd) -> None:
        self._execute(QUERIES["insert_tip"], (stream.id, zone, *end))
        self.catalog.tips[zone, stream.name] = Tip(end, is_row=True)

    # ------------------------------------------------------------------------------------------------- the rest

    def add_definitions(self, chain: DefinitionChain) -> int:
        """Store definitions whose digests the caller has compared, as far as they are not stored; a stored one that is
        damaged gets a copy. Returns how many rows this has added."""
        zone, running, repaired, new = chain.zone, chain.after, 0, list[tuple[object, ...]]()
        previous = self.definition_id(zone, running.digest) if running.count else None
        (last,) = self._execute(QUERIES["select_last_definition"]).fetchone()
        is_extended = self.definition_id(zone, chain.wanted.digest) is None
        for body in chain.bodies:
            running = running.extended(body)
            row = (running.digest, previous, running.count, body)
            # Where the end is not stored, what follows one that is not stored is not stored either.
            number = None if new and is_extended else self.definition_id(zone, running.digest)
            if number is None:
                number = last + 1 + len(new)
                new.append((number, zone, *row))
            elif self._definition(number) != (zone, *row):
                self._execute(QUERIES["insert_repaired_definition"], (number, *row))
                repaired += 1
            previous = number
        self._executemany(QUERIES["insert_definition"], new)
        return repaired + len(new)

    def set_own_definitions(self, zone: str, definitions: Definitions) -> None:
        """The newest definitions of an own zone, which are stored already."""
        number = self.definition_id(zone, definitions.digest)
        self._execute(QUERIES["insert_own_definition"], (zone, number))
        own = self.catalog.own_definitions
        self.catalog.own_definitions = {**own, zone: OwnDefinitions(definitions, number)}

    def set_subjects(self, stream: StreamState, offsets: Mapping[bytes, int]) -> None:
        """Record the newest messages about subjects, which were just stored."""
        self._executemany(QUERIES["insert_subject"], [(stream.id, *subject) for subject in offsets.items()])

    def add_artifacts(self, stream: StreamState, digests: Iterable[bytes], offset: int) -> None:
        """Record that facts up to an offset, just stored, refer to artifacts."""
        self._executemany(QUERIES["insert_artifact"], [(digest, stream.id, offset) for digest in digests])

    def forget_artifacts(self) -> None:
        """Delete the references of released facts."""
        self._execute(QUERIES["delete_artifacts"])

    def set_leases(self, stream: str, epochs: Mapping[str, int]) -> None:
        """Set the lease epochs of producers."""
        if epochs:
            number = self.stream(stream).id
            self._executemany(QUERIES["insert_lease"], [(number, *lease) for lease in epochs.items()])
            fresh = {(stream, producer): epoch for producer, epoch in epochs.items()}
            self.catalog.leases = {**self.catalog.leases, **fresh}

    def set_peer_position(self, peer: str, stream: StreamState, read: Sequence[Position]) -> None:
        """Set how far a peer's stream is stored, in each of these lives of its log."""
        at = peer, stream.name
        before = self.catalog.trails.get(at, ())
        self.catalog.trails[at] = after = extended(before, read)
        for point in read:
            self._execute(QUERIES["insert_trail"], (peer, stream.id, *point))
        for gone in {point.life for point in before} - {point.life for point in after}:
            self._execute(QUERIES["delete_trail"], (peer, stream.id, gone))

    def add_consumer(self, consumer: ConsumerState) -> ConsumerState:
        """Register a consumer and number it."""
        values = (
            consumer.name, consumer.zone, self.stream(consumer.stream).id, consumer.lifecycle.value, consumer.start_offset,
            consumer.frontier, self.now_unix_ms,
        )  # fmt: skip
        number = self._execute(QUERIES["insert_consumer"], values).fetchone()[0]
        added = self.catalog.consumers[consumer.name] = replace(
            consumer, id=number, registered_unix_ms=self.now_unix_ms
        )
        return added

    def set_consumer(self, consumer: ConsumerState) -> None:
        """Set a consumer's state, lease and confirmations. Writes only the difference."""
        known = self.catalog.consumers[consumer.name]
        changing = ("lifecycle", "frontier", "seen_unix_ms", "lease")
        if any(getattr(known, name) != getattr(consumer, name) for name in changing):
            lease = consumer.lease
            values = (consumer.lifecycle.value, consumer.frontier, consumer.seen_unix_ms, lease.epoch, lease.holder)
            self._execute(QUERIES["update_consumer"], (*values, consumer.id))
        before, after = set(known.confirmed.ranges), set(consumer.confirmed.ranges)
        for first_offset, _ in before - after:
            self._execute(QUERIES["delete_confirmed"], (consumer.id, first_offset))
        for first_offset, last_offset in after - before:
            self._execute(QUERIES["insert_confirmed"], (consumer.id, first_offset, last_offset))
        self.catalog.consumers[consumer.name] = consumer

    def remove_consumer(self, consumer: ConsumerState) -> None:
        """Remove a consumer and its confirmations."""
        self._execute(QUERIES["delete_consumer"], (consumer.id,))
        del self.catalog.consumers[consumer.name]

    def release(self, stream: StreamState, until_offset: int) -> StreamState:
        """Release all facts up to the end of the last batch that ends at or before an offset. Rows are deleted
        later."""
        row = self._execute(QUERIES["select_boundary"], {"stream": stream.id, "offset": until_offset}).fetchone()
        if row is None or row[0] <= stream.released_offset:
            return stream
        self._execute(QUERIES["update_released"], (*row, stream.id))
        released = stream._replace(released_offset=row[0], released_bytes=row[1])
        self.catalog.streams[stream.name] = released
        return released

    def set_completeness(self, source: str, parts: Mapping[str, tuple[int, int | None] | None]) -> None:
        """Up to when these parts of a source are complete, and by how much its clock was ahead then; None: as the
        source."""
        for part, known in parts.items():
            if known is None:
                self._execute(QUERIES["delete_completeness"], (source, part))
                continue
            values = {"source": source, "part": part, "complete_ns": known[0], "ahead_ns": known[1]}
            self._execute(QUERIES["upsert_completeness"], values)

    def add_incident(self, kind: str, subject: str, detail: str) -> None:
        """Record what was lost or refused. A repeat of kind and subject increments the count. If a kind has more than
        INCIDENTS_OF_KIND_MAX subjects, the first and the newest are kept and the others only counted."""
        values = {"kind": kind, "subject": subject, "detail": detail, "now": self.now_unix_ms, "count": 1}
        is_new = self._execute(QUERIES["insert_incident"], values).fetchone() == (1,)
        if not is_new or self._execute(QUERIES["count_incidents"], (kind,)).fetchone()[0] <= INCIDENTS_OF_KIND_MAX:
            return
        which = {"kind": kind, "others": INCIDENTS_OTHERS, "some": _INCIDENTS_REMOVED, "first": INCIDENTS_FIRST}
        removed = self._execute(QUERIES["delete_incidents"], which).rowcount
        why = (
            f"incidents of this kind that are only counted: {INCIDENTS_OF_KIND_MAX} are kept, the first and the newest"
        )
        self._execute(
            QUERIES["insert_incident"], {**values, "subject": INCIDENTS_OTHERS, "detail": why, "count": removed}
        ).fetchone()
