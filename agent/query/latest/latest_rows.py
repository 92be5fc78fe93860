"""Latest values as records for programs, people and other nodes: merged with those of peers, with the age of each tag's
own value, and summed up. Core: no IO.

A peer's value is shown until this store has one that is at least as new, and names the peer that reported it.

Staleness belongs to a source, because a tag that reports by exception may be silent for hours. If the tag files give
the longest interval of a tag, it is judged by itself: `stale` if no value has arrived for that interval and a grace
time. A tag of this node that no tag file names any more is `removed`, and so is a tag of another zone whose last fact
says so.

In a summary each tag counts once: as `removed` if no tag file names it, as `silent` if it has no value or its value is
overdue, otherwise by the quality of its value. A tag that the tag files name and the store has never had is silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from agent.message import HEALTH_SOURCE, json_value, time_text
from agent.query.latest.latest_search import LatestKey, LatestRow
from agent.query.scan import parse_time_ns, value_type
from agent.status_codes import TAG_REMOVED

_NEVER_NS = -(2**63)
GRACE_MS_MIN = 5_000  # allows for a group commit and a late poll
AHEAD_NS_MIN = 120_000_000_000  # a later time was given by a clock that has been set back since
GRACE_MS_MAX = 60_000  # a tag that arrives once an hour is stale after an hour and a minute
VALUES_SHOWN = 10

_UNCERTAIN, _BAD = 1, 2  # the severity of a StatusCode, its upper two bits; OPC 10000-4, 7.39.1


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


class AgedRecord(LatestRecord):
    """A row with the age of the tag's own value, None if its time cannot be trusted, and the longest expected interval,
    None if it is not known, for example because the tag reports on change."""

    age_ms: int | None
    expected_ms: int | None


@dataclass(frozen=True, slots=True)
class TagsInForce:
    """The subjects that the tag files of a zone's node name, with the longest time between two facts in ms; 0 if a tag
    reports on change."""

    zone: str
    intervals_ms: Mapping[str, int]


def aged_record(record: LatestRecord, in_force: TagsInForce | None, now_ns: int) -> AgedRecord:
    """A row with its age, judged by the tag files if they are known."""
    time_ns = None if record["source_time"] is None else parse_time_ns(record["source_time"])
    is_ahead = record["ahead_ms"] or (time_ns is not None and time_ns > now_ns + AHEAD_NS_MIN)
    age_ms = None if time_ns is None or is_ahead else max(0, (now_ns - time_ns) // 1_000_000)
    expected_ms, mode = None, record["mode"]
    if in_force is not None and record["zone"] == in_force.zone:
        expected_ms = in_force.intervals_ms.get(record["subject"]) or None
        if record["source"] not in {"", HEALTH_SOURCE} and record["subject"] not in in_force.intervals_ms:
            mode = "removed"
        elif expected_ms is not None and age_ms is not None and mode == "fresh" and age_ms > _limit_ms(expected_ms):
            mode = "stale"
    elif record["quality"] == TAG_REMOVED:
        mode = "removed"
    return {**record, "mode": mode, "age_ms": age_ms, "expected_ms": expected_ms}


def _limit_ms(expected_ms: int) -> int:
    return expected_ms + min(max(expected_ms, GRACE_MS_MIN), GRACE_MS_MAX)


@dataclass(frozen=True, slots=True)
class LatestSummary:
    """Counts, the tags with a bad value, the names of silent tags, and the first values of every source."""

    good: int
    uncertain: int
    removed: int
    bad: Sequence[AgedRecord]
    silent: Sequence[str]
    first: Sequence[AgedRecord]

    @property
    def tags(self) -> int:
        return self.good + self.uncertain + len(self.bad) + len(self.silent)


def summarize(
    rows: Iterable[AgedRecord], in_force: TagsInForce | None, is_wanted: Callable[[LatestKey], bool]
) -> LatestSummary:
    """The summary of rows, in their order, and of the tags in force that have no row. `is_wanted`: the filter that
    selected the rows."""
    counts, bad, silent, valued = Counter[str](), list[AgedRecord](), list[str](), list[AgedRecord]()
    recorded = set[str]()
    for row in rows:
        if in_force is not None and row["zone"] == in_force.zone:
            recorded.add(row["subject"])
        severity = (row["quality"] or 0) >> 30
        if row["mode"] == "removed":
            counts["removed"] += 1
        elif row["source_time"] is None or row["mode"] != "fresh":
            silent.append(row["subject"])
        elif severity >= _BAD:
            bad.append(row)
        else:
            counts["uncertain" if severity == _UNCERTAIN else "good"] += 1
            valued.append(row)
    if in_force is not None:
        never = in_force.intervals_ms.keys() - recorded
        silent += sorted(subject for subject in never if is_wanted(LatestKey(in_force.zone, subject, "")))
    return LatestSummary(counts["good"], counts["uncertain"], counts["removed"], bad, silent, _first_of_each(valued))


def _first_of_each(rows: Sequence[AgedRecord]) -> list[AgedRecord]:
    """The first rows, with equal numbers from each source as far as possible, in the order of the rows."""
    seen, ranked = Counter[tuple[str, str]](), list[tuple[int, int]]()
    for place, row in enumerate(rows):
        source = row["zone"], row["source"]
        ranked.append((seen[source], place))
        seen[source] += 1
    return [rows[place] for place in sorted(place for _, place in sorted(ranked)[:VALUES_SHOWN])]
