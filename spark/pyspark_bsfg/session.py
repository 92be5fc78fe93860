"""The Spark session of the jobs: the settings that their results depend on, and those that bind it to this machine.

A job started with spark-submit keeps the master and the settings given there, except those that a result depends on. A
session started here listens on loopback only and opens no web page. What a session sets is logged.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads

from pyspark_bsfg import register
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.options import NODE_PARTITIONS
from pyspark_bsfg.schema import projection

# Without these, facts get other dates, or files have a type that other readers misread (INT96).
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
# Off by default; without it Spark refuses a reader that uses filters.
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
# Only for a session of our own on this host, not for a cluster.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",  # 200 by default: for a few cores, mostly empty tasks
}

log = logging.getLogger(__name__)


def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the settings of our jobs and the data source registered.

    `master` None means the master of spark-submit, or this host's cores if this process was started without it.
    """
    builder = SparkSession.Builder().appName(name)
    # spark-submit leaves this variable; a SparkConf is empty before there is a JVM.
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    chosen = REQUIRED | {PUSH_DOWN: "true"}
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            chosen |= LOCAL
            # Spark starts "python3" otherwise, which need not be the one that has this package.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen |= dict(settings or {})
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    said = " ".join(f"{key}={value}" for key, value in chosen.items())
    log.info("Spark session: master=%s %s", spark.sparkContext.master, said)
    return spark


def facts(
    spark: SparkSession,
    *paths: str | Path,
    columns: str = "",
    where: Column | str | None = None,
    **options: str | int,
) -> DataFrame:
    """Facts of some stores' files, or of a node by options (`transport="mqtt"`), read as fast as this session allows:
    `where` is pushed down if its settings permit that, and there is a task for each core of the cluster, at most
    NODE_PARTITIONS for a node. What was chosen is logged.

    `columns` are the columns to make, including those of `where`, separated by commas or blanks; all by default.
    `facts(spark, path, columns="zone facts").groupBy("zone").sum("facts")` counts without opening a batch.

    A filter that is put on the result does not reach the source. Spark 4.3 keeps what was pushed down in the relation,
    and takes it for every other query of it, and for its other branches in the same query: facts would be missing.
    """
    register(spark)
    is_pushing = where is not None and spark.conf.get(PUSH_DOWN, "false") == "true"
    chosen: dict[str, str | int] = {"pushFilters": str(is_pushing).lower()}
    if (context := getattr(spark, "sparkContext", None)) is not None:  # Spark Connect does not tell; the source chooses
        is_node = options.get("transport") == "mqtt"
        tasks = context.defaultParallelism
        chosen["numPartitions"] = min(tasks, NODE_PARTITIONS) if is_node else tasks
    chosen |= options
    reading = spark.read.format("bsfg").options(**chosen)
    if columns:
        reading = reading.schema(projection(columns.replace(",", " ").split()))
    hint = "" if is_pushing or where is None else f"; where is not pushed down until {PUSH_DOWN}=true"
    log.info("facts are read with %s%s", " ".join(f"{key}={value}" for key, value in chosen.items()), hint)
    rows = reading.load([str(path) for path in paths]) if paths else reading.load()
    if where is None:
        return rows
    # Spark moves no filter past one that is not deterministic, so all queries of the result push `where` alone.
    return rows.where(where).where(F.spark_partition_id() >= 0)


def check(spark: SparkSession) -> None:
    """Raise JobRefused unless the session has the settings that results depend on."""
    wrong = {key: value for key, value in REQUIRED.items() if spark.conf.get(key) != value}
    if wrong:
        asked = ", ".join(f"{key}={value}" for key, value in wrong.items())
        raise JobRefused("this Spark session would give other results", f"set {asked}")
