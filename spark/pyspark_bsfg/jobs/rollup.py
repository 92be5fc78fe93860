"""Rollups of cleaned facts by minute, hour and day. Core: DataFrames in and out, no IO.

Every fact, also a message or a bad reading, is in the `count` of exactly one row of each table. A number holds until
the next fact of its tag, of any quality, but no longer than `hold_s`. So a bad reading ends it, and a long silence is
not covered. Facts of two gateways with different times all count; `time_mean` is that of one. Time after midnight
counts in the next date, if that date has facts of the zone.

    date zone start tag predicate unit      the key; `start` of the window, UTC; a tag whose unit changes has two rows
    count good_count bad_count              facts; those with Good and with Bad quality (the rest: Uncertain, or messages)
    value_count min max mean first last     facts with a number, and their figures; by source time, then offset
    covered_s time_mean good_share          seconds in which a number held, the mean weighted with them, their share of
                                            the window
    increase increase_s rate                of counters: the sum of the increases at the readings of the window, each since the
                                            reading before, at most a day earlier; the seconds between them; the
                                            increase per second. So a silence counts in the window of the reading that
                                            ends it, and does not raise the rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from agent.counter import CounterReader, CounterReading
from agent.message import SampleRank
from pyspark_bsfg.jobs.clean import floored, severity, tag_is
from pyspark_bsfg.jobs.settings import DAY_S, Counter

VERSION = 3
WINDOWS_S = {"1m": 60, "1h": 3600, "1d": DAY_S}
KEY = ("date", "zone", "start", "tag", "predicate", "unit")
COLUMNS = ("date", "zone", "tag", "predicate", "unit", *SampleRank._fields, "quality", "number")
ROLLED = StructType([
    StructField("start", TimestampType()),
    *(StructField(name, StringType()) for name in ("tag", "predicate", "unit")),
    *(StructField(name, LongType()) for name in ("count", "good_count", "bad_count", "value_count")),
    *(StructField(name, DoubleType()) for name in ("min", "max", "mean", "first", "last")),
    *(StructField(name, DoubleType()) for name in ("covered_s", "time_mean", "good_share")),
    *(StructField(name, DoubleType()) for name in ("increase", "increase_s", "rate")),
    StructField("date", DateType()),
    StructField("zone", StringType()),
])  # fmt: skip

_MODULUS = "modulus"  # of a counter, 0 without; NULL for other tags
_INCREASE = StructType([StructField("increase", DoubleType()), StructField("increase_s", DoubleType())])
_SECOND_NS = 1_000_000_000
_MINUTE_NS = 60 * _SECOND_NS


def by_minute(facts: DataFrame, hold_s: int, counters: Sequence[Counter] = ()) -> DataFrame:
    """Rows of COLUMNS to ROLLED, a row for each minute, of the dates of the facts and the dates after them."""
    ordered = _with_increase(_with_order(facts), counters)
    since = F.col("source_time_ns")
    # NULL at the end of all times: a sum beyond int64 would end the job.
    held_until = F.try_add(since, F.lit(hold_s * _SECOND_NS))
    until = F.least(F.coalesce("next_ns", held_until), held_until)
    until = F.when(F.col("number").isNotNull(), F.coalesce(until, since)).otherwise(since)
    first = floored(since, _MINUTE_NS)
    last = F.when(until > since, floored(until - F.lit(1), _MINUTE_NS)).otherwise(first)
    spread = ordered.withColumns({"until_ns": until, "first": first, "last": last})
    spread = spread.withColumn("minute", F.explode(F.sequence("first", "last")))
    minute, minute_ns = F.col("minute"), F.lit(_MINUTE_NS)
    is_fact = minute == F.col("first")
    begin_ns = F.when(is_fact, since).otherwise(minute * minute_ns)
    end_ns = F.when(minute == F.col("last"), F.col("until_ns")).otherwise((minute + F.lit(1)) * minute_ns)
    pieces = spread.withColumns({
        "start": F.timestamp_seconds(minute * 60),
        "date": F.date_from_unix_date(floored(minute, DAY_S // 60).cast("int")),
        "is_fact": is_fact,  # the later pieces of a fact only count as covered time
        "covered_ns": end_ns - begin_ns,
    })  # fmt: skip
    figures = _figures(pieces.groupBy(*KEY))
    return _with_shares(figures, 60)


def coarser(rows: DataFrame, window_s: int) -> DataFrame:
    """Rows of ROLLED to wider windows, of at most a day."""
    begin_s = floored(F.unix_seconds("start"), window_s) * window_s
    weighted = F.sum(F.col("mean") * F.col("value_count")) / F.sum("value_count")
    time_weighted = F.sum(F.col("time_mean") * F.col("covered_s"))
    made = (
        rows.withColumn("begin", F.timestamp_seconds(begin_s))
        .groupBy(*("begin" if name == "start" else name for name in KEY))
        .agg(
            *(F.sum(name).alias(name) for name in ("count", "good_count", "bad_count", "value_count")),
            F.min("min").alias("min"),
            F.max("max").alias("max"),
            F.when(F.sum("value_count") > 0, weighted).alias("mean"),
            F.min_by("first", F.when(F.col("first").isNotNull(), F.col("start"))).alias("first"),
            F.max_by("last", F.when(F.col("last").isNotNull(), F.col("start"))).alias("last"),
            F.sum("covered_s").alias("covered_s"),
            time_weighted.alias("weighted"),
            *(F.sum(name).alias(name) for name in ("increase", "increase_s")),
        )
    )
    return _with_shares(made.withColumnRenamed("begin", "start"), window_s)


def _with_order(facts: DataFrame) -> DataFrame:
    """Facts with the time of the next fact of their tag, and their position in the order as one long, so that Spark
    aggregates by it without sorting again."""
    order = Window.partitionBy("zone", "tag", "predicate").orderBy(*SampleRank._fields)
    return facts.withColumns({
        "next_ns": F.lead("source_time_ns").over(order),
        "place": F.row_number().over(order),
    })  # fmt: skip


def _with_increase(facts: DataFrame, counters: Sequence[Counter]) -> DataFrame:
    """The increase that a reading of a counter shows, and the seconds in which it was counted; NULL for other facts,
    and if the reading before is more than a day old."""
    nothing = {name: F.lit(None).cast("double") for name in _INCREASE.fieldNames()}
    if not counters:
        return facts.withColumns(nothing)
    modulus = F.lit(None).cast("double")
    for counter in reversed(counters):  # the first that matches decides
        modulus = F.when(tag_is(counter.tag), float(counter.modulus or 0)).otherwise(modulus)
    made = facts.withColumn(_MODULUS, modulus)
    others = made.where(F.col(_MODULUS).isNull()).drop(_MODULUS).withColumns(nothing)
    series = ("zone", "tag", "predicate")
    fact = F.struct("place", *(name for name in facts.columns if name not in (*series, "place")))
    ordered = F.sort_array(F.collect_list(fact)).alias("facts")
    of_counter = made.where(F.col(_MODULUS).isNotNull()).groupBy(*series, _MODULUS).agg(ordered)
    # Arrow would need pandas, which executors need not have.
    read = F.udf(_read_counter, ArrayType(_INCREASE), useArrow=False)
    shown = read(_MODULUS, "facts.number", "facts.source_time_ns", "facts.life", "facts.unit")
    pair = F.explode(F.arrays_zip("facts", "shown")).alias("pair")
    counted = of_counter.withColumn("shown", shown).select(*series, pair)
    return others.unionByName(counted.select(*series, "pair.facts.*", "pair.shown.*"))


def _read_counter(
    modulus: float,
    numbers: Sequence[float | None],
    times_ns: Sequence[int],
    lives: Sequence[str],
    units: Sequence[str | None],
) -> list[tuple[float | None, float | None]]:
    """What `agent.counter` says of each fact of one counter."""
    reader = CounterReader(modulus or None, DAY_S * _SECOND_NS)
    found: list[tuple[float | None, float | None]] = []
    for value, time_ns, life, unit in zip(numbers, times_ns, lives, units, strict=True):
        increase = None if value is None else reader.read(CounterReading(value, time_ns, life), unit)
        shown = None if increase is None else (increase.counted, (time_ns - increase.before.time_ns) / _SECOND_NS)
        found.append(shown or (None, None))
    return found


def _figures(groups: object) -> DataFrame:
    number = F.when(F.col("is_fact"), F.col("number"))
    place = F.when(number.isNotNull(), F.col("place"))
    covered_s = F.sum("covered_ns") / F.lit(float(_SECOND_NS))
    weighted = F.sum(F.when(F.col("covered_ns") > 0, F.col("number") * F.col("covered_ns"))) / F.lit(float(_SECOND_NS))
    found: DataFrame = groups.agg(  # type: ignore[attr-defined]  # GroupedData is no public name
        F.count_if("is_fact").alias("count"),
        F.count_if(F.col("is_fact") & (severity() == 0)).alias("good_count"),
        F.count_if(F.col("is_fact") & (severity() >= 2)).alias("bad_count"),
        F.count(number).alias("value_count"),
        F.min(number).alias("min"),
        F.max(number).alias("max"),
        F.avg(number).alias("mean"),
        F.min_by(number, place).alias("first"),
        F.max_by(number, place).alias("last"),
        covered_s.alias("covered_s"),
        weighted.alias("weighted"),
        *(F.sum(F.when(F.col("is_fact"), F.col(name))).alias(name) for name in ("increase", "increase_s")),
    )
    return found


def _with_shares(rows: DataFrame, window_s: int) -> DataFrame:
    covered = F.col("covered_s")
    made = rows.withColumns({
        "time_mean": F.when(covered > 0, F.col("weighted") / covered),
        "good_share": covered / F.lit(float(window_s)),
        "rate": F.when(F.col("increase_s") > 0, F.col("increase") / F.col("increase_s")),
    })  # fmt: skip
    return made.select(*ROLLED.fieldNames())
