"""SQL on a store: one read-only statement at a time, on virtual tables, in a process that does nothing else.

This process loads two SQLite libraries, which is safe only because one of them never opens the store's file. The
standard library's sqlite3, which the node also uses, reads the store (StoreReader, mode=ro, a page at a time). apsw has
its own newer SQLite with virtual tables in an empty database in memory, and this module supplies their rows. If both
opened the file, closing it in one would release the POSIX locks of the other, because these belong to the process; a
trial lost rows that way. So nothing can be attached, an authorizer refuses everything but reading, and `bsfg sql` never
runs in a node.

    ExtraMissing            apsw is not installed
    TimeUnreadable          a text that is compared with a time begins as none
    SqlRefused              SQLite cannot run the statement, or it would do more than read
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.columns import BatchError
from agent.fact_store import INCIDENTS_MAX, StoreDamaged, StoreReader, named_statements
from agent.message import INT64_MIN, time_text
from agent.query.latest import find_latest
from agent.query.scan import (
    INT64_MAX,
    ExtraMissing,
    Scanner,
    SqlRefused,
    TimeUnreadable,
    compare,
    parse_moment_ns,
    sql_value,
    value_text,
    value_type,
)
from agent.status_codes import is_good

if TYPE_CHECKING:
    import apsw

_TABLES = dict(named_statements(Path(__file__).with_name("tables.sql").read_text("utf-8")))


class Answer:
    """The columns and rows of one statement; rows are returned as they are found."""

    def __init__(self, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
        self.columns = columns
        self.rows = rows


class SqlSession:
    """Runs statements on one snapshot of a store. Raises ExtraMissing if apsw is not installed."""

    def __init__(self, reader: StoreReader, now_ns: int) -> None:
        try:
            import apsw
        except ImportError as error:
            raise ExtraMissing(
                "SQL needs the package apsw, which is not installed",
                "pip install apsw, or use bsfg store export and any SQLite program",
            ) from error
        self.scanner = Scanner(reader)
        self._reader = reader
        self._now_ns = now_ns
        self._apsw = apsw
        self._connection = apsw.Connection(":memory:")
        self._connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.create_collation("moment", self._compare)
        self._connection.create_scalar_function("ns", self._ns, 1, deterministic=True)
        self._unreadable: TimeUnreadable | None = None
        self._make_tables()
        self._connection.authorizer = self._allowed

    def ask(self, statement: str) -> Answer:
        """Run one statement. Raises SqlRefused and TimeUnreadable, also while its rows are read."""
        columns = list[str]()

        def trace(cursor: apsw.Cursor, _text: str, _values: object) -> bool:
            if columns:
                raise SqlRefused("only one statement is run at a time", "remove everything after the semicolon")
            columns.extend(name for name, *_ in cursor.get_description())
            return True

        cursor = self._connection.cursor()
        cursor.exec_trace = trace
        rows = self._rows(cursor, statement)
        first = next(rows, None)
        if not columns:
            raise SqlRefused("there is no statement", "write a SELECT")
        return Answer(columns, rows if first is None else chain([first], rows))

    def close(self) -> None:
        """Close the connection in memory; the reader belongs to the caller."""
        self._connection.close(force=True)

    def _rows(self, cursor: apsw.Cursor, statement: str) -> Iterator[tuple[Any, ...]]:
        self._unreadable = None
        try:
            yield from takewhile(lambda _: self._unreadable is None, cursor.execute(statement))
        except self._apsw.AuthError as error:
            raise SqlRefused(
                "the statement would do more than read", "write a SELECT; nothing else is allowed"
            ) from error
        except self._apsw.Error as error:
            hint = f"tables: {', '.join(_TABLES)}; their columns: docs/operate/query.md"
            raise SqlRefused(f"SQL: {str(error).removeprefix('SQLError: ')}", hint) from error
        if self._unreadable is not None:
            raise self._unreadable

    def _compare(self, first: str, second: str) -> int:
        """A collation must not raise: what it cannot read ends the statement at the next row."""
        try:
            return compare(first, second)
        except TimeUnreadable as error:
            self._unreadable = error
            return 0

    def _make_tables(self) -> None:
        from agent.query.sql.virtual_tables import FactsTable, Module, RowsTable

        tables = {
            "facts": FactsTable(self.scanner),
            "latest": RowsTable(self._latest),
            "definitions": RowsTable(self._definitions),
            "streams": RowsTable(self._streams),
            "consumers": RowsTable(self._consumers),
            "incidents": RowsTable(self._incidents),
        }
        assert tables.keys() | {"samples"} == _TABLES.keys()
        for name, table in tables.items():
            module: Any = Module(_TABLES[name], table)  # apsw's protocol has methods that reading does not need
            self._connection.create_module(
                name, module, use_bestindex_object=True, eponymous=True, eponymous_only=True, read_only=True
            )
        self._connection.execute(_TABLES["samples"])

    def _allowed(self, action: int, *_: str | None) -> int:
        """Allow only reading and calculating. load_extension is off in apsw by default."""
        apsw = self._apsw
        reading = {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}
        allowed: int = apsw.SQLITE_OK if action in reading else apsw.SQLITE_DENY
        return allowed

    def _ns(self, *texts: Any) -> int | None:
        """ns('2026-11-21T06:00Z') and ns('2h'), two hours ago. A time that no fact can have is the nearest that one
        can."""
        (text,) = texts
        if not isinstance(text, str):
            return None
        return min(max(parse_moment_ns(text, self._now_ns), INT64_MIN), INT64_MAX)

    def _latest(self) -> Iterable[tuple[Any, ...]]:
        for row in find_latest(self.scanner, self._now_ns):
            known, as_of = row.latest, None if row.as_of_ns is None else time_text(row.as_of_ns)
            yield (
                *row.tag,
                *((sql_value(known.value), value_type(known.value), value_text(known.value)) if known else (None, None, None)),
                *((known.unit or None, known.quality, is_good(known.quality), time_text(known.source_time_ns)) if known else [None] * 4),
                row.source or None, as_of, row.staleness_ms, row.mode,
                *((known.arrival.stream, known.arrival.offset, known.ahead_ms) if known else (None, None, None)),
            )  # fmt: skip

    def _definitions(self) -> Iterable[tuple[Any, ...]]:
        for zone, end in self._reader.definition_ends():
            try:
                tags = self.scanner.dictionary.of(zone, end).tags
            except (StoreDamaged, BatchError) as error:
                self.scanner.counters.note_unreadable(f"definitions of {zone}: {error}")
                continue
            for number, tag in enumerate(tags, 1):
                yield (
                    zone, end.digest.hex(), number, tag.subject, tag.predicate, tag.unit, tag.source, tag.address,
                    tag.data_type, tag.description, tag.enumeration, tag.acquisition,
                )  # fmt: skip

    def _streams(self) -> Iterable[tuple[Any, ...]]:
        for stream in self._reader.streams():
            facts = stream.end_offset - stream.first_offset + 1
            yield stream.name, stream.first_offset, stream.end_offset, facts, stream.bytes

    def _consumers(self) -> Iterable[tuple[Any, ...]]:
        with self._reader.at_one_moment() as reader:
            ends, consumers = reader.bounds(), reader.consumers()
        for consumer in consumers:
            behind = ends[consumer.stream][1] - consumer.frontier
            yield consumer.name, consumer.zone, consumer.stream, consumer.frontier, behind

    def _incidents(self) -> Iterable[tuple[Any, ...]]:
        for incident in self._reader.incidents(INCIDENTS_MAX):
            first, last = (time_text(at * 1_000_000) for at in (incident.first_unix_ms, incident.last_unix_ms))
            yield incident.kind, incident.subject, incident.detail, incident.count, first, last
