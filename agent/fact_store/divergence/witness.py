"""The witness: a small file beside the store that records what the store has acknowledged.

    facts.db.witness        replaced when the store is opened, updated in place after each commit that moves an end

Lines of 128 bytes: name, number, checksum. The first has the number of the opening that began the file, the others the
end of a stream each. No line crosses a sector, so each is there whole or not at all. An update is written after the
commit and before its answers, and is not synced: it survives the end of the process at once, and a power cut once the
kernel has written it back, within half a minute. The witness never records what is not durable in the store.

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

from agent.fact_store.sqlite import sync_folder
from agent.message import check_depth

LINE_BYTES = 128
_COVERED_BYTES = LINE_BYTES - 10  # a space, the checksum and the line's end follow
_OPENING = ""  # the name of the first line, which no stream has


class Witness(NamedTuple):
    """The opening that began a witness, by number; and the end offset of each stream."""

    opening: int
    ends: dict[str, int]

    def missing(self, openings: int, held: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Streams that end before what is recorded: where, and what is recorded. Nothing if the store was opened since:
        that opening has reported it, and ended before it replaced the witness."""
        if self.opening < openings:
            return {}
        return {name: (held.get(name, 0), end) for name, end in sorted(self.ends.items()) if held.get(name, 0) < end}


def read_witness(path: Path) -> Witness | None:
    """The witness of the store at `path`; None if there is none, or its first line is damaged. Other damaged lines
    are left out."""
    try:
        content = sidecar_path(path, ".witness").read_bytes()
    except OSError:
        return None
    lines = [_parse(content[at : at + LINE_BYTES]) for at in range(0, len(content), LINE_BYTES)]
    ends = dict(line for line in lines if line is not None)
    opening = ends.pop(_OPENING, None)
    return None if opening is None else Witness(opening, ends)


def write_witness(path: Path, witness: Witness) -> None:
    """Replace the witness of the store at `path`. What it says must be durable in the store already."""
    lines = {_OPENING: witness.opening, **witness.ends}
    write_file(sidecar_path(path, ".witness"), b"".join(_line(name, end) for name, end in lines.items()))


class LiveWitness:
    """The witness of an open store: written by the constructor, updated by the writer's thread, synced by any thread.
    If an update cannot be written, the file keeps its lower ends."""

    def __init__(self, path: Path, witness: Witness) -> None:
        self._descriptor: int | None = None
        self._places = {name: number for number, name in enumerate([_OPENING, *witness.ends])}
        write_witness(path, witness)
        if read_witness(path) == witness:
            with suppress(OSError):
                self._descriptor = os.open(sidecar_path(path, ".witness"), os.O_WRONLY | os.O_CLOEXEC)

    def record(self, ends: Mapping[str, int]) -> None:
        """Record the ends that a durable commit has moved."""
        if self._descriptor is None:
            return
        try:
            for name, end in ends.items():
                place = self._places.setdefault(name, len(self._places))
                os.pwrite(self._descriptor, _line(name, end), place * LINE_BYTES)
        except OSError:
            return

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
