"""Quarantine: a store's file that cannot be used is renamed, kept, and reported; a new store begins in its place.

facts.db.suspect            the last life found damage while writing: the file is quarantined before it is opened again
facts.db.damaged-<time>     a quarantined file, with its -wal, -shm and .witness, and .why; this program never deletes
                            it. Only -wal and .why where the log alone was damaged, or the database was missing
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from agent.fact_store.divergence.witness import read_json, sidecar_path, write_json
from agent.fact_store.sqlite import file_bytes, wal_path
from agent.file_replace import sync_folder

_PARTS = ("-wal", "-shm", ".witness", ".lost", "")


class QuarantinedFile(NamedTuple):
    """A quarantined file: its name, its size in bytes with its -wal, and why it was quarantined."""

    file: str
    bytes: int
    why: str


def mark_suspect(path: Path, why: str) -> None:
    """Mark the store at `path`, so that its next opening quarantines it."""
    write_json(sidecar_path(path, ".suspect"), {"why": why})


def suspect_reason(path: Path) -> str | None:
    """Why the store at `path` is marked as suspect; None if it is not."""
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
    if "as" in known:
        target = path.with_name(str(known["as"]))
    else:
        target = _free_name(path, now_unix_ms)
        write_json(suspect, {"why": why, "as": target.name})
    # The -wal holds committed pages, so it is moved and never deleted. The database goes last: while it has its old
    # name, an interrupted call is repeated and moves the rest (decision 0029).
    for part in _PARTS:
        with suppress(FileNotFoundError):
            sidecar_path(path, part).rename(sidecar_path(target, part))
    try:
        suspect.rename(sidecar_path(target, ".why"))
    except FileNotFoundError:  # the disk had no room for the mark; an empty .why takes none
        sidecar_path(target, ".why").touch()
    sync_folder(path.parent)
    return target


def lost_log_reason(path: Path, openings: int) -> str | None:
    """Why an opening that ended before it could record it took the log for lost; None if none did."""
    found = read_json(sidecar_path(path, ".lost"))
    return str(found["why"]) if found.get("openings") == openings else None


def keep_log(path: Path, why: str, now_unix_ms: int, openings: int) -> str:
    """Copy the damaged log of a store that continues without the log's end, and keep why until `forget_lost_log`;
    returns the reason with the name of the copy. On a disk without room no copy is kept."""
    if (known := lost_log_reason(path, openings)) is not None:
        return known
    target = _free_name(path, now_unix_ms)
    copy = wal_path(target)
    try:
        shutil.copyfile(wal_path(path), copy)
        why += f" (the log is kept as {copy.name})"
    except OSError:  # there is no log, or no room; a partial copy would take the room that opening needs
        with suppress(OSError):
            copy.unlink(missing_ok=True)
    write_json(sidecar_path(target, ".why"), {"why": why})
    write_json(sidecar_path(path, ".lost"), {"why": why, "openings": openings})
    return why


def forget_lost_log(path: Path) -> None:
    """The loss is recorded in the store."""
    with suppress(OSError):
        sidecar_path(path, ".lost").unlink(missing_ok=True)


def quarantined_files(path: Path) -> list[QuarantinedFile]:
    """The quarantined files of the store at `path`, oldest first. They take room until an operator removes them."""
    found = list[QuarantinedFile]()
    for why in _reasons(path):
        file = why.with_suffix("")
        size, log_bytes = file_bytes(file), file_bytes(wal_path(file))
        if size + log_bytes:
            name = file.name if size else wal_path(file).name
            found.append(QuarantinedFile(name, size + log_bytes, str(read_json(why).get("why", ""))))
    return found


def _reasons(path: Path) -> Iterator[Path]:
    yield from sorted(path.parent.glob(f"{path.name}.damaged-*.why"))


def _free_name(path: Path, now_unix_ms: int) -> Path:
    stamp = datetime.fromtimestamp(now_unix_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    target = path.with_name(f"{path.name}.damaged-{stamp}")
    while target.exists() or sidecar_path(target, ".why").exists():
        target = target.with_name(target.name + "x")
    return target
