"""The limit of any Python data source: one that yields Arrow record batches which were built beforehand.

`spark.read.format("prebuilt").load(file)` maps an Arrow file into memory and hands Spark its record batches
unchanged; nothing is decoded. With a schema it omits the other columns. One task reads every `tasks`-th record batch.
With the column `facts` alone, a task yields one row, the number of its rows: what any Python data source costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_bsfg import FACTS
from pyspark_bsfg.schema import COUNT, arrow_schema


@dataclass(frozen=True)
class Turn(InputPartition):
    """The record batches of one task: those whose number has this remainder."""

    rest: int


class PrebuiltReader(DataSourceReader):
    """Reads one Arrow file."""

    def __init__(self, path: str, tasks: int, schema: StructType) -> None:
        self.path, self.tasks, self.names = path, tasks, schema.fieldNames()
        self.schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        return [Turn(rest) for rest in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Turn), partition
        with pa.memory_map(self.path) as mapped:
            file = pa.ipc.open_file(mapped)
            batches = (file.get_batch(at) for at in range(partition.rest, file.num_record_batches, self.tasks))
            if self.names == [COUNT.name]:
                yield pa.RecordBatch.from_pydict({COUNT.name: [sum(batch.num_rows for batch in batches)]}, self.schema)
            else:
                yield from (batch.select(self.names) for batch in batches)


class PrebuiltSource(DataSource):
    """Options: path, and tasks."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> StructType:
        return FACTS

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(self.options["path"], int(self.options["tasks"]), schema)
