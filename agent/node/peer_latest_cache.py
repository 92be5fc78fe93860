"""Latest values that a peer sent when a pull of its stream began at the end: kept in the state folder, never in the
store.

A fact is in the log, in a batch that proves its origin. These values have no such proof. They are shown until the log
has a value of the tag itself, and each names the peer and its staleness. There is one file for each peer and stream,
replaced atomically. A file that cannot be read counts as missing, and the values are asked for again when the node
starts.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from agent.query.latest import LatestRecord
from agent.replication.protocol.messages import LatestEntry, PeerLatest

FOLDER = "peer_latest"
_DECODER = msgspec.json.Decoder(PeerLatest)


def save_peer_latest(state_dir: Path, sent: PeerLatest) -> None:
    """Keep what a peer sent, durably, in place of what it sent before. Raises OSError."""
    file = _file(state_dir, sent.peer, sent.stream)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    part = file.with_suffix(".part")
    with part.open("wb") as written:
        written.write(msgspec.json.encode(sent))
        written.flush()
        os.fsync(written.fileno())
    part.replace(file)


def has_peer_latest(state_dir: Path, peer: str, stream: str) -> bool:
    """Whether values of this peer and stream are kept."""
    return _read(_file(state_dir, peer, stream)) is not None


def peer_latest(state_dir: Path, stream: str | None = None) -> list[LatestRecord]:
    """The values that peers sent, of one stream or of all. `via` names the peer; `offset` is None, because it was the
    peer's."""
    records = list[LatestRecord]()
    for file in sorted((state_dir / FOLDER).glob("*.json")):
        sent = _read(file)
        if sent is not None and stream in {None, sent.stream}:
            records += [record_of(each, sent.stream, sent.peer) for each in sent.values]
    return records


def record_of(entry: LatestEntry, stream: str, via: str | None = None) -> LatestRecord:
    """A value as a node sent it, in the form of our own. `via` is the peer, for a value that is kept here."""
    fields = msgspec.structs.asdict(entry)
    fields["value"] = msgspec.json.decode(bytes(entry.value))
    if via is not None:
        fields["offset"] = None
    record: LatestRecord = {**fields, "stream": stream, "via": via or entry.via}  # type: ignore[typeddict-item]
    return record


def entry_of(record: LatestRecord) -> LatestEntry:
    """A value as it is sent to another node."""
    known = {name: record[name] for name in record if name not in {"stream", "value"}}  # type: ignore[literal-required]
    return LatestEntry(value=msgspec.Raw(msgspec.json.encode(record["value"])), **known)


def _file(state_dir: Path, peer: str, stream: str) -> Path:
    """Zones have no dot, and neither name holds a character that is special in a path."""
    return state_dir / FOLDER / f"{peer}.{stream}.json"


def _read(file: Path) -> PeerLatest | None:
    try:
        return _DECODER.decode(file.read_bytes())
    except (OSError, ValueError):  # missing, or not written by us; every msgspec error is a ValueError
        return None
