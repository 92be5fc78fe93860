"""`spark`: facts of a store file and of a node over MQTT in Spark, compared with the same rows in Parquet and prebuilt
in Arrow.

A store is filled with data set A in batches of 1000, and its rows are written once as Parquet and once as an Arrow
file. Each is then read in turns, by two tasks into Spark's `noop` sink, so that every row reaches the JVM and none is
kept: all columns (the store and the Arrow file also by one task), 3 columns, a count of rows, the same count from
column `facts` (compared with Parquet's count of rows, and with a Python source whose tasks yield one row each), an hour
of the data (or a tenth, where that is less) by a filter on time, a hundredth, one tag, and the first fact alone, which
is what a query costs before any facts. Each has the processor time of the whole process tree beside Parquet's, because
wall time depends on what else runs; `DataFrame.count` and filters are put on the DataFrame, as an analyst does. The
limit is the Arrow file, read by a Python data source that has nothing to decode (`prebuilt.py`), with the same
processor time beside Parquet's: no Python data source can do better, and the difference to it is the cost of
batches. The node serves the same file in a process of
its own, through a broker with TLS. The time includes everything from planning to the last row, with the Python
processes that Spark starts for each query. A first round of each warms the JVM and is not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads

from bench.common.data_sets import SCAN_NS, START_NS, TAGS, definitions, runs
from bench.common.measuring import Report, files_bytes, machine, median, results, rounded, tree_cpu_s
from bench.common.testbed import ASKING, SERVING, Testbed, open_testbed
from bench.spark.prebuilt import PrebuiltSource
from bench.store.append import BATCH_FACTS, IN_FLIGHT, STREAM, new_store
from pyspark_bsfg import FACTS
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import arrow_schema, projection
from pyspark_bsfg.session import facts as facts_of
from pyspark_bsfg.session import session
from pyspark_bsfg.transports import Asked, HoleLog, StoreFile, record_batches

TASKS = 2
NARROW = "tag ts value"
HOUR_NS = 3600 * SCAN_NS
LOG_BYTES_SHOWN = 4000
Measured = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Files:
    """The files with the same rows in three formats."""

    store: Path
    arrow: Path
    parquet: Path

    @property
    def first(self) -> Files:
        """The first row alone, in the two other formats."""
        return Files(self.store, *(path.with_stem("first") for path in (self.arrow, self.parquet)))


def run(facts: int, repeats: int, seed: int, below: Path | None) -> Report:
    """Fill a store with `facts` samples, then read it `repeats` times each way."""
    with open_testbed(below) as testbed, bench_session(testbed.folder) as (spark, described):
        return measure(spark, testbed, described, facts, repeats, seed)


def measure(
    spark: SparkSession, testbed: Testbed, described: Mapping[str, Any], facts: int, repeats: int, seed: int
) -> Report:
    """Run the benchmark in an existing session."""
    folder = testbed.folder
    files = _fill(folder, facts, seed)
    spark.dataSource.register(PrebuiltSource)
    with testbed.worker("serve", "serve", SERVING, file=files.store, asking=ASKING, until=0):
        seconds, cpu_s = _in_turns(_readings(spark, files, _node(testbed), facts), repeats)
    at_rest = files_bytes(folder / "store") / facts
    one_task = seconds.pop("one_task")
    found = {name: _compared(facts, by_source, cpu_s[name]) for name, by_source in seconds.items()}
    speed_up = {name: rounded(median(one_task[name]) / median(seconds["all"][name])) for name in one_task}
    columns = f"{len(FACTS.fieldNames())} columns"
    values = {
        **found["all"],
        "limit": {"what": f"{columns} of an Arrow file by a data source that decodes nothing", **found["all"]["limit"]},
        "three_columns": found["three"],
        "count": found["count"],
        "count_by_column": found["column"],
        "one_tag": found["tag"],
        "start": found["start"],
        "hundredth_by_time": found["hundredth"],
        "part_by_time": found["part"]
        | {"speed_up": rounded(median(seconds["all"]["bsfg"]) / median(seconds["part"]["bsfg"]))},
        "two_tasks": {"speed_up": speed_up["bsfg"], "limit": {"speed_up": speed_up["arrow"]}},
        "bytes_per_fact": rounded(at_rest),
        "facts": facts,
        "batch_facts": BATCH_FACTS,
        "seed": seed,
    }
    lines = [
        f"{'spark' if name == 'all' else '':10} {title:12} {case['facts_per_s']:12,} facts/s; ratio {case['ratio']} to prebuilt Arrow, "
        f"{case['ratio_to_parquet']} to Parquet; CPU {case['cpu_by_parquet']} of Parquet's, prebuilt {case['limit']['cpu_by_parquet']}; over MQTT {case['ratio_mqtt_to_file']} of the file"
        for name, title in (
            ("all", columns),
            ("three", "3 columns"),
            ("count", "count"),
            ("column", "by column"),
            ("part", "by time"),
            ("hundredth", "1 % by time"),
            ("tag", "one tag"),
            ("start", "one fact"),
        )
        for case in [found[name]]
    ]
    lines += [
        f"two tasks  {speed_up['bsfg']:6.2f} times as fast as one; prebuilt Arrow {speed_up['arrow']}",
        f"at rest    {at_rest:6.2f} bytes a fact",
    ]
    return Report("spark", values, lines, described)


@contextmanager
def bench_session(folder: Path) -> Iterator[tuple[SparkSession, Mapping[str, Any]]]:
    """A session of its own with TASKS tasks at once, and the machine as it was before."""
    described = machine(folder)
    with _jvm_messages_in(folder / "spark.log"):
        spark = session("bench", f"local[{TASKS}]", {"spark.local.dir": str(folder / "spark")})
        try:
            yield spark, described
        finally:
            spark.stop()


@contextmanager
def _jvm_messages_in(log: Path) -> Iterator[None]:
    """Redirect to a file what the JVM writes to standard error at its start, and show it only if the block fails."""
    shown = os.dup(2)
    try:
        with log.open("wb") as aside:
            os.dup2(aside.fileno(), 2)
            yield
    except BaseException:
        os.write(shown, log.read_bytes()[-LOG_BYTES_SHOWN:])
        raise
    finally:
        os.dup2(shown, 2)
        os.close(shown)


def _fill(folder: Path, facts: int, seed: int) -> Files:
    """The store, and its rows in both other forms."""
    import pyarrow.parquet as pq

    with new_store(folder / "store") as filled:
        for _ in results(
            (filled.appends.append_samples(STREAM, samples) for samples in runs("A", seed, facts, BATCH_FACTS)),
            IN_FLIGHT,
        ):
            pass
    files = Files(folder / "store" / "facts.db", folder / "facts.arrow", folder / "facts.parquet")
    schema = arrow_schema(FACTS)
    with (
        pa.OSFile(str(files.arrow), "wb") as sink,
        pa.ipc.new_file(sink, schema) as arrow,
        StoreFile(str(files.store)).opened() as source,
    ):
        asked = Asked(STREAM, OffsetRange(1, facts), source.bounds(STREAM).life)
        for batch in record_batches(source, asked, schema, HoleLog(source.name, STREAM)):
            arrow.write(batch)
    with pa.memory_map(str(files.arrow)) as mapped:
        rows = pa.ipc.open_file(mapped).read_all()
        pq.write_table(rows, files.parquet, row_group_size=max(facts // TASKS, 1))
        pq.write_table(rows.slice(0, 1), files.first.parquet)
        with pa.OSFile(str(files.first.arrow), "wb") as sink, pa.ipc.new_file(sink, schema) as arrow:
            arrow.write_table(rows.slice(0, 1))
    return files


def _node(testbed: Testbed) -> dict[str, str]:
    """The options that read the same store over MQTT."""
    at = testbed.access(ASKING)
    files = {"caFile": at.ca_file, "certFile": at.cert_file, "keyFile": at.key_file}
    return {"transport": "mqtt", "host": at.host, "port": str(at.port), "peer": SERVING, **files}


def _readings(
    spark: SparkSession, files: Files, node: Mapping[str, str], facts: int
) -> Mapping[str, Mapping[str, Callable[[], None]]]:
    """What is measured, by question and source."""

    def prebuilt(names: Sequence[str], tasks: int, arrow: Path = files.arrow) -> DataFrame:
        reading = spark.read.format("prebuilt").option("tasks", tasks).schema(projection(names))
        return reading.load(str(arrow))

    def sources(
        columns: str, tasks: int = TASKS, where: Column | None = None, of: Files = files, end: str = "latest"
    ) -> dict[str, DataFrame]:
        names = columns.split() or FACTS.fieldNames()
        others = {
            "arrow": prebuilt(names, tasks, of.arrow),
            "parquet": spark.read.parquet(str(of.parquet)).select(*names),
        }
        rows = {
            "bsfg": facts_of(spark, files.store, columns=columns, numPartitions=tasks, endingOffsets=end),
            "mqtt": facts_of(spark, columns=columns, numPartitions=TASKS, endingOffsets=end, **node),
            **others,
        }
        return rows if where is None else {name: row.where(where) for name, row in rows.items()}

    def to_nowhere(rows: DataFrame) -> Callable[[], None]:
        return lambda: rows.write.format("noop").mode("overwrite").save()

    def counting(rows: DataFrame) -> Callable[[], None]:
        def count() -> None:
            assert rows.count() == facts, "a source lost facts"

        return count

    def summing(rows: DataFrame) -> Callable[[], None]:
        def add_up() -> None:
            assert rows.agg(F.sum("facts")).collect() == [(facts,)], "a source lost facts"

        return add_up

    by_rows = sources("")
    by_column = {
        "bsfg": facts_of(spark, files.store, columns="facts", numPartitions=TASKS),
        "mqtt": facts_of(spark, columns="facts", numPartitions=TASKS, **node),
        "arrow": prebuilt(["facts"], TASKS),
    }
    end_ns = START_NS + -(-facts // TAGS) * SCAN_NS

    def last(ns: int) -> Column:
        return F.col("ts") >= F.lit(datetime.fromtimestamp((end_ns - ns) // SCAN_NS, UTC))

    filters = {
        "part": last(min(HOUR_NS, (end_ns - START_NS) // 10)),
        "hundredth": last((end_ns - START_NS) // 100),
        "tag": F.col("tag") == definitions()[0].subject,
    }
    return {
        "all": {name: to_nowhere(rows) for name, rows in sources("").items()},
        "one_task": {name: to_nowhere(rows) for name, rows in sources("", 1).items() if name in {"bsfg", "arrow"}},
        "three": {name: to_nowhere(rows) for name, rows in sources(NARROW).items()},
        "start": {name: to_nowhere(rows) for name, rows in sources("", of=files.first, end="2").items()},
        "count": {name: counting(rows) for name, rows in by_rows.items()},
        "column": {name: summing(rows) for name, rows in by_column.items()} | {"parquet": counting(by_rows["parquet"])},
        **{
            question: {name: to_nowhere(rows) for name, rows in sources("", where=where).items()}
            for question, where in filters.items()
        },
    }


def _in_turns(readings: Mapping[str, Mapping[str, Callable[[], None]]], repeats: int) -> tuple[Measured, Measured]:
    """Seconds, and seconds of processor time, by question and source; the sources take turns."""
    seconds, cpu_s = (
        {question: {name: list[float]() for name in sources} for question, sources in readings.items()}
        for _ in range(2)
    )
    for turn in range(-1, repeats):
        for question, sources in readings.items():
            for name, reading in sources.items():
                start_s, before_s = time.perf_counter(), tree_cpu_s()
                reading()
                if turn >= 0:
                    seconds[question][name].append(time.perf_counter() - start_s)
                    cpu_s[question][name].append(tree_cpu_s() - before_s)
    return seconds, cpu_s


def _compared(
    facts: int, seconds: Mapping[str, Sequence[float]], cpu_s: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """A source of ours compared with the limit and Parquet, in facts of the whole store a second."""
    rate, mqtt, limit, parquet = (round(facts / median(seconds[name])) for name in ("bsfg", "mqtt", "arrow", "parquet"))
    ours_s, limit_s, parquet_s = (median(cpu_s[name]) for name in ("bsfg", "arrow", "parquet"))
    least_s = 0.01  # what the clock of processes shows
    return {
        "facts_per_s": rate,
        "limit": {
            "facts_per_s": limit,
            "cpu_s": rounded(limit_s),
            "cpu_by_parquet": rounded(limit_s / max(parquet_s, least_s)),
        },
        "ratio": rounded(rate / limit),
        "parquet_facts_per_s": parquet,
        "ratio_to_parquet": rounded(rate / parquet),
        "cpu_s": rounded(ours_s),
        "parquet_cpu_s": rounded(parquet_s),
        "cpu_by_parquet": rounded(ours_s / max(parquet_s, least_s)),
        "mqtt_facts_per_s": mqtt,
        "ratio_mqtt_to_file": rounded(mqtt / rate),
    }
