"""SQL views over a landed table: facts, labels, messages and incidents.

facts       the columns of `schema.TABLE`, and `date`
labels      identity of a message, `message_id`, and one `name` with its `value` a row
messages    envelope and fact of the messages that applications and nodes appended, by the names of
docs/reference/messages.md, and `offset` and `ts`; a sample is a row of facts only
incidents   what is missing or was: `what`, `offset` to `last_offset`, `detail`
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
    *(StructField(name, StringType()) for name in ("subject", "zone", "epoch")),
    StructField("sequence", LongType()),
    StructField("detail", StringType()),
])  # fmt: skip


def messages(facts: DataFrame) -> DataFrame:
    """Rows of TABLE to messages."""
    renamed = {"from_zone": "zone", "subject": "tag"}
    named = ("message_id", "from_zone", "to_zone", "produced_at_unix_ms", *ENVELOPE[1:], "labels")
    told = facts.where("value_type = 'message'").withColumns(
        {name: F.col(column) for name, column in renamed.items()}
        | {"produced_at_unix_ms": F.call_function("div", "source_time_ns", F.lit(1_000_000))}
    )
    return told.select(*named, "subject", "predicate", "object_json", "stream", "epoch", "sequence", "offset", "ts")


def labels(facts: DataFrame) -> DataFrame:
    """Rows of TABLE to one row for each label."""
    return facts.select(*IDENTITY, "message_id", F.explode("labels").alias("name", "value"))


def incidents(spark: SparkSession, folder: Path) -> DataFrame:
    """All incidents beside a landed table; none where it has not been written."""
    return _read(spark, incidents_of(folder), INCIDENTS)


def views(spark: SparkSession, folder: Path | str) -> None:
    """Make the four views of a landed table in this session, over what it has now; call it again for what came since.
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
