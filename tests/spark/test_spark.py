"""The data source on a real Spark, compared with plain Python over the same facts."""

import json
import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.streaming import DataStreamReader

from agent.fact_store import FactStore
from agent.message import Sample
from pyspark_bsfg.schema import projection
from pyspark_bsfg.session import PUSH_DOWN, facts
from tests.fact_store.making import damage
from tests.spark import making
from tests.spark.making import NOON_NS, SECOND_NS, VALUES
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.system]

RUN = [Sample(1 + n % 3, NOON_NS + n * 1_000_100, value, n % 2) for n, value in enumerate(VALUES)]
HOURS = [
    [Sample(1 + n % 3, NOON_NS + hour * 3600 * SECOND_NS + n, float(n), n % 2) for n in range(50)] for hour in range(24)
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("tasks", [1, 3])
def test_spark_reads_every_type_of_value(spark: SparkSession, tmp_path: Path, tasks: int) -> None:
    """Every value, NaN, uint64 and JSON among them, reaches a Spark row as the oracle says, also from several tasks."""
    path = tmp_path / "facts.db"
    origin = making.store(path, [RUN[:7], RUN[7:]])
    facts = spark.read.format("bsfg").option("numPartitions", tasks).load(str(path))
    assert facts.rdd.getNumPartitions() == tasks
    found = [row.asDict() for row in facts.selectExpr("*", "unix_micros(ts) as us").orderBy("offset").collect()]
    for row in found:  # a Spark timestamp arrives in Python as local time without a zone; microseconds do not lie
        row["ts"] = EPOCH + timedelta(microseconds=row.pop("us"))
    making.same(found, [making.row(sample, n, origin, n) for n, sample in enumerate(RUN, 1)])


def test_spark_reads_messages_and_projections(spark: SparkSession, tmp_path: Path) -> None:
    """Messages are rows with an object that Spark's own JSON functions open; a schema is a projection."""
    path = tmp_path / "facts.db"
    with FactStore.open(path, "enterprise") as opened:
        opened.appends.append_messages("facts.operational", [making.message(n) for n in range(10)]).result()
    reading = spark.read.format("bsfg").option("stream", "facts.operational")
    amounts = reading.load(str(path)).selectExpr("sum(cast(get_json_object(object_json, '$.amount') as long)) as total")
    assert [row["total"] for row in amounts.collect()] == [45]
    narrow = reading.schema("object_json string, offset long").load(str(path))
    assert narrow.columns == ["object_json", "offset"]
    assert narrow.count() == 10


def test_spark_shows_our_error_messages(spark: SparkSession, tmp_path: Path) -> None:
    """What is wrong with an option, a column or a file is in the text of Spark's exception."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN])
    with pytest.raises(PySparkException, match=r"none.db does not exist on this host"):
        spark.read.format("bsfg").load(str(tmp_path / "none.db")).count()
    with pytest.raises(PySparkException, match=r"unknown option endingofset; did you mean endingOffsets"):
        spark.read.format("bsfg").option("endingOfset", 3).load(str(path)).count()
    with pytest.raises(PySparkException, match=r"no column 'tags'"):
        spark.read.format("bsfg").schema("tags string").load(str(path)).count()


def test_filters_reach_the_source_and_change_no_result(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through a session of ours `where` is used before facts are opened, and Spark's answer is that of a plain read; a
    session that forbids it reads as well, without. There is a task for each core of the session. What was chosen is
    logged."""
    path = tmp_path / "facts.db"
    making.store(path, HOURS)
    asked = "ts >= '2026-01-01 20:00:00' and tag like 'tag:line-1/%' and quality = 0"
    plain = spark.read.format("bsfg").load(str(path)).where(asked)
    pushed = facts(spark, path, where=asked, numPartitions=3)
    assert (plain.rdd.getNumPartitions(), pushed.rdd.getNumPartitions()) == (1, 3)
    assert pushed.count() == plain.count() == 16 * 17
    damage(path, 1, is_sealed_again=True)  # an hour that is not asked for
    read = pushed.selectExpr("min(offset) as first", "count(*) as found").collect()
    assert [(row["first"], row["found"]) for row in read] == [(401, 16 * 17)]
    spark.conf.set(PUSH_DOWN, "false")
    try:
        with caplog.at_level(logging.INFO):
            unpushed = facts(spark, path, where=asked, startingOffsets=51)
        assert unpushed.count() == 16 * 17
    finally:
        spark.conf.set(PUSH_DOWN, "true")
    assert unpushed.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2  # of few facts: plain has one
    [said] = [record.getMessage() for record in caplog.records if record.name == "pyspark_bsfg.session"]
    assert said.startswith("facts are read with numPartitions=2 ")
    assert said.endswith("; where is not pushed down until spark.sql.python.filterPushdown.enabled=true")


def test_a_filter_holds_for_its_own_use_of_a_dataframe(spark: SparkSession, tmp_path: Path) -> None:
    """Spark keeps the filters of a query in the relation. Neither a later query of the same DataFrame nor the other
    branch of a union or join has them, with `where` and without."""
    path = tmp_path / "facts.db"
    making.store(path, HOURS[:2])
    first, second = "tag = 'tag:line-1/pressure'", "tag = 'tag:line-1/count'"
    for where, sizes in ((None, (34, 34, 100)), ("quality = 0", (18, 16, 50))):
        rows = facts(spark, path, where=where)
        assert (rows.where(first).count(), rows.where(second).count(), rows.count()) == sizes
        assert rows.where(first).union(rows.where(second)).count() == sizes[0] + sizes[1]
        assert rows.where(first).alias("a").join(rows.where(second).alias("b"), F.expr("a.offset < b.offset")).count()
        assert rows.where("minute(ts) = 0").count() == sizes[2]


def test_a_dataframe_of_facts_reads_what_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    """Put on the DataFrame, `where` skips a batch that does not open, `select` reads its columns and those of the
    filter, and `count` opens nothing. The columns of one of them name those of the others, as in Spark; what cannot be
    narrowed is Spark's, and so are its errors."""
    path = tmp_path / "facts.db"
    making.store(path, HOURS[:3])
    damage(path, 1, is_sealed_again=True)
    rows = facts(spark, path)
    assert rows.count() == 150
    late = rows.where(F.col("ts") >= "2026-01-01 13:00").where(rows.tag == "tag:line-1/count")
    assert late.count() == 34
    assert [row.n for row in late.groupBy(rows.tag).agg(F.count(rows.value).alias("n")).collect()] == [34]
    names = late.select("Offset", "value").where("unit IS NULL")
    assert names.columns == ["offset", "value"]
    assert (
        len(names.where(names.value > 0).select(rows["offset"]).collect())
        == late.where("unit IS NULL AND value > 0").count()
    )
    assert relation(names) == {"offset", "value", "ts", "tag", "unit"}
    assert relation(late.select(["offset"])) == {"offset", "ts", "tag"}
    values, newest_first = late.select("value"), F.desc("offset")
    for ordered in (values.sort(newest_first), values.orderBy(rows.source_time_ns.desc(), "value")):
        assert ordered.collect() == late.sort(newest_first).select("value").collect() != values.collect()
    assert relation(values.sort("value")) == {"value", "ts", "tag"}
    assert facts(spark, path, columns="zone tag").where("offset > 50").columns == ["zone", "tag"]
    doubled = rows.where("offset > 50").select((F.col("offset") * 2).alias("twice"), "offset")
    assert doubled.agg(F.min("twice")).collect() == [(102,)]
    with pytest.raises(AnalysisException, match="`nope`"):
        rows.where("nope > 1")
    with pytest.raises(AnalysisException, match="`nope`"):
        rows.select("nope")


def test_a_cached_dataframe_of_facts_is_its_cache(spark: SparkSession, tmp_path: Path) -> None:
    """`count` fills the cache, and what is asked of the DataFrame comes from there, also when the store has grown;
    after `unpersist` from the store."""
    path = tmp_path / "facts.db"
    making.store(path, HOURS[:1])
    rows = facts(spark, path).where("offset > 10")
    assert rows.cache().count() == 40
    making.store(path, HOURS[1:2])
    assert rows.count() == rows.select("tag").count() == rows.where("offset > 0").count() == 40
    rows.unpersist()
    assert rows.count() == 90


def relation(rows: DataFrame) -> set[str]:
    """The columns that a DataFrame reads from the source."""
    [line] = [
        line for line in rows._jdf.queryExecution().optimizedPlan().toString().splitlines() if "RelationV2[" in line
    ]  # type: ignore[operator]
    return set(re.findall(r"(\w+)#\d+", line))


def test_a_stream_counts_by_headers_too(spark: SparkSession, tmp_path: Path) -> None:
    """Column `facts` in readStream: micro-batches and tasks that cut through the store's batches count each fact once,
    a batch whose content does not open among them, in fewer rows than facts; what `facts` does not go with is refused
    as in a batch read."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN[:2], RUN[2:7], RUN[7:]])
    damage(path, 1, is_sealed_again=True)
    options = {"path": str(path), "maxOffsetsPerTrigger": "4", "minPartitions": "2"}

    def reading(columns: str) -> DataStreamReader:
        return spark.readStream.format("bsfg").options(**options).schema(projection(columns.split()))

    rows: list[list[tuple[str, int]]] = []
    counting = reading("zone facts").load().writeStream.trigger(availableNow=True)
    query = counting.foreachBatch(lambda found, _: rows.append([tuple(row) for row in found.collect()])).start()
    query.awaitTermination()
    counts = [sum(count for _, count in batch) for batch in rows]
    assert counts == [4] * (len(RUN) // 4) + [len(RUN) % 4] * bool(len(RUN) % 4)
    assert {zone for batch in rows for zone, _ in batch} == {"enterprise"}
    assert sum(map(len, rows)) < len(RUN)
    with pytest.raises(PySparkException, match=r"column offset was requested with facts.*stream, zone, life, verified"):
        reading("offset facts").load().writeStream.format("noop").start().awaitTermination()


def test_the_progress_of_a_query_says_that_its_store_is_away(spark: SparkSession, tmp_path: Path) -> None:
    """While the store is out of reach the query goes on, and `lastProgress` has since when; no longer when it is
    back."""
    path, interval = tmp_path / "facts.db", "spark.sql.streaming.noDataProgressEventInterval"
    making.store(path, [RUN[:5]])
    before = spark.conf.get(interval)
    spark.conf.set(interval, "0")
    reading = spark.readStream.format("bsfg").schema(projection(["offset"])).load(str(path))
    query = reading.writeStream.format("noop").start()

    def seen() -> dict[str, Any]:
        progress = query.lastProgress
        return {} if progress is None else dict(json.loads(progress["sources"][0]["latestOffset"]))

    try:
        wait_until(lambda: seen().get("offset") == 5, "a first batch", 60)
        away = path.rename(tmp_path / "away")
        wait_until(lambda: "unreachable_since" in seen(), "unreachable_since", 30)
        assert query.isActive
        away.rename(path)
        wait_until(lambda: "unreachable_since" not in seen(), "the store is back", 30)
    finally:
        query.stop()
        spark.conf.set(interval, before)  # type: ignore[arg-type]  # it has a default


def test_stores_are_named_in_every_way_spark_offers(spark: SparkSession, tmp_path: Path) -> None:
    """SQL tables, URIs of files, several paths, patterns, and columns in another case."""
    for zone in ("north", "south"):
        making.store(tmp_path / zone / "facts.db", [RUN])
    north, both = tmp_path / "north" / "facts.db", tmp_path / "*" / "facts.db"
    spark.sql(f"CREATE TEMPORARY VIEW north USING bsfg OPTIONS (path '{north.as_uri()}', endingOffsets 10)")
    [row] = spark.sql("SELECT count(*) AS found, max(Tag) AS tag FROM north WHERE OFFSET > 1").collect()
    assert (row["found"], row["tag"]) == (8, "tag:line-1/pressure")
    spark.catalog.dropTempView("north")
    spark.sql(f"CREATE TABLE north USING bsfg OPTIONS (path '{north.as_uri()}')")
    try:
        with pytest.raises(PySparkException, match=r"path is missing.*CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM north").collect()
    finally:
        spark.sql("DROP TABLE north")
    reading = spark.read.format("bsfg")
    assert reading.load(north.as_uri()).count() == len(RUN)
    assert reading.load([str(north), str(tmp_path / "south" / "facts.db")]).count() == 2 * len(RUN)
    assert facts(spark, both).count() == facts(spark, north, tmp_path / "south" / "facts.db").count() == 2 * len(RUN)
    assert reading.schema("TAG string, Value double").load(str(north)).columns == ["TAG", "Value"]
    assert reading.schema("TAG string, Value double").load(str(north)).where("tag is not null").count() == len(RUN)
    with pytest.raises(PySparkException, match=r"startingOffsets or endingOffsets for 2 stores"):
        reading.option("startingOffsets", 3).load(str(both)).count()
    with pytest.raises(PySparkException, match=r"nowhere/\*.db matches no file"):
        reading.load(str(tmp_path / "nowhere" / "*.db")).count()


def test_labels_and_envelopes_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    """`includeLabels` adds the labels of messages as a map, which a SQL function takes apart; the rest of the envelope
    is made where it is asked for by name; a sample has none of it."""
    path = tmp_path / "facts.db"
    with FactStore.open(path, "enterprise") as opened:
        opened.appends.append_messages(making.TELEMETRY, [making.message(n) for n in range(3)]).result()
    making.store(path, [RUN[:2]])
    read = spark.read.format("bsfg").option("includeLabels", "true").load(str(path))
    assert read.columns[-1] == "labels"
    found = [tuple(row) for row in read.orderBy("offset").selectExpr("labels['shift']", "size(labels)").collect()]
    assert found == [("early", 1)] * 3 + [(None, -1 if found[3][1] == -1 else None)] * 2
    rest = facts(spark, path, columns="offset to_zone correlation_id labels").orderBy("offset").collect()
    assert [row["to_zone"] for row in rest] == ["*"] * 3 + [None] * 2
    assert rest[0]["labels"] == {"shift": "early"}
    assert facts(spark, path, INCLUDELABELS=True).columns[-1] == "labels"  # Spark takes options in any case
