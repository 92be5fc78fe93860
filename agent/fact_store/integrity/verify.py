"""Verifies a whole store: walks all tables of its file read-only and runs the checks of row_checks.py on them.

It works while a node is running, and on a quarantined file. What SQLite cannot read counts as damage, and the walk
continues after it where possible. Facts appended during the walk are not checked, and facts released during it are left
out.

Guarantees: nothing is written. The small tables are read in one transaction, each page of batches in one of its own,
and none stays open from one page to the next. An exception is SQLite's own check of its pages: it is one statement, and
until it ends the node's WAL cannot be reused and grows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.batch import Definitions, Origin
from agent.fact_store.core import StoreDamaged, parse_row
from agent.fact_store.integrity.row_checks import BatchRow, Damage, StreamCheck, definitions_damage
from agent.fact_store.sqlite import (
    QUERIES,
    check_known,
    connect_reader,
    connect_to_copy,
    identity,
    is_damage,
    one_state,
    reading_tables,
)
from agent.pages import HeldRange

OFFSET_BEYOND = 2**62
ROWS_AT_ONCE = 16  # each of at most half a MiB
Progress = Callable[[str, int, int], None]  # stream, offset reached, where the stream ends


@dataclass(slots=True)
class VerifyCounts:
    """Counts of what a walk has checked."""

    batches: int = 0
    facts: int = 0
    bytes: int = 0
    definitions: int = 0
    signed: int = 0
    checkpoints: int = 0
    streams: int = 0


def verify_store(path: Path, done: VerifyCounts, progress: Progress, *, is_quick: bool) -> Iterator[Damage]:
    """Yield each damage of the store at `path` as it is found, and count in `done` what was checked.

    `is_quick` checks digests, chains and tables; otherwise each batch is also opened, and SQLite checks its pages.
    Raises StoreUnusable if the file is not a store, or is too damaged to be read at all.
    """
    with reading_tables(path), closing(connect_reader(path, connect_to_copy(path))) as connection:
        check_known(connection)
        walk = _Walk(connection, done, progress, is_opened=not is_quick)
        yield from walk.identity(path)
        if not is_quick:
            yield from walk.pages()
        yield from walk.tables()


@dataclass(slots=True)
class _StreamTable:
    """A stream by its tables: how far it is released, its last batch, and what it holds or held before retention.

    If the last batch cannot be read, `last_first_offset` is beyond all batches, and the walk goes as far as it can."""

    name: str
    released_offset: int
    released_bytes: int
    last_offset: int = 0
    last_first_offset: int = OFFSET_BEYOND
    held: dict[Origin, list[HeldRange]] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        """The end by the held ranges."""
        return sum(held.last_sequence - held.first_sequence + 1 for ranges in self.held.values() for held in ranges)


@dataclass(slots=True)
class _Tables:
    """The small tables, all as they were at one moment."""

    origins: dict[int, Origin] = field(default_factory=dict)
    definitions: dict[int | None, tuple[str, Definitions]] = field(default_factory=dict)
    streams: dict[int, _StreamTable] = field(default_factory=dict)
    consumers: list[tuple[Any, ...]] = field(default_factory=list)
    confirmed: list[tuple[Any, ...]] = field(default_factory=list)


class _Walk:
    """One walk on one connection."""

    def __init__(
        self, connection: sqlite3.Connection, done: VerifyCounts, progress: Progress, *, is_opened: bool
    ) -> None:
        self._connection = connection
        self._node = ""
        self._done = done
        self._progress = progress
        self._is_opened = is_opened
        self._unreadable = list[Damage]()  # found since the last `_take_unreadable`

    def identity(self, path: Path) -> Iterator[Damage]:
        """The zone and the node of the store."""
        try:
            self._node = identity(self._connection, path).node
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
        # What is compared with each other is read at one moment: a consumer confirms what was appended a moment before.
        with one_state(self._connection):
            tables = self._tables()
            found = [*self._table_damage(tables)]
        yield from found
        self._done.definitions += len(tables.definitions)
        numbers = {origin: number for number, origin in tables.origins.items()}
        for number, stream in tables.streams.items():
            self._done.streams += 1
            check = StreamCheck(
                stream.name, tables.origins, tables.definitions, stream.released_offset, stream.released_bytes,
                self._is_opened,
            )  # fmt: skip
            yield from self._stream(number, check, stream)
            yield from check.finish(stream.end_offset)
            yield from check.held_damage(stream.held)
            self._done.signed += check.signed
            yield from self._checkpoint_damage(number, check, numbers)
        for (count,) in self._rows("the table batch", "select_batch_streams"):
            if count:
                yield Damage("", 0, 0, "", 0, f"{count} batches are of a stream that does not exist")
        yield from self._take_unreadable()

    def _tables(self) -> _Tables:
        tables = _Tables()
        for number, zone, life in self._rows("the table origin", "select_origins"):
            tables.origins[number] = Origin(zone, life)
        for number, name, released_offset, released_bytes in self._rows("the table stream", "select_stream_rows"):
            tables.streams[number] = _StreamTable(name, released_offset, released_bytes)
            what = f"the index of {name}"
            for last_offset, last_first_offset in self._rows(what, "select_last_batch", (number,)):
                tables.streams[number].last_offset = last_offset
                tables.streams[number].last_first_offset = last_first_offset
        for number, origin, *ends in self._rows("the table held", "select_held"):
            if number in tables.streams and origin in tables.origins:
                tables.streams[number].held.setdefault(tables.origins[origin], []).append(HeldRange(*ends))
        tables.consumers = self._rows("the table consumer", "select_consumers")
        tables.confirmed = self._rows("the table confirmed", "select_confirmed")
        return tables

    def _table_damage(self, tables: _Tables) -> Iterator[Damage]:
        rows = self._rows("the tag definitions", "select_definition_rows")
        yield from definitions_damage(rows)
        tables.definitions = {row[0]: (row[1], Definitions(row[4], row[2])) for row in rows}
        for stream in tables.streams.values():
            if stream.released_offset > stream.end_offset:
                what = f"released to {stream.released_offset}, the held ranges end at {stream.end_offset}"
                yield Damage(stream.name, 0, 0, "", 0, what)
        yield from _consumer_damage(tables)
        yield from self._take_unreadable()

    def _stream(self, number: int, check: StreamCheck, stream: _StreamTable) -> Iterator[Damage]:
        """The batches that the stream had when its tables were read, in pages; each page is read at one moment."""
        after = 0
        while after < stream.last_first_offset:
            with one_state(self._connection):
                for released in self._rows("the table stream", "select_released", (number,)):
                    check.release(*released)
                rows = list(self._page(number, after, stream.last_first_offset, check.stream))
                rows = self._with_repairs(number, check.stream, after, rows)
            for row in rows:
                yield from check.check_row(row)
                self._done.batches += 1
                self._done.facts += row.count if isinstance(row.count, int) else 0
                self._done.bytes += len(row.body) if isinstance(row.body, bytes) else 0
            yield from self._take_unreadable()
            offsets = [row.first_offset for row in rows if isinstance(row.first_offset, int)]
            if not offsets or max(offsets) <= after:
                return
            after = max(offsets)
            self._progress(check.stream, after, stream.end_offset)

    def _checkpoint_damage(self, stream: int, check: StreamCheck, numbers: dict[Origin, int]) -> Iterator[Damage]:
        """Compare the batches with this node's own checkpoints. Those of others are unproven claims, and a false one
        must not make this store appear damaged."""
        for checkpoint in check.checkpoints:
            number = numbers.get(checkpoint.origin)
            if checkpoint.by != self._node or checkpoint.stream != check.stream or number is None:
                continue
            self._done.checkpoints += 1
            asked = {"stream": stream, "origin": number, "sequence": checkpoint.last_sequence}
            for last_sequence, digest in self._rows("a batch of a checkpoint", "select_end_at_sequence", asked):
                if (last_sequence, digest) != (checkpoint.last_sequence, checkpoint.digest):
                    what = (
                        f"sequence {checkpoint.last_sequence} is not what the checkpoint of {checkpoint.date} recorded"
                    )
                    yield Damage(check.stream, 0, 0, str(checkpoint.origin), checkpoint.last_sequence, what)

    def _page(self, number: int, after: int, until: int, stream: str) -> Iterator[BatchRow]:
        """The next rows of a stream; read one by one if SQLite cannot step through them."""
        try:
            asked = (number, after, until, ROWS_AT_ONCE)
            yield from map(BatchRow._make, self._connection.execute(QUERIES["select_verify_page"], asked).fetchall())
            return
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
        for (offset,) in self._rows(
            f"the index of {stream} after offset {after}", "select_verify_offsets", (number, after, until, ROWS_AT_ONCE)
        ):
            what = f"the batch at offset {offset} of {stream}"
            for row in self._rows(what, "select_verify_page", (number, offset - 1, until, 1)):
                yield BatchRow._make(row)
                break
            else:
                yield BatchRow(offset, offset - 1, *[None] * 12)

    def _with_repairs(self, number: int, stream: str, after: int, rows: list[BatchRow]) -> list[BatchRow]:
        """The rows as they are served: with repaired bytes in place of damaged ones."""
        last = max((row.first_offset for row in rows if isinstance(row.first_offset, int)), default=after)
        asked = {"stream": number, "offset": after + 1, "until_offset": last}
        repaired = {offset for (offset,) in self._rows("the table repaired", "select_repaired_offsets", asked)}
        return [self._repaired(number, stream, row) if row.first_offset in repaired else row for row in rows]

    def _repaired(self, number: int, stream: str, row: BatchRow) -> BatchRow:
        for found in self._rows(f"what was repaired of {stream}", "select_repaired", (number, row.first_offset)):
            if not isinstance(parse_row(stream, found), str):
                return row._replace(body=found[2], digest=found[3])
        return row

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


def _consumer_damage(tables: _Tables) -> Iterator[Damage]:
    """Check that frontiers, and ranges confirmed beyond them, lie within the log."""
    ends = {stream.name: max(stream.end_offset, stream.last_offset) for stream in tables.streams.values()}
    frontiers = dict[int, tuple[str, str, int]]()
    for number, name, _, stream, _, start_offset, frontier, *_ in tables.consumers:
        frontiers[number] = (name, stream, frontier)
        end_offset = ends.get(stream, 0)
        if not start_offset <= frontier <= end_offset:
            what = f"consumer {name} confirmed {frontier}: it began at {start_offset}, the log ends at {end_offset}"
            yield Damage(stream, 0, 0, "", 0, what)
    for number, first_offset, last_offset in tables.confirmed:
        name, stream, frontier = frontiers.get(number, ("unknown", "", 0))
        if not frontier < first_offset <= last_offset <= ends.get(stream, 0):
            what = f"consumer {name} confirmed {first_offset} to {last_offset}: not a range beyond {frontier}"
            yield Damage(stream, 0, 0, "", 0, what)
