"""Offsets of a stream in Spark: where a query starts, where a micro-batch ends, and which facts are lost. Core: no IO.

A micro-batch has the facts after its start up to its end, both `{"life": ..., "offset": ...}`: positions in the
store's log (`agent.positions`). The log up to a position never changes, so a batch is two positions, and reading it
again gives the same facts.

Where the log ends before a position, or does not have it, the store was put back to an older copy, or is another one.
If the query may go on, one empty batch leads back to where the log is the one that was read, or to its beginning; what
follows there is read, and facts that were read before come again with the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from agent.positions import Position
from pyspark_bsfg.errors import FactsGone, OptionError
from pyspark_bsfg.ranges import OffsetRange, split, task_count
from pyspark_bsfg.transports.ports import Bounds

OnRestored = Literal["fail", "reread"]
Start = Literal["earliest", "latest", "cursor"] | int
"""Where a query with a new checkpoint starts; a number is the first offset to read. `cursor`: after the consumer's last
confirmed offset."""


class StreamOffset(NamedTuple):
    """A log is read up to `offset`, whose fact `life` (hex) has stored; 0 for none."""

    life: str
    offset: int

    def to_json(self) -> dict[str, Any]:
        """The offset for Spark, which logs and compares it as text: always these keys in this order."""
        return {"life": self.life, "offset": self.offset}

    @classmethod
    def of(cls, logged: Mapping[str, Any]) -> StreamOffset:
        """The offset that Spark has logged. Raises OptionError for the offset of another source."""
        life, offset = logged.get("life"), logged.get("offset")
        if not isinstance(life, str) or type(offset) is not int or offset < 0:
            raise OptionError(f"offset {dict(logged)} is not one of this source", "use another checkpoint")
        return cls(life, offset)

    @property
    def position(self) -> Position:
        """The position in the store's log."""
        return Position(bytes.fromhex(self.life), self.offset)


class NextBatch(NamedTuple):
    """The end of the next micro-batch, and the facts before its first one that the store no longer has."""

    end: StreamOffset
    lost: OffsetRange | None = None


def first_offset(start: Start, held: Bounds) -> StreamOffset:
    """Where a query without a consumer starts. Raises FactsGone for a number that the store does not reach, or has
    released."""
    if start == "latest":
        return StreamOffset(held.life, held.end_offset)
    if isinstance(start, str):
        return StreamOffset(held.life, held.first_offset - 1)
    if not held.first_offset <= start <= held.end_offset + 1:
        raise FactsGone(
            f"startingOffsets {start}: the store holds {held.first_offset} to {held.end_offset}",
            f"name an offset from {held.first_offset} to {held.end_offset + 1}, or earliest",
        )
    return StreamOffset(held.life, start - 1)


def next_step(
    start: StreamOffset, held: Bounds, rows_max: int | None, target: StreamOffset | None, on_restored: OnRestored
) -> NextBatch:
    """The end of the batch after `start`, which `held` has resolved: at most `rows_max` facts, not beyond `target`. It
    is `start` itself if there is nothing to read. Raises FactsGone for a log that is not the one that was read, if that
    is refused."""
    if held.resolved != start.offset:
        if on_restored == "fail":
            here = "it is not in this log" if held.resolved is None else f"this log has it up to {held.resolved}"
            raise FactsGone(
                f"the checkpoint is at offset {start.offset} of life {start.life}, and {here}: the store of"
                f" {held.zone} was restored from an older copy, or is another one",
                "onRestored=reread reads on from there; drop rows with a (zone, life, sequence) that you have",
            )
        if held.resolved is None:
            return NextBatch(StreamOffset(held.life, held.first_offset - 1))
        return NextBatch(StreamOffset(start.life, held.resolved))
    after = max(start.offset, held.first_offset - 1)
    lost = OffsetRange(start.offset + 1, after) if after > start.offset else None
    end = held.end_offset
    if target is not None:
        end = min(end, target.offset)
    if rows_max is not None:
        end = min(end, after + rows_max)
    return NextBatch(StreamOffset(held.life, end) if end > start.offset else start, lost)


def parts(
    start: StreamOffset, end: StreamOffset, cores: int, partitions_min: int | None, facts_max: int
) -> list[OffsetRange]:
    """The ranges of a batch, one for each task; none where the query goes back."""
    if end.offset <= start.offset:
        return []
    whole = OffsetRange(start.offset + 1, end.offset)
    by_size = task_count(whole.facts, cores, None, facts_max)
    return split([whole], max(by_size, partitions_min or 1))
