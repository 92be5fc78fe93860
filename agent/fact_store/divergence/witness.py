"""The witness: a small file beside the store that records what the store has acknowledged.

    facts.db.witness        replaced when the store is opened, updated in place after each commit

Lines of 128 bytes: name, number, checksum. The first has the number of the opening that began the file, the second the
salts of the write-ahead log and how many frames it has, the others the end of a stream each. No line crosses a sector,
so each is there whole or not at all. An update is written after the commit and before its answers, and is not synced:
it survives the end of the process at once, and a power cut once the kernel has written it back, within half a minute.
The witness never records what is not durable in the store.

It is an alarm only: an opening that finds fewer facts than it names says so, and changes nothing else. The store opens
even if it cannot be written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from agent.fact_store.sqlite import NO_LOG, LogEnd, LogFollower
from agent.file_replace import sync_folder
from agent.message import check_depth

LINE_BYTES = 128
_COVERED_BYTES = LINE_BYTES - 10  # a space, the checksum and the line's end follow
_OPENING = ""  # the name of the first line, which no stream has
_LOG = "WAL"  # the name of the second begins so, and that of no stream


class WitnessedEnds(NamedTuple):
    """The opening that began a witness, by number; the end offset of each stream; and the end of the log."""

    opening: int
    ends: dict[str, int]
    log: LogEnd = NO_LOG

    def is_past(self, log: LogEnd) -> bool:
        """Whether commits were acknowledged that are not in this log. It is another one if its salts differ."""
        return self.log.salts == log.salts and self.log.frames > log.frames

    def missing(self, held: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Streams that end before what is recorded: where, and what is recorded."""
        return {name: (held.get(name, 0), end) for name, end in sorted(self.ends.items()) if held.get(name, 0) < end}


def read_witness(path: Path) -> WitnessedEnds | None:
    """The witness of the store at `path`; None if there is none, or its first line is damaged. Other damaged lines
    are left out."""
    try:
        content = sidecar_path(path, ".witness").read_bytes()
    except OSError:
        return None
    lines = [_parse(content[at : at + LINE_BYTES]) for at in range(0, len(content), LINE_BYTES)]
    numbers = dict(line for line in lines if line is not None)
    if (opening := numbers.pop(_OPENING, None)) is None:
        return None
    logs = [LogEnd(bytes.fromhex(name[len(_LOG) :]), number) for name, number in numbers.items() if _is_log(name)]
    return WitnessedEnds(opening, {name: end for name, end in numbers.items() if not _is_log(name)}, *logs[:1])


def write_witness(path: Path, witness: WitnessedEnds) -> None:
    """Replace the witness of the store at `path`. What it says must be durable in the store already."""
    lines = [(_OPENING, witness.opening), _log_line(witness.log), *witness.ends.items()]
    write_file(sidecar_path(path, ".witness"), b"".join(_line(name, number) for name, number in lines))


class LiveWitness:
    """The witness of an open store: written by the constructor, updated by the writer's thread, synced by any thread.
    If an update cannot be written, the file keeps its lower ends."""

    def __init__(self, path: Path, opening: int, ends: dict[str, int], frames: int | None) -> None:
        """`frames`: those of the log that SQLite reads; None if that is not known."""
        self._descriptor: int | None = None
        self._follower: LogFollower | None = None
        self._places = {name: number for number, name in enumerate([_OPENING, _LOG, *ends])}
        if frames is not None:
            with suppress(OSError):
                self._follower = LogFollower(path, frames)
        self._log = self._log_end()
        witness = WitnessedEnds(opening, ends, self._log)
        write_witness(path, witness)
        if read_witness(path) == witness:
            with suppress(OSError):
                self._descriptor = os.open(sidecar_path(path, ".witness"), os.O_WRONLY | os.O_CLOEXEC)

    def record(self, ends: Mapping[str, int]) -> None:
        """Record the log of a durable commit, and the ends that it has moved."""
        if self._descriptor is None:
            return
        lines = [(self._places.setdefault(name, len(self._places)), name, end) for name, end in ends.items()]
        if (log := self._log_end()) != self._log:
            self._log = log
            lines.append((self._places[_LOG], *_log_line(log)))
        try:
            for place, name, number in lines:
                os.pwrite(self._descriptor, _line(name, number), place * LINE_BYTES)
        except OSError:
            return

    def failed(self) -> None:
        """A transaction has failed."""
        if self._follower is not None:
            try:
                self._follower.pass_over()
            except OSError:
                self._follower.close()
                self._follower = None

    def sync(self) -> None:
        """Sync what was recorded to the disk."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Sync and close the file; later records are not written."""
        self.sync()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _log_end(self) -> LogEnd:
        try:
            return NO_LOG if self._follower is None else self._follower.read_end()
        except OSError:
            return NO_LOG


def _is_log(name: str) -> bool:
    return name.startswith(_LOG)


def _log_line(log: LogEnd) -> tuple[str, int]:
    return f"{_LOG} {log.salts.hex()}", log.frames


def _line(name: str, end: int) -> bytes:
    covered = (b"%-64b %20d" % (name.encode(), end)).ljust(_COVERED_BYTES)
    return b"%b %08x\n" % (covered, crc32(covered))


def _parse(line: bytes) -> tuple[str, int] | None:
    """Name and end; None if the line is damaged."""
    covered, checksum = line[:_COVERED_BYTES], line[_COVERED_BYTES + 1 : -1]
    if len(line) != LINE_BYTES or checksum != b"%08x" % crc32(covered):
        return None
    return covered[:64].decode().rstrip(), int(covered[65:85])


def sidecar_path(path: Path, ending: str) -> Path:
    """The file beside the store at `path` with this ending."""
    return path.with_name(path.name + ending)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty if it cannot be read."""
    try:
        found = _read(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, content: dict[str, object]) -> None:
    """Replace a file by a JSON object, as `write_file` does."""
    write_file(path, json.dumps(content).encode())


def write_file(path: Path, content: bytes) -> None:
    """Replace a file as a whole and sync it. If the disk refuses, the old file stays and nothing is raised."""
    draft = sidecar_path(path, ".new")
    with suppress(OSError):
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.ftruncate(descriptor, 0)
            if os.pwrite(descriptor, content, 0) < len(content):
                raise OSError(ENOSPC, "the disk took only a part")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(path)
        sync_folder(path.parent)


def _read(path: Path) -> Any:
    data = path.read_bytes()
    check_depth(path.name, data)
    return json.loads(data)
