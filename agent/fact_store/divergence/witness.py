"""The witness: a small file beside the store that records what the store has acknowledged.

    facts.db.witness        replaced when the store is opened, updated in place after each commit that moves an end

Lines of 128 bytes, one for each stream: name, end, checksum. No line crosses a
sector, so each is there whole or not at all. An update is written after the commit and before its answers, and is not
synced: it survives the end of the process at once, and a power cut once the kernel has written it back, within half a
minute. The witness never records what is not durable in the store.

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
from typing import Any
from zlib import crc32

from agent.fact_store.sqlite import sync_folder
from agent.message import check_depth

LINE_BYTES = 128
_COVERED_BYTES = LINE_BYTES - 10  # a space, the checksum and the line's end follow


def read_witness(path: Path) -> dict[str, int] | None:
    """The end offset of each stream of the store at `path`; None if there is no witness or it cannot be read. Damaged
    lines are left out."""
    try:
        content = sidecar_path(path, ".witness").read_bytes()
    except OSError:
        return None
    lines = [_parse(content[at : at + LINE_BYTES]) for at in range(0, len(content), LINE_BYTES)]
    return dict(line for line in lines if line is not None)


def write_witness(path: Path, ends: Mapping[str, int]) -> None:
    """Replace the witness of the store at `path`. What it says must be durable in the store already."""
    write_file(sidecar_path(path, ".witness"), b"".join(_line(name, end) for name, end in ends.items()))


def missing_in(witness: Mapping[str, int] | None, held: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Streams that end before what the witness records: where, and what it records."""
    known = witness or {}
    return {name: (held.get(name, 0), end) for name, end in sorted(known.items()) if held.get(name, 0) < end}


class LiveWitness:
    """The witness of an open store: written by the constructor, updated by the writer's thread, synced by any thread.
    If an update cannot be written, the file keeps its lower ends."""

    def __init__(self, path: Path, ends: Mapping[str, int]) -> None:
        self._descriptor: int | None = None
        self._places = {name: number for number, name in enumerate(ends)}
        write_witness(path, ends)
        if read_witness(path) == ends:
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
