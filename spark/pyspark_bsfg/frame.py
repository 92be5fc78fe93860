"""Shell: a DataFrame of facts that narrows its own read.

Spark 4.3 tells a Python source neither which columns a query needs nor what it aggregates, and takes the filters of one
query of a relation for all others of it. So `where`, `select` and `count` of this DataFrame do not build on its
relation: they make another one, with its own filters and only the columns that are needed. Its columns have the
identities of the first one's, so `rows.value` names the column of all of them. What cannot be narrowed so is left to
Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType

from pyspark_bsfg.schema import COUNT, TABLE, projection

Load = Callable[[StructType, bool], DataFrame]
"""Makes a read of some columns, with filters pushed down or not."""


@dataclass(frozen=True)
class Reading:
    """How facts are read: which columns are returned, and the filters. `whole` is a relation with all columns, which is
    not read; its columns have the identities that all have."""

    load: Load
    whole: DataFrame
    columns: tuple[str, ...]
    is_pushing: bool
    filters: tuple[Column | str, ...] = ()

    @classmethod
    def of(cls, load: Load, columns: Sequence[str], *, is_pushing: bool) -> Reading:
        """All facts. Raises OptionError for an unknown column."""
        return cls(load, load(TABLE, False), tuple(projection(columns).fieldNames()), is_pushing)

    def rows(self, columns: Sequence[str]) -> DataFrame:
        """Some columns of the facts that pass the filters."""
        if not self.filters:
            return self._relation(columns, is_pushing=False)
        needed = [*columns, *dict.fromkeys(name for name in self._filtered_by() if name not in columns)]
        rows = self._relation(needed or ["offset"], is_pushing=self.is_pushing)
        for condition in self.filters:
            rows = rows.where(condition)
        # Spark moves no filter past one that is not deterministic, so no later one is pushed down.
        rows = rows.where(F.spark_partition_id() >= 0)
        return rows.select(*columns) if len(needed) > len(columns) else rows

    def _filtered_by(self) -> Iterator[str]:
        """The columns in the filters."""
        rows = self.whole
        for condition in self.filters:
            rows = rows.where(condition)
            yield from _names(_analyzed(rows).condition().references().toSeq())

    def _relation(self, names: Sequence[str], *, is_pushing: bool) -> DataFrame:
        """A relation of its own, whose columns are those of `whole`."""
        spark: Any = self.whole.sparkSession
        jvm, output = spark._jvm, _analyzed(self.whole).output()  # noqa: SLF001
        places = _names(output)
        own = _analyzed(self.load(projection(names), is_pushing))
        columns = jvm.PythonUtils.toSeq([output.apply(places.index(name)) for name in names])
        copied = own.copy(own.table(), columns, own.catalog(), own.identifier(), own.options(), own.timeTravelSpec())
        rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, copied)  # noqa: SLF001
        return ClassicDataFrame(rows, spark)


class Facts(ClassicDataFrame):
    """Facts; see `pyspark_bsfg.session.facts`. Spark finds what is cached by its relation: then there is no other."""

    def __new__(cls, reading: Reading) -> Self:  # noqa: ARG004  Spark's own decides by its arguments
        return object.__new__(cls)

    def __init__(self, reading: Reading) -> None:
        rows: Any = reading.rows(reading.columns)
        super().__init__(rows._jdf, reading.whole.sparkSession)  # noqa: SLF001
        self._reading = reading

    def filter(self, condition: Column | str) -> DataFrame:
        """Rows that pass; batches that cannot have any are skipped. `where` calls this."""
        if self.is_cached:
            return super().filter(condition)
        try:
            return Facts(replace(self._reading, filters=(*self._reading.filters, condition)))
        except (Py4JError, PySparkException, AssertionError):  # Spark says what is wrong with it, or can do it
            return super().filter(condition)

    def select(self, *columns: Any) -> DataFrame:
        """Some columns; if all are names, only these are read."""
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list) else columns
        ours = {name.lower(): name for name in self._reading.columns}
        if names and not self.is_cached and all(isinstance(name, str) and name.lower() in ours for name in names):
            chosen = dict.fromkeys(ours[name.lower()] for name in names)
            if len(chosen) == len(names):
                return Facts(replace(self._reading, columns=tuple(chosen)))
        return super().select(*columns)

    def sort(self, *columns: Any, **how: Any) -> DataFrame:
        """Rows in an order, which may be that of columns that were not selected, as in any DataFrame."""
        if self.is_cached:
            return super().sort(*columns, **how)
        chosen = self._reading.columns
        by = _names(_analyzed(self._reading.whole.sort(*columns, **how)).references().toSeq())
        rows = Facts(replace(self._reading, columns=tuple(dict.fromkeys([*chosen, *by]))))
        ordered = ClassicDataFrame.sort(rows, *columns, **how)
        return ordered.select(*chosen) if len(rows.columns) > len(chosen) else ordered

    orderBy = sort  # noqa: N815  Spark's

    def count(self) -> int:
        """How many facts; without a filter, from column `facts`."""
        if self.is_cached:
            return super().count()
        if self._reading.filters:
            return self._reading.rows(()).count()
        [(facts,)] = self._reading.load(StructType([COUNT]), False).agg(F.sum(COUNT.name)).collect()
        return int(facts or 0)


def _analyzed(rows: DataFrame) -> Any:
    """The plan in the JVM."""
    classic: Any = rows
    return classic._jdf.queryExecution().analyzed()  # noqa: SLF001


def _names(attributes: Any) -> list[str]:
    """The names of a sequence of attributes in the JVM."""
    return [attributes.apply(at).name() for at in range(attributes.size())]
