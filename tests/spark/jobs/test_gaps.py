"""Gaps at the edge of now, on rows that are made here: the functions know no clock and no files."""

import json
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from agent.message import time_text
from pyspark_bsfg.jobs import clean, gaps
from pyspark_bsfg.jobs.derived import Part, Source
from pyspark_bsfg.jobs.refresh import newest_ns
from pyspark_bsfg.jobs.settings import Expected
from pyspark_bsfg.landing.views import INCIDENTS
from tests.spark.making import NOON_NS, SECOND_NS

READ = StructType([clean.CLEAN[name] for name in gaps.COLUMNS])


def ns(second: float) -> int:
    """So many seconds after noon."""
    return NOON_NS + round(second * SECOND_NS)


def facts(
    tag: str, seconds: Sequence[int], problem: str | None = None, zone: str = "plant-a", life: str = "e"
) -> Iterator[tuple[Any, ...]]:
    """Rows of READ."""
    for second in seconds:
        day = date(2026, 1, 1 + (second + 43_200) // 86_400)
        yield day, zone, tag, ns(second), second + 1, life, second + 1, "double", problem


def lost(zone: str, first: int, last: int) -> tuple[Any, ...]:
    """A row of INCIDENTS: a loss that a source of the zone has declared."""
    detail = {"first_time": time_text(ns(first)), "last_time": time_text(ns(last)), "reason": "r", "tags": []}
    return ("samples_lost", "s", first, first, None, "source:x", zone, "e", 1, json.dumps(detail))


@pytest.mark.spark
@pytest.mark.system
def test_facts_of_the_future_end_no_gap(spark: SparkSession) -> None:
    """A tag whose clock once was ahead is silent, or stale, since its last fact before now, and not missing until that
    future; one whose clock is a little ahead, and goes on, is alive. A tag that never had a usable fact is stale since
    its first one. Of two settings that match a tag the first counts."""
    made = [
        *facts("ahead once", [*range(0, 630, 30), 4000]),
        *facts("always ahead", range(0, 1200, 30)),
        *facts("bad since", [0, 4000]),
        *facts("bad since", range(30, 1200, 30), "bad"),
        *facts("never good", range(300, 1200, 30), "bad"),
        *facts("future only", [4000]),
        *facts("holed", [0, 300, 330, *range(360, 930, 30)]),
    ]
    limit_s = gaps.expected_s(60, (Expected("holed", 60), Expected("h*", 10_000)))
    within = gaps.found_within(spark.createDataFrame(made, READ), limit_s)
    found = gaps.report(within, spark.createDataFrame([], INCIDENTS), limit_s, ns(900), ())
    rows = found.selectExpr("tag", "kind", "unix_seconds(begin)", "seconds").collect()
    noon = NOON_NS // SECOND_NS
    assert sorted((tag, kind, begin - noon, seconds) for tag, kind, begin, seconds in rows) == [
        ("ahead once", "silent", 600, 300.0),
        ("bad since", "stale", 0, 900.0),
        ("holed", "missing", 0, 300.0),
        ("never good", "stale", 300, 600.0),
    ]


def expired(zone: str, life: str, first: int, last: int) -> tuple[Any, ...]:
    """A row of INCIDENTS: a node has deleted these sequences before they were read."""
    detail = {
        "reason": "ttl",
        "origins": [{"zone": zone, "life": life, "first_sequence": first, "last_sequence": last}],
    }
    return ("facts_expired", "s", 1, 1, None, "stream:x", "idmz", "e", 1, json.dumps(detail))


@pytest.mark.spark
@pytest.mark.system
def test_a_loss_of_facts_explains_a_gap_over_restarts(spark: SparkSession) -> None:
    """The node restarts within a gap, and a life in between is lost as a whole; one before or after explains
    nothing."""
    made = [
        *facts("flow", [0], life="b"),
        *facts("flow", [600], life="d"),
        *facts("flow", [1200], life="e"),
    ]
    losses = [expired("plant-a", life, 5, 9) for life in ("a", "c")]
    limit_s = gaps.expected_s(60, ())
    within = gaps.found_within(spark.createDataFrame(made, READ), limit_s)
    found = gaps.report(within, spark.createDataFrame(losses, INCIDENTS), limit_s, ns(1200), ())
    rows = found.selectExpr("unix_seconds(begin)", "declared_by").collect()
    noon = NOON_NS // SECOND_NS
    assert sorted((begin - noon, by) for begin, by in rows) == [(0, "facts_expired ttl"), (600, None)]


@pytest.mark.spark
@pytest.mark.system
def test_facts_of_two_nodes_may_have_one_offset(spark: SparkSession) -> None:
    """A plant has moved to another node: its last usable fact and its bad one have the offsets of each, which are
    equal; the tag is stale until the next usable fact."""
    (moved,) = facts("flow", [60], "bad", life="f")
    made = [*facts("flow", [0]), (*moved[:4], 1, *moved[5:]), *facts("flow", [120])]
    found = gaps.found_within(spark.createDataFrame(made, READ), gaps.expected_s(60, ()))
    assert [row["end"]["ns"] for row in found.where("kind = 'stale'").collect()] == [ns(120)]


@pytest.mark.spark
@pytest.mark.system
@pytest.mark.timeout(300)
def test_plants_with_equal_tags_have_their_own_gaps(spark: SparkSession) -> None:
    """Three plants have the tag, over midnight. Facts and losses of one neither end nor explain a gap of another; a
    loss within another one changes nothing."""
    noon, midnight = 0, 43_200
    made = [
        *facts("flow", [noon, midnight - 600, midnight + 600], zone="plant-a"),
        *facts("flow", range(noon, midnight + 700, 60), zone="plant-b"),
        *facts("flow", [noon, midnight - 300, midnight + 600], zone="plant-c"),
    ]
    losses = [
        *(lost("plant-a", noon, midnight - 600), lost("plant-a", noon + 60, noon + 120)),
        *(lost("plant-a", midnight - 600, midnight), lost("plant-b", midnight, midnight + 600)),
        lost("plant-c", midnight - 300, midnight + 600),
    ]
    limit_s = gaps.expected_s(60, ())
    within = gaps.found_within(spark.createDataFrame(made, READ), limit_s)
    found = gaps.report(within, spark.createDataFrame(losses, INCIDENTS), limit_s, ns(midnight + 600), ())
    rows = found.selectExpr("zone", "kind", "unix_seconds(begin)", "seconds", "declared_by IS NOT NULL").collect()
    assert sorted((zone, kind, begin - NOON_NS // SECOND_NS, *more) for zone, kind, begin, *more in rows) == [
        ("plant-a", "missing", noon, midnight - 600.0, True),
        ("plant-a", "missing", midnight - 600, 1200.0, False),
        ("plant-c", "missing", noon, midnight - 300.0, False),
        ("plant-c", "missing", midnight - 300, 900.0, True),
    ]


@pytest.mark.parametrize(
    "rows, newest",
    [
        ([("facts", 0, 800), ("facts", 0, 700)], 800),
        ([("facts", 0, 4000), ("missing", 600, 4000)], 600),  # ahead once
        ([("facts", 0, 4000), ("missing", 600, 4000), ("facts", 0, 800)], 800),
        ([("facts", 0, 901)], 900),  # a clock that is a little ahead
        ([("facts", 4000, 4001)], None),
        ([], None),
    ],
)
def test_the_report_ends_at_the_newest_fact_that_is_not_of_the_future(
    tmp_path: Path, rows: list[tuple[str, int, int]], newest: int | None
) -> None:
    """By the first and last facts of tags and by the ends of gaps, whichever zone has them; now is 900 s after noon."""
    made = [{"kind": kind, "begin": {"ns": ns(begin)}, "end": {"ns": ns(end)}} for kind, begin, end in rows]
    span = pa.struct([("ns", pa.int64())])
    schema, parts = pa.schema([("kind", pa.string()), ("begin", span), ("end", span)]), {}
    for zone, found in (("plant-a", []), ("plant-b", made), ("plant-c", [])):
        path = str(tmp_path / f"{zone}.parquet")
        pq.write_table(pa.Table.from_pylist(found, schema), path)
        parts["2026-01-01", zone] = Part(len(found), len(found), (path,), "")
    source = Source(tmp_path, parts)
    assert newest_ns(source, ns(900)) == (0 if newest is None else ns(newest))
