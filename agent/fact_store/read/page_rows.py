"""Reads the rows of one page from the table `batch`: repaired batches before damaged ones, skipping rows that SQLite
cannot read.

page_assembly.py decides whether a row is served; a row that is not leaves a hole in the page (decision 0029).
"""

from __future__ import annotations

import sqlite3

from agent.fact_store.core import PageAssembly
from agent.fact_store.sqlite import QUERIES, is_damage
from agent.pages import Hole, OriginRange

ROWS_TRIED_MAX = 256  # rows read one by one in one page, if SQLite cannot step through them


def read_undamaged_rows(
    connection: sqlite3.Connection, stream: int | None, page: PageAssembly, end_offset: int
) -> bool:
    """Read rows into the page with one statement, which needs no read transaction. False if that leaves a hole or finds
    nothing: then `read_rows` must look for repaired and released batches."""
    asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset}
    try:
        rows = connection.execute(QUERIES["select_page"], asked)
        try:
            is_full = any(map(page.add_row, rows))
        finally:
            rows.close()  # an unfinished statement would keep the WAL from being reused
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return False
    if page.batches and not is_full:
        page.finish(end_offset)
    return bool(page.batches) and not page.holes


class _Repaired:
    """The repaired batches among the offsets of a page, added in their order among the rows."""

    def __init__(self, connection: sqlite3.Connection, stream: int, page: PageAssembly) -> None:
        self._connection, self._stream, self._page = connection, stream, page
        asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset}
        offsets = [offset for (offset,) in connection.execute(QUERIES["select_repaired_offsets"], asked).fetchall()]
        self._left = offsets[::-1]

    def add_until(self, offset: object) -> bool:
        """Add the repaired batches that begin at or before an offset of a row; True when the page is full."""
        if not self._left or not isinstance(offset, int):
            return False
        while self._left and self._left[-1] <= offset:
            asked = (self._stream, self._left.pop())
            for row in self._connection.execute(QUERIES["select_repaired"], asked).fetchall():
                if self._page.add_row(row):
                    return True
        return False


def read_rows(connection: sqlite3.Connection, stream: int, page: PageAssembly) -> bool:
    """Read rows into the page until it is full, repaired ones before those they replace. True when no row is left."""
    asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset}
    try:
        repaired = _Repaired(connection, stream, page)
        rows = connection.execute(QUERIES["select_page"], asked)
        try:
            is_full = any(repaired.add_until(row[0]) or page.add_row(row) for row in rows)
        finally:
            rows.close()  # an unfinished statement would keep the WAL from being reused
        return not (is_full or repaired.add_until(page.until_offset))
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        # The rows before the unreadable row are a page; the next page begins at it.
        return False if page.batches else _read_one_by_one(connection, stream, page)


def _read_one_by_one(connection: sqlite3.Connection, stream: int, page: PageAssembly) -> bool:
    """As `read_rows`, but skips rows that SQLite cannot read; the index has their offsets."""
    asked = {"stream": stream, "offset": page.reached + 1, "until_offset": page.until_offset, "limit": ROWS_TRIED_MAX}
    offsets = [offset for (offset,) in connection.execute(QUERIES["select_page_offsets"], asked).fetchall()]
    repaired = _Repaired(connection, stream, page)
    for offset in offsets:
        if repaired.add_until(offset):
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
    return not repaired.add_until(page.until_offset)


def origins_between(connection: sqlite3.Connection, stream: int, hole: Hole) -> list[OriginRange]:
    """The origins and sequences of the facts in a hole, as far as the table can be read."""
    asked = {"stream": stream, "offset": hole.first_offset, "until_offset": hole.last_offset, "limit": ROWS_TRIED_MAX}
    try:
        rows = connection.execute(QUERIES["select_page_columns"], asked).fetchall()
    except sqlite3.DatabaseError:
        return []  # the damage is reported without them
    return [
        OriginRange(zone, life, first_sequence, first_sequence + count - 1)
        for zone, life, first_sequence, count in rows
        if (type(zone), type(life), type(first_sequence), type(count)) == (str, bytes, int, int)
    ]
