"""Reads the file of SQLite's write-ahead log to detect missing committed frames, which SQLite does not report.

SQLite reads the frames up to the first whose checksum is wrong, and drops the rest without an error. Only one
transaction is unsynced at any time, because each commit is synced before the next begins. So a power cut damages frames
of the last transaction only. If, after the frame at which SQLite stopped, a frame continues a commit (its checksum
starts from that commit's), a synced commit was damaged.

This module may open the log's file while SQLite has it open: SQLite's locks are on the database and the shared memory.
Format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
_MAGIC = 0x377F0682  # the last bit: checksums are over big-endian words


@dataclass(frozen=True, slots=True)
class WalHeader:
    """The header of a log: the size of its pages, the salts in its frames, and the byte order of its checksums."""

    page_bytes: int
    salts: bytes
    order: str

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return FRAME_HEADER_BYTES + self.page_bytes


class LogEnd(NamedTuple):
    """Where a log ends: its salts, which are new each time SQLite begins it again, and its frames up to the last
    commit."""

    salts: bytes
    frames: int


NO_LOG = LogEnd(b"", 0)


class LogFollower:
    """Follows the end of the log of an open store from commit to commit, by the headers of its frames: checksums are
    not read. Raises OSError.

    No end is known of a log that may have frames behind its end that carry its salts: of a transaction that failed, or
    of one torn before this opening. SQLite soon begins a new one.
    """

    def __init__(self, path: Path, frames: int) -> None:
        """`frames`: those that SQLite reads now."""
        self._descriptor = os.open(wal_path(path), os.O_RDONLY | os.O_CLOEXEC)
        salts, frame_bytes = self._header()
        self._end, self._passed_over = LogEnd(salts, frames), b""
        behind = range(frames, (os.fstat(self._descriptor).st_size - HEADER_BYTES) // frame_bytes)
        if any(self._frame(number, frame_bytes)[8:16] == salts for number in behind):
            self.pass_over()

    def pass_over(self) -> None:
        """Know no end of this log from now on: a transaction has failed."""
        self._passed_over, _ = self._header()

    def read_end(self) -> LogEnd:
        """The end of the log now; NO_LOG if it is empty, or its end is not known."""
        salts, frame_bytes = self._header()
        if salts == self._passed_over:
            return NO_LOG
        number = frames = self._end.frames if salts == self._end.salts else 0
        while (head := self._frame(number, frame_bytes))[8:16] == salts:  # the others are of the log before it
            number += 1
            if any(head[4:8]):
                frames = number
        self._end = LogEnd(salts, frames)
        return self._end

    def _header(self) -> tuple[bytes, int]:
        """Salts, which are empty in an empty file, and bytes of a frame."""
        head = os.pread(self._descriptor, HEADER_BYTES, 0)
        return head[16:24], FRAME_HEADER_BYTES + int.from_bytes(head[8:12])

    def _frame(self, number: int, frame_bytes: int) -> bytes:
        return os.pread(self._descriptor, FRAME_HEADER_BYTES, HEADER_BYTES + number * frame_bytes)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def wal_path(path: Path) -> Path:
    """The log of the database at `path`."""
    return path.with_name(path.name + "-wal")


def read_header(path: Path) -> WalHeader | None:
    """The header of the log of the database at `path`; None if there is no log, or if its header is damaged.

    SQLite writes the header as one sector and syncs it before the first frame, so no power cut damages it.
    """
    try:
        with wal_path(path).open("rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError:
        return None
    if len(head) < HEADER_BYTES:
        return None
    magic, _, page_bytes = struct.unpack(">III", head[:12])
    order = ">" if magic & 1 else "<"
    if magic & ~1 != _MAGIC or _checksum(head[:24], (0, 0), order) != struct.unpack(">II", head[24:]):
        return None
    return WalHeader(page_bytes, head[16:24], order)


def has_commits_behind(path: Path, header: WalHeader, frames: int) -> bool:
    """Whether the log holds a synced commit after its first `frames` frames, at which SQLite stopped.

    Reads the headers of the later frames, and one page for each commit among them. Raises OSError.
    """
    with wal_path(path).open("rb") as file:
        commit: tuple[int, int] | None = None
        for number in range(frames, (wal_path(path).stat().st_size - HEADER_BYTES) // header.frame_bytes):
            file.seek(HEADER_BYTES + number * header.frame_bytes)
            head = file.read(FRAME_HEADER_BYTES)
            if len(head) < FRAME_HEADER_BYTES or head[8:16] != header.salts:
                commit = None
            elif commit is not None and _continues(file, head, header, commit):
                return True
            else:
                # Bytes 4 to 8: the size of the database after a commit, 0 in other frames. Bytes 16 to 24: checksum.
                commit = struct.unpack(">II", head[16:24]) if any(head[4:8]) else None
    return False


def _continues(file: BinaryIO, head: bytes, header: WalHeader, before: tuple[int, int]) -> bool:
    """Whether the checksum of a frame continues that of the frame before it. The file's position is after the frame's
    header."""
    page = file.read(header.page_bytes)
    if len(page) < header.page_bytes:
        return False
    return _checksum(head[:8] + page, before, header.order) == struct.unpack(">II", head[16:24])


def _checksum(data: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    """SQLite's checksum over whole pairs of 32-bit words, continued from the one before."""
    first, second = before
    for even, odd in struct.iter_unpack(f"{order}II", data):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
