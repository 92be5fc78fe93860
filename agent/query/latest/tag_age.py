"""The age of a tag's own value, and whether it exceeds the expected interval. Core: no IO.

Staleness belongs to a source, because a tag that reports by exception may be silent for hours. If the tag files give
the longest interval of a tag, it is judged by itself: `stale` if no value has arrived for that interval and a grace
time. A tag of this node that no tag file names any more is `removed`, and so is a tag of another zone whose last fact
says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.message import HEALTH_SOURCE
from agent.query.latest.latest_rows import LatestRecord
from agent.query.scan import parse_time_ns
from agent.status_codes import TAG_REMOVED

GRACE_MS_MIN = 5_000  # allows for a group commit and a late poll
AHEAD_NS_MIN = 120_000_000_000  # a later time was given by a clock that has been set back since
GRACE_MS_MAX = 60_000  # a tag that arrives once an hour is stale after an hour and a minute


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
