"""The data source and the rollup on a real Spark, compared with plain Python over the same facts."""

import json
import math
import random
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.message import Sample
from bench.common.testbed import open_testbed
from bench.spark import spark as benchmark
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs import rollup_minute
from pyspark_bsfg.jobs.rollup_minute import Days, run
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.session import PUSH_DOWN, facts
from tests.spark import making
from tests.spark.making import BAD, DEFINITIONS, NOON_NS, SECOND_NS, UNCERTAIN, VALUES

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.timeout(300)]

RUN = [Sample(1 + n % 3, NOON_NS + n * 1_000_100, value, n % 2) for n, value in enumerate(VALUES)]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENING_NS = NOON_NS + 12 * 3600 * SECOND_NS - 90 * SECOND_NS  # a minute and a half before the UTC date changes


def fresh(path: Path, rng: random.Random) -> list[tuple[str, Sample]]:
    """Two plants' facts in an enterprise store over a change of date, none in order; (zone, sample) by offset."""
    told: list[tuple[str, Sample]] = []
    with FactStore.open(path, "enterprise") as opened:
        for zone in ("plant-a", "plant-b"):
            runs = [[sample(rng) for _ in range(rng.randrange(1, 90))] for _ in range(12)]
            making.put(opened, making.foreign(Origin(zone, zone.encode().ljust(16)), runs), 12)
            told += [(zone, one) for run in runs for one in run]
    return told


def sample(rng: random.Random) -> Sample:
    """Something a tag may say: few distinct times, so that ties occur; sometimes bad, text, infinite or no number."""
    time_ns = EVENING_NS + rng.randrange(180) * SECOND_NS
    value = rng.choice(
        [rng.gauss(20, 5), rng.randrange(100), rng.random() < 0.5, float("nan"), "stuck", None, 2**64 - 1]
    )
    return Sample(rng.randrange(1, 4), time_ns, value, rng.choice([0, 0, 0, BAD, UNCERTAIN]))


def expected_rollup(told: list[tuple[str, Sample]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rollup in plain Python: (zone, minute, tag, predicate, unit) to its figures."""
    groups = defaultdict(list)
    for offset, (zone, one) in enumerate(told, 1):
        definition = DEFINITIONS[one.tag - 1]
        minute = EPOCH + timedelta(minutes=one.source_time_ns // (60 * SECOND_NS))
        key = (minute.date(), zone, minute, definition.subject, definition.predicate, definition.unit or None)
        groups[key].append((one.source_time_ns, offset, one))
    rolled = {}
    for key, group in groups.items():
        numbers = [
            float(one.value)
            for *_, one in sorted(group, key=lambda fact: fact[:2])
            if one.quality == 0 and isinstance(one.value, int | float) and not math.isnan(one.value)
        ]
        rolled[key] = {
            "count": len(group),
            "good_count": sum(one.quality == 0 for *_, one in group),
            "bad_count": sum(one.quality == BAD for *_, one in group),
            "value_count": len(numbers),
            "min": min(numbers, default=None),
            "max": max(numbers, default=None),
            "mean": pytest.approx(sum(numbers) / len(numbers), rel=1e-12) if numbers else None,
            "first": numbers[0] if numbers else None,
            "last": numbers[-1] if numbers else None,
        }
    return rolled


def written(spark: SparkSession, out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the files hold, in the oracle's shape, read with plain Spark."""
    found = {}
    for row in spark.read.parquet(str(out)).selectExpr("*", "unix_seconds(minute) as seconds").collect():
        figures = row.asDict()
        minute = EPOCH + timedelta(seconds=figures.pop("seconds"))
        figures.pop("minute")
        key = tuple(figures.pop(name) for name in ("date", "zone", "tag", "predicate", "unit"))
        found[(*key[:2], minute, *key[2:])] = figures
    return found


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
    making.same(found, [making.row(one, n, origin, n) for n, one in enumerate(RUN, 1)])


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
    with pytest.raises(PySparkException, match=r"unknown option endofset"):
        spark.read.format("bsfg").option("endOfset", 3).load(str(path)).count()
    with pytest.raises(PySparkException, match=r"no column 'tags'"):
        spark.read.format("bsfg").schema("tags string").load(str(path)).count()


def test_filters_reach_the_source_and_change_no_result(spark: SparkSession, tmp_path: Path) -> None:
    """Through a session of ours a filter is used before facts are opened, and Spark's answer is that of a plain read;
    a session that forbids it reads as well, without."""
    path = tmp_path / "facts.db"
    hours = [
        [Sample(1 + n % 3, NOON_NS + hour * 3600 * SECOND_NS + n, float(n), n % 2) for n in range(50)]
        for hour in range(24)
    ]
    making.store(path, hours)
    asked = "ts >= '2026-01-01 20:00:00' and tag like 'tag:line-1/%' and quality = 0"
    plain = spark.read.format("bsfg").load(str(path)).where(asked)
    pushed = facts(spark, path, numPartitions=3).where(asked)
    assert (plain.rdd.getNumPartitions(), pushed.rdd.getNumPartitions()) == (1, 3)
    assert pushed.count() == plain.count() == 16 * 17
    making.damage(path, 1)  # 12:00, which the filter excludes by its head
    read = pushed.selectExpr("min(offset) as first", "count(*) as found").collect()
    assert [(row["first"], row["found"]) for row in read] == [(401, plain.count())]
    spark.conf.set(PUSH_DOWN, "false")
    try:
        assert facts(spark, path).where(asked).count() == plain.count()
    finally:
        spark.conf.set(PUSH_DOWN, "true")


def test_a_count_opens_no_batch(spark: SparkSession, tmp_path: Path) -> None:
    """With a column of identity only, headers are enough: a batch whose content does not open is counted too."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN[:7], RUN[7:]])
    making.garble(path, 1)
    assert facts(spark, path, columns="offset").count() == len(RUN)
    assert facts(spark, path, columns="Zone, SEQUENCE").agg({"SEQUENCE": "max"}).first()[0] == len(RUN)  # type: ignore[index]
    with pytest.raises(PySparkException, match=r"facts 1 to 7 of facts.telemetry: .*bsfg store verify"):
        facts(spark, path, columns="value").count()


def test_stores_are_named_in_every_way_spark_offers(spark: SparkSession, tmp_path: Path) -> None:
    """SQL tables, URIs of files, several paths, patterns, and columns in another case."""
    for zone in ("north", "south"):
        making.store(tmp_path / zone / "facts.db", [RUN])
    one, both = tmp_path / "north" / "facts.db", tmp_path / "*" / "facts.db"
    spark.sql(f"CREATE TEMPORARY VIEW north USING bsfg OPTIONS (path '{one.as_uri()}', endOffset 9)")
    [row] = spark.sql("SELECT count(*) AS found, max(Tag) AS tag FROM north WHERE OFFSET > 1").collect()
    assert (row["found"], row["tag"]) == (8, "tag:line-1/pressure")
    spark.catalog.dropTempView("north")
    spark.sql(f"CREATE TABLE north USING bsfg OPTIONS (path '{one.as_uri()}')")
    try:
        with pytest.raises(PySparkException, match=r"path is missing.*CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM north").collect()
    finally:
        spark.sql("DROP TABLE north")
    reading = spark.read.format("bsfg")
    assert reading.load(one.as_uri()).count() == len(RUN)
    assert reading.load([str(one), str(tmp_path / "south" / "facts.db")]).count() == 2 * len(RUN)
    assert facts(spark, both).count() == facts(spark, one, tmp_path / "south" / "facts.db").count() == 2 * len(RUN)
    assert reading.schema("TAG string, Value double").load(str(one)).columns == ["TAG", "Value"]
    assert reading.schema("TAG string, Value double").load(str(one)).where("tag is not null").count() == len(RUN)
    with pytest.raises(PySparkException, match=r"startOffset or endOffset for 2 stores"):
        reading.option("startOffset", 3).load(str(both)).count()
    with pytest.raises(PySparkException, match=r"nowhere/\*.db matches no file"):
        reading.load(str(tmp_path / "nowhere" / "*.db")).count()


def test_the_benchmark_compares_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    """`bsfg bench spark` in small: every source is read each way, a count that is wrong ends it, ratios are quotients."""
    with open_testbed(tmp_path) as testbed:
        found = benchmark.measure(spark, testbed, {}, 5000, 1, 1).to_dict()
    for one in (found, *(found[name] for name in ("three_columns", "count", "part_by_time"))):
        assert one["ratio"] == pytest.approx(one["facts_per_s"] / one["limit"]["facts_per_s"], rel=0.01)
        assert one["ratio_mqtt_to_file"] == pytest.approx(one["mqtt_facts_per_s"] / one["facts_per_s"], rel=0.01)
        assert one["ratio_to_parquet"] == pytest.approx(one["facts_per_s"] / one["parquet_facts_per_s"], rel=0.01)
    assert found["limit"]["what"]


def test_the_rollup_equals_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    """Two zones, two dates, ties, text, NaN, bad quality: equal rows, equal counts; again, and the same."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    path, out = tmp_path / "facts.db", tmp_path / "out"
    told = fresh(path, random.Random(seed))
    expected = expected_rollup(told)
    summary = run(spark, {"path": str(path)}, out)
    assert (summary.facts_read, summary.facts_rolled_up, summary.rows) == (len(told), len(told), len(expected))
    assert summary.bad_quality == sum(one.quality == BAD for _, one in told)
    assert json.loads(json.dumps(summary.sample, allow_nan=False))
    assert written(spark, out) == expected
    assert sorted(one.name for one in out.glob("date=*/zone=*")) == ["zone=plant-a"] * 2 + ["zone=plant-b"] * 2
    files = {one.parent for one in out.rglob("*.parquet")}
    assert run(spark, {"path": str(path)}, out).facts_rolled_up == len(told)
    assert written(spark, out) == expected
    assert {one.parent for one in out.rglob("*.parquet")} == files


def test_a_late_fact_corrects_its_day_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    """A second run with one more fact of yesterday changes that date; restricted to today it would not have."""
    path, out = tmp_path / "facts.db", tmp_path / "out"
    making.store(path, [[Sample(1, EVENING_NS, 1.0), Sample(1, EVENING_NS + 120 * SECOND_NS, 2.0)]])
    run(spark, {"path": str(path)}, out)
    making.store(path, [[Sample(1, EVENING_NS + SECOND_NS, 3.0)]])
    today = date(2026, 1, 2)
    only = run(spark, {"path": str(path)}, out, days=Days(first=today))
    assert (only.facts_read, only.facts_rolled_up, only.rows) == (1, 1, 1)
    assert sorted(row["last"] for row in written(spark, out).values()) == [1.0, 2.0]
    assert run(spark, {"path": str(path)}, out).facts_read == 3
    assert sorted(row["last"] for row in written(spark, out).values()) == [2.0, 3.0]


def test_both_orders_break_ties_alike(spark: SparkSession, tmp_path: Path) -> None:
    """Over few offsets source time and offset share one long, over many they are a pair: the same first and last."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS + n % 3, float(n)) for n in range(60)]])
    facts = rollup_minute.with_day(spark.read.format("bsfg").schema(rollup_minute.COLUMNS).load(str(path)))
    for offsets in (OffsetRange(1, 60), OffsetRange(1, 2**40)):
        [row] = rollup_minute.rollup(facts, offsets).collect()
        assert (row["first"], row["last"]) == (0.0, 59.0)


def test_a_session_in_another_time_zone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Days are UTC days: a session in another zone is refused instead of writing other files."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        with pytest.raises(JobRefused, match=r"spark.sql.session.timeZone=UTC"):
            run(spark, {"path": str(path)}, tmp_path / "out")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_rollup_leaves_foreign_folders_alone(spark: SparkSession, tmp_path: Path) -> None:
    """A folder of another stream, or of something else, is left alone."""
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    making.store(first, [RUN])
    making.store(second, [RUN])
    run(spark, {"path": str(first)}, tmp_path / "out")
    with pytest.raises(JobRefused, match=r"holds the rollup of .*name another folder"):
        run(spark, {"path": str(second)}, tmp_path / "out")
    other = tmp_path / "holidays"
    other.mkdir()
    (other / "beach.jpg").touch()
    with pytest.raises(JobRefused, match=r"is not empty"):
        run(spark, {"path": str(first)}, other)
    assert [one.name for one in other.iterdir()] == ["beach.jpg"]


def test_messages_are_rolled_up_too(spark: SparkSession, tmp_path: Path) -> None:
    """A stream of messages has counts per subject and no numbers; none of its facts is missing from the sum."""
    path, out = tmp_path / "facts.db", tmp_path / "out"
    with FactStore.open(path, "enterprise") as opened:
        opened.appends.append_messages(making.OPERATIONAL, [making.message(n) for n in range(10)]).result()
    summary = run(spark, {"path": str(path), "stream": making.OPERATIONAL}, out)
    assert (summary.facts_read, summary.facts_rolled_up, summary.rows) == (10, 10, 1)
    [figures] = written(spark, out).values()
    assert {name for name, figure in figures.items() if figure} == {"count"}
    assert figures["mean"] is None


def test_an_empty_range_rolls_up_to_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Days without facts give a summary of zeros, not an error."""
    path = tmp_path / "facts.db"
    making.store(path, [RUN])
    summary = run(spark, {"path": str(path)}, tmp_path / "out", days=Days(last=date(2000, 1, 1)))
    assert (summary.facts_read, summary.facts_rolled_up, summary.rows, summary.sample) == (0, 0, 0, [])


def test_a_damaged_batch_does_not_shrink_a_good_day(spark: SparkSession, tmp_path: Path) -> None:
    """A date and zone that would count fewer facts than before keeps its files, and is named; another day of the same
    run is corrected. Only when fewer are accepted is it overwritten."""
    path, out = tmp_path / "facts.db", tmp_path / "out"
    day_ns = 24 * 3600 * SECOND_NS
    making.store(path, [[Sample(1, NOON_NS + n, float(n)) for n in range(at, at + 10)] for at in (0, 10)])
    making.store(path, [[Sample(1, NOON_NS + day_ns, 1.0)]])
    assert run(spark, {"path": str(path)}, out).kept == []
    good = written(spark, out)
    making.store(path, [[Sample(1, NOON_NS + day_ns, 2.0)]])
    making.damage(path, 11)
    summary = run(spark, {"path": str(path)}, out)
    assert [(one.date, one.zone, one.count, one.found) for one in summary.kept] == [
        ("2026-01-01", "enterprise", 20, 10)
    ]
    assert (summary.facts_read, summary.facts_rolled_up, summary.facts_kept_out, summary.is_equal) == (12, 2, 10, True)
    [first, second] = sorted(written(spark, out).items())
    assert (dict([first]), second[1]["count"]) == ({first[0]: good[first[0]]}, 2)
    accepted = run(spark, {"path": str(path)}, out, is_fewer_accepted=True)
    assert (accepted.kept, accepted.facts_rolled_up, accepted.facts_missing) == ([], 12, 10)
    assert sorted(row["count"] for row in written(spark, out).values()) == [2, 10]
    assert not (out / rollup_minute._ASIDE).exists()


def test_a_damaged_batch_costs_a_rollup_its_own_facts_only(spark: SparkSession, tmp_path: Path) -> None:
    """What the disk has changed is counted as missing, also in a run for some days; everything else is rolled up."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS + n, float(n)) for n in range(at, at + 10)] for at in range(0, 50, 10)])
    making.damage(path, 21)
    summary = run(spark, {"path": str(path)}, tmp_path / "out")
    assert (summary.facts_read, summary.facts_rolled_up, summary.facts_missing) == (40, 40, 10)
    elsewhere = run(spark, {"path": str(path)}, tmp_path / "out", days=Days(first=date(2030, 1, 1)))
    assert (elsewhere.facts_read, elsewhere.facts_missing) == (0, 10)


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["--store", "none.db", "--out", "out"], 1, "none.db does not exist"),
        (["--store", "none.db"], 2, "--out"),
        (["--store", "none.db", "--out", "out", "--from", "yesterday"], 2, "--from"),
    ],
)
def test_the_job_refuses_before_spark_starts(
    arguments: list[str], status: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bad usage and an unreadable store are answered at once, in words, on standard error."""
    try:
        found = rollup_minute.main(arguments)
    except SystemExit as exited:
        found = int(str(exited.code))
    told = capfd.readouterr()
    assert (found, told.out) == (status, "")
    assert words in told.err
