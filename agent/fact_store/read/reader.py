"""Reading a store: mode=ro connections, one for each call in progress, short statements, from any process.

Promised: no batch is served whose bytes are not those that were sealed (served.py). A reader never writes, never checkpoints and never holds a transaction between calls, so it cannot stop the writer
from reusing its log. What it returns is whole batches, byte for byte as they were sealed; nothing is opened here.

Used by the store itself, by the command line and by Spark; no writer needs to run.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent.batch import NO_DIGEST, Definitions, Origin
from agent.fact_store.log import (
    BatchHead,
    Catalog,
    ConsumerState,
    Incident,
    PageAssembly,
    StoreClosed,
    StoreDamaged,
    StoreSettings,
    StoreUnusable,
    StreamInfo,
    StreamSettings,
    check_digest,
)
from agent.fact_store.read.forecast import StoreSpace
from agent.fact_store.read.history import Asked, ends_at, read_history
from agent.fact_store.read.space import measure_space
from agent.fact_store.sqlite import (
    FILES,
    QUERIES,
    Connect,
    check_known,
    connect,
    connect_reader,
    file_bytes,
    identity,
    is_damage,
    load,
    reading_tables,
)
from agent.pages import BatchEnd, Hole, OriginRange, Page, PeerPosition, StoredBatch

OFFSET_MAX = 2**63 - 2
OFFSET_UNKNOWN = 2**48
INCIDENTS_MAX = 1000
ROWS_TRIED_MAX = 256  # of rows that SQLite cannot read, in one page
IDLE_MAX = 8  # connections kept for the next call; more callers at once open their own

OnDamaged = Callable[[str, Hole, str, list[OriginRange]], None]  # stream, hole, what was wrong, whose facts


class StoreReader:
    """Read-only view of the store at `path`. Thread-safe. Raises StoreUnusable when opened and when the disk fails."""

    def __init__(self, path: Path, *, connect_to: Connect = connect, on_damaged: OnDamaged | None = None) -> None:
        self.path = path
        self._connect_to = connect_to
        self._on_damaged = on_damaged
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self._streams: dict[str, int] = {}
        self._origins: dict[int, Origin] = {}
        with ExitStack() as on_error:
            on_error.callback(self.close)
            with self._reading() as connection:
                steps = check_known(connection)
                if len(steps) < len(FILES):
                    raise StoreUnusable(
                        f"{path} has schema {steps[-1] if steps else 'none'}, this program reads {FILES[-1].stem}",
                        "start its node once, or run bsfg store migrate (for a file set aside, on a copy of it)",
                    )
                self.origin = identity(connection, path)
            on_error.pop_all()

    @property
    def zone(self) -> str:
        """Zone of the store."""
        return self.origin.zone

    @property
    def epoch(self) -> bytes:
        """This life of the store."""
        return self.origin.epoch

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
        """Whole batches of `stream` from the one that holds `after_offset` + 1, as many as the limits allow, at least one.

        Facts up to `after_offset` do not count against `facts_max`. With `until_offset`, batches that begin beyond it are
        left out. A stream nobody has written to is an empty page. Every batch has been compared with its digest; what is
        damaged or released is a hole of the page. `end_offset`: where the caller knows the stream to end.
        """
        if after_offset < 0 or facts_max < 1 or bytes_max < 1:
            raise ValueError(f"after_offset {after_offset}, facts_max {facts_max}, bytes_max {bytes_max}")
        last = OFFSET_MAX if until_offset is None else until_offset
        if end_offset is not None:
            with self._reading() as connection:
                page = PageAssembly(stream, after_offset, facts_max, bytes_max, last)
                if _take_plain(connection, self._stream(connection, stream), page, end_offset):
                    return Page(page.batches, max(end_offset, page.reached))
        with self._reading() as connection, _one_state(connection):
            if (number := self._stream(connection, stream)) is None:
                return Page([], 0)
            released = connection.execute(QUERIES["select_released_offset"], (number,)).fetchone()
            if released is None:
                return Page([], 0)  # another thread has learned of it since this state was
            page = PageAssembly(stream, after_offset, facts_max, bytes_max, last, released[0])
            is_all = _take_rows(connection, number, page)
            end_offset = self._end(connection, number, page, end_offset, is_all=is_all)
            if is_all:
                page.finish(end_offset)
            for hole in page.damaged():
                if self._on_damaged is not None:
                    self._on_damaged(stream, hole, page.problem, _origins_between(connection, number, hole))
        last_offset = (
            page.reached if page.batches or page.holes else 0
        )  # whoever asks beyond the end learns where it is
        return Page(page.batches, max(end_offset, last_offset), tuple(page.holes))

    def read_sequences(
        self, stream: str, origin: Origin, first_sequence: int, last_sequence: int, facts_max: int, bytes_max: int
    ) -> Page:
        """As `read`, of one origin and by its sequences: places in the page are sequences, its `end_offset` the last one held. See
        history.py."""
        with self._reading() as connection, _one_state(connection):
            number, of = self._stream(connection, stream), self._number(connection, origin)
            asked = Asked(stream, number or 0, of or 0, first_sequence, last_sequence, facts_max, bytes_max)
            return read_history(connection, asked)

    def batch_ends(self, stream: str, origin: Origin, sequences: Iterable[int]) -> list[BatchEnd]:
        """Where the batches end that hold these sequences of an origin, and their digests, as the table has them; in order, each
        once, without what is not here or was released. No body is read."""
        with self._reading() as connection, _one_state(connection):
            number, of = self._stream(connection, stream), self._number(connection, origin)
            return ends_at(connection, number or 0, of or 0, sequences)

    def _end(
        self, connection: sqlite3.Connection, stream: int, page: PageAssembly, known: int | None, *, is_all: bool
    ) -> int:
        """Where a stream ends: as far as the caller has known, or what the last row says. Then what is held, counted from its start,
        is compared when a page comes to the end: a hidden last row shows nowhere else."""
        if known is not None:
            return known
        end_offset: int = connection.execute(QUERIES["select_end_offset"], (stream,)).fetchone()[0]
        if is_all and not page.batches:
            held = connection.execute(QUERIES["select_held_count"], (stream,)).fetchone()[0]
            if held != end_offset:
                raise StoreDamaged(f"{self.path}: {page.stream} ends at {end_offset}, what it holds ends at {held}")
        return end_offset

    def heads(
        self, stream: str, offset: int, until_offset: int, limit: int, *, newest_first: bool = False
    ) -> list[BatchHead]:
        """What the batches that hold offsets `offset` to `until_offset` say of themselves, at most so many; no body is read.

        For a search that skips what it need not open. A batch named here may be released before it is read.
        """
        query = QUERIES["select_heads_back"] if newest_first else QUERIES["select_heads"]
        with self._reading() as connection:
            if (number := self._stream(connection, stream)) is None:
                return []
            asked = {"stream": number, "offset": offset, "until_offset": until_offset, "limit": limit}
            rows = connection.execute(query, asked).fetchall()
            origins = {row[2]: self._origin(connection, row[2]) for row in rows}
        return [BatchHead(row[0], row[1], origins[row[2]], *row[3:]) for row in rows]

    def definitions(self, origin: Origin, after_number: int, until_number: int) -> list[bytes]:
        """Canonical JSON of the definitions of an origin, after one number up to another; fewer where fewer are known."""
        with self._reading() as connection:
            number = self._number(connection, origin)
            return [] if number is None else self._definitions(connection, origin, number, after_number, until_number)

    def damaged_definition(self, stream: str, origin: Origin, last_sequence: int) -> int | None:
        """The number of the first definition of an origin that is damaged or not there, of those that the batch with a sequence needs
        to be read; None where all are whole. Raises StoreDamaged where SQLite cannot read them."""
        page = self.read_sequences(stream, origin, last_sequence, last_sequence, 1, 1)
        needed = page.batches[0].definition_count if page.batches else 0
        with self._reading() as connection:
            number, running = self._number(connection, origin), Definitions()
            for found, digest, body in connection.execute(
                QUERIES["select_definitions"], {"origin": number, "after": 0, "until": needed}
            ):
                following = running.extended(body) if isinstance(body, bytes) else running
                if (found, digest) != (following.count, following.digest):
                    break
                running = following
        return None if running.count == needed else running.count + 1

    def _definitions(
        self, connection: sqlite3.Connection, origin: Origin, number: int, after_number: int, until_number: int
    ) -> list[bytes]:
        """Each compared with the running digest, which a changed, missing or moved one breaks."""
        digest, bodies = NO_DIGEST, list[bytes]()
        if after_number > 0:
            row = connection.execute(
                QUERIES["select_definition_digest"], {"origin": number, "number": after_number}
            ).fetchone()
            digest = row[0] if row else NO_DIGEST
        running = Definitions(after_number, digest)
        for found, digest, body in connection.execute(
            QUERIES["select_definitions"], {"origin": number, "after": after_number, "until": until_number}
        ):
            if isinstance(body, bytes):
                running = running.extended(body)
            if (found, digest) != (running.count, running.digest):
                raise StoreDamaged(f"{self.path}: tag definition {running.count} of {origin} is damaged or not there")
            bodies.append(body)
        return bodies

    def end_offset(self, stream: str) -> int:
        """Offset of the last fact of a stream, 0 where there is none."""
        return next((one.end_offset for one in self.streams() if one.name == stream), 0)

    def streams(self) -> list[StreamInfo]:
        """Every stream."""
        return [state.info() for state in self._catalog().streams.values()]

    def bounds(self) -> dict[str, tuple[int, int]]:
        """First and last offset of every stream, read without looking at anything else: also of a file whose tables contradict
        each other. Where not even the end can be read, it is OFFSET_UNKNOWN, beyond anything that was ever written."""
        with self._reading() as connection:
            try:
                rows = connection.execute(QUERIES["select_streams"]).fetchall()
                return {name: (released_offset + 1, end_offset) for _, name, released_offset, _, end_offset, *_ in rows}
            except sqlite3.DatabaseError:
                rows = connection.execute(QUERIES["select_stream_names"]).fetchall()
            return {name: (released + 1, self._end_by_rows(connection, number)) for number, name, released in rows}

    def _end_by_rows(self, connection: sqlite3.Connection, stream: int) -> int:
        """The end of a stream by another way than its index, which is damaged."""
        try:
            row = connection.execute(QUERIES["select_last_row"], (stream,)).fetchone()
        except sqlite3.DatabaseError:
            return OFFSET_UNKNOWN
        return int(row[0]) if row else 0

    def row_heads(self, after_row: int, limit: int) -> list[tuple[int, str, BatchHead]]:
        """As `heads`, by row and without an index: (row, stream, head) of every stream. For a file whose index is damaged."""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_row_heads"], (after_row, limit)).fetchall()
            names = {number: name for number, name, _ in connection.execute(QUERIES["select_stream_names"]).fetchall()}
            origins = {row[4]: self._origin(connection, row[4]) for row in rows}
        return [(row[0], names[row[1]], BatchHead(row[2], row[3], origins[row[4]], *row[5:])) for row in rows]

    def row(self, row: int) -> StoredBatch:
        """One batch by its row, as it lies there: its digest is for whoever opens it to compare."""
        with self._reading() as connection:
            found = connection.execute(QUERIES["select_row"], (row,)).fetchone()
            first_offset, last_offset, number, definition_count, body, digest = found
            return StoredBatch(
                first_offset, last_offset, body + digest, self._origin(connection, number), definition_count
            )

    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the file, of its write-ahead log, and of the pages of the file that are free for reuse."""
        with self._reading() as connection:
            ((page_bytes,), (free_pages,)) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "freelist_count")
            )
        wal_bytes = file_bytes(self.path.with_name(self.path.name + "-wal"))
        return file_bytes(self.path), wal_bytes, page_bytes * free_pages

    def origins(self) -> list[Origin]:
        """Everybody whose facts are held, this store first."""
        return list(self._catalog().origins)

    def artifact_streams(self, digest: str) -> list[str]:
        """The streams with a held fact that refers to an artifact. Raises ArtifactRefused."""
        raw = bytes.fromhex(check_digest(digest))
        with self._reading() as connection:
            return [name for (name,) in connection.execute(QUERIES["select_artifact_streams"], (raw,)).fetchall()]

    def artifacts_of(self, stream: str) -> list[str]:
        """The digests of artifacts to which held facts of a stream refer."""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_artifacts_of"], (stream,)).fetchall()
        return [f"sha256:{raw.hex()}" for (raw,) in rows]

    def consumers(self) -> list[ConsumerState]:
        """Every registered consumer."""
        return list(self._catalog().consumers.values())

    def peer_positions(self) -> dict[tuple[str, str], PeerPosition]:
        """How far each (peer, stream) has been stored."""
        return self._catalog().peers

    def incidents(self, limit: int = INCIDENTS_MAX) -> list[Incident]:
        """The last incidents, newest first."""
        with self._reading() as connection:
            rows = connection.execute(QUERIES["select_incidents"], (limit,)).fetchall()
        return [Incident(*row) for row in rows]

    def space(
        self,
        settings: StoreSettings,
        policies: Mapping[str, StreamSettings],
        *,
        catalog: Catalog | None = None,
        age_ms: int | None = None,
    ) -> StoreSpace:
        """How much room there is under these settings, and for how long; without a writer's catalog and age, as of the last mark."""
        catalog = catalog or self._catalog()
        age_ms = catalog.age_ms if age_ms is None else age_ms
        with self._reading() as connection:
            return measure_space(connection, self.path.parent, catalog, age_ms, settings, policies)

    def close(self) -> None:
        """Whoever reads after this gets StoreClosed; whoever is reading finishes."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # ---------------------------------------------------------------------------------------------------------- internal

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection nobody else uses meanwhile; SQLite's errors, and values that make no sense, leave as the store's."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self.path} is closed")
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or connect_reader(self.path, self._connect_to)
            with reading_tables(self.path):
                yield connection
        finally:
            if connection is not None:
                self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _catalog(self) -> Catalog:
        """The whole picture, from one state of the tables."""
        with self._reading() as connection, _one_state(connection):
            return load(connection, self.path)

    def _stream(self, connection: sqlite3.Connection, name: str) -> int | None:
        """Number of a stream. Numbers never change, so what was found once is kept."""
        if name not in self._streams:
            rows: list[tuple[Any, ...]] = connection.execute(QUERIES["select_streams"]).fetchall()
            self._streams.update({row[1]: row[0] for row in rows})
        return self._streams.get(name)

    def _number(self, connection: sqlite3.Connection, origin: Origin) -> int | None:
        """Number of an origin, None where nothing of it was ever held."""
        for number, zone, epoch in connection.execute(QUERIES["select_origins"]).fetchall():
            if (zone, epoch) == (origin.zone, origin.epoch):
                found: int = number
                return found
        return None

    def _origin(self, connection: sqlite3.Connection, number: int) -> Origin:
        """Origin of a number. Raises StoreDamaged where the table has none."""
        if number not in self._origins:
            rows = connection.execute(QUERIES["select_origins"]).fetchall()
            self._origins.update({found: Origin(zone, epoch) for found, zone, epoch in rows})
        if number not in self._origins:
            raise StoreDamaged(f"{self.path}: a batch is of origin {number}, which is not there")
        return self._origins[number]


@contextmanager
def _one_state(connection: sqlite3.Connection) -> Iterator[None]:
    """Several statements that see one state of the file."""
    connection.execute(QUERIES["begin_read"])
    try:
        yield
    finally:
        if connection.in_transaction:  # where the disk failed it, SQLite has ended it already
            connection.execute(QUERIES["rollback"])


def _take_plain(connection: sqlite3.Connection, stream: int | None, page: PageAssembly, end_offset: int) -> bool:
    """Rows into the page by one statement, which sees one state by itself. False where that leaves a hole or finds nothing: then it is
    worth asking what was repaired and what was released."""
    asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset}
    try:
        rows = connection.execute(QUERIES["select_page"], asked)
        try:
            is_full = any(map(page.add_row, rows))
        finally:
            rows.close()  # an unfinished statement would keep the writer's log from being reused
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return False
    if page.batches and not is_full:
        page.finish(end_offset)
    return bool(page.batches) and not page.holes


class _Repaired:
    """What was repaired of the offsets that a page may hold, to be taken each in its place."""

    def __init__(self, connection: sqlite3.Connection, stream: int, page: PageAssembly) -> None:
        self._connection, self._stream, self._page = connection, stream, page
        asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset}
        offsets = [offset for (offset,) in connection.execute(QUERIES["select_repaired_offsets"], asked).fetchall()]
        self._left = offsets[::-1]

    def take_until(self, offset: object) -> bool:
        """Take what begins at or before an offset (whatever a row says is one); True when the page is full."""
        if not self._left or not isinstance(offset, int):
            return False
        while self._left and self._left[-1] <= offset:
            asked = (self._stream, self._left.pop())
            for row in self._connection.execute(QUERIES["select_repaired"], asked).fetchall():
                if self._page.add_row(row):
                    return True
        return False


def _take_rows(connection: sqlite3.Connection, stream: int, page: PageAssembly) -> bool:
    """Rows into the page until it is full, repaired ones before those they replace. True when no row is left."""
    asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset}
    try:
        repaired = _Repaired(connection, stream, page)
        rows = connection.execute(QUERIES["select_page"], asked)
        try:
            is_full = any(repaired.take_until(row[0]) or page.add_row(row) for row in rows)
        finally:
            rows.close()  # an unfinished statement would keep the writer's log from being reused
        return not (is_full or repaired.take_until(page.until_offset))
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        # What came before the broken place is a page; the next one begins there.
        return False if page.batches else _take_one_by_one(connection, stream, page)


def _take_one_by_one(connection: sqlite3.Connection, stream: int, page: PageAssembly) -> bool:
    """As `_take_rows`, past rows that SQLite cannot read; where they begin stands in the index."""
    asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset, "limit": ROWS_TRIED_MAX}
    offsets = [offset for (offset,) in connection.execute(QUERIES["select_page_offsets"], asked).fetchall()]
    repaired = _Repaired(connection, stream, page)
    for offset in offsets:
        if repaired.take_until(offset):
            return False
        try:
            row = connection.execute(QUERIES["select_page_row"], (stream, offset)).fetchone()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            page.problem = str(error)
            continue
        if row is not None and page.add_row(row):
            return False
    if len(offsets) == ROWS_TRIED_MAX:
        page.finish(offsets[-1] - 1)
        return False
    return not repaired.take_until(page.until_offset)


def _origins_between(connection: sqlite3.Connection, stream: int, hole: Hole) -> list[OriginRange]:
    """Whose facts a hole swallowed, as far as the table can still say."""
    asked = {"stream": stream, "offset": hole.first_offset, "until_offset": hole.last_offset, "limit": ROWS_TRIED_MAX}
    try:
        rows = connection.execute(QUERIES["select_page_columns"], asked).fetchall()
    except sqlite3.DatabaseError:
        return []  # it is told without
    return [
        OriginRange(zone, epoch, first_sequence, first_sequence + count - 1)
        for zone, epoch, first_sequence, count in rows
        if (type(zone), type(epoch), type(first_sequence), type(count)) == (str, bytes, int, int)
    ]
