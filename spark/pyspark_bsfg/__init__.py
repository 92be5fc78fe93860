"""Facts of a bsfg store in Spark: the data source `bsfg`, its schema, and the jobs built on it.

    from pyspark_bsfg import register
    register(spark)
    facts = spark.read.format("bsfg").load("/var/lib/bsfg/enterprise/facts.db")

If this package is installed in the driver's Python, Spark finds the data source itself, since it looks for packages
named pyspark_* with a DefaultSource. With --py-files it does not find it and reports nothing. `register` always works,
so the jobs call it.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_bsfg.schema import FACTS
from pyspark_bsfg.source import BsfgDataSource

DefaultSource = BsfgDataSource

__all__ = ["FACTS", "BsfgDataSource", "DefaultSource", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("bsfg")` in a session, also one of Spark Connect. A repetition changes nothing."""
    # Spark passes the files of --py-files to all its Python processes except the one that plans a stream. With Spark
    # Connect that process is on another host, and needs the package in its own Python.
    if (context := getattr(spark, "sparkContext", None)) is not None:
        ours, environment = str(Path(__file__).parents[1]), context.environment
        known = environment.get("PYTHONPATH", "").split(os.pathsep)
        if ours not in known:
            environment["PYTHONPATH"] = os.pathsep.join([*filter(None, known), ours])
    spark.dataSource.register(BsfgDataSource)
