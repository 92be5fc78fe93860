"""Last values that a peer told when a pull of its stream began at the end: kept beside the store, never in it.

A fact is in the log, in a sealed batch that proves where it came from. These are hearsay: good enough to look at until the log has
spoken of the tag itself, and each says from whom it is and how stale. One file for each peer and stream, in the state folder, written
whole or not at all; one that cannot be read is as good as none, and is asked for again when the node starts.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agent.query.latest import ShownRow
from agent.replication.protocol import LatestEntry, PeerLatest

FOLDER = "heard"
_TOLD = msgspec.json.Decoder(PeerLatest)


def keep(state_dir: Path, told: PeerLatest) -> None:
    """Keep what a peer told, durably, in place of what it told before. Raises OSError."""
    file = _file(state_dir, told.peer, told.stream)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    part = file.with_suffix(".part")
    with part.open("wb") as written:
        written.write(msgspec.json.encode(told))
        written.flush()
        os.fsync(written.fileno())
    part.replace(file)


def is_kept(state_dir: Path, peer: str, stream: str) -> bool:
    """Whether this peer has told of this stream before."""
    return _read(_file(state_dir, peer, stream)) is not None


def heard_rows(state_dir: Path, stream: str | None = None) -> list[ShownRow]:
    """What peers told, of one stream or of all; `offset` is theirs, so it is left out, and `via` names them."""
    rows = list[ShownRow]()
    for file in sorted((state_dir / FOLDER).glob("*.json")):
        told = _read(file)
        if told is not None and stream in {None, told.stream}:
            rows += [row_of(each, told.stream, told.peer) for each in told.values]
    return rows


def row_of(entry: LatestEntry, stream: str, via: str | None = None) -> ShownRow:
    """A value that another node told, as our own would be shown; `via` whom, where it is kept beside our own."""
    told = msgspec.structs.asdict(entry)
    told["value"] = msgspec.json.decode(bytes(entry.value))
    if via is not None:
        told["offset"] = None
    row: ShownRow = {**told, "stream": stream, "via": via or entry.via}  # type: ignore[typeddict-item]
    return row


def entry_of(row: ShownRow) -> LatestEntry:
    """A value as it is told to another node."""
    known = {name: row[name] for name in row if name not in {"stream", "value"}}  # type: ignore[literal-required]
    return LatestEntry(value=msgspec.Raw(msgspec.json.encode(row["value"])), **known)


def _file(state_dir: Path, peer: str, stream: str) -> Path:
    """Neither name holds anything that a path could mistake, and a zone has no dot."""
    return state_dir / FOLDER / f"{peer}.{stream}.json"


def _read(file: Path) -> PeerLatest | None:
    try:
        return _TOLD.decode(file.read_bytes())
    except (OSError, ValueError):  # not there, or not what we wrote; every msgspec error is a ValueError
        return None
