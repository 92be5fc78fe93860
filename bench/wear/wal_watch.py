"""Which pages a store writes: follows SQLite's write-ahead log from outside, frame by frame.

Each frame names its page, and the last of a transaction is marked, so the log says what every commit wrote. A log that
restarts has been copied into the database, each of its pages once. Page numbers become tables at the end (`dbstat`).
The watch runs in a process of its own: a node that opened these files twice would lose its locks. Formats:
https://www.sqlite.org/fileformat2.html#the_write_ahead_log and walformat.html, 2.1 (the index, in native byte order).
"""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
_INDEX = struct.Struct("=16xI12x8s8x")  # mxFrame, salts; of the 48 bytes of a copy of the index's header
_BACKFILLED = struct.Struct("=96xI")
_FRAME = struct.Struct(">II8s8x")  # page, size of the database after a commit or 0, salts
_CAUSES = {
    "batch": "facts",
    "sqlite_autoindex_batch_1": "indexes",
    "batch_by_sequence": "indexes",
    "consumer": "confirmations",
    "confirmed": "confirmations",
    "held": "held, positions",
    "peer_position": "held, positions",
    "sqlite_schema": "first page, pointer map",
}
_UNNAMED = "first page, pointer map"
OTHER = "other tables"
BLOCK_BYTES = 4096
"""What a file system writes at least: commits share the block in which one ends and the next begins."""


class WalWatch:
    """Counts from its creation on. Call `poll` more often than the log restarts."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._salts = b""
        self._read = 0  # frames of the present log
        self._copied = 0
        self._pages: list[int] = []  # of those frames
        self._commit: list[int] = []
        self._page_bytes = 4096
        self.begin()

    def begin(self) -> None:
        """Count from here on."""
        self.commits: list[tuple[int, ...]] = []
        self.copied: Counter[int] = Counter()
        self.turns = 0
        """How often the log began anew."""
        self._tail_bytes = 0
        if not self._salts:
            self.poll()
            self.begin()

    def poll(self) -> bool:
        """Read what is new; True if a transaction was committed since the last call."""
        before = len(self.commits)
        index = self._store.with_name(f"{self._store.name}-shm").open("rb")
        with index, self._store.with_name(f"{self._store.name}-wal").open("rb") as log:
            head = index.read(100)
            frames, salts = _INDEX.unpack_from(head)
            (backfilled,) = _BACKFILLED.unpack_from(head)
            self._page_bytes = struct.unpack(">I", log.read(12)[8:])[0]
            if salts != self._salts:  # begun anew: the end of the old log still stands behind the new one
                self._follow(log, None)
                self._copy(len(self._pages))
                self.turns += 1
                self._salts, self._read, self._copied, self._pages = salts, 0, 0, []
            self._follow(log, frames)
            self._copy(min(backfilled, len(self._pages)))
        return len(self.commits) > before

    def _follow(self, log: BinaryIO, until: int | None) -> None:
        while until is None or self._read < until:
            log.seek(HEADER_BYTES + self._read * (FRAME_HEADER_BYTES + self._page_bytes))
            head = log.read(FRAME_HEADER_BYTES)
            if len(head) < FRAME_HEADER_BYTES:
                return
            page, is_commit, salts = _FRAME.unpack(head)
            if salts != self._salts:
                return
            self._read += 1
            self._pages.append(page)
            self._commit.append(page)
            if is_commit:
                frame_bytes = FRAME_HEADER_BYTES + self._page_bytes
                end = HEADER_BYTES + self._read * frame_bytes
                start = end - len(self._commit) * frame_bytes
                blocks = -(-end // BLOCK_BYTES) - start // BLOCK_BYTES
                self._tail_bytes += blocks * BLOCK_BYTES - (end - start)
                self.commits.append(tuple(self._commit))
                self._commit = []

    def _copy(self, until: int) -> None:
        """Count the frames before `until` as copied to the database; a page in several frames was written once."""
        if until > self._copied:
            self.copied.update(set(self._pages[self._copied : until]))
            self._copied = until

    def causes(self) -> dict[str, int]:
        """Bytes written to the log, by the table of the page, and to the database by checkpoints."""
        names = _tables(self._store)
        frame_bytes = FRAME_HEADER_BYTES + self._page_bytes
        found: Counter[str] = Counter()
        for commit in self.commits:
            causes = [self._cause(names, page) for page in commit]
            # A commit without facts was made for the confirmation in it, with all of its pages.
            alone = "confirmations" if "confirmations" in causes and "facts" not in causes else None
            for cause in causes:
                found[f"log: {alone or cause}"] += frame_bytes
        found["log: shared blocks"] = self._tail_bytes
        found["checkpoints"] = sum(self.copied.values()) * self._page_bytes
        return dict(found.most_common())

    @staticmethod
    def _cause(names: dict[int, str], page: int) -> str:
        return _CAUSES.get(names[page], OTHER) if page in names else _UNNAMED

    def confirmations_alone(self) -> int:
        """The number of commits that hold only a confirmation."""
        names = _tables(self._store)
        found = 0
        for commit in self.commits:
            causes = {self._cause(names, page) for page in commit}
            found += "confirmations" in causes and "facts" not in causes
        return found


def _tables(store: Path) -> dict[int, str]:
    """The table or index of each page; pages of SQLite's own (the first, the pointer map, free ones) are missing. Empty
    where this SQLite lacks `dbstat`."""
    with closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True)) as database:
        try:
            return dict(database.execute("SELECT pageno, name FROM dbstat"))
        except sqlite3.OperationalError:
            return {}
