"""`where` of `facts`, which is pushed down: whatever is asked, the answer is that of the same rows in Parquet.

`test_pruning.py` has the same promise for the filters that reach the source; this is what Spark makes of a query.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.message import Sample
from pyspark_bsfg.session import facts
from tests.sim import scaled
from tests.spark import making
from tests.spark.making import BAD, SECOND_NS, TELEMETRY, UNCERTAIN, VALUES

pytestmark = [pytest.mark.spark, pytest.mark.system]

# An hour before the clocks of Berlin go back, for four hours: 02:30 is there twice.
BEGIN_NS = 1_792_882_800 * SECOND_NS  # 2026-10-24T23:00:00Z
MINUTE_NS = 60 * SECOND_NS
PLANTS = [Origin("plant-a", b"a" * 16), Origin("plant-b", b"b" * 16)]


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """facts.db: facts of two plants in turns, half an hour a batch, with every type of value, and messages; `plain`:
    the same as Parquet."""
    folder = tmp_path_factory.mktemp("push_down")
    quality = [0, 0, BAD, UNCERTAIN]
    runs = [
        [
            Sample(1 + (part + n % 2) % 3, BEGIN_NS + (30 * part + n) * MINUTE_NS + n * 1100, value, quality[n % 4])
            for n, value in enumerate(VALUES)
        ]
        for part in range(8)
    ]
    with FactStore.open(folder / "facts.db", "enterprise", settings=making.AT_ONCE) as opened:
        sealed = [making.foreign(plant, runs) for plant in PLANTS]
        for number in range(len(runs)):
            for batches in sealed:
                making.put(opened, batches[number : number + 1], number + 1)
        opened.appends.append_messages(TELEMETRY, [making.message(n) for n in range(4)]).result()
    spark.read.format("bsfg").load(str(folder / "facts.db")).write.parquet(str(folder / "plain"))
    return folder


COMPARED = st.sampled_from(("=", "<>", "<", "<=", ">", ">=", "<=>"))
TIMES = st.sampled_from((
    "timestamp'2026-10-25 00:30:00Z'",
    "timestamp'2026-10-25 01:30:00Z'",  # with the one before, the same wall clock in Berlin
    "timestamp'2026-10-25 00:01:00.000001Z'",
    "timestamp'2026-10-25 02:30:00'",  # of the session's zone
    "timestamp'1969-12-31 23:59:59.999999Z'",
    "date'2026-10-25'",
    "timestamp_ntz'2026-10-25 02:30:00'",
    "'2026-10-25 01:00'",
    "NULL",
))  # fmt: skip
WORDS = {
    "tag": ("'tag:line-1/pressure'", "'tag:line-1/'", "'TAG:LINE-1/COUNT'", "'order:4711'", "''", "NULL"),
    "unit": ("'bar'", "'°C'", "'b'", "NULL"),
    "predicate": ("'value_sampled'", "'setpoint_changed'", "'order_released'"),
    "zone": ("'plant-a'", "'plant-b'", "'enterprise'", "NULL"),
    "life": ("'" + PLANTS[0].life.hex() + "'", "'61'"),
    "value_type": ("'double'", "'message'"),
    "value_text": ("'ok'", "''"),
}
NUMBERS = {
    "offset": ("1", "60", "60.5", "9223372036854775807", "NULL"),
    "sequence": ("1", "100"),
    "source_time_ns": (f"{BEGIN_NS + 30 * MINUTE_NS}L", f"{BEGIN_NS + 30 * MINUTE_NS + 1100}L", "1.5e18", "0"),
    "quality": ("0", str(BAD), str(UNCERTAIN), "0.5", "-1", "NULL", "'0'"),
    "value": ("1.5", "0", "-0.0D", "double('NaN')", "double('-Infinity')", "NULL", "9223372036854775807"),
    "value_int": ("1", "9223372036854775807", "NULL"),
}
TEXTS = [(name, word) for name, all_of in WORDS.items() for word in all_of]
PATTERNS = ("'tag:line-1/%'", "'%count'", "'%line%'", "'_ag:line-1/count'", r"'tag:line-1\\_%'", "'bar'", "'%'", "''")


@st.composite
def conditions(draw: st.DrawFn) -> str:
    """One condition."""
    name = draw(st.sampled_from(("ts", *WORDS, *NUMBERS)))
    constants = TIMES if name == "ts" else st.sampled_from((WORDS | NUMBERS)[name])
    kind = draw(st.sampled_from(("compare", "in", "null", "between", "like", "function")))
    if kind == "compare":
        return f"{name} {draw(COMPARED)} {draw(constants)}"
    if kind == "in":
        return f"{name} IN ({', '.join(draw(st.lists(constants, min_size=1, max_size=3)))})"
    if kind == "null":
        return f"{name} IS NULL"
    if kind == "between":
        return f"{name} BETWEEN {draw(constants)} AND {draw(constants)}"
    if kind == "like":
        return f"{draw(st.sampled_from(sorted(WORDS)))} LIKE {draw(st.sampled_from(PATTERNS))}"
    return draw(
        st.sampled_from((
            "date(ts) = date'2026-10-25'", "hour(ts) = 2", "date_trunc('hour', ts) = timestamp'2026-10-25 02:00:00'",
            "cast(ts AS string) LIKE '2026-10-25 02%'", "to_date(ts) < '2026-10-25'", "upper(tag) = 'TAG:LINE-1/COUNT'",
            "tag = 'TAG:line-1/count' COLLATE UTF8_LCASE", "startswith(tag, 'tag:l')", "contains(unit, 'a')",
            "isnan(value)", "value = value", "quality & 1073741824 = 0", "cast(quality AS string) = '0'",
            "length(unit) IN (2, 3)", "offset % 7 = 0", "coalesce(unit, 'none') = 'none'", "unix_seconds(ts) % 2 = 0",
        ))
    )  # fmt: skip


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Of two conditions, and of a negated one."""
    both = st.builds(lambda left, how, right: f"({left}) {how} ({right})", parts, st.sampled_from(("AND", "OR")), parts)
    return both | parts.map(lambda inner: f"NOT ({inner})")


CONDITIONS = st.recursive(conditions(), joined, max_leaves=3)


@settings(
    max_examples=scaled(12, 300), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    pushed=CONDITIONS,
    later=CONDITIONS,
    zone=st.sampled_from(("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati")),
    ansi=st.booleans(),
)
def test_push_down_changes_no_answer(
    spark: SparkSession, folder: Path, pushed: str, later: str, zone: str, ansi: bool
) -> None:
    """Comparisons, IN, LIKE, NULLs, NaN, functions of time and text, joined and negated, in any time zone of the
    session, with ANSI mode and without: the facts are those that Parquet gives, also where a part of the result has
    another filter."""
    wanted = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": str(ansi).lower()}
    before = {key: spark.conf.get(key) for key in wanted}
    try:
        for key, value in wanted.items():
            spark.conf.set(key, value)
        try:
            expected = answers(spark.read.parquet(str(folder / "plain")).where(pushed), later)
        except PySparkException:  # types that do not go together
            assume(False)
        assert answers(facts(spark, folder / "facts.db", where=pushed, numPartitions=1), later) == expected
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)  # type: ignore[arg-type]  # both have a default


def answers(rows: DataFrame, later: str) -> list[tuple[int, bool]]:
    """The offsets of all rows, and of some, in one query."""
    some = rows.where(later).selectExpr("offset", "true AS is_some")
    return sorted(tuple(row) for row in some.union(rows.selectExpr("offset", "false")).collect())
