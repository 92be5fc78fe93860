"""Offsets of a stream in Spark: where a query starts, where a micro-batch ends, and which facts are lost. Core: no IO.

A micro-batch has the facts after its start up to its end, both `{"epoch": ..., "offset": ...}`. Offsets of a store are
dense and belong to one epoch of it, so a batch is two numbers, and reading it again gives the same facts.

Another epoch means that the store was restored from an older copy (or is another store). Offsets of two epochs are
never compared. If the query may continue, one empty batch leads from the old epoch to before the first fact of the new
one, and the facts that the store still has are read again, with the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pyspark_bsfg.errors import FactsGone, OptionError
from pyspark_bsfg.ranges import OffsetRange, split, task_count
from pyspark_bsfg.transports.ports import Bounds

OnNewEpoch = Literal["fail", "reread"]
Start = Literal["earliest", "latest", "cursor"] | int
"""Where a query with a new checkpoint starts; a number is the first offset to read. `cursor`: after the consumer's last
confirmed offset."""


class StreamOffset(NamedTuple):
    """All facts up to `offset` of an epoch (hex) are read; 0 for none."""

    epoch: str
    offset: int

    def to_json(self) -> dict[str, Any]:
        """The offset for Spark, which logs and compares it as text: always these keys in this order."""
        return {"epoch": self.epoch, "offset": self.offset}

    @classmethod
    def of(cls, logged: Mapping[str, Any]) -> StreamOffset:
        """The offset that Spark has logged. Raises OptionError for the offset of another source."""
        epoch, offset = logged.get("epoch"), logged.get("offset")
        if not isinstance(epoch, str) or type(offset) is not int or offset < 0:
            raise OptionError(f"offset {dict(logged)} is not one of this source", "use another checkpoint")
        return cls(epoch, offset)


class Step(NamedTuple):
    """The end of the next micro-batch, and the facts before its first one that the store no longer has."""

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
    """The end of the batch after `start`: at most `rows_max` facts, not beyond `target`. It is `start` itself if there
    is nothing to read. Raises FactsGone for another epoch, if that is refused."""
    if start.epoch != held.epoch:
        if on_new_epoch == "fail":
            raise FactsGone(
                f"the store has epoch {held.epoch}, the checkpoint {start.epoch}: the store was restored from an older"
                " copy, or is another one",
                "onNewEpoch=reread reads again what it holds; drop rows with a (zone, epoch, sequence) that you have",
            )
        return Step(StreamOffset(held.epoch, held.first_offset - 1))
    after = max(start.offset, held.first_offset - 1)
    lost = OffsetRange(start.offset + 1, after) if after > start.offset else None
    end = held.end_offset
    if target is not None and target.epoch == held.epoch:
        end = min(end, target.offset)
    if rows_max is not None:
        end = min(end, after + rows_max)
    # Never backwards: a log that ends before what was read is an older copy whose node has not begun its new epoch yet.
    return Step(StreamOffset(held.epoch, max(end, start.offset)), lost)


def parts(
    start: StreamOffset, end: StreamOffset, cores: int, partitions_min: int | None, facts_max: int
) -> list[OffsetRange]:
    """The ranges of a batch, one for each task; none between two epochs."""
    if start.epoch != end.epoch:
        return []
    whole = OffsetRange(start.offset + 1, end.offset)
    by_size = task_count(whole.facts, cores, None, facts_max)
    return split([whole], max(by_size, partitions_min or 1))
