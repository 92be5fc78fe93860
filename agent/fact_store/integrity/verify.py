"""Verifies a whole store: walks all tables of its file read-only and runs the checks of row_checks.py on them.

It works while a node is running, and on a quarantined file. What SQLite cannot read counts as damage, and the walk
continues after it where possible. Facts appended during the walk are not checked.

Guarantees: nothing is written, and no transaction stays open from one page to the next. An exception is SQLite's own
check of its pages: it is one statement, and until it ends the node's WAL cannot be reused and grows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.batch import Definitions, Origin
from agent.fact_store.integrity.head_check import HeadCheck
from agent.fact_store.integrity.row_checks import BatchRow, Damage, StreamCheck, definitions_damage
from agent.fact_store.log import StoreDamaged, parse_row
from agent.fact_store.sqlite import QUERIES, check_known, connect_reader, identity, is_damage, reading_tables
from agent.pages import HeldRange

ROWS_AT_ONCE = 16  # each of at most half a MiB
Progress = Callable[[str, int, int], None]  # stream, offset reached, where the stream ends


@dataclass(slots=True)
class VerifyCounts:
    """Counts of what a walk has checked."""

    batches: int = 0
    facts: int = 0
    bytes: int = 0
    definitions: int = 0
    heads: int = 0
    checkpoints: int = 0
    streams: int = 0


def verify_store(path: Path, done: VerifyCounts, progress: Progress, *, is_quick: bool) -> Iterator[Damage]:
    """Yield each damage of the store at `path` as it is found, and count in `done` what was checked.

    `is_quick` checks digests, chains and tables; otherwise each batch is also opened, and SQLite checks its pages.
    Raises StoreUnusable if the file is not a store, or is too damaged to be read at all.
    """
    with reading_tables(path), closing(connect_reader(path)) as connection:
        check_known(connection)
        walk = _Walk(connection, done, progress, is_opened=not is_quick)
        yield from walk.identity(path)
        if not is_quick:
            yield from walk.pages()
        yield from walk.tables()


class _Walk:
    """One walk on one connection."""

    def __init__(
        self, connection: sqlite3.Connection, done: VerifyCounts, progress: Progress, *, is_opened: bool
    ) -> None:
        self._connection = connection
        self._heads = HeadCheck(connection)
        self._zone = ""
        self._done = done
        self._progress = progress
        self._is_opened = is_opened
        self._unreadable = list[Damage]()  # found since the last `_take_unreadable`

    def identity(self, path: Path) -> Iterator[Damage]:
        """The zone and epoch of the store."""
        try:
            self._zone = identity(self._connection, path).zone
        except StoreDamaged as error:
            yield Damage("", 0, 0, "", 0, error.why)

    def pages(self) -> Iterator[Damage]:
        """SQLite's own check of its pages and indexes."""
        for (line,) in self._rows("the pages of the file", "integrity_check"):
            if line != "ok":
                yield Damage("", 0, 0, "", 0, str(line))
        yield from self._take_unreadable()

    def tables(self) -> Iterator[Damage]:
        """All rows that this program wrote."""
        origins = dict[int, Origin]()
        for number, zone, epoch in self._rows("the table origin", "select_origins"):
            if isinstance(zone, str) and isinstance(epoch, bytes):
                origins[number] = Origin(zone, epoch)
        definitions = dict[tuple[int, int], bytes]()
        for number, origin in origins.items():
            yield from self._definitions(number, origin, definitions)
        held = dict[int, dict[Origin, list[HeldRange]]]()
        for stream, number, *ends in self._rows("the table held", "select_held"):
            if number in origins and all(isinstance(one, int) for one in ends[:2]):
                held.setdefault(stream, {}).setdefault(origins[number], []).append(HeldRange(*ends))
        ends_found = dict[str, int]()
        for number, name, released_offset, released_bytes in self._rows("the table stream", "select_stream_rows"):
            self._done.streams += 1
            check = StreamCheck(
                name, origins, definitions, released_offset, released_bytes, self._heads.problem, self._is_opened
            )
            ranges = held.get(number, {})
            end_offset = sum(one.last_sequence - one.first_sequence + 1 for each in ranges.values() for one in each)
            yield from self._stream(number, check, end_offset)
            ends_found[name] = max(end_offset, check.next_offset - 1)
            yield from check.finish(end_offset)
            yield from check.held_damage(ranges)
            yield from self._checkpoint_damage(number, check, {origin: n for n, origin in origins.items()})
        for (count,) in self._rows("the table batch", "select_batch_streams"):
            if count:
                yield Damage("", 0, 0, "", 0, f"{count} batches are of a stream that does not exist")
        yield from self._consumers(ends_found)
        yield from self._take_unreadable()

    def _definitions(self, number: int, origin: Origin, found: dict[tuple[int, int], bytes]) -> Iterator[Damage]:
        rows = self._rows(
            f"the tag definitions of {origin}", "select_definitions", {"origin": number, "after": 0, "until": 2**62}
        )
        yield from definitions_damage(origin, rows)
        running = Definitions()
        for _, _, body in rows:
            if isinstance(body, bytes):
                running = running.extended(body)
                found[number, running.count] = running.digest
        self._done.definitions += len(rows)
        yield from self._take_unreadable()

    def _stream(self, number: int, check: StreamCheck, end_offset: int) -> Iterator[Damage]:
        after = 0
        asked = {"stream": number, "offset": 0, "until_offset": 2**62}
        repaired = {offset for (offset,) in self._rows("the table repaired", "select_repaired_offsets", asked)}
        while True:
            rows = list(self._page(number, after, check.stream))
            for row in rows:
                if check.next_offset > end_offset >= check.next_offset - 1 and row.first_offset > end_offset:
                    return  # appended since the walk began
                yield from check.check_row(self._repaired(number, check.stream, row, repaired))
                self._done.batches += 1
                self._done.heads += row.head is not None
                self._done.facts += row.count if isinstance(row.count, int) else 0
                self._done.bytes += len(row.body) if isinstance(row.body, bytes) else 0
            yield from self._take_unreadable()
            offsets = [row.first_offset for row in rows if isinstance(row.first_offset, int)]
            if not offsets or max(offsets) <= after:
                return
            after = max(offsets)
            self._progress(check.stream, after, end_offset)

    def _checkpoint_damage(self, stream: int, check: StreamCheck, numbers: dict[Origin, int]) -> Iterator[Damage]:
        """Compare the batches with this zone's own checkpoints. Checkpoints of other zones are unproven claims, and a
        false one must not make this store appear damaged."""
        for one in check.checkpoints:
            number = numbers.get(one.origin)
            if one.by != self._zone or one.stream != check.stream or number is None:
                continue
            self._done.checkpoints += 1
            asked = {"stream": stream, "origin": number, "sequence": one.last_sequence}
            for last_sequence, digest in self._rows("a batch of a checkpoint", "select_end_at_sequence", asked):
                if (last_sequence, digest) != (one.last_sequence, one.digest):
                    what = f"sequence {one.last_sequence} is not what the checkpoint of {one.date} recorded"
                    yield Damage(check.stream, 0, 0, str(one.origin), one.last_sequence, what)

    def _page(self, number: int, after: int, stream: str) -> Iterator[BatchRow]:
        """The next rows of a stream; read one by one if SQLite cannot step through them."""
        try:
            asked = (number, after, ROWS_AT_ONCE)
            yield from map(BatchRow._make, self._connection.execute(QUERIES["select_verify_page"], asked).fetchall())
            return
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
        for (offset,) in self._rows(
            f"the index of {stream} after offset {after}", "select_verify_offsets", (number, after, ROWS_AT_ONCE)
        ):
            what = f"the batch at offset {offset} of {stream}"
            for row in self._rows(what, "select_verify_page", (number, offset - 1, 1)):
                yield BatchRow._make(row)
                break
            else:
                yield BatchRow(offset, offset - 1, *[None] * 13)

    def _repaired(self, number: int, stream: str, row: BatchRow, repaired: set[int]) -> BatchRow:
        """The row as it is served: with repaired bytes in place of damaged ones."""
        if row.first_offset not in repaired:
            return row
        for found in self._rows(f"what was repaired of {stream}", "select_repaired", (number, row.first_offset)):
            if not isinstance(parse_row(stream, found), str):
                return row._replace(body=found[2], digest=found[3])
        return row

    def _consumers(self, ends: dict[str, int]) -> Iterator[Damage]:
        """Check that frontiers, and ranges confirmed beyond them, lie within the log."""
        frontiers = dict[int, tuple[str, str, int]]()
        for number, name, _, stream, _, start_offset, frontier, *_ in self._rows(
            "the table consumer", "select_consumers"
        ):
            frontiers[number] = (name, stream, frontier)
            if not start_offset <= frontier <= ends.get(stream, 0):
                end_offset = ends.get(stream, 0)
                what = f"consumer {name} confirmed {frontier}: it began at {start_offset}, the log ends at {end_offset}"
                yield Damage(stream, 0, 0, "", 0, what)
        for number, first_offset, last_offset in self._rows("the table confirmed", "select_confirmed"):
            name, stream, frontier = frontiers.get(number, ("unknown", "", 0))
            if not frontier < first_offset <= last_offset <= ends.get(stream, 0):
                what = f"consumer {name} confirmed {first_offset} to {last_offset}: not a range beyond {frontier}"
                yield Damage(stream, 0, 0, "", 0, what)

    def _rows(self, what: str, query: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that SQLite can read; what it cannot read becomes damage."""
        rows = list[tuple[Any, ...]]()
        try:
            for row in self._connection.execute(QUERIES[query], values):
                rows.append(row)  # rows read before an error count
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.Error) and not is_damage(error):
                raise
            self._unreadable.append(Damage("", 0, 0, "", 0, f"{what} cannot be read: {error}"))
        return rows

    def _take_unreadable(self) -> Iterator[Damage]:
        found, self._unreadable = self._unreadable, []
        yield from found
