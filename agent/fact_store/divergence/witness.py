"""The witness: a small file beside the store that records its epoch, where its streams end, and which facts were
resealed.

    facts.db.witness        written when the store is opened and closed, and every few minutes between

No file written here is needed to read the store, and a disk that refuses them does not stop the store from opening.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from agent.batch import EPOCH_BYTES
from agent.fact_store.divergence.epoch_rules import Witness
from agent.fact_store.log import Reseal
from agent.fact_store.sqlite import sync_folder

RESEALS_MAX = 256
"""The newest are kept: an older copy of the file than the oldest of them is improbable, and the witness stays small."""


def read_witness(path: Path) -> Witness | None:
    """The witness of the store at `path`; None where there is none or it cannot be read."""
    try:
        found = json.loads(sidecar_path(path, ".witness").read_text(encoding="utf-8"))
        ends = {str(name): int(end) for name, end in found["ends"].items()}
        epoch = bytes.fromhex(found["epoch"])
        if len(epoch) != EPOCH_BYTES:
            return None
        return Witness(epoch.hex(), ends, tuple(map(_reseal, found.get("reseals", ()))))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_witness(path: Path, witness: Witness) -> None:
    """Replace the witness of the store at `path`. What it says must be durable in the store already.

    Where the disk has no room for it, a witness of another epoch is removed: it would begin a new epoch at each
    opening.
    """
    content: dict[str, object] = {"epoch": witness.epoch, "ends": dict(witness.ends)}
    if witness.reseals:
        content["reseals"] = [
            [value.hex() if isinstance(value, bytes) else value for value in one]
            for one in witness.reseals[-RESEALS_MAX:]
        ]
    write_json(sidecar_path(path, ".witness"), content)
    left = read_witness(path)
    if left is not None and left.epoch != witness.epoch:
        with suppress(OSError):
            sidecar_path(path, ".witness").unlink()


def _reseal(row: list[object]) -> Reseal:
    stream, epoch, first_sequence, digest, new_epoch = map(str, row)
    return Reseal(stream, bytes.fromhex(epoch), int(first_sequence), bytes.fromhex(digest), bytes.fromhex(new_epoch))


def sidecar_path(path: Path, ending: str) -> Path:
    """The file beside the store at `path` with this ending."""
    return path.with_name(path.name + ending)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in a file; empty where it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
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
