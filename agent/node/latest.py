"""Connects `query` and `replication`, which do not import each other, for latest values: answers to peers, and values
received from peers.

A search reads the store as any reader does, so it blocks no writer. Tags without a value are left out, because a peer
that may read one stream must not see the tags of others.

When a pull of a stream begins at its end, the peer sends its latest values. They are kept in the state folder, never in
the store: a fact is in the log, in a batch that proves its origin, and these values have no such proof. They are shown
until the log has a value of the tag itself, and each names the peer and its staleness. There is one file for each peer
and stream, replaced atomically. A file that cannot be read counts as missing, and the values are asked for again when
the node starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from agent.fact_store import StoreReader
from agent.file_replace import write_file
from agent.message import check_depth
from agent.query.latest import AbsentTags, LatestRecord, find_latest_in_stream, latest_record, merge_peer_records
from agent.query.scan import Dictionary, Scanner
from agent.replication.protocol.messages import CLAIM_MAX, LatestEntry, PeerLatest, readable
from agent.replication.pulling import PullStatistics
from agent.replication.serving import LatestValues, LookUp, TagFilter, TagSortKey

FOLDER = "peer_latest"
_DECODER = msgspec.json.Decoder(PeerLatest)


def _tag(row: LatestRecord) -> TagSortKey:
    return row["zone"], row["subject"], row["predicate"]


def latest_lookup(
    reader: StoreReader,
    queue_depth: Callable[[str], int],
    from_peers: Callable[[str], Sequence[LatestRecord]] = lambda _: (),
) -> LookUp:
    """How the server looks latest values up. `queue_depth`: facts of a stream that are known to be at peers and not yet
    here; `from_peers`: values of a stream that peers sent. Searches share what they have read of tags, so only one may
    run at a time."""
    absent = AbsentTags()
    dictionary = Dictionary(reader)  # definitions never change, and reading ten thousand takes half a second

    def look_up(stream: str, is_wanted: TagFilter, fresh_ms: int, depth_facts: int) -> LatestValues:
        now_ns, scanner = time.time_ns(), Scanner(reader, dictionary)
        known = find_latest_in_stream(
            scanner, now_ns, stream, absent, is_wanted, depth_facts=depth_facts, fresh_ms=fresh_ms
        )
        others = [row for row in from_peers(stream) if is_wanted(_tag(row))]
        if others:
            rows = merge_peer_records([latest_record(row) for row in known], others, now_ns, fresh_ms)
            tags = [_tag(row) for row in rows]
            return LatestValues(tags, lambda at: entry_of(rows[at]), depth_facts, queue_depth(stream))
        # Formatting is most of the cost of ten thousand values, so only those of the page are formatted.
        tags = [row.tag for row in known]
        return LatestValues(tags, lambda at: entry_of(latest_record(known[at])), depth_facts, queue_depth(stream))

    return look_up


def facts_at_peers(pulls: Iterable[PullStatistics], stream: str) -> int:
    """Facts of a stream that are known to be at peers and not yet here. Any peer may claim the most that an answer can
    name, and the sum goes into ours."""
    behind = sum(max(0, pull.peer_end_offset - pull.offset) for pull in pulls if pull.stream == stream)
    return min(behind, CLAIM_MAX)


def save_peer_latest(state_dir: Path, sent: PeerLatest) -> None:
    """Store a peer's values durably, in place of its earlier ones. Raises OSError."""
    file = _file(state_dir, sent.peer, sent.stream)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(file, msgspec.json.encode(sent))


def has_peer_latest(state_dir: Path, peer: str, stream: str) -> bool:
    """Whether values of this peer and stream are kept, of all zones that it has sent."""
    sent = _read(_file(state_dir, peer, stream))
    return sent is not None and not sent.left_out


def peer_latest(state_dir: Path, stream: str | None = None) -> list[LatestRecord]:
    """The values that peers sent, of one stream or of all. `via` names the peer; `offset` is None, because it was the
    peer's."""
    records = list[LatestRecord]()
    for file in sorted((state_dir / FOLDER).glob("*.json")):
        sent = _read(file)
        if sent is not None and stream in {None, sent.stream}:
            records += [record_of(value, sent.stream, sent.peer) for value in sent.values]
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
        data = file.read_bytes()
        check_depth("values", data)
        sent = _DECODER.decode(data)
    except (OSError, ValueError):  # missing, or not written by us; every msgspec error is a ValueError
        return None
    return None if readable(sent.values)[1] else sent  # kept by a version that did not check each value
