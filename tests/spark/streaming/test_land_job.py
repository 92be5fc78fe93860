"""The land job on a real Spark: each fact once, through crashes at the worst moments, losses and restored stores.

A crash is an exception here, which leaves on disk what a kill leaves; `test_kills.py` kills for real.
"""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from agent.fact_store import FactStore, StoreReader
from agent.message import Sample
from bench.common.testbed import open_testbed
from bench.spark import spark as read_benchmark
from bench.spark import stream as benchmark
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs import land
from pyspark_bsfg.jobs.land import Order
from pyspark_bsfg.landing import tables
from pyspark_bsfg.landing.lander import Totals, incidents_of
from pyspark_bsfg.landing.tables import paths
from tests.sim import IS_LONG
from tests.spark import making
from tests.spark.making import NOON_NS, TELEMETRY
from tests.spark.streaming.rows import append, landed_rows, landed_until
from tests.spark.streaming.test_stream_reader import CONSUMER, node

pytestmark = [pytest.mark.spark, pytest.mark.system]

FACTS = 1200  # with one declared gap
LONG = pytest.mark.skipif(not IS_LONG, reason="a shorter one has the same promise: make spark-stream-test")


def order(folder: Path, checkpoint: str = "checkpoint", **options: object) -> Order:
    """Land what is there, in batches of 700: a batch costs a second of two cores."""
    texts = {"path": folder / "facts.db", "maxOffsetsPerTrigger": 700, **options}
    given = {name: str(value) for name, value in texts.items()}
    return Order(given, folder / "lake" / "facts", folder / checkpoint, is_available_now=True)


def run(spark: SparkSession, asked: Order) -> Totals:
    """The job."""
    return land.run(spark, asked, threading.Event())[0]


def identities(folder: Path) -> list[tuple[Any, ...]]:
    """Every fact in the table."""
    columns = ("zone", "stream", "life", "sequence", "offset", "value")
    return landed_rows(paths(folder / "lake" / "facts"), columns)


def recorded(folder: Path, facts: int = FACTS) -> list[tuple[Any, ...]]:
    """Every fact that the feeder has recorded."""
    with closing(StoreReader(folder / "facts.db")) as reader:
        (life,) = (origin.life.hex() for origin in reader.origins())
    numbers = range(1, facts + 1)
    return [("enterprise", TELEMETRY, life, n, n, float(n) if n % 1000 else None) for n in numbers]


def crashing(commit: Callable[..., Any]) -> Callable[..., Any]:
    """As `commit`, but the job ends after it has added the second batch of facts, as if it were killed: nothing is
    repeated or tidied up."""
    calls = 0

    def wrapped(table: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += not str(table._folder).endswith("_incidents")
        answer = commit(table, *arguments)
        if calls == 2:
            raise JobRefused("killed")
        return answer

    return wrapped


def test_each_fact_lands_once_through_a_crash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job dies at its second batch, when the table has it and Spark's checkpoint does not (test_kills.py: at every
    step, in both formats). The cursor is then not beyond the table. A second run lands the rest: each fact once, the
    gap once, all confirmed; although the store releases at once what is confirmed."""
    asked = order(tmp_path, consumer=CONSUMER, startingOffsets="cursor")
    with node(tmp_path) as store:
        store.consumers.register(CONSUMER, "local", TELEMETRY).result()
        append(store, 1, FACTS)
        with monkeypatch.context() as broken:
            broken.setattr(tables._Delta, "commit", crashing(tables._Delta.commit))
            with pytest.raises(JobRefused, match="killed"):
                run(spark, asked)
        state = store.consumers.get(CONSUMER)
        assert state is not None
        assert state.frontier <= landed_until(tmp_path / "lake" / "facts")
        totals = run(spark, asked)
        state = store.consumers.get(CONSUMER)
        assert state is not None
        assert (state.frontier, totals.facts_missing, totals.facts_known) == (FACTS, 0, 0)
    assert identities(tmp_path) == recorded(tmp_path)
    assert landed_rows(paths(incidents_of(asked.folder)), ("what", "offset")) == [("samples_lost", 1000)]


def test_a_restored_store_and_a_new_checkpoint_add_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """After the store was restored the job reads it again and adds only what is new; so does a job with a new
    checkpoint on the same table. A checkpoint with another table is refused."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS, float(n)) for n in range(600)]])
    image = path.read_bytes()
    with FactStore.open(path, "enterprise") as store:
        append(store, 2_000, 2_004)
    assert run(spark, order(tmp_path)).facts_landed == 605
    path.write_bytes(image)
    with FactStore.open(path, "enterprise") as store:
        append(store, 601, 700)
    totals = run(spark, order(tmp_path))
    assert (totals.facts_landed, totals.facts_known, totals.facts_missing) == (100, 600, 0)
    totals = run(spark, order(tmp_path, checkpoint="another"))
    assert (totals.facts_landed, totals.facts_known) == (0, 700)
    assert len(set(identities(tmp_path))) == 705
    elsewhere = Order(order(tmp_path).options, tmp_path / "elsewhere", tmp_path / "checkpoint", is_available_now=True)
    with pytest.raises(JobRefused, match=r"belongs to table .*lake/facts"):
        run(spark, elsewhere)


def test_two_jobs_land_into_one_table_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """A job with a checkpoint of its own lands what came while another one follows the same stream: each fact is once
    in the table, whichever job was faster."""
    path, ended, batches = tmp_path / "facts.db", threading.Event(), []
    making.store(path, [[Sample(1, NOON_NS, float(n)) for n in range(1, 101)]])

    def beside(first: Totals) -> None:
        if first.end_offset == 100 and not batches:
            batches.append(run(spark, order(tmp_path, checkpoint="another")))
            with FactStore.open(path, "enterprise") as store:
                append(store, 101, 150)
            batches.append(run(spark, order(tmp_path, checkpoint="another")))
        if first.end_offset == 150:
            ended.set()

    following = replace(order(tmp_path), is_available_now=False, every_s=5.0)
    first, _ = land.run(spark, following, ended, beside)
    assert batches[0].facts_known == 100
    assert first.facts_landed + batches[1].facts_landed == 150
    assert len(identities(tmp_path)) == len(set(identities(tmp_path))) == 150


def test_a_query_that_fails_is_started_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure that may pass is repeated after a pause and counted; a wrong option is told at once."""
    making.store(tmp_path / "facts.db", [[Sample(1, NOON_NS, float(n)) for n in range(100)]])
    monkeypatch.setattr(land, "BACK_OFF_S", (0,))
    commit, failures = tables._Delta.commit, iter([OSError("no space left on device")])

    def flaky(self: Any, *arguments: Any) -> Any:
        for failure in failures:
            raise failure
        return commit(self, *arguments)

    monkeypatch.setattr(tables._Delta, "commit", flaky)
    totals, restarts = land.run(spark, order(tmp_path), threading.Event())
    assert (totals.facts_landed, restarts) == (100, 1)
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        run(spark, order(tmp_path, checkpoint="new", startingOffset=1))


def test_a_failure_that_stays_is_one_sentence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a trace of Java or Python around it."""
    monkeypatch.setattr(land, "BACK_OFF_S", (0,))
    monkeypatch.setattr(land, "ATTEMPTS_MAX", 2)
    with pytest.raises(JobRefused) as refused:
        run(spark, order(tmp_path))
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/facts.db does not exist on this host")
    assert said.endswith("(tried 2 times)")
    assert len(said.splitlines()) == 1


@LONG
def test_the_benchmark_compares_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    """`bsfg bench spark` in small: every source is read each way, a count that is wrong ends it, ratios are
    quotients."""
    with open_testbed(tmp_path) as testbed:
        found = read_benchmark.measure(spark, testbed, {}, 5000, 1, 1).to_dict()
    for measured in (found, *(found[name] for name in ("three_columns", "count", "part_by_time", "start"))):
        assert measured["ratio"] == pytest.approx(measured["facts_per_s"] / measured["limit"]["facts_per_s"], rel=0.01)
        assert measured["ratio_mqtt_to_file"] == pytest.approx(
            measured["mqtt_facts_per_s"] / measured["facts_per_s"], rel=0.01
        )
        assert measured["ratio_to_parquet"] == pytest.approx(
            measured["facts_per_s"] / measured["parquet_facts_per_s"], rel=0.01
        )
        if measured["parquet_cpu_s"] >= 0.1:  # of hundredths
            assert measured["cpu_by_parquet"] == pytest.approx(measured["cpu_s"] / measured["parquet_cpu_s"], rel=0.01)
            assert measured["limit"]["cpu_by_parquet"] == pytest.approx(
                measured["limit"]["cpu_s"] / measured["parquet_cpu_s"], rel=0.01
            )
    assert found["limit"]["what"]
    assert found["two_tasks"]["speed_up"] > 0
    assert found["two_tasks"]["limit"]["speed_up"] > 0


@LONG
def test_the_benchmark_measures_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    """In small: everything is landed, and every fact that was recorded meanwhile has its time."""
    found = benchmark.measure(spark, tmp_path, {}, 4000, 1.0, 1).to_dict()
    assert found["facts"] == 4000 + benchmark.WARM_FACTS
    assert found["ratio"] == pytest.approx(found["facts_per_s"] / found["limit"]["facts_per_s"], rel=0.01)
    assert found["append_to_row"]["count"] == 10
    assert 0 < found["append_to_row"]["p50_ms"] <= found["append_to_row"]["max_ms"]
