"""Shell: the data source `spark.read.format("bsfg").load("/path/to/facts.db")` as Spark calls it.

Spark creates these objects in one process, pickles them to others, and calls each method in any of them. So they hold
plain values only and open the store in each call. The range is fixed when a query is planned: all tasks of a query
agree on the end of the stream, and the next query on the same DataFrame may read more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_bsfg import store
from pyspark_bsfg.options import Options
from pyspark_bsfg.ranges import OffsetRange, resolve, split
from pyspark_bsfg.schema import FACTS, arrow_schema


@dataclass(frozen=True)
class Offsets(InputPartition):
    """What one task reads; also what Spark shows of it in its plans."""

    first: int
    last: int


class BsfgReader(DataSourceReader):
    """A batch read of one stream of one store."""

    def __init__(self, options: Options, schema: StructType) -> None:
        arrow_schema(schema)  # a wrong column is refused here, in planning, not in some task
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:  # Spark takes no other sequence than a list
        """Offset ranges, one a task. Raises SparkError for what cannot be read."""
        options = self.options
        with store.opened(options.path) as reader:
            held = store.held(reader, options.stream)
        whole = resolve(held, options.start_offset, options.end_offset)
        parts = split(whole, os.cpu_count() or 1, options.partitions, options.partition_facts_max)
        # Spark turns an empty list into one partition of its own kind; an empty range is clearer.
        return [Offsets(*part) for part in parts or [OffsetRange(1, 0)]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one task."""
        assert isinstance(partition, Offsets), partition
        asked = OffsetRange(partition.first, partition.last)
        options = self.options
        is_expired_refused = options.when_released == "fail"
        return store.record_batches(
            options.path, options.stream, asked, arrow_schema(self.schema), is_expired_refused=is_expired_refused
        )


class BsfgDataSource(DataSource):
    """Facts of a bsfg store; options as in `pyspark_bsfg.options`, columns as in `pyspark_bsfg.schema`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "bsfg"

    def schema(self) -> StructType:
        return FACTS

    def reader(self, schema: StructType) -> DataSourceReader:
        return BsfgReader(Options.of(dict(self.options)), schema)
