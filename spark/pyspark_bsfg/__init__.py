"""Facts of a bsfg store in Spark: the data source `bsfg`, its schema, and the jobs built on it.

    from pyspark_bsfg import register
    register(spark)
    facts = spark.read.format("bsfg").load("/var/lib/bsfg/enterprise/facts.db")

Where this package is installed beside the driver's Python, Spark finds the data source by itself (it looks for packages
named pyspark_* with a DefaultSource); with --py-files it does not, and says nothing. `register` always works, so our
jobs call it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from pyspark_bsfg.schema import FACTS
from pyspark_bsfg.source import BsfgDataSource

DefaultSource = BsfgDataSource

__all__ = ["FACTS", "BsfgDataSource", "DefaultSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("bsfg")` known to a session; doing it again changes nothing."""
    spark.dataSource.register(BsfgDataSource)
