"""Reclaims the space of released facts: deletes their rows in small pieces, and gives free pages back to the file
system.

Belongs to the writer's thread and works inside its transactions. Housekeeping decides when and how many rows (decision
0025).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass

from agent.fact_store.core import StreamState
from agent.fact_store.sqlite import QUERIES, Transaction

MESSAGE_ROWS_WITH_COMMIT = 64
VACUUM_PAGES = 256  # moved at once when idle: a megabyte


@dataclass(slots=True)
class _Deleted:
    """How far a stream's released rows are deleted: the sealed bytes before the first row that is left."""

    bytes: int
    is_done: bool = False


class Reclaimer:
    """Deletes the rows of released facts."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._deleted: dict[int, _Deleted] = {}
        self._pending: dict[int, int] = {}

    @property
    def pending_bytes(self) -> int:
        """Sealed bytes that are released and not yet deleted, all streams together."""
        return sum(self._pending.values())

    def pending_of(self, stream: StreamState) -> int:
        """The same of one stream."""
        return self._pending.get(stream.id, 0)

    def released(self, before: StreamState, after: StreamState) -> None:
        """Note that facts of a stream were just released, and their rows must be deleted."""
        deleted = self._deleted_of(before)
        deleted.is_done = False
        self._pending[after.id] = after.released_bytes - deleted.bytes

    def rolled_back(self) -> None:
        """Forget what a failed transaction deleted: its rows are there again."""
        self._deleted.clear()
        self._pending.clear()

    def delete(self, transaction: Transaction, rows_max: int) -> bool:
        """Delete released rows, `rows_max` batches at most; True when some are left."""
        left = False
        for stream in transaction.catalog.streams.values():
            if stream.released_offset == 0:
                continue
            deleted = self._deleted_of(stream)
            if not deleted.is_done:
                rows_max -= self._delete_batches(transaction, stream, deleted, rows_max)
            if deleted.is_done and transaction.index.release(
                stream.id, stream.released_offset, MESSAGE_ROWS_WITH_COMMIT
            ):
                left = True
            left = left or not deleted.is_done
        return left

    def delete_pending(self, transaction: Transaction, rows_max: int) -> None:
        """Delete the batches just released, `rows_max` of each stream at most."""
        for stream in transaction.catalog.streams.values():
            if self._pending.get(stream.id):
                self._delete_batches(transaction, stream, self._deleted_of(stream), rows_max)

    def vacuum(self) -> None:
        """Give VACUUM_PAGES free pages back to the file system."""
        for _ in range(VACUUM_PAGES):  # Python steps a statement without columns once, and each step frees one page
            self._execute(QUERIES["vacuum_page"])

    def _delete_batches(self, transaction: Transaction, stream: StreamState, deleted: _Deleted, rows_max: int) -> int:
        """Delete the oldest released batches of a stream; returns how many."""
        if rows_max <= 0:
            return 0
        values = (stream.id, stream.released_offset, rows_max)
        rows = self._execute(QUERIES["select_released_rows"], values).fetchall()
        gone = Counter[str]()
        for number, _, zone, size in rows:
            self._execute(QUERIES["delete_batch"], (number,))
            gone[zone] += size
        for zone, size in gone.items():
            transaction.add_use(stream.id, zone, -size)
        if rows:
            deleted.bytes = rows[-1][1]
        if len(rows) < rows_max:
            deleted.is_done = True
            deleted.bytes = stream.released_bytes
            values_of_marks = {"stream": stream.id, "released_offset": stream.released_offset}
            self._execute(QUERIES["delete_marks"], values_of_marks)
            self._execute(QUERIES["delete_repaired"], (stream.id, stream.released_offset))
        self._pending[stream.id] = stream.released_bytes - deleted.bytes
        return len(rows)

    def _deleted_of(self, stream: StreamState) -> _Deleted:
        """How far a stream's rows are deleted; read from the table the first time."""
        if (known := self._deleted.get(stream.id)) is None:
            row = self._execute(QUERIES["select_deleted_bytes"], (stream.id,)).fetchone()
            known = self._deleted[stream.id] = _Deleted(row[0] if row else stream.released_bytes)
            self._pending[stream.id] = max(0, stream.released_bytes - known.bytes)
        return known
