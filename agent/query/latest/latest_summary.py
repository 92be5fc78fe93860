"""Summarizes how many tags are good, bad and silent, which ones are not good, and a few values. Core: no IO.

Each tag counts once: as `removed` if no tag file names it, as `silent` if it has no value or its value is overdue,
otherwise by the quality of its value. A tag that the tag files name and the store has never had is silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.query.latest.latest_search import Tag
from agent.query.latest.tag_age import AgedRecord, TagsInForce

VALUES_SHOWN = 10

_UNCERTAIN, _BAD = 1, 2  # the severity of a StatusCode, its upper two bits; OPC 10000-4, 7.39.1


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
    rows: Iterable[AgedRecord], in_force: TagsInForce | None, is_wanted: Callable[[Tag], bool]
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
        silent += sorted(subject for subject in never if is_wanted(Tag(in_force.zone, subject, "")))
    return LatestSummary(counts["good"], counts["uncertain"], counts["removed"], bad, silent, _first_of_each(valued))


def _first_of_each(rows: Sequence[AgedRecord]) -> list[AgedRecord]:
    """The first rows, with equal numbers from each source as far as possible, in the order of the rows."""
    seen, ranked = Counter[tuple[str, str]](), list[tuple[int, int]]()
    for place, row in enumerate(rows):
        source = row["zone"], row["source"]
        ranked.append((seen[source], place))
        seen[source] += 1
    return [rows[place] for place in sorted(place for _, place in sorted(ranked)[:VALUES_SHOWN])]
