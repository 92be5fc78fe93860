"""Latest values as records for programs, people and other nodes, and how records from peers are merged in. Core: no IO.

A peer's value is shown until this store has one that is at least as new, and names the peer that reported it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from agent.message import json_value, time_text
from agent.query.latest.latest_search import LatestRow
from agent.query.scan import parse_time_ns, value_type

_NEVER_NS = -(2**63)


class LatestRecord(TypedDict):
    """A row for programs: `value` as in a message, times as text; fields of the value are None if none was found.
    `ahead_ms`: by at least how much the source time was ahead of the store's clock at recording; 0 if it was not.
    `via`: the zone that reported the value, if the fact is not in this store."""

    zone: str
    subject: str
    predicate: str
    source: str
    value: Any
    value_type: str | None
    unit: str | None
    quality: int | None
    source_time: str | None
    ahead_ms: int | None
    stream: str | None
    offset: int | None
    as_of: str | None
    staleness_ms: int | None
    mode: str
    via: str | None


def latest_record(row: LatestRow) -> LatestRecord:
    """A row as programs and other nodes read it."""
    known = row.latest
    return {
        "zone": row.tag.zone,
        "subject": row.tag.subject,
        "predicate": row.tag.predicate,
        "source": row.source,
        "value": json_value(known.value) if known else None,
        "value_type": value_type(known.value) if known else None,
        "unit": known.unit or None if known else None,
        "quality": known.quality if known else None,
        "source_time": time_text(known.source_time_ns) if known else None,
        "ahead_ms": known.ahead_ms if known else None,
        "stream": known.arrival.stream if known else None,
        "offset": known.arrival.offset if known else None,
        "as_of": None if row.as_of_ns is None else time_text(row.as_of_ns),
        "staleness_ms": row.staleness_ms,
        "mode": row.mode,
        "via": None,
    }


def merge_peer_records(
    rows: Sequence[LatestRecord], from_peers: Iterable[LatestRecord], now_ns: int, fresh_ms: int
) -> list[LatestRecord]:
    """The rows of the store, replaced by rows of peers that are newer; sorted by zone and subject. The staleness of a
    source is computed from the merged rows."""
    best = {(row["zone"], row["subject"], row["predicate"]): row for row in rows}
    for row in from_peers:
        key = row["zone"], row["subject"], row["predicate"]
        if (known := best.get(key)) is None or _rank(row) > _rank(known):
            best[key] = row
    newest: dict[tuple[str, str], int] = {}
    for row in best.values():
        source = row["zone"], row["source"]
        newest[source] = max(_at_ns(row["as_of"]), newest.get(source, _NEVER_NS))
    merged = list[LatestRecord]()
    for _, row in sorted(best.items()):
        as_of_ns = newest[row["zone"], row["source"]]
        if as_of_ns == _NEVER_NS:
            merged.append(row)
            continue
        staleness_ms = max(0, (now_ns - as_of_ns) // 1_000_000)
        mode = "fresh" if staleness_ms <= fresh_ms else "degraded"
        merged.append({**row, "as_of": time_text(as_of_ns), "staleness_ms": staleness_ms, "mode": mode})
    return merged


def _rank(row: LatestRecord) -> tuple[int, int]:
    """The greater rank is the newer value. A source time ahead of the clock does not count: then the store's own fact
    ranks above every report of a peer, and a peer's report ranks above a missing value only."""
    if row["source_time"] is None:
        return 0, 0
    return (1 if row["via"] else 3, 0) if row["ahead_ms"] else (2, _at_ns(row["source_time"]))


def _at_ns(text: str | None) -> int:
    """The time in a text; a time before all others if there is none."""
    found = None if text is None else parse_time_ns(text)
    return _NEVER_NS if found is None else found
