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
from pyspark.sql.types import StructType

from pyspark_bsfg import register
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.options import NODE_PARTITIONS
from pyspark_bsfg.schema import COUNT, FACTS, projection

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
    filters are pushed down if its settings permit that, and there is a task for each core of the cluster, at most
    NODE_PARTITIONS for a node. What was chosen is logged.

    `columns` are the columns to return, separated by commas or blanks; all by default.
    `facts(spark, path, columns="zone facts").groupBy("zone").sum("facts")` counts without opening a batch.

    The result is a `frame.Facts`: its `where` skips batches as well, `select` reads only what is needed, and `count`
    opens no batch. With Spark Connect, or with the column `facts`, it is a plain DataFrame, which needs `columns` and
    `where`.
    """
    register(spark)
    asked = {name.lower(): str(value) for name, value in options.items()}  # Spark takes them in any case
    may_push = spark.conf.get(PUSH_DOWN, "false") == "true"
    is_pushing = where is not None and may_push
    chosen: dict[str, str | int] = {}
    if (context := getattr(spark, "sparkContext", None)) is not None:  # Spark Connect does not tell; the source chooses
        is_node = asked.get("transport", "").lower() == "mqtt"
        tasks = context.defaultParallelism
        nodes = asked.get("nodes", "").count("=") or 1
        chosen["numPartitions"] = min(tasks, NODE_PARTITIONS * nodes) if is_node else tasks
    chosen |= options
    hint = "" if is_pushing or where is None else f"; where is not pushed down until {PUSH_DOWN}=true"
    log.info("facts are read with %s%s", " ".join(f"{key}={value}" for key, value in chosen.items()), hint)

    def load(schema: StructType, is_pushing: bool) -> DataFrame:  # noqa: FBT001
        reading = spark.read.format("bsfg").options(**chosen | {"pushFilters": str(is_pushing).lower()}).schema(schema)
        return reading.load([str(path) for path in paths]) if paths else reading.load()

    labels = ["labels"] if asked.get("includelabels", "").lower() == "true" else []
    names = columns.replace(",", " ").split() or [*FACTS.fieldNames(), *labels]
    if context is None or COUNT.name in names:  # Spark Connect has the plan at the server
        plain = load(projection(names), is_pushing)
        return plain if where is None else plain.where(where).where(F.spark_partition_id() >= 0)
    from pyspark_bsfg.frame import Facts, Reading

    rows: DataFrame = Facts(Reading.of(load, names, is_pushing=may_push))
    return rows if where is None else rows.where(where)


def check(spark: SparkSession) -> None:
    """Raise JobRefused unless the session has the settings that results depend on."""
    wrong = {key: value for key, value in REQUIRED.items() if spark.conf.get(key) != value}
    if wrong:
        asked = ", ".join(f"{key}={value}" for key, value in wrong.items())
        raise JobRefused("this Spark session would give other results", f"set {asked}")
