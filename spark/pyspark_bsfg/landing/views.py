"""SQL views over a landed table: facts, labels, messages and incidents.

facts       the columns of `schema.TABLE`, and `date`
labels      one row for each label: the identity of the message, `message_id`, `name` and `value`
messages    envelope and fact of the messages that applications and nodes appended, with the names of
docs/reference/messages.md, and `offset` and `ts`; samples are not in it
incidents   facts that are or were missing: `what`, `offset` to `last_offset`, `detail`
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.landing.lander import incidents_of
from pyspark_bsfg.landing.tables import WRITERS, paths
from pyspark_bsfg.schema import ENVELOPE, IDENTITY, LANDED

INCIDENTS = StructType([
    StructField("what", StringType()),
    StructField("stream", StringType()),
    StructField("offset", LongType()),
    StructField("last_offset", LongType()),
    StructField("ts", TimestampType()),
    *(StructField(name, StringType()) for name in ("subject", "zone", "life")),
    StructField("sequence", LongType()),
    StructField("detail", StringType()),
])  # fmt: skip


def messages(facts: DataFrame) -> DataFrame:
    """Rows of TABLE to messages."""
    renamed = {"from_zone": "zone", "subject": "tag"}
    named = ("message_id", "from_zone", "to_zone", "produced_at_unix_ms", *ENVELOPE[1:], "labels")
    rows = facts.where("value_type = 'message'").withColumns(
        {name: F.col(column) for name, column in renamed.items()}
        | {"produced_at_unix_ms": F.call_function("div", "source_time_ns", F.lit(1_000_000))}
    )
    return rows.select(*named, "subject", "predicate", "object_json", "stream", "life", "sequence", "offset", "ts")


def labels(facts: DataFrame) -> DataFrame:
    """Rows of TABLE to one row for each label."""
    return facts.select(*IDENTITY, "message_id", F.explode("labels").alias("name", "value"))


def incidents(spark: SparkSession, folder: Path) -> DataFrame:
    """All incidents beside a landed table; none if it has not been written."""
    return _read(spark, incidents_of(folder), INCIDENTS)


def views(spark: SparkSession, folder: Path | str) -> None:
    """Make the four views of a landed table in this session, over its present facts; call it again for newer ones.
    Raises JobRefused for a folder that the land job has not written: it would look like a table without facts."""
    table = Path(folder)
    if not (table / WRITERS).exists():
        raise JobRefused(f"{table} is no table of the land job", "name the folder of [land] table")
    facts = _read(spark, table, LANDED)
    made = {"facts": facts, "labels": labels(facts), "messages": messages(facts)}
    for name, rows in (made | {"incidents": incidents(spark, table)}).items():
        rows.createOrReplaceTempView(name)


def _read(spark: SparkSession, folder: Path, schema: StructType) -> DataFrame:
    if not folder.exists() or not (files := paths(folder)):
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", str(folder)).parquet(*files).select(*schema.fieldNames())
