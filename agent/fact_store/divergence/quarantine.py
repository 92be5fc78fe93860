"""Quarantine: a store's file that cannot be used is renamed, kept, and reported; a new store begins in its place.

facts.db.suspect            the last life met damage while writing: the file is quarantined before it is opened again
facts.db.damaged-<time>     a quarantined file, with its -wal, -shm and .witness, and .why; this program never deletes
it
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from agent.fact_store.divergence.witness import read_json, sidecar_path, write_json
from agent.fact_store.sqlite import file_bytes, sync_folder

_PARTS = ("-wal", "-shm", ".witness", "")


class QuarantinedFile(NamedTuple):
    """A quarantined file: its name, its size in bytes with its -wal, and why it was quarantined."""

    file: str
    bytes: int
    why: str


def mark_suspect(path: Path, why: str) -> None:
    """Have the store at `path` quarantined when it is opened next."""
    write_json(sidecar_path(path, ".suspect"), {"why": why})


def suspect_reason(path: Path) -> str | None:
    """Why the store at `path` is marked as suspect; None where it is not."""
    suspect = sidecar_path(path, ".suspect")
    if not suspect.exists():
        return None
    return str(read_json(suspect).get("why", "it was marked"))


def quarantine(path: Path, why: str, now_unix_ms: int) -> Path:
    """Rename the store's files; returns the new path of the database. A call that was interrupted is completed by the
    next one.

    Raises OSError; then the file is still marked as suspect.
    """
    suspect = sidecar_path(path, ".suspect")
    known = read_json(suspect)
    stamp = datetime.fromtimestamp(now_unix_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    target = path.with_name(str(known.get("as", f"{path.name}.damaged-{stamp}")))
    while "as" not in known and target.exists():
        target = target.with_name(target.name + "x")
    if "as" not in known:
        write_json(suspect, {"why": why, "as": target.name})
    # The -wal holds committed pages, so it is moved and never deleted. The database goes last: while it has its old
    # name, an interrupted call is repeated and moves the rest (decision 0029).
    for part in _PARTS:
        with suppress(FileNotFoundError):
            sidecar_path(path, part).rename(sidecar_path(target, part))
    try:
        suspect.rename(sidecar_path(target, ".why"))
    except FileNotFoundError:  # the disk had no room for the mark; an empty file needs none, and marks the files
        sidecar_path(target, ".why").touch()
    sync_folder(path.parent)
    return target


def quarantined_files(path: Path) -> list[QuarantinedFile]:
    """The quarantined files of the store at `path`, oldest first. They take room until an operator removes them."""
    found = list[QuarantinedFile]()
    for why in sorted(path.parent.glob(f"{path.name}.damaged-*.why")):
        file = why.with_suffix("")
        size = file_bytes(file) + file_bytes(sidecar_path(file, "-wal"))
        if size:
            found.append(QuarantinedFile(file.name, size, str(read_json(why).get("why", ""))))
    return found
