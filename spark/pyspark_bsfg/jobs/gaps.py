"""Gaps in the facts of each tag, set against the losses that nodes have declared. Core: DataFrames in and out, no IO.

`found_within` looks at one date and zone and can be kept; `report` joins the dates, which is little work.

    zone tag kind       what is missing of which tag
                          missing   no fact for longer than expected, then another
                          stale     no usable number, text or message for longer than expected, though facts came
                          silent    no fact since, until `as_of`; or none ever, of a tag that was expected by its name
    begin end seconds   the last fact (or usable fact) before, and the next one; NULL where there is none
    expected_s          how far apart the facts of this tag may be
    declared_by         the predicate and the reason of the declaration that covers the gap but for `expected_s`, or NULL.
                        Facts that no task could read (facts_unread) have no times: they cover a gap if their offsets
                        lie between its ends.

A gap is compared with each declaration alone: two that cover it only together leave it undeclared.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pyspark_bsfg.jobs.clean import tag_is
from pyspark_bsfg.jobs.settings import Expected

VERSION = 1
COLUMNS = ("date", "zone", "tag", "source_time_ns", "offset", "value_type", "problem")
WITHIN = StructType([
    *(StructField(name, StringType()) for name in ("tag", "kind")),
    *(StructField(name, LongType()) for name in ("begin_ns", "end_ns", "begin_offset", "end_offset")),
    StructField("date", DateType()),
    StructField("zone", StringType()),
])  # fmt: skip
GAP = ("zone", "tag", "kind", "begin", "end", "seconds", "expected_s", "declared_by")
SAMPLES_LOST, UNREAD = "samples_lost", "facts_unread"

_SECOND_NS = 1_000_000_000


def expected_s(default_s: float, tags: Sequence[Expected]) -> Column:
    """How far apart the facts of a tag may be; the first setting that matches decides."""
    found = F.lit(float(default_s))
    for one in reversed(tags):
        found = F.when(tag_is(one.tag), F.lit(float(one.expected_s))).otherwise(found)
    return found


def found_within(facts: DataFrame, limit_s: Column) -> DataFrame:
    """Rows of COLUMNS to WITHIN: gaps that begin and end on one date, of the kinds missing and stale; and for each tag
    one row `facts` and one `usable` with the first and the last of the date."""
    samples = facts.where("value_type <> 'message'")
    days = Window.partitionBy("date", "zone", "tag").orderBy("source_time_ns", "offset")
    usable = F.when(F.col("problem").isNull(), F.struct(F.col("source_time_ns").alias("ns"), "offset"))
    told = samples.withColumns({
        "before": F.lag(F.struct(F.col("source_time_ns").alias("ns"), "offset")).over(days),
        "usable_before": F.last(usable, ignorenulls=True).over(days.rowsBetween(Window.unboundedPreceding, -1)),
    })  # fmt: skip
    now, limit_ns = F.col("source_time_ns"), limit_s * _SECOND_NS
    missing = told.where(now - F.col("before.ns") > limit_ns).select(*_gap("missing", "before"))
    is_stale = F.col("problem").isNull() & (now - F.col("usable_before.ns") > limit_ns)
    stale = told.where(is_stale & (F.col("usable_before.offset") != F.col("before.offset")))
    groups = samples.groupBy("date", "zone", "tag")
    each = groups.agg(*_edges(F.lit(True))).select("tag", F.lit("facts").alias("kind"), *_EDGES, "date", "zone")
    good = groups.agg(*_edges(F.col("problem").isNull())).where("begin_ns IS NOT NULL")
    good = good.select("tag", F.lit("usable").alias("kind"), *_EDGES, "date", "zone")
    return missing.unionAll(stale.select(*_gap("stale", "usable_before"))).unionAll(each).unionAll(good)


def report(within: DataFrame, incidents: DataFrame, limit_s: Column, as_of_ns: int, named: Sequence[str]) -> DataFrame:
    """Rows of WITHIN of all dates, and of the incidents table, to GAP. `named` tags are expected in any zone."""
    gaps = within.where("kind IN ('missing', 'stale')").drop("date")
    for kind, edge in (("missing", "facts"), ("stale", "usable")):
        gaps = gaps.unionByName(_across_dates(within, kind, edge, limit_s))
    # A gap of all facts is one of the usable ones too; it is told once.
    twice = gaps.where("kind = 'missing'").select("zone", "tag", "begin_ns", "end_ns")
    gaps = gaps.join(
        twice.withColumn("kind", F.lit("stale")), ["zone", "tag", "begin_ns", "end_ns", "kind"], "left_anti"
    )
    gaps = gaps.unionByName(_open_ended(within, limit_s, as_of_ns))
    columns = ("zone", "tag", "kind", "begin_ns", "end_ns", "begin_offset", "end_offset")
    never = within.sparkSession.createDataFrame([(one,) for one in named], "tag string")
    never = never.join(within.select("tag").distinct(), "tag", "left_anti")
    empty = {name: F.lit(None).cast("long") for name in columns[3:]}
    never = never.withColumns({"zone": F.lit(None).cast("string"), "kind": F.lit("silent"), **empty})
    every = gaps.select(*columns).unionAll(never.select(*columns)).withColumn("expected_s", limit_s)
    told = _declared(every, incidents)
    return told.select(
        *("zone", "tag", "kind"),
        _time("begin_ns").alias("begin"),
        _time("end_ns").alias("end"),
        ((F.col("end_ns") - F.col("begin_ns")) / float(_SECOND_NS)).alias("seconds"),
        *("expected_s", "declared_by"),
    )


_EDGES = ("begin_ns", "end_ns", "begin_offset", "end_offset")


def _edges(chosen: Column) -> list[Column]:
    place = F.when(chosen, F.struct(F.col("source_time_ns").alias("ns"), "offset"))
    low, high = F.min(place), F.max(place)
    return [
        one.alias(name)
        for one, name in zip((low["ns"], high["ns"], low["offset"], high["offset"]), _EDGES, strict=True)
    ]


def _gap(kind: str, before: str) -> list[Column | str]:
    ends = (F.col(f"{before}.ns"), F.col("source_time_ns"), F.col(f"{before}.offset"), F.col("offset"))
    return [
        "tag", F.lit(kind).alias("kind"), *(one.alias(name) for one, name in zip(ends, _EDGES, strict=True)), "date", "zone"
    ]  # fmt: skip


def _across_dates(within: DataFrame, kind: str, edge: str, limit_s: Column) -> DataFrame:
    """Between the last row of one date and the first of the next one that has any."""
    dates = Window.partitionBy("zone", "tag").orderBy("begin_ns")
    told = within.where(F.col("kind") == edge).withColumns({
        "last_ns": F.lag("end_ns").over(dates), "last_offset": F.lag("end_offset").over(dates)
    })  # fmt: skip
    found = told.where(F.col("begin_ns") - F.col("last_ns") > limit_s * _SECOND_NS)
    return found.select(
        *("zone", "tag"),
        F.lit(kind).alias("kind"),
        F.col("last_ns").alias("begin_ns"),
        F.col("begin_ns").alias("end_ns"),
        F.col("last_offset").alias("begin_offset"),
        F.col("begin_offset").alias("end_offset"),
    )


def _open_ended(within: DataFrame, limit_s: Column, as_of_ns: int) -> DataFrame:
    """Tags without a fact, or without a usable one, until now."""
    ends = within.where("kind IN ('facts', 'usable')").groupBy("zone", "tag")
    last = ends.agg(
        F.max(F.when(F.col("kind") == "facts", F.struct("end_ns", "end_offset"))).alias("any"),
        F.max(F.when(F.col("kind") == "usable", F.struct("end_ns", "end_offset"))).alias("good"),
    )
    until, limit_ns = F.lit(as_of_ns), limit_s * _SECOND_NS

    def gap(kind: str, since: str) -> list[Column | str]:
        end = F.col(f"{since}.end_ns"), until, F.col(f"{since}.end_offset"), F.lit(None).cast("long")
        return ["zone", "tag", F.lit(kind).alias("kind"), *(c.alias(n) for c, n in zip(end, _EDGES, strict=True))]

    silent = last.where(until - F.col("any.end_ns") > limit_ns).select(*gap("silent", "any"))
    is_stale = F.col("any.end_ns") > F.col("good.end_ns")
    stale = last.where((until - F.col("good.end_ns") > limit_ns) & is_stale).select(*gap("stale", "good"))
    return silent.unionAll(stale)


def _declared(gaps: DataFrame, incidents: DataFrame) -> DataFrame:
    """Each gap with the declaration that covers it, if there is one."""
    detail = {name: F.get_json_object("detail", f"$.{name}") for name in ("first_time", "last_time", "reason", "tags")}
    told = incidents.where(F.col("what").isin(SAMPLES_LOST, UNREAD)).select(
        F.col("what"),
        F.when(F.col("what") == SAMPLES_LOST, F.col("zone")).alias("of_zone"),
        _nanoseconds(detail["first_time"]).alias("first_ns"),
        _nanoseconds(detail["last_time"]).alias("last_ns"),
        F.col("offset").alias("first_offset"),
        F.col("last_offset").alias("until_offset"),
        detail["reason"].alias("reason"),
        F.from_json(detail["tags"], "array<string>").alias("tags"),
    )
    low, high = F.least("begin_offset", "end_offset"), F.greatest("begin_offset", "end_offset")
    between = (F.col("first_offset") < high) & (F.col("until_offset") > low)
    overlap_ns = F.least("end_ns", "last_ns") - F.greatest("begin_ns", "first_ns")
    uncovered_ns = F.col("end_ns") - F.col("begin_ns") - overlap_ns
    covers = (overlap_ns >= 0) & (uncovered_ns <= F.col("expected_s") * _SECOND_NS)
    # A declaration names its first twenty tags only; one with fewer names them all.
    is_of = (F.size("tags") >= 20) | (F.size("tags") == 0) | F.array_contains("tags", F.col("tag"))
    of_time = (F.col("what") == SAMPLES_LOST) & (F.col("of_zone") == F.col("zone")) & is_of & covers
    of_offset = (F.col("what") == UNREAD) & between
    by = F.when(F.col("what").isNotNull(), F.concat_ws(" ", "what", "reason"))
    return gaps.join(told, of_time | of_offset, "left").groupBy(*gaps.columns).agg(F.min(by).alias("declared_by"))


def _nanoseconds(text: Column) -> Column:
    return F.unix_micros(F.try_to_timestamp(text)) * 1000


def _time(name: str) -> Column:
    return F.timestamp_micros(F.call_function("div", F.col(name) - F.pmod(F.col(name), F.lit(1000)), F.lit(1000)))
