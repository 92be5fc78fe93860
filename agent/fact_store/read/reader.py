"""StoreReader: reads a store on read-only connections, from any thread and any process; no writer needs to run.

Guarantees: it returns whole batches, byte for byte as they were sealed, and opens none. It never writes, never
checkpoints, and holds no transaction between calls, so it does not keep the writer from reusing its WAL.

Used by the store itself, the command line and Spark.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

from agent.batch import Definitions, Origin
from agent.fact_store.core import (
    BatchSummary,
    Catalog,
    ConsumerState,
    Incident,
    PageAssembly,
    StoreDamaged,
    StoreNames,
    StoreUnusable,
    StreamInfo,
    StreamState,
    check_digest,
    parse_row,
)
from agent.fact_store.read.connections import ReaderConnections
from agent.fact_store.read.forecast import StoreSpace
from agent.fact_store.read.history import SequenceRequest, batch_ends_at, read_history
from agent.fact_store.read.page_rows import origins_between, read_rows, read_undamaged_rows
from agent.fact_store.read.proofs import Proofs, Verified, find_proof
from agent.fact_store.read.space import measure_space
from agent.fact_store.sqlite import (
    FILES,
    QUERIES,
    Connect,
    StoredLives,
    check_known,
    check_names,
    connect,
    connect_to_copy,
    file_bytes,
    held_of,
    holds_other,
    identity,
    load,
    one_state,
    origins_of,
    ranges_of,
    read_definitions,
    reading_tables,
)
from agent.pages import (
    CERTIFICATES_OF_KEY_MAX,
    BatchEnd,
    ComparedSums,
    DefinitionChain,
    HeldRange,
    HeldSum,
    Hole,
    OriginRange,
    Page,
    StoredBatch,
    ZoneHeld,
    count,
)
from agent.positions import LifeRows, LogLives, Position, Resolved
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit

OFFSET_MAX = 2**63 - 2
OFFSET_UNKNOWN = 2**48
INCIDENTS_MAX = 1000
ARTIFACTS_AT_ONCE = 1_000
ORIGINS_KEPT_MAX = 10_000
RANGES_OF_ZONE_MAX = 1_000_000  # more than a zone has

OnDamaged = Callable[[str, Hole, str, list[OriginRange]], None]  # stream, hole, reason, origins of its facts


@dataclass(slots=True)
class _Known:
    """What was read of tables whose rows never change."""

    streams: dict[str, int] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)
    numbers: dict[Origin, int] = field(default_factory=dict)
    definitions: dict[int, tuple[str, Definitions]] = field(default_factory=dict)
    ends: tuple[int, list[tuple[str, Definitions]]] = 0, []
    """As of the newest definition."""


class StoreReader:
    """Read-only view of the store at `path`. Thread-safe. The constructor and all reads raise StoreUnusable, after
    `close` StoreClosed."""

    def __init__(self, path: Path, *, connect_to: Connect = connect, on_damaged: OnDamaged | None = None) -> None:
        self.path, self._on_damaged, self._known = path, on_damaged, _Known()
        self._connections = ReaderConnections(path, connect_to)
        with ExitStack() as on_error:
            on_error.callback(self.close)
            with self._reading() as connection:
                steps = check_known(connection)
                if len(steps) < len(FILES):
                    raise StoreUnusable(
                        f"{path} has schema {steps[-1] if steps else 'none'}, this program reads {FILES[-1].stem}",
                        "start its node once, or run bsfg store migrate (for a quarantined file, on a copy of it)",
                    )
                self.zone, self.node = identity(connection, path)
            on_error.pop_all()

    def check_names(self, zone: str, node: str) -> None:
        """Raise StoreForeign unless this is the store of a node of a zone."""
        check_names(StoreNames(self.zone, self.node), StoreNames(zone, node), self.path)

    def read(
        self,
        stream: str,
        after_offset: int,
        facts_max: int,
        bytes_max: int,
        *,
        until_offset: int | None = None,
        end_offset: int | None = None,
    ) -> Page:
        """Whole batches of `stream` from the one that holds `after_offset` + 1, as many as the limits allow, at least
        one.

        Facts up to `after_offset` do not count against `facts_max`. Batches that begin after `until_offset` are left
        out. A stream without facts gives an empty page. Each batch is compared with its digest; damaged and released
        offsets are holes of the page. `end_offset`: the end of the stream, if the caller knows it.
        """
        if after_offset < 0 or facts_max < 1 or bytes_max < 1:
            raise ValueError(f"after_offset {after_offset}, facts_max {facts_max}, bytes_max {bytes_max}")
        last = OFFSET_MAX if until_offset is None else until_offset
        if end_offset is not None:
            with self._reading() as connection:
                page = PageAssembly(stream, after_offset, facts_max, bytes_max, last)
                if read_undamaged_rows(connection, self._stream(connection, stream), page, end_offset):
                    return Page(page.batches, max(end_offset, page.reached))
        with self._reading() as connection, one_state(connection):
            if (number := self._stream(connection, stream)) is None:
                return Page([], 0)
            released = connection.execute(QUERIES["select_released"], (number,)).fetchone()
            if released is None:
                return Page([], 0)  # the stream is newer than this read transaction
            page = PageAssembly(stream, after_offset, facts_max, bytes_max, last, released[0])
            is_all = read_rows(connection, number, page)
            end_offset = self._end_of(connection, number, page, end_offset, is_all=is_all)
            if is_all:
                page.finish(end_offset)
            for hole in page.damaged():
                if self._on_damaged is not None:
                    self._on_damaged(stream, hole, page.problem, origins_between(connection, number, hole))
            # A caller that reads beyond the end gets the real end.
            last_offset = page.reached if page.batches or page.holes else 0
            return Page(page.batches, max(end_offset, last_offset), tuple(page.holes))

    def read_sequences(
        self,
        stream: str,
        origin: Origin,
        first_sequence: int,
        last_sequence: int,
        facts_max: int,
        bytes_max: int,
    ) -> Page:
        """As `read`, for one origin by its sequences: offsets in the page are sequences, and its `end_offset` is the
        last sequence held (history.py)."""
        with self._reading() as connection, one_state(connection):
            number, of = self._stream(connection, stream), self._number(connection, origin)
            asked = SequenceRequest(stream, number or 0, of or 0, first_sequence, last_sequence, facts_max, bytes_max)
            return read_history(connection, asked)

    def signers(self, key_ids: Iterable[bytes]) -> list[bytes]:
        """The stored certificates (DER) of keys that sign facts."""
        with self._reading() as connection:
            asked = [{"key_id": key_id, "limit": CERTIFICATES_OF_KEY_MAX} for key_id in key_ids]
            rows = [connection.execute(QUERIES["select_signers"], key).fetchall() for key in asked]
        return [certificate for found in rows for (certificate,) in found]

    def signed_zones(self) -> frozenset[str]:
        """The zones of which a record was ever verified here."""
        with self._reading() as connection:
            return frozenset(zone for zone, is_proven in connection.execute(QUERIES["select_zones"]) if is_proven)

    def verified(self, stream: str, places: Iterable[tuple[Origin, int]]) -> list[Verified]:
        """Whether batches are proven by a signature of their origin (proofs.py); each is given by its origin and one
        of its sequences."""
        with self._reading() as connection:
            proofs, number = Proofs(connection), self._stream(connection, stream) or 0
            return [
                proofs.verified(number, self._number(connection, origin) or 0, sequence) for origin, sequence in places
            ]

    def is_proven(self, stream: str, origin: Origin, sequence: int) -> bool:
        """Whether a verified record proves a sequence that is held."""
        with self._reading() as connection:
            number, of = self._stream(connection, stream), self._number(connection, origin)
            return find_proof(connection, number or 0, of or 0, sequence) is not None

    def batch_ends(self, stream: str, origin: Origin, sequences: Iterable[int]) -> list[BatchEnd]:
        """End and digest of the batches that hold these sequences of an origin, from the table, in order, each once;
        batches that are not held or were released are left out. No body is read."""
        with self._reading() as connection, one_state(connection):
            number, of = self._stream(connection, stream), self._number(connection, origin)
            return batch_ends_at(connection, number or 0, of or 0, sequences)

    def _end_of(
        self, connection: sqlite3.Connection, stream: int, page: PageAssembly, known: int | None, *, is_all: bool
    ) -> int:
        """The end of a stream: as known to the caller, otherwise from the last row. If the page has no batches, the end
        is compared with the held ranges, because only they show a lost last row. Raises StoreDamaged."""
        if known is not None:
            return known
        end_offset: int = connection.execute(QUERIES["select_end_offset"], (stream,)).fetchone()[0]
        if is_all and not page.batches:
            held = connection.execute(QUERIES["select_held_count"], {"stream": stream}).fetchone()[0]
            if held != end_offset:
                raise StoreDamaged(f"{self.path}: {page.stream} ends at {end_offset}, its held ranges end at {held}")
        return end_offset

    def summaries(
        self, stream: str, offset: int, until_offset: int, limit: int, *, newest_first: bool = False
    ) -> list[BatchSummary]:
        """Summaries of the batches that hold offsets `offset` to `until_offset`, at most `limit`; no body is read.

        For searches that skip batches without opening them. A batch may be released before it is read.
        """
        query = QUERIES["select_summaries_back"] if newest_first else QUERIES["select_summaries"]
        with self._reading() as connection:
            if (number := self._stream(connection, stream)) is None:
                return []
            asked = {"stream": number, "offset": offset, "until_offset": until_offset, "limit": limit}
            rows = connection.execute(query, asked).fetchall()
            origins = {row[2]: self._origin(connection, row[2]) for row in rows}
        return [BatchSummary(row[0], row[1], origins[row[2]], *row[3:]) for row in rows]

    def counts(self, stream: str, offset: int, until_offset: int) -> list[tuple[Origin, int]]:
        """How many facts of each origin lie between two offsets, both included, by the index; no body is read.

        Their sum is the number of offsets, unless facts were released, are known to be damaged, or rows are missing:
        then only `read` tells what is there.
        """
        with self._reading() as connection:
            asked = {"stream": self._stream(connection, stream), "offset": offset, "until_offset": until_offset}
            rows = connection.execute(QUERIES["select_counts"], asked).fetchall()
            return [(self._origin(connection, origin), count) for origin, count in rows]

    def clock_marks(self, stream: str) -> list[tuple[int, int]]:
        """When facts of a stream were recorded here: (first offset, milliseconds since 1970 by this node's clock), at
        most one mark a minute, oldest first. Facts from a mark up to the next one were recorded within a minute after
        the mark."""
        with self._reading() as connection:
            return connection.execute(QUERIES["select_clock_marks"], (self._stream(connection, stream),)).fetchall()

    def definitions(self, zone: str, digest: bytes, held: Collection[bytes] = ()) -> DefinitionChain | None:
        """The tag definitions of a zone up to the one with this digest, after the newest whose digest begins with one
        of `held`; None if they are not held. Raises StoreDamaged."""
        with self._reading() as connection:
            return read_definitions(connection.execute, zone, digest, held)

    def definitions_named(self, definition: int) -> tuple[str, Definitions]:
        """The zone, and the definitions up to one that is given by its id. Raises StoreDamaged."""
        if (known := self._known.definitions.get(definition)) is None:
            with self._reading() as connection:
                row = connection.execute(QUERIES["select_definition"], (definition,)).fetchone()
            if row is None:
                raise StoreDamaged(f"{self.path}: a batch needs tag definition {definition}, which is not in the table")
            known = self._known.definitions[definition] = row[0], Definitions(row[3], row[1])
        return known

    def definition_ends(self) -> list[tuple[str, Definitions]]:
        """Zone and last definition of each chain of definitions, in the order in which they were stored."""
        with self._reading() as connection:
            ((newest,),) = connection.execute(QUERIES["select_last_definition"])
            known = self._known.ends  # another thread may replace it
            if newest != known[0]:  # above a thousand zones, that is a look at 50,000 rows
                rows = connection.execute(QUERIES["select_definition_ends"])
                named = {found: (zone, Definitions(number, digest)) for found, zone, number, digest in rows}
                self._known.definitions |= named  # nearly every batch names one of these
                known = self._known.ends = newest, list(named.values())
        return known[1]

    def definition_counts(self) -> dict[str, int]:
        """How many tag definitions of each zone are held."""
        with self._reading() as connection:
            return dict(connection.execute(QUERIES["select_definition_counts"]).fetchall())

    def own_definitions(self) -> Definitions:
        """The newest definitions with which this store seals samples of its zone."""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_own_definitions"]).fetchall()
        return next((Definitions(*named) for zone, _, *named in rows if zone == self.zone), Definitions())

    def damaged_definitions(self, stream: str, origin: Origin, last_sequence: int) -> Definitions | None:
        """The definitions that the batch with this sequence needs, if some of them are damaged or missing."""
        page = self.read_sequences(stream, origin, last_sequence, last_sequence, 1, 1)
        needed = page.batches[0].definitions if page.batches else Definitions()
        try:
            is_sound = not needed.count or self.definitions(origin.zone, needed.digest) is not None
        except StoreDamaged:
            is_sound = False
        return None if is_sound else needed

    def holds_other(self, stream: str, offset: int, digest: bytes) -> bool:
        """Whether an intact batch at an offset is not one that ends there with this digest."""
        with self._reading() as connection:
            number = self._stream(connection, stream)
            return number is not None and holds_other(connection.execute, StreamState(number, stream), offset, digest)

    def own_lives(self) -> list[bytes]:
        """The lives of this store that have stored something."""
        with self._reading() as connection:
            return [life for (life,) in connection.execute(QUERIES["select_own_lives"])]

    def lives_held(self, zone: str | None = None) -> list[tuple[str, bytes, str, int, int, int, int]]:
        """By zone, life and stream: how many facts are or were held, the first and the last sequence, and in how many
        ranges."""
        with self._reading() as connection:
            return connection.execute(QUERIES["select_lives_held"], {"zone": zone}).fetchall()

    def log(self, stream: str) -> LogLives:
        """The lives of a stream's log. Which of them a process still writes cannot be seen from outside."""
        return LogLives(self.lives(stream), self.end_offset(stream))

    def lives(self, stream: str) -> LifeRows:
        """The lives of a stream's log, read one by one when they are needed."""

        def rows(query: str, asked: dict[str, object]) -> list[Any]:
            with self._reading() as connection:
                return connection.execute(query, {"stream": self._stream(connection, stream) or 0, **asked}).fetchall()

        return StoredLives(rows)

    def held(self, stream: str) -> dict[Origin, tuple[HeldRange, ...]]:
        """The ranges of every origin that are held in a stream, or were held until their release."""
        with self._reading() as connection:
            return ranges_of(connection.execute(QUERIES["select_held_in"], (self._stream(connection, stream),)))

    def held_of(self, stream: str, origin: Origin) -> tuple[HeldRange, ...]:
        """The ranges of an origin that are held in a stream, or were held until their release."""
        with self._reading() as connection:
            number, of = self._stream(connection, stream), self._number(connection, origin)
            return held_of(connection.execute, number, of) if number and of else ()

    def range_starts(self, stream: str, zone: str) -> dict[tuple[int, bytes], list[bytes]]:
        """The lives of a zone that have a range in a stream, held or released, by its first sequence and the digest
        before it."""
        found = dict[tuple[int, bytes], list[bytes]]()
        with self._reading() as connection:
            named = (self._stream(connection, stream), zone)
            for sequence, digest, life in connection.execute(QUERIES["select_range_starts"], named):
                found.setdefault((sequence, digest), []).append(life)
        return found

    def holds_zone(self, stream: str, zone: str) -> bool:
        """Whether facts of a zone are held in a stream, or were."""
        with self._reading() as connection:
            named = (self._stream(connection, stream), zone)
            return connection.execute(QUERIES["select_zone_is_held"], named).fetchone() is not None

    def lowest_offset_above(self, stream: str, zone: str, life: bytes) -> int | None:
        """Where facts of the lives of a zone above one begin in a stream, as far as the first batch of each tells; None
        if none are here."""
        with self._reading() as connection:
            asked = {"stream": self._stream(connection, stream), "zone": zone, "life": life}
            found: int | None = connection.execute(QUERIES["select_lowest_offset_above"], asked).fetchone()[0]
        return found

    def zones_held(self, stream: str, after_zone: str, limit: int) -> list[ZoneHeld]:
        """What is held of zones in a stream, or was held until its release: the next ones by name."""
        return self._zones_held(stream, QUERIES["select_zones_held"], {"after": after_zone, "limit": limit})

    def zone_held(self, stream: str, zone: str) -> ZoneHeld | None:
        """What is held of one zone in a stream; None if nothing ever was."""
        found = self._zones_held(stream, QUERIES["select_zone_held"], {"zone": zone})
        return found[0] if found else None

    def _zones_held(self, stream: str, query: str, asked: dict[str, object]) -> list[ZoneHeld]:
        with self._reading() as connection, one_state(connection):
            number = self._stream(connection, stream) or 0
            rows = connection.execute(query, {"stream": number, **asked}).fetchall()
            return [
                ZoneHeld(
                    Origin(zone, life),
                    held_of(connection.execute, number, newest),
                    HeldSum(ranges, int.from_bytes(digest_sum)),
                    facts,
                )
                for zone, life, newest, ranges, digest_sum, facts in rows
            ]

    def earlier_lives(
        self, stream: str, zone: str, below: bytes, ranges_max: int, down_to: bytes = b""
    ) -> dict[Origin, tuple[HeldRange, ...]]:
        """The ranges of lives of a zone below one, and not below `down_to`: whole lives, the newest first, until there
        are so many ranges."""
        found, range_count = dict[Origin, list[HeldRange]](), 0
        with self._reading() as connection:
            asked = {"stream": self._stream(connection, stream), "zone": zone, "below": below, "down_to": down_to}
            rows = connection.execute(QUERIES["select_earlier_lives"], asked)
            try:
                for life, *ends in rows:
                    if (origin := Origin(zone, life)) not in found and range_count >= ranges_max:
                        break
                    found.setdefault(origin, []).append(HeldRange(*ends))
                    range_count += 1
            finally:
                rows.close()  # an unfinished statement would keep the WAL from being reused
        return {origin: tuple(ranges) for origin, ranges in found.items()}

    def held_below(self, stream: str, zone: str, life: bytes) -> tuple[HeldSum, int]:
        """The sum of what is held of the lives of a zone below one, and how many facts it has. Reads those from there
        up to the newest."""
        with self.at_one_moment() as moment:  # a page stored in between would be in one of two reads
            held = moment.zone_held(stream, zone)
            if held is None:
                return HeldSum(), 0
            newest = held.newest.life
            if life > newest:
                newest_facts = count(part.span for part in held.ranges)
                return held.before.plus(HeldSum.of(newest, held.ranges)), held.facts_before + newest_facts
            above = moment.earlier_lives(stream, zone, newest, RANGES_OF_ZONE_MAX, life)
            facts_above = count(part.span for ranges in above.values() for part in ranges)
            sums = (HeldSum.of(origin.life, ranges) for origin, ranges in above.items())
            return reduce(HeldSum.minus, sums, held.before), held.facts_before - facts_above

    def lowest_sequence(self, stream: str, zone: str) -> int | None:
        """The lowest sequence of a zone that is held in a stream, or was held until its release."""
        with self._reading() as connection:
            asked = {"stream": self._stream(connection, stream), "zone": zone}
            found: int | None = connection.execute(QUERIES["select_lowest_sequence"], asked).fetchone()[0]
        return found

    def forgotten(self, zone: str) -> bytes:
        """The highest life of a zone that this store has forgotten; empty if none."""
        with self._reading() as connection:
            row = connection.execute(QUERIES["select_forgotten"], (zone,)).fetchone()
        return row[0] if row else b""

    def compared(self, peer: str, stream: str, zone: str) -> ComparedSums | None:
        """The sums of a zone of which a comparison with a peer found nothing to be fetched."""
        with self._reading() as connection:
            asked = peer, self._stream(connection, stream), zone
            row = connection.execute(QUERIES["select_compared"], asked).fetchone()
        if row is None:
            return None
        floor, our_ranges, our_sum, their_ranges, their_sum = row
        ours, theirs = HeldSum(our_ranges, int.from_bytes(our_sum)), HeldSum(their_ranges, int.from_bytes(their_sum))
        return ComparedSums(floor, ours, theirs)

    def origins_of(self, zone: str) -> list[Origin]:
        """The origins of a zone, in the order in which they were recorded."""
        with self._reading() as connection:
            return list(origins_of(connection.execute, zone))

    def resolve(self, stream: str, position: Position) -> Resolved:
        """What a position in a log of this stream means here."""
        return self.log(stream).resolve(position, partial(self.holds_other, stream))

    def end_offset(self, stream: str) -> int:
        """Offset of the last fact of a stream, 0 if there is none."""
        with self._reading() as connection:
            number = self._stream(connection, stream)
            return int(connection.execute(QUERIES["select_end_offset"], (number,)).fetchone()[0]) if number else 0

    def streams(self) -> list[StreamInfo]:
        """Every stream."""
        return [state.info() for state in self._catalog().streams.values()]

    def bounds(self) -> dict[str, tuple[int, int]]:
        """First and last offset of every stream, even in a file whose other tables are damaged. An end that cannot be
        read is OFFSET_UNKNOWN, which is beyond any offset ever written."""
        with self._reading() as connection:
            try:
                rows = connection.execute(QUERIES["select_streams"]).fetchall()
                return {name: (released_offset + 1, end_offset) for _, name, released_offset, _, end_offset, *_ in rows}
            except sqlite3.DatabaseError:
                rows = connection.execute(QUERIES["select_stream_rows"]).fetchall()
            return {name: (released + 1, self._end_by_rows(connection, number)) for number, name, released, _ in rows}

    def _end_by_rows(self, connection: sqlite3.Connection, stream: int) -> int:
        """The end of a stream without its index, which is damaged."""
        try:
            row = connection.execute(QUERIES["select_last_row"], (stream,)).fetchone()
        except sqlite3.DatabaseError:
            return OFFSET_UNKNOWN
        return int(row[0]) if row else 0

    def row_summaries(self, after_row: int, limit: int) -> list[tuple[int, str, BatchSummary]]:
        """As `summaries`, but by row and without an index: (row, stream, summary) of all streams. For a file whose
        index is damaged."""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_row_summaries"], (after_row, limit)).fetchall()
            names = {number: name for number, name, *_ in connection.execute(QUERIES["select_stream_rows"]).fetchall()}
            origins = {row[4]: self._origin(connection, row[4]) for row in rows}
            return [(row[0], names[row[1]], BatchSummary(row[2], row[3], origins[row[4]], *row[5:])) for row in rows]

    def row(self, stream: str, row: int) -> StoredBatch:
        """One batch of a stream by its row. Raises StoreDamaged if it is not the batch that was stored there."""
        with self._reading() as connection:
            found = connection.execute(QUERIES["select_row"], (row,)).fetchone()
        batch = parse_row(stream, found) if found else "it is gone"  # retention may have deleted it
        if isinstance(batch, str):
            raise StoreDamaged(f"row {row} of {stream}: {batch}")
        return StoredBatch(found[0], batch)

    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the file, of its write-ahead log, and of the pages of the file that are free for reuse."""
        with self._reading() as connection:
            ((page_bytes,), (free_pages,)) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "freelist_count")
            )
        wal_bytes = file_bytes(self.path.with_name(self.path.name + "-wal"))
        return file_bytes(self.path), wal_bytes, page_bytes * free_pages

    def origins(self) -> list[Origin]:
        """Every origin whose facts are held, this store first."""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_origins"]).fetchall()
        return [Origin(zone, life) for _, zone, life in rows]

    def artifact_streams(self, digest: str) -> list[str]:
        """The streams with a held fact that refers to an artifact. Raises ArtifactRefused."""
        raw = bytes.fromhex(check_digest(digest))
        with self._reading() as connection:
            return [name for (name,) in connection.execute(QUERIES["select_artifact_streams"], (raw,)).fetchall()]

    def artifacts_of(self, stream: str, after: str = "") -> list[str]:
        """The digests of artifacts to which held facts of a stream refer, the next ARTIFACTS_AT_ONCE after `after`, in
        order."""
        behind = bytes.fromhex(check_digest(after)) if after else b""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_artifacts_of"], (stream, behind, ARTIFACTS_AT_ONCE)).fetchall()
        return [f"sha256:{raw.hex()}" for (raw,) in rows]

    def consumers(self) -> list[ConsumerState]:
        """Every registered consumer."""
        return list(self._catalog().consumers.values())

    def completeness(self, source: str) -> dict[str, tuple[int, int | None]]:
        """Up to when the parts of a source are complete, and by how much its clock was ahead of this node's then."""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_completeness"], (source,)).fetchall()
        return {part: (complete_ns, ahead_ns) for part, complete_ns, ahead_ns in rows}

    def incidents(self, limit: int = INCIDENTS_MAX, kinds: Iterable[str] = ()) -> list[Incident]:
        """The last `limit` incidents of all kinds, or of these, newest first."""
        named = " ".join(kinds)
        values = {"kinds": named and f" {named} ", "some": limit}
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_incidents"], values).fetchall()
        return [Incident(*row) for row in rows]

    def space(
        self,
        settings: StoreSettings,
        policies: Mapping[str, StreamSettings],
        *,
        catalog: Catalog | None = None,
        age_ms: int | None = None,
        holds: Mapping[str, ZoneLimit] | None = None,
    ) -> StoreSpace:
        """Free space and forecast under these settings; `holds`: what each zone may hold back. Without the writer's
        catalog and age, the result is as of the last mark."""
        catalog = catalog or self._catalog()
        age_ms = catalog.age_ms if age_ms is None else age_ms
        with self._reading() as connection:
            return measure_space(connection, self.path.parent, catalog, age_ms, settings, policies, holds or {})

    @contextmanager
    def at_one_moment(self) -> Iterator[StoreReader]:
        """A reader whose reads all see the store as it was at the first of them, for results that are compared with
        each other. The node's WAL cannot be reused meanwhile, so it is for seconds. Used by one thread."""
        with self._reading() as connection, one_state(connection):
            yield _MomentReader(self, connection)

    def close(self) -> None:
        """Close the connections. Reads in progress finish; later ones raise StoreClosed."""
        self._connections.close()

    # --------------------------------------------------------------------------------------------------------- internal

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for this call alone. Errors of SQLite and invalid values are raised as errors of the store."""
        return self._connections.reading()

    def _catalog(self) -> Catalog:
        """The catalog, from one state of the tables."""
        with self._reading() as connection, one_state(connection):
            return load(connection, self.path)

    def _stream(self, connection: sqlite3.Connection, name: str) -> int | None:
        """Number of a stream; numbers never change, so they are cached."""
        if name not in self._known.streams:
            rows: list[tuple[Any, ...]] = connection.execute(QUERIES["select_streams"]).fetchall()
            self._known.streams.update({row[1]: row[0] for row in rows})
        return self._known.streams.get(name)

    def _number(self, connection: sqlite3.Connection, origin: Origin) -> int | None:
        """Number of an origin, which never changes; None if none of its facts was ever held."""
        if origin not in self._known.numbers:
            row = connection.execute(QUERIES["select_origin"], (origin.zone, origin.life)).fetchone()
            if row is None:
                return None
            self._remember(row[0], origin)
        return self._known.numbers[origin]

    def _origin(self, connection: sqlite3.Connection, number: int) -> Origin:
        """Origin of a number. Raises StoreDamaged if the table has none."""
        if (known := self._known.origins.get(number)) is None:
            row = connection.execute(QUERIES["select_origin_by_number"], (number,)).fetchone()
            if row is None:
                raise StoreDamaged(f"{self.path}: a batch is of origin {number}, which is not in the table")
            self._remember(number, known := Origin(*row))
        return known

    def _remember(self, number: int, origin: Origin) -> None:
        if len(self._known.origins) >= ORIGINS_KEPT_MAX:
            self._known.origins, self._known.numbers = {}, {}
        self._known.origins[number], self._known.numbers[origin] = origin, number


class _MomentReader(StoreReader):
    """A reader on one connection that has a read transaction open, which belongs to its maker."""

    def __init__(self, reader: StoreReader, connection: sqlite3.Connection) -> None:
        self.path, self.zone, self.node = reader.path, reader.zone, reader.node
        self._on_damaged, self._known = None, _Known()
        self._connection = connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with reading_tables(self.path):
            yield self._connection

    def close(self) -> None:
        """Its maker closes the connection."""


def open_copy(path: Path) -> StoreReader:
    """A reader of a file that a command names, also on a read-only disk. Raises StoreUnusable."""
    return StoreReader(path, connect_to=connect_to_copy(path))
