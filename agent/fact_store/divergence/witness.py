"""The witness: a small file beside the store that records its epoch and where its streams end.

    facts.db.witness        written when the store is opened and closed, and every few minutes between

No file written here is needed to read the store, and a disk that refuses them does not stop the store from opening.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.fact_store.divergence.epoch_rules import Witness
from agent.fact_store.sqlite import sync_folder
from agent.message import check_depth


def read_witness(path: Path) -> Witness | None:
    """The witness of the store at `path`; None where there is none or it cannot be read."""
    try:
        found = _read(sidecar_path(path, ".witness"))
        return Witness(str(found["epoch"]), {str(name): int(end) for name, end in found["ends"].items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_witness(path: Path, witness: Witness) -> None:
    """Replace the witness of the store at `path`. What it says must be durable in the store already.

    Where the disk has no room for it, a witness of another epoch is removed: it would begin a new epoch at each
    opening.
    """
    write_json(sidecar_path(path, ".witness"), {"epoch": witness.epoch, "ends": dict(witness.ends)})
    left = read_witness(path)
    if left is not None and left.epoch != witness.epoch:
        with suppress(OSError):
            sidecar_path(path, ".witness").unlink()


def sidecar_path(path: Path, ending: str) -> Path:
    """The file beside the store at `path` with this ending."""
    return path.with_name(path.name + ending)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty where it cannot be read."""
    try:
        found = _read(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, content: dict[str, object]) -> None:
    """Replace a file as a whole and sync it; where the disk refuses, the old file stays and nothing is raised."""
    draft = sidecar_path(path, ".new")
    with suppress(OSError):
        with draft.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)


def _read(path: Path) -> Any:
    data = path.read_bytes()
    check_depth(path.name, data)
    return json.loads(data)
