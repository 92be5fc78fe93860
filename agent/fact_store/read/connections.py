"""Read-only connections to a store, each for one call at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.fact_store.core import StoreClosed
from agent.fact_store.sqlite import Connect, connect_reader, reading_tables

IDLE_MAX = 8  # connections kept for the next call; more concurrent callers open their own


class ReaderConnections:
    """Opened when a call needs one. Thread-safe."""

    def __init__(self, path: Path, connect_to: Connect) -> None:
        self._path, self._connect_to = path, connect_to
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for this call alone. Errors of SQLite and invalid values are raised as errors of the store."""
        with self._lock:
            if self._is_closed:
                raise StoreClosed(f"{self._path} is closed")
            connection = self._idle.pop() if self._idle else None
        try:
            connection = connection or connect_reader(self._path, self._connect_to)
            with reading_tables(self._path):
                yield connection
        finally:
            if connection is not None:
                self._give_back(connection)

    def close(self) -> None:
        """Calls in progress finish; later ones raise StoreClosed."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()
