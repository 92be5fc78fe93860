"""Shell: the data source `spark.read.format("bsfg").load("/path/to/facts.db")` as Spark finds it.

Spark makes this object in a new process for each query, pickles it to others, and asks one of them for the reader. So
the modules that read a store are imported only there: importing them takes as long as importing Spark's own.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_bsfg.errors import SparkError, briefly
from pyspark_bsfg.schema import FACTS, LABELS


class BsfgDataSource(DataSource):
    """Facts of a bsfg store; options as in `pyspark_bsfg.options`, columns as in `pyspark_bsfg.schema`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "bsfg"

    @briefly
    def schema(self) -> StructType:
        from pyspark_bsfg.streaming.options import check_either

        check_either(dict(self.options))  # for a stream this is the only call before the query is started
        return StructType([*FACTS.fields, LABELS]) if self.options.get("includeLabels", "").lower() == "true" else FACTS

    @briefly
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_bsfg.options import Options
        from pyspark_bsfg.reader import BsfgReader, PruningReader

        options = Options.of(dict(self.options))
        return (PruningReader if options.push_filters else BsfgReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's
        from pyspark_bsfg.streaming.options import StreamOptions
        from pyspark_bsfg.streaming.reader import BsfgStreamReader, Refused
        from pyspark_bsfg.streaming.several import SeveralReader

        try:
            options = StreamOptions.of(dict(self.options))
            if len(options.read.nodes) < 2:
                return BsfgStreamReader(options, schema)
            return SeveralReader({name: BsfgStreamReader(given, schema) for name, given in options.by_node().items()})
        except SparkError as error:  # Spark 4.3 would end in an UnboundLocalError
            return Refused(error)
