"""Offsets of a stream in Spark: where a query starts, how far a micro-batch goes, and what is lost on the way. Core: no
IO.

A micro-batch has the facts after its start up to its end, both `{"epoch": ..., "offset": ...}`. Offsets of a store are
dense and belong to one epoch of it, so a batch is two numbers, and reading it again gives the same facts.

Another epoch means that the store was restored from an older copy (or is another store). Offsets of two epochs are
never compared. Where the query may go on, one empty batch leads from the old epoch to before the first fact held in the
new one, and the facts that the store still has are read again, with the identity that they had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pyspark_bsfg.errors import FactsGone, OptionError
from pyspark_bsfg.ranges import OffsetRange, split, task_count
from pyspark_bsfg.transports.ports import Bounds

OnNewEpoch = Literal["fail", "reread"]
Start = Literal["earliest", "latest", "cursor"] | int
"""Where a query with a new checkpoint starts; a number is the first offset to be read. `cursor`: after what the
consumer has confirmed."""


class StreamOffset(NamedTuple):
    """All facts up to `offset` of an epoch (hex) are read; 0 for none."""

    epoch: str
    offset: int

    def to_json(self) -> dict[str, Any]:
        """What Spark logs and compares as text: always these keys in this order."""
        return {"epoch": self.epoch, "offset": self.offset}

    @classmethod
    def of(cls, logged: Mapping[str, Any]) -> StreamOffset:
        """From what Spark has logged. Raises OptionError for the offset of another source."""
        epoch, offset = logged.get("epoch"), logged.get("offset")
        if not isinstance(epoch, str) or type(offset) is not int or offset < 0:
            raise OptionError(f"offset {dict(logged)} is not one of this source", "use another checkpoint")
        return cls(epoch, offset)


class Step(NamedTuple):
    """How far the next micro-batch goes, and the facts before its first one that the store no longer has."""

    end: StreamOffset
    lost: OffsetRange | None = None


def first_offset(start: Start, held: Bounds) -> StreamOffset:
    """Where a query without a consumer starts. Raises FactsGone for a number that the store does not reach, or has
    released."""
    if start == "latest":
        return StreamOffset(held.epoch, held.end_offset)
    if isinstance(start, str):
        return StreamOffset(held.epoch, held.first_offset - 1)
    if not held.first_offset <= start <= held.end_offset + 1:
        raise FactsGone(
            f"startingOffsets {start}: the store holds {held.first_offset} to {held.end_offset}",
            f"name an offset from {held.first_offset} to {held.end_offset + 1}, or earliest",
        )
    return StreamOffset(held.epoch, start - 1)


def next_step(
    start: StreamOffset, held: Bounds, rows_max: int | None, target: StreamOffset | None, on_new_epoch: OnNewEpoch
) -> Step:
    """How far the batch after `start` goes: at most `rows_max` facts, not beyond `target`. The end is `start` itself
    where there is nothing to read. Raises FactsGone for another epoch, if that is refused."""
    if start.epoch != held.epoch:
        if on_new_epoch == "fail":
            raise FactsGone(
                f"the store has epoch {held.epoch}, the checkpoint {start.epoch}: the store was restored from an older"
                " copy, or is another one",
                "onNewEpoch=reread reads again what it holds; drop rows whose (zone, epoch, sequence) you have",
            )
        return Step(StreamOffset(held.epoch, held.first_offset - 1))
    after = max(start.offset, held.first_offset - 1)
    lost = OffsetRange(start.offset + 1, after) if after > start.offset else None
    end = held.end_offset
    if target is not None and target.epoch == held.epoch:
        end = min(end, target.offset)
    if rows_max is not None:
        end = min(end, after + rows_max)
    # A log that is shorter than what was read: an older copy whose node has not begun its epoch yet. Never backwards.
    return Step(StreamOffset(held.epoch, max(end, start.offset)), lost)


def parts(
    start: StreamOffset, end: StreamOffset, cores: int, partitions_min: int | None, facts_max: int
) -> list[OffsetRange]:
    """The ranges of a batch, one a task; none between two epochs."""
    if start.epoch != end.epoch:
        return []
    whole = OffsetRange(start.offset + 1, end.offset)
    by_size = task_count(whole.facts, cores, None, facts_max)
    return split([whole], max(by_size, partitions_min or 1))
