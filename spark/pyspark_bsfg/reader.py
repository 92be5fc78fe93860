"""Shell: plans a batch read and reads it, as Spark calls it.

Spark pickles these objects from process to process and calls each method in any of them. So they hold plain values only
and open the store in each call. The range is fixed when a query is planned: all tasks of a query agree on the end of
the stream, and the next query on the same DataFrame may read more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_bsfg import store
from pyspark_bsfg.errors import OptionError
from pyspark_bsfg.options import Options
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange, resolve, split, task_count
from pyspark_bsfg.schema import arrow_schema


@dataclass(frozen=True)
class Offsets(InputPartition):
    """What one task reads; also what Spark shows of it in its plans."""

    path: str
    first: int
    last: int


class BsfgReader(DataSourceReader):
    """A batch read of one stream of one store, or of several."""

    def __init__(self, options: Options, schema: StructType) -> None:
        arrow_schema(schema)  # a wrong column is refused here, in planning, not in some task
        self.options = options
        self.schema = schema
        self.pruning = Pruning()

    def partitions(self) -> list[InputPartition]:  # Spark takes no other sequence than a list
        """Offset ranges, one a task. Raises SparkError for what cannot be read."""
        options = self.options
        paths = store.files(options.paths)
        if len(paths) > 1 and (options.start_offset, options.end_offset) != (None, None):
            raise OptionError(f"startOffset or endOffset for {len(paths)} stores", "each has its own; read one")
        parts = {path: self._parts(path) for path in paths}
        facts = {path: sum(part.facts for part in found) for path, found in parts.items()}
        total = sum(facts.values())
        tasks = task_count(total, len(os.sched_getaffinity(0)), options.partitions, options.partition_facts_max)
        found: list[InputPartition] = [
            Offsets(str(path), *one)
            for path in paths
            # Each store gets its share of the tasks, rounded up.
            for one in split(parts[path], -(-tasks * facts[path] // total) if total else 0)
        ]
        # Spark turns an empty list into one partition of its own kind; an empty range is clearer.
        return found or [Offsets(str(paths[0]), 1, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one task."""
        assert isinstance(partition, Offsets), partition
        asked = OffsetRange(partition.first, partition.last)
        return store.record_batches(
            Path(partition.path),
            self.options.stream,
            asked,
            arrow_schema(self.schema),
            self.pruning,
            is_expired_refused=self.options.when_released == "fail",
        )

    def _parts(self, path: Path) -> list[OffsetRange]:
        """The ranges of one store that are to be read."""
        options = self.options
        with store.opened(path) as reader:
            held = store.held(reader, options.stream)
            whole = resolve(held, options.start_offset, options.end_offset)
            return store.matching(reader, options.stream, whole, self.pruning)


class PruningReader(BsfgReader):
    """A batch read that uses the query's filters. A class of its own, because Spark refuses every read by a class with
    `pushFilters` unless spark.sql.python.filterPushdown.enabled is true, which it is not by default."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  the name is Spark's
        """Keep what can be used, and hand every filter back: Spark checks them all again."""
        self.pruning = Pruning.of(filters)
        return filters
