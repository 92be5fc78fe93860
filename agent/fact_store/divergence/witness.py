"""The witness: a small file beside the store that records what the store has acknowledged.

    facts.db.witness        replaced when the store is opened, updated in place after each commit that moves an end
    facts.db.reseals        which own facts were resealed, replaced before the witness whenever there are more

Lines of 128 bytes, one for the epoch and one for each stream: name, end, epoch, checksum. No line crosses a
sector, so each is there whole or not at all. An update is written after the commit and before its answers, and is not
synced: it survives the end of the process at once, and a power cut once the kernel has written it back, within half a
minute. The witness never records what is not durable in the store.

The store can be read without these files, and it opens even if they cannot be written.
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

from agent.fact_store.divergence.epoch_rules import Witness
from agent.fact_store.log import Reseal
from agent.fact_store.sqlite import sync_folder
from agent.message import check_depth

LINE_BYTES = 128
RESEALS = ".reseals"
RESEALS_MAX = 256
"""The newest are kept: a copy of the file that is older than all of them is improbable."""
EPOCH = "(epoch)"  # the line of a store without streams; no stream can have this name
_COVERED_BYTES = LINE_BYTES - 10  # a space, the checksum and the line's end follow


def read_witness(path: Path) -> Witness | None:
    """The witness of the store at `path`; None if there is none or it cannot be read. Damaged lines are left out."""
    try:
        content = sidecar_path(path, ".witness").read_bytes()
    except OSError:
        return None
    lines = [_parse(content[at : at + LINE_BYTES]) for at in range(0, len(content), LINE_BYTES)]
    found = [line for line in lines if line is not None]
    if not found:
        return None
    epoch = found[0][2]
    ends = {name: end for name, end, of in found if of == epoch and name != EPOCH}
    return Witness(epoch, ends, _read_reseals(path))


def write_witness(path: Path, witness: Witness) -> None:
    """Replace the witness of the store at `path`. What it says must be durable in the store already."""
    if witness.reseals != _read_reseals(path):
        rows = [
            [value.hex() if isinstance(value, bytes) else value for value in one]
            for one in witness.reseals[-RESEALS_MAX:]
        ]
        write_file(sidecar_path(path, RESEALS), json.dumps(rows).encode())
    ends = {EPOCH: 0, **witness.ends}
    write_file(sidecar_path(path, ".witness"), b"".join(_line(name, end, witness.epoch) for name, end in ends.items()))


def _read_reseals(path: Path) -> tuple[Reseal, ...]:
    """What was resealed; empty if the file is missing or damaged."""
    try:
        rows = _read(sidecar_path(path, RESEALS))
        return tuple(_reseal(row) for row in rows)
    except (OSError, ValueError, TypeError):
        return ()


def _reseal(row: list[object]) -> Reseal:
    stream, epoch, first_sequence, digest, new_epoch = map(str, row)
    return Reseal(stream, bytes.fromhex(epoch), int(first_sequence), bytes.fromhex(digest), bytes.fromhex(new_epoch))


class LiveWitness:
    """The witness of an open store: written by the constructor, updated by the writer's thread, synced by any thread.
    If an update cannot be written, the file keeps its lower ends."""

    def __init__(self, path: Path, witness: Witness) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._replace(witness.epoch, witness.ends, witness.reseals)

    def record(self, epoch: str, ends: Mapping[str, int], reseals: tuple[Reseal, ...] = ()) -> None:
        """Record the state after a durable commit: the epoch (hex), the ends that the commit has moved, and what was
        resealed, which changes with the epoch only."""
        self._ends.update(ends)
        if epoch != self._epoch:  # rare: it costs two syncs
            self.close()
            self._replace(epoch, self._ends, reseals)
            return
        if self._descriptor is None:
            return
        try:
            for name, end in ends.items():
                place = self._places.setdefault(name, len(self._places))
                os.pwrite(self._descriptor, _line(name, end, self._epoch), place * LINE_BYTES)
        except OSError:
            return

    def _replace(self, epoch: str, ends: Mapping[str, int], reseals: tuple[Reseal, ...]) -> None:
        self._epoch, self._ends = epoch, dict(ends)
        self._places = {name: number for number, name in enumerate([EPOCH, *ends])}
        write_witness(self._path, Witness(epoch, self._ends, reseals))
        if (left := read_witness(self._path)) is not None and left.epoch == epoch:
            with suppress(OSError):
                self._descriptor = os.open(sidecar_path(self._path, ".witness"), os.O_WRONLY | os.O_CLOEXEC)

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


def _line(name: str, end: int, epoch: str) -> bytes:
    covered = b"%-64b %20d %32b" % (name.encode(), end, epoch.encode())
    return b"%b %08x\n" % (covered, crc32(covered))


def _parse(line: bytes) -> tuple[str, int, str] | None:
    """Name, end and epoch; None if the line is damaged."""
    covered, checksum = line[:_COVERED_BYTES], line[_COVERED_BYTES + 1 : -1]
    if len(line) != LINE_BYTES or checksum != b"%08x" % crc32(covered):
        return None
    name, end, epoch = covered[:64].decode(), covered[65:85], covered[86:].decode()
    return name.rstrip(), int(end), epoch.strip()


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
