"""Shell: plans a batch read and reads it, as Spark calls it.

Spark pickles these objects from process to process and calls each method in any of them. So they hold plain values only
and open the store in each call. The range is fixed when a read is planned, so all its tasks agree on the end of the
stream. Spark keeps that plan with the DataFrame, and the filters that were pushed down with it: `session.facts`.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.errors import OptionError, StreamAbsent, briefly
from pyspark_bsfg.options import NODE_PARTITIONS, Options
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange, recorded, resolve, split, task_count
from pyspark_bsfg.schema import arrow_schema
from pyspark_bsfg.transports import Asked, HoleLog, Place, places, record_batches

log = logging.getLogger(__name__)


@cache
def exempt_imports() -> None:
    """Once in each process: leave the objects of imported modules out of garbage collections. PySpark collects after
    each task of a worker; with some 100,000 objects that takes longer than a small task."""
    gc.freeze()


def usual_tasks(options: Options) -> int:
    """How many tasks share many facts where the caller named no number: one for each core of this host, or as many as
    the nodes give connections."""
    return NODE_PARTITIONS * len(options.nodes) or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Offsets(InputPartition):
    """What one task reads; Spark shows it in its plans."""

    place: Place
    life: str
    first: int
    last: int


class BsfgReader(DataSourceReader):
    """A batch read of one stream of one store, or of several."""

    def __init__(self, options: Options, schema: StructType) -> None:
        arrow_schema(schema)  # a wrong column is refused in planning, not in a task
        self.options = options
        self.schema = schema
        self.pruning = Pruning()

    @briefly
    def partitions(self) -> list[InputPartition]:  # Spark takes no other sequence than a list
        """Offset ranges, one for each task. Raises SparkError for what cannot be read."""
        exempt_imports()
        options = self.options
        stores = places(options)
        if len(stores) > 1 and (options.start_offset, options.end_offset) != (None, None):
            raise OptionError(
                f"startingOffsets or endingOffsets for {len(stores)} stores", "each has its own; read one"
            )
        absent = list[StreamAbsent]()
        parts = [self._parts(place, absent) for place in stores]
        if len(absent) == len(stores):
            raise absent[0]
        facts = [sum(span.facts for span in found) for _, found in parts]
        total = sum(facts)
        tasks = task_count(total, usual_tasks(options), options.partitions, options.partition_facts_max)
        found: list[InputPartition] = [
            Offsets(place, life, *span)
            for place, (life, spans), share in zip(stores, parts, facts, strict=True)
            # Each store gets its share of the tasks, rounded up.
            for span in split(spans, -(-tasks * share // total) if total else 0)
        ]
        # Spark turns an empty list into one partition of its own kind; an empty range is clearer.
        return found or [Offsets(stores[0], "", 1, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one task."""
        assert isinstance(partition, Offsets), partition
        exempt_imports()
        stream = self.options.stream
        asked = Asked(stream, OffsetRange(partition.first, partition.last), partition.life)
        with partition.place.opened() as source:
            refused = ("expired",) if self.options.when_released == "fail" else ()
            missing = HoleLog(source.name, stream, refused, "read again, from a later offset")
            yield from record_batches(source, asked, arrow_schema(self.schema), missing, self.pruning)
        missing.sum_up()

    def _parts(self, place: Place, absent: list[StreamAbsent]) -> tuple[str, list[OffsetRange]]:
        """The life at the end of the log of one store, and the ranges to read. One of several that does not have the
        stream yet does not keep anybody from reading the others; it is added to `absent`."""
        options = self.options
        with place.opened() as source:
            try:
                held = source.bounds(options.stream)
            except StreamAbsent as error:
                absent.append(error)
                log.warning("nothing is read of it: %s", error)
                return "", []
            whole = resolve(held.offsets, options.start_offset, options.end_offset)
            if (options.since_unix_ms, options.before_unix_ms) != (None, None):
                whole = recorded(whole, source.marks(options.stream), options.since_unix_ms, options.before_unix_ms)
            asked = Asked(options.stream, whole, held.life)
            return held.life, list(source.matching(asked, self.pruning, Dictionary(self.pruning.wants)))


class PruningReader(BsfgReader):
    """A batch read that uses the query's filters. A class of its own, because Spark refuses every read by a class with
    `pushFilters` unless spark.sql.python.filterPushdown.enabled is true, which it is not by default."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  the name is Spark's
        """Keep the usable filters, and return every filter: Spark checks them all again."""
        self.pruning = Pruning.of(filters)
        return filters
