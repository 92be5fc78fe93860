"""`stream`: the land job, from a store file into a Delta table.

A store is filled with data set A in batches of 1000 and landed to its end, compared with Spark's own writer, which
reads the same store in one query and writes the same rows as Parquet, without commits, checkpoints or syncs. Then one
fact is recorded every 100 ms while the job runs on, and the time of each is measured from before its append to the
commit of the table that contains it, by the clock of the file system. A first, small run warms the JVM and is not
counted. The session has two tasks at once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from agent.fact_store import FactStore
from agent.message import Sample
from bench.common.data_sets import runs
from bench.common.measuring import Latency, Report, results, rounded
from bench.common.testbed import scratch_folder
from bench.spark.spark import bench_session
from bench.store.append import BATCH_FACTS, IN_FLIGHT, STREAM, new_store
from pyspark_bsfg.jobs.land import Order
from pyspark_bsfg.jobs.land import run as land
from pyspark_bsfg.landing.lander import Totals
from pyspark_bsfg.session import facts as facts_of

EVERY_S = 0.1
LAST_S = 3.0
WARM_FACTS = 2000


def run(facts: int, seconds: float, seed: int, below: Path | None) -> Report:
    """Land `facts` samples, then record a fact every 100 ms for `seconds`."""
    with scratch_folder(below) as folder, bench_session(folder) as (spark, described):
        return measure(spark, folder, described, facts, seconds, seed)


def measure(
    spark: SparkSession, folder: Path, described: Mapping[str, Any], facts: int, seconds: float, seed: int
) -> Report:
    """Run the benchmark in an existing session."""
    with new_store(folder / "store") as store:
        _fill(store, seed, WARM_FACTS)
        order = _order(folder, "warm")
        _landed(spark, order, threading.Event())
        facts_of(spark, store.path).write.parquet(str(folder / "warm-plain"))
        _fill(store, seed, facts)
        total, order = facts + WARM_FACTS, _order(folder, "table")
        land_s = _seconds(lambda: _landed(spark, order, threading.Event()))
        plain_s = _seconds(lambda: facts_of(spark, store.path).write.parquet(str(folder / "plain")))
        first = _follow(spark, replace(order, is_available_now=False, every_s=0), store, seconds)
        latency = _latency(order.folder, first)
    rate, limit = round(total / land_s), round(total / plain_s)
    values = {
        "facts_per_s": rate,
        "limit": {"what": "Spark's own Parquet writer on one batch read", "facts_per_s": limit},
        "ratio": rounded(rate / limit),
        "append_to_row": latency.to_dict(),
        "facts": total,
        "batch_facts": BATCH_FACTS,
        "seed": seed,
    }
    line = f"stream     backlog {rate:12,} facts/s; ratio {values['ratio']} to one batch read into Parquet"
    return Report("stream", values, [line, f"           append to row {latency}"], described)


def _fill(store: FactStore, seed: int, facts: int) -> None:
    for _ in results(
        (store.appends.append_samples(STREAM, samples) for samples in runs("A", seed, facts, BATCH_FACTS)), IN_FLIGHT
    ):
        pass


def _order(folder: Path, name: str) -> Order:
    options = {"path": str(folder / "store" / "facts.db"), "stream": STREAM}
    return Order(options, folder / name, folder / f"{name}-checkpoint", is_available_now=True)


def _landed(spark: SparkSession, order: Order, stop: threading.Event) -> Totals:
    totals, _ = land(spark, order, stop)
    assert not totals.facts_missing, totals
    return totals


def _seconds(step: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    step()
    return time.perf_counter() - start_s


def _follow(spark: SparkSession, order: Order, store: FactStore, seconds: float) -> int:
    """Record facts while the job runs, once it has landed a first fact, and stop the job when it has had time to land
    the last. Returns the offset of the first fact that counts."""
    stop, pause, first = threading.Event(), threading.Event(), store.end_offset(STREAM) + 2
    log = order.folder / "_delta_log"

    def record() -> None:
        known = len(list(log.iterdir()))
        store.appends.append_samples(STREAM, [Sample(1, time.time_ns(), 1.0)]).result()
        while len(list(log.iterdir())) == known:
            pause.wait(EVERY_S)
        for _ in range(round(seconds / EVERY_S)):
            store.appends.append_samples(STREAM, [Sample(1, time.time_ns(), 1.0)]).result()
            pause.wait(EVERY_S)
        pause.wait(LAST_S)
        stop.set()

    recorder = threading.Thread(target=record)
    recorder.start()
    _landed(spark, order, stop)
    recorder.join()
    return first


def _latency(table: Path, first: int) -> Latency:
    """From each fact's source time, which is that of its append, to the commit that has it."""
    import pyarrow.parquet as pq

    found: list[int] = []
    for commit in (table / "_delta_log").glob("*.json"):
        for action in map(json.loads, commit.read_text("utf-8").splitlines()):
            if "add" not in action:
                continue
            rows = pq.ParquetFile(table / action["add"]["path"]).read(["offset", "source_time_ns"]).to_pylist()
            found += [commit.stat().st_mtime_ns - row["source_time_ns"] for row in rows if row["offset"] >= first]
    return Latency.of(found)
