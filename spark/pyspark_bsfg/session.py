"""The Spark session of the jobs: the settings that their results depend on, and those that keep it on this machine.

A job started with spark-submit keeps the settings given there, except those that a result depends on. A session started
here listens on loopback only and opens no web page.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark import SparkConf
from pyspark.sql import SparkSession

from pyspark_bsfg import register
from pyspark_bsfg.errors import JobRefused

# Without these the same facts give other days, or files that other readers misread (INT96).
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
# For a session of our own on this host; a cluster has its own opinion and is not asked for any of this.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "8",  # 200 by default: for a few cores, mostly empty tasks
}
# For tests and other short lives: measured to halve the time to the first result.
SHORT_LIVED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.catalogImplementation": "in-memory",
}


def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with what our jobs need, and the data source registered.

    `master` None takes the master of spark-submit, or this host's cores where none is set.
    """
    builder = SparkSession.Builder().appName(name)
    if master is None and not _submitted():
        master = "local[*]"
    chosen = dict(REQUIRED)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            chosen |= LOCAL
            # Spark starts "python3" otherwise, which need not be the one that has this package.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def check(spark: SparkSession) -> None:
    """Raise JobRefused unless a session of another program has the settings that results depend on."""
    wrong = {key: value for key, value in REQUIRED.items() if spark.conf.get(key) != value}
    if wrong:
        asked = ", ".join(f"{key}={value}" for key, value in wrong.items())
        raise JobRefused("this Spark session would give other results", f"set {asked}")


def _submitted() -> bool:
    """Whether spark-submit chose a master for this process."""
    return SparkConf().contains("spark.master")
