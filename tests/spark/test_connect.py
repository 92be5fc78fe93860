"""Spark Connect: the client has no JVM, only a connection to a server that plans and reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import making
from tests.spark.test_spark import RUN

LIMIT_S = 600
PROGRAM = """
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_bsfg.session import PUSH_DOWN, facts

store, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
spark.conf.set(PUSH_DOWN, "true")
first = facts(spark, store, columns="offset tag value", where="offset <= 7")
found = [first.count(), first.where("offset > 5").count(), len(first.toPandas())]
found.append(facts(spark, store, columns="facts").agg(F.sum("facts")).collect()[0][0])
writing = spark.readStream.format("bsfg").load(store).writeStream.format("parquet")
writing = writing.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
writing.start(f"{folder}/streamed").awaitTermination()
found.append(spark.read.parquet(f"{folder}/streamed").count())
print(*found)
"""


@pytest.mark.spark
@pytest.mark.system
@pytest.mark.usefixtures("java")
def test_a_client_without_a_jvm_reads_and_streams(tmp_path: Path) -> None:
    """`facts` with and without `where`, also as pandas, the count by headers, and a stream, through a session of Spark
    Connect."""
    making.store(tmp_path / "facts.db", [RUN])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")
    run = subprocess.run(
        [sys.executable, program, tmp_path / "facts.db", tmp_path],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},  # Spark's default is python3, which has no package
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(count) for count in (7, 2, 7, len(RUN), len(RUN))]
