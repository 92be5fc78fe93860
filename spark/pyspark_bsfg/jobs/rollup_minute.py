"""Per-minute rollup of every tag to Parquet, one directory per UTC date and origin zone.

    spark-submit spark/pyspark_bsfg/jobs/rollup_minute.py --store /var/lib/bsfg/enterprise/facts.db --out /data/rollup_minute

The range of facts is fixed before Spark starts and rolled up completely. Each affected date and zone is overwritten, so
a second run gives the same rows and a late fact corrects its day. Nothing is filtered out: every fact of the range,
also a message or a bad reading, is in the `count` of exactly one row. The program counts the facts as Spark reads them
and again in the files it wrote, prints both as JSON on its last line, and exits with status 1 if they differ. Damaged
facts are counted as missing and reported. If retention releases facts meanwhile, the run ends, because a day would
shrink.

The rows are written beside the days first, and a date and zone that would count fewer facts than its files do now keeps
these files: a disk that has lost facts must not take them out of a good rollup. Each is named, and the exit status is
1. With --accept-fewer such a day is overwritten too.

    date zone minute tag predicate unit     the key; a tag whose unit changes has two rows, never a mixed mean
    count good_count bad_count              facts; of those with Good and with Bad quality (the rest: Uncertain, or messages)
    value_count                             facts that give a number: Good, numeric, not NaN; only these enter what follows
    min max mean first last                 of these numbers; `first` and `last` by source time, then offset
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads

from agent.batch import Origin
from agent.errors import BsfgError
from pyspark_bsfg.errors import JobRefused, OptionError
from pyspark_bsfg.options import TELEMETRY, Options
from pyspark_bsfg.ranges import OffsetRange, resolve
from pyspark_bsfg.session import check, session
from pyspark_bsfg.transports import places

JOB = "rollup_minute"
COLUMNS = "offset long, zone string, tag string, predicate string, source_time_ns long, value double, quality long, unit string"
KEY = ("date", "zone", "minute", "tag", "predicate", "unit")
ROWS_SHOWN = 8

_MINUTE_NS = 60_000_000_000
_MINUTE_NS_BITS = 36  # bits of a time within a minute
_NEAR_OFFSETS = 2 ** (63 - _MINUTE_NS_BITS)  # offsets that fit beside it into one long
_DAY_MINUTES = 1440
_SEVERITY_BITS = 30  # OPC UA part 4, 7.39: the top two bits of a StatusCode say 0 Good, 1 Uncertain, 2 or 3 Bad
_MARK = "_bsfg_rollup.json"  # Spark and others pass over files that begin with an underscore
_ASIDE = "_bsfg_rollup_aside"  # a run that was stopped leaves it; the next one overwrites it


@dataclass(frozen=True, slots=True)
class Days:
    """UTC dates to roll up, both included; None is without an end."""

    first: date | None = None
    last: date | None = None

    def chosen(self, day: Column) -> Column:
        """Whether a date is one of them."""
        after = F.lit(True) if self.first is None else day >= F.lit(self.first)
        return after if self.last is None else after & (day <= F.lit(self.last))


@dataclass(frozen=True, slots=True)
class KeptDay:
    """A date and zone whose files stay, because they count more facts than were found now."""

    date: str
    zone: str
    count: int
    found: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What one run did; printed as JSON. Equal counts are the proof that no fact was lost on the way."""

    job: str
    master: str
    store: str
    stream: str
    out: str
    first_offset: int
    end_offset: int
    facts_read: int
    facts_rolled_up: int
    facts_kept_out: int
    facts_missing: int
    bad_quality: int
    rows: int
    duration_ms: int
    kept: list[KeptDay] = field(default_factory=list)
    sample: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether the files hold every fact that was read, but for those of days that were kept as they were."""
        return self.facts_read == self.facts_rolled_up + self.facts_kept_out


def with_day(facts: DataFrame) -> DataFrame:
    """Facts with `date` and `minute` in UTC whatever the session's zone, in integers: a double errs at a minute's
    edge."""
    minute_ns = F.col("source_time_ns") - F.pmod(F.col("source_time_ns"), F.lit(_MINUTE_NS))
    minutes = F.call_function("div", minute_ns, F.lit(_MINUTE_NS))
    days = F.call_function("div", minutes - F.pmod(minutes, F.lit(_DAY_MINUTES)), F.lit(_DAY_MINUTES))
    return facts.withColumns(
        {
            "minute": F.timestamp_seconds(minutes * 60),
            "date": F.date_from_unix_date(days.cast("int")),
        }
    )


def rollup(facts: DataFrame, offsets: OffsetRange) -> DataFrame:
    """Facts with a day to rows of KEY; `offsets` encloses theirs."""
    severity = F.shiftrightunsigned("quality", _SEVERITY_BITS)
    number = F.when((severity == 0) & ~F.isnan("value"), F.col("value"))
    order = arrival(offsets)
    return facts.groupBy(*KEY).agg(
        F.count(F.lit(1)).alias("count"),
        F.count_if(severity == 0).alias("good_count"),
        F.count_if(severity >= 2).alias("bad_count"),
        F.count(number).alias("value_count"),
        F.min(number).alias("min"),
        F.max(number).alias("max"),
        F.avg(number).alias("mean"),
        F.min_by(number, F.when(number.isNotNull(), order)).alias("first"),
        F.max_by(number, F.when(number.isNotNull(), order)).alias("last"),
    )


def arrival(offsets: OffsetRange) -> Column:
    """What orders the facts of one minute: source time, then offset.

    As one long where both fit, because Spark sorts all facts to aggregate over anything wider; that took three times as
    long.
    """
    if offsets.facts > _NEAR_OFFSETS:
        return F.struct("source_time_ns", "offset")
    within = F.pmod(F.col("source_time_ns"), F.lit(_MINUTE_NS))
    return within * F.lit(_NEAR_OFFSETS) + (F.col("offset") - F.lit(offsets.first))


def run(
    spark: SparkSession,
    reading: Mapping[str, str],
    out: Path,
    *,
    days: Days | None = None,
    is_fewer_accepted: bool = False,
) -> Summary:
    """Roll up what a stream holds now into `out`; `reading` are options of the data source. Raises JobRefused,
    SparkError or the store's errors; see the module."""
    started_ns = time.monotonic_ns()
    days = days or Days()
    check(spark)
    name, stream, held, origin = look(reading)
    _check_whole(held, days)
    _claim(out, origin, stream)
    read = Observation("read")
    range_read: dict[str, str | int] = {"startOffset": held.first, "endOffset": held.last, "whenReleased": "fail"}
    facts = spark.read.format("bsfg").schema(COLUMNS).options(**(dict(reading) | range_read)).load()
    is_chosen = days.chosen(F.col("date"))
    found, chosen = F.count(F.lit(1)).alias("found"), F.count_if(is_chosen).alias("chosen")
    counted = with_day(facts).observe(read, found, chosen).where(is_chosen)
    aside = out / _ASIDE
    _write(rollup(counted, held), aside, "static")
    rolled = _rows(spark, aside, days)
    kept = [] if is_fewer_accepted else _fewer(_counts(rolled), _counts(_rows(spark, out, days)))
    published = rolled.where(~F.concat_ws(" ", "date", "zone").isin([f"{one.date} {one.zone}" for one in kept]))
    _write(published, out, "dynamic")
    # Counted in the files themselves, of the days that this run wrote.
    written = _rows(spark, out, days).join(published.select("date", "zone").distinct(), ["date", "zone"], "left_semi")
    total = written.agg(F.sum("count"), F.sum("bad_count"), F.count(F.lit(1))).first()
    assert total is not None, "an aggregate without groups has one row"
    summary = Summary(
        job=JOB,
        master=str(spark.sparkContext.master),
        store=name,
        stream=stream,
        out=str(out),
        first_offset=held.first,
        end_offset=held.last,
        facts_read=int(read.get["chosen"]),
        facts_rolled_up=int(total[0] or 0),
        facts_kept_out=sum(one.found for one in kept),
        facts_missing=held.facts - int(read.get["found"]),
        bad_quality=int(total[1] or 0),
        rows=int(total[2]),
        duration_ms=(time.monotonic_ns() - started_ns) // 1_000_000,
        kept=kept,
        sample=_sample(written),
    )
    shutil.rmtree(aside)
    return summary


def look(reading: Mapping[str, str]) -> tuple[str, str, OffsetRange, Origin]:
    """Name of the one store that these options name, its stream, the range to roll up, and the store's own origin."""
    options = Options.of(reading)
    stores = places(options)
    if len(stores) > 1:
        raise JobRefused(f"{len(stores)} stores are named", "roll up each into a folder of its own")
    with stores[0].opened() as source:
        held = source.bounds(options.stream)
        offsets = resolve(held.offsets, options.start_offset, options.end_offset)
        return source.name, options.stream, offsets, Origin(source.zone, bytes.fromhex(held.epoch))


def _write(rows: DataFrame, out: Path, overwrite: str) -> None:
    """Rows as one file for each date and zone; `overwrite` all of the folder (static) or the days in `rows` (dynamic)."""
    (
        rows.repartition("date", "zone")
        .sortWithinPartitions("date", "zone", "tag", "minute")
        .write.mode("overwrite")
        .option("partitionOverwriteMode", overwrite)
        .partitionBy("date", "zone")
        .parquet(str(out))
    )


def _counts(rows: DataFrame) -> dict[tuple[str, str], int]:
    """Facts by date and zone."""
    found = (
        rows.groupBy(F.col("date").cast("string").alias("date"), "zone").agg(F.sum("count").alias("facts")).collect()
    )
    return {(row["date"], row["zone"]): row["facts"] for row in found}


def _fewer(now: Mapping[tuple[str, str], int], before: Mapping[tuple[str, str], int]) -> list[KeptDay]:
    """The days that would count fewer facts than before; also those of which nothing was found."""
    return [
        KeptDay(day, zone, count, now.get((day, zone), 0))
        for (day, zone), count in sorted(before.items())
        if count > now.get((day, zone), 0)
    ]


def _check_whole(held: OffsetRange, days: Days) -> None:
    """Refuse to overwrite a day that was once complete with what retention has left of it."""
    if held.first > 1 and days.first is None:
        raise JobRefused(
            f"the store has released the facts before {held.first}: days rolled up before would shrink",
            "name the first day whose facts are all still there, --from YYYY-MM-DD",
        )


def _claim(out: Path, origin: Origin, stream: str) -> None:
    """Mark a folder as this stream's, or raise JobRefused when it is another's: overwriting would mix or lose its
    days."""
    ours = {"job": JOB, "store": str(origin), "stream": stream}
    mark = out / _MARK
    try:
        if mark.exists():
            theirs = json.loads(mark.read_text("utf-8"))
            if theirs != ours:
                raise JobRefused(f"{out} holds the rollup of {theirs}, this one is of {ours}", "name another folder")
        elif out.exists() and any(out.iterdir()):
            raise JobRefused(f"{out} is not empty and no rollup of this program", "name another folder")
        else:
            out.mkdir(parents=True, exist_ok=True)
            mark.write_text(json.dumps(ours), "utf-8")
    except (OSError, json.JSONDecodeError) as error:
        raise JobRefused(f"{out} cannot be used: {error}", "name a folder that this user may write") from error


def _rows(spark: SparkSession, out: Path, days: Days) -> DataFrame:
    """The rows on disk of the days that are rolled up; none where nothing has been written yet."""
    columns = (
        "minute timestamp, tag string, predicate string, unit string, count long, good_count long, bad_count long, "
        "value_count long, min double, max double, mean double, first double, last double, date date, zone string"
    )
    return spark.read.schema(columns).parquet(str(out)).where(days.chosen(F.col("date")))


def _sample(rows: DataFrame) -> list[dict[str, Any]]:
    """The first rows, for people."""
    shown = rows.select(
        F.date_format("minute", "yyyy-MM-dd HH:mm").alias("minute"),
        "zone",
        "tag",
        "count",
        "min",
        "mean",
        "max",
        "last",
    )
    found = shown.orderBy("minute", "zone", "tag").limit(ROWS_SHOWN).collect()
    return [{name: _json(value) for name, value in row.asDict().items()} for row in found]


def _json(value: Any) -> Any:
    """JSON has no infinities and no NaN; they are shown as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; its exit status."""
    parser = argparse.ArgumentParser(
        prog=JOB, description="Roll up the facts of a store per minute and tag, to Parquet."
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--store", type=Path, help="the store's file, facts.db in the node's state_dir")
    where.add_argument(
        "--option",
        dest="options",
        action="append",
        metavar="NAME=VALUE",
        help="instead, an option of the data source, such as transport=mqtt; repeatable",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the Parquet files, one folder for each stream"
    )
    parser.add_argument("--stream", help=f"default: {TELEMETRY}")
    parser.add_argument("--from", dest="first", type=date.fromisoformat, help="first UTC date to roll up, YYYY-MM-DD")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, help="last UTC date to roll up")
    parser.add_argument(
        "--accept-fewer", action="store_true", help="overwrite a day also where that leaves fewer facts than it has now"
    )
    asked = parser.parse_args(arguments)
    try:
        reading = {"path": str(asked.store.absolute())} if asked.store else _pairs(asked.options)
        reading |= {"stream": asked.stream} if asked.stream else {}
        if "spark-files:" not in "".join(reading.values()):  # which only Spark can find
            look(reading)  # before Spark takes its seconds to start
        spark = session(f"bsfg {JOB}")
        try:
            summary = run(
                spark,
                reading,
                asked.out.absolute(),
                days=Days(asked.first, asked.last),
                is_fewer_accepted=asked.accept_fewer,
            )
        finally:
            spark.stop()
    except (BsfgError, PySparkException) as error:
        print(f"{JOB}: {error}", file=sys.stderr)
        return 1
    status = _report(summary)
    # At the end of everything else, for who reads both streams as one.
    sys.stderr.flush()
    print(json.dumps(asdict(summary)), flush=True)
    return status


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """Options as they were typed. Raises OptionError."""
    if wrong := [text for text in texts if "=" not in text]:
        raise OptionError(f"--option {wrong[0]!r}", "write --option NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _report(summary: Summary) -> int:
    """Say on standard error what is wrong with a result; the exit status."""
    if summary.facts_missing:
        damaged = f"{summary.facts_missing} facts could not be read: the disk has damaged them"
        print(f"{JOB}: {damaged}; run bsfg store verify on the node", file=sys.stderr)
    for day in summary.kept:
        kept = f"{day.date} of {day.zone} is kept: it counts {day.count} facts, now {day.found} were found"
        print(f"{JOB}: {kept}; --accept-fewer overwrites it", file=sys.stderr)
    if not summary.is_equal:
        found = f"{summary.facts_read} facts read, {summary.facts_rolled_up} in the files"
        print(f"{JOB}: {found}; run it again, and report this", file=sys.stderr)
    return 1 if summary.kept or not summary.is_equal else 0


if __name__ == "__main__":
    sys.exit(main())
