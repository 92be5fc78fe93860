"""Offset ranges: which facts a read covers, and how they are divided among tasks. Core: no IO.

Offsets of a stream are dense, so a range is two numbers and its length a subtraction; the bounds of batches do not
matter. A named range that the store does not hold completely is refused, so that a count is never silently too small.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from pyspark_bsfg.errors import FactsGone

# A task smaller than this costs more to start than to run: Spark needs some 10 ms for each, a fact under a microsecond.
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
    """What a read covers: what is held, narrowed by what the caller named. Raises FactsGone when that is not all
    held."""
    if start_offset is not None and start_offset < held.first:
        raise FactsGone(
            f"startOffset {start_offset}: the facts before {held.first} were released by retention",
            f"start at {held.first}, or leave startOffset out",
        )
    if end_offset is not None and end_offset > held.last:
        raise FactsGone(
            f"endOffset {end_offset}: the stream ends at {held.last}", "leave endOffset out to read what is there"
        )
    first = held.first if start_offset is None else start_offset
    last = held.last if end_offset is None else end_offset
    return OffsetRange(first, last)


def split(whole: OffsetRange, cores: int, partitions: int | None, facts_max: int) -> list[OffsetRange]:
    """Share a range among tasks, as evenly as it goes; an empty range gives no task.

    `partitions` tasks where the caller named a number, otherwise one per core but none with less than
    FACTS_MIN_PER_TASK facts. More in either case, where one would otherwise get more than `facts_max`.
    """
    assert cores > 0, cores
    assert facts_max > 0, facts_max
    facts = whole.facts
    if not facts:
        return []
    wanted = partitions if partitions is not None else min(cores, facts // FACTS_MIN_PER_TASK)
    tasks = min(max(wanted, -(-facts // facts_max), 1), facts)
    bounds = [whole.first + facts * task // tasks for task in range(tasks + 1)]
    return [OffsetRange(first, after - 1) for first, after in pairwise(bounds)]
