"""Offset ranges: which facts a read covers, and how they are divided among tasks. Core: no IO.

Offsets of a stream are dense, so a range is two numbers and its length a subtraction; the bounds of batches do not
matter. A named range that the store does not hold completely is refused, so that a count is never silently too small.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from pyspark_bsfg.errors import FactsGone

# A smaller task costs more to start than to run: Spark needs some 10 ms for each, a fact under a microsecond.
FACTS_MIN_PER_TASK = 50_000


class OffsetRange(NamedTuple):
    """Offsets `first` to `last`, both included; empty when last < first."""

    first: int
    last: int

    @property
    def facts(self) -> int:
        """How many facts."""
        return max(self.last - self.first + 1, 0)


def resolve(held: OffsetRange, start_offset: int | None, end_offset: int | None) -> OffsetRange:
    """The range to read: the held range, narrowed by the caller's ends. Raises FactsGone if a named fact is not
    held."""
    if start_offset is not None and start_offset < held.first:
        raise FactsGone(
            f"startingOffsets {start_offset}: the facts before {held.first} were released by retention",
            f"start at {held.first}, or leave startingOffsets out",
        )
    if start_offset is not None and start_offset > held.last + 1:
        raise FactsGone(
            f"startingOffsets {start_offset}: the stream ends at {held.last}",
            f"start at {held.last + 1} or before, or leave startingOffsets out",
        )
    if end_offset is not None and end_offset > held.last:
        raise FactsGone(
            f"endingOffsets {end_offset + 1}: the stream ends at {held.last}",
            "leave endingOffsets out to read what is there",
        )
    first = held.first if start_offset is None else start_offset
    last = held.last if end_offset is None else end_offset
    return OffsetRange(first, last)


def recorded(
    held: OffsetRange, marks: Sequence[tuple[int, int]], since_unix_ms: int | None, before_unix_ms: int | None
) -> OffsetRange:
    """The part of a range that was recorded since one time and before another. `marks` are first offsets with the time
    at which they were recorded, in order of offsets. Between two marks no time is known, so the result extends to the
    marks before and after the two times. After a clock was set back it is longer, never shorter."""
    first, last = held
    if since_unix_ms is not None:
        later = min((offset for offset, at in marks if at > since_unix_ms), default=None)
        earlier = [offset for offset, _ in marks if later is None or offset < later]
        first = max(first, max(earlier, default=held.first))
    if before_unix_ms is not None:
        inside = max((offset for offset, at in marks if at < before_unix_ms), default=0)
        last = min(last, min((offset for offset, _ in marks if offset > inside), default=last + 1) - 1)
    return OffsetRange(first, last)


def joined(ranges: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Ranges in order, with those that touch joined."""
    last: OffsetRange | None = None
    for span in ranges:
        if last is not None and span.first == last.last + 1:
            last = OffsetRange(last.first, span.last)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def task_count(facts: int, cores: int, partitions: int | None, facts_max: int) -> int:
    """How many tasks share some facts: `partitions` if the caller named a number, otherwise one per core, each with at
    least FACTS_MIN_PER_TASK facts. In both cases more, if a task would otherwise get more than `facts_max`."""
    assert cores > 0, cores
    assert facts_max > 0, facts_max
    wanted = partitions if partitions is not None else min(cores, facts // FACTS_MIN_PER_TASK)
    return min(max(wanted, -(-facts // facts_max), 1), facts)


def split(parts: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """Share the facts of some ranges evenly among tasks; each task gets the range from its first fact to its last.
    Without facts there is no task."""
    before = [0, *accumulate(part.facts for part in parts)]
    facts = before[-1]
    tasks = min(tasks, facts)

    def offset(place: int) -> int:
        part = bisect_right(before, place) - 1
        return parts[part].first + place - before[part]

    bounds = [facts * task // tasks for task in range(tasks + 1)] if tasks else []
    return [OffsetRange(offset(first), offset(after - 1)) for first, after in pairwise(bounds)]
