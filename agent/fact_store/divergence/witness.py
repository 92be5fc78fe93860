"""The small files beside a store: its witness, the mark that it is suspect, and stores that were set aside.

    facts.db.witness            epoch and ends, written when the store is opened and closed and now and then between
    facts.db.suspect            the last life met damage while writing: the file is set aside before it is opened again
    facts.db.damaged-<time>     a file that could not be used, with its -wal and -shm, and .why; never deleted by this program

None of them is needed to read the store, and a disk that takes none of them keeps nobody from opening it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from agent.fact_store.divergence.epochs import Witness
from agent.fact_store.sqlite import file_bytes

_PARTS = ("-wal", "-shm", ".witness", "")


class SetAside(NamedTuple):
    """A store's file that was set aside, and why."""

    file: str
    bytes: int
    why: str


def read_witness(path: Path) -> Witness | None:
    """What the witness of the store at `path` remembers; None where there is none that can be read."""
    try:
        found = json.loads(_beside(path, ".witness").read_text(encoding="utf-8"))
        return Witness(str(found["epoch"]), {str(name): int(end) for name, end in found["ends"].items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_witness(path: Path, witness: Witness) -> None:
    """Remember; what it says must be durable in the store already. Where there is no room for it, one of another epoch goes: left
    there it would begin a new epoch whenever the store is opened."""
    _write(_beside(path, ".witness"), {"epoch": witness.epoch, "ends": dict(witness.ends)})
    left = read_witness(path)
    if left is not None and left.epoch != witness.epoch:
        with suppress(OSError):
            _beside(path, ".witness").unlink()


def mark_suspect(path: Path, why: str) -> None:
    """Have the store at `path` set aside before anybody writes it again."""
    _write(_beside(path, ".suspect"), {"why": why})


def suspicion(path: Path) -> str | None:
    """Why the store at `path` is suspect, if it is."""
    suspect = _beside(path, ".suspect")
    if not suspect.exists():
        return None
    return str(_read(suspect).get("why", "it was marked"))


def set_aside(path: Path, why: str, now_unix_ms: int) -> Path:
    """Rename the store's files; returns the new name. Interrupted anywhere, it goes on where it was when called again. Raises
    OSError, and then the file is still suspect."""
    suspect = _beside(path, ".suspect")
    known = _read(suspect)
    stamp = datetime.fromtimestamp(now_unix_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    target = path.with_name(str(known.get("as", f"{path.name}.damaged-{stamp}")))
    while "as" not in known and target.exists():
        target = target.with_name(target.name + "x")
    if "as" not in known:
        _write(suspect, {"why": why, "as": target.name})
    for part in _PARTS:  # the database last: as long as it is there, so are its log's pages under one name or the other
        with suppress(FileNotFoundError):
            _beside(path, part).rename(_beside(target, part))
    try:
        suspect.rename(_beside(target, ".why"))
    except FileNotFoundError:  # the disk had no room for the mark; an empty file needs none, and the file is told by it
        _beside(target, ".why").touch()
    _sync_folder(path)
    return target


def files_set_aside(path: Path) -> list[SetAside]:
    """Stores set aside beside `path`, oldest first; they take room until somebody removes them."""
    found = list[SetAside]()
    for why in sorted(path.parent.glob(f"{path.name}.damaged-*.why")):
        file = why.with_suffix("")
        size = file_bytes(file) + file_bytes(_beside(file, "-wal"))
        if size:
            found.append(SetAside(file.name, size, str(_read(why).get("why", ""))))
    return found


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: dict[str, object]) -> None:
    """Whole or not at all, and on the disk; a full disk keeps what was there."""
    draft = _beside(path, ".new")
    with suppress(OSError):
        with draft.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
