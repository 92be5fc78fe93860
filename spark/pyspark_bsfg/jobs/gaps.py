"""Gaps in the facts of each tag, compared with the losses that nodes have declared. Core: DataFrames in and out, no IO.

`found_within` finds the gaps of one date and zone, which can be kept; `report` joins the dates, which is little work.

    zone tag kind       the tag, and what is missing
                          missing   no fact for longer than expected, then another
                          stale     facts came, but none without a problem for longer than expected
                          silent    no fact since then until `as_of`; or none ever, of a tag that the settings name
                        Facts of the future, after `as_of`, count when their time has come.
    begin end seconds   the last fact (or fact without a problem) before, and the next one; NULL if there is none. A tag
                        that never had a fact without a problem is stale since its first one
    expected_s          how far apart the facts of this tag may be
    declared_by         predicate and reason of each declaration that explains the gap, or NULL. Losses of sources have
                        times: together they must leave no part of the gap uncovered for longer than `expected_s`. A
                        node's loss (expired, damaged) has the sequences of an origin, and unread facts have offsets:
                        one of these between the ends explains the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

from pyspark_bsfg.jobs.clean import floored, tag_is
from pyspark_bsfg.jobs.settings import Expected

VERSION = 1
COLUMNS = ("date", "zone", "tag", "source_time_ns", "offset", "life", "sequence", "value_type", "problem")
END = StructType([
    StructField("ns", LongType()),
    StructField("offset", LongType()),
    StructField("life", StringType()),
    StructField("sequence", LongType()),
])  # fmt: skip
WITHIN = StructType([
    *(StructField(name, StringType()) for name in ("tag", "kind")),
    *(StructField(name, END) for name in ("begin", "end")),
    StructField("date", DateType()),
    StructField("zone", StringType()),
])  # fmt: skip
GAP = ("zone", "tag", "kind", "begin", "end")
SAMPLES_LOST, UNREAD = "samples_lost", "facts_unread"
OF_ORIGINS = ("facts_expired", "facts_damaged")  # losses of a node, by zone, life and sequences
TAGS_NAMED_MAX = 20  # agent/ingest/gap.py: a declaration with fewer tags names them all

_SECOND_NS = 1_000_000_000


def expected_s(default_s: float, tags: Sequence[Expected]) -> Column:
    """How far apart the facts of a tag may be; the first setting that matches decides."""
    found = F.lit(float(default_s))
    for expected in reversed(tags):
        found = F.when(tag_is(expected.tag), F.lit(float(expected.expected_s))).otherwise(found)
    return found


def found_within(facts: DataFrame, limit_s: Column) -> DataFrame:
    """Rows of COLUMNS to WITHIN: gaps that begin and end on one date, of the kinds missing and stale; and for each tag
    one row `facts` and one `usable` with the first and the last of the date."""
    samples = facts.where("value_type <> 'message'")
    samples = samples.withColumn("here", F.struct(F.col("source_time_ns").alias("ns"), "offset", "life", "sequence"))
    usable = F.when(F.col("problem").isNull(), F.col("here"))
    days = Window.partitionBy("date", "zone", "tag").orderBy("here")
    ordered = samples.withColumns({
        "before": F.lag("here").over(days),
        "usable_before": F.last(usable, ignorenulls=True).over(days.rowsBetween(Window.unboundedPreceding, -1)),
    })  # fmt: skip
    limit_ns = limit_s * _SECOND_NS
    missing = ordered.where(_from_to("before.ns", "here.ns") > limit_ns)
    is_stale = usable.isNotNull() & (_from_to("usable_before.ns", "here.ns") > limit_ns)
    stale = ordered.where(is_stale & (F.col("usable_before") != F.col("before")))
    groups = samples.groupBy("date", "zone", "tag")
    spans = groups.agg(F.min("here").alias("begin"), F.max("here").alias("end"))
    good = groups.agg(F.min(usable).alias("begin"), F.max(usable).alias("end")).where("begin IS NOT NULL")
    found = (
        _rows(missing, "missing", "before", "here"),
        _rows(stale, "stale", "usable_before", "here"),
        _rows(spans, "facts", "begin", "end"),
        _rows(good, "usable", "begin", "end"),
    )
    return reduce(DataFrame.unionAll, found)


def report(within: DataFrame, incidents: DataFrame, limit_s: Column, as_of_ns: int, named: Sequence[str]) -> DataFrame:
    """Rows of WITHIN of all dates, and of the incidents table, to GAP. `named` tags are expected in any zone. Facts
    after `as_of_ns` are of the future, and end no gap."""
    gaps = within.where("kind IN ('missing', 'stale')").select(*GAP)
    for kind, edge in (("missing", "facts"), ("stale", "usable")):
        gaps = gaps.unionAll(_across_dates(within, kind, edge, limit_s))
    gaps = gaps.where(F.col("end.ns") <= as_of_ns)
    # A gap of all facts is also a gap of the usable ones; report it once.
    twice = gaps.where("kind = 'missing'").withColumn("kind", F.lit("stale"))
    gaps = gaps.join(twice, list(GAP), "left_anti").select(*GAP)
    gaps = gaps.unionAll(_open_ended(within, limit_s, as_of_ns)).unionAll(_never(within, named))
    declared = _declared(gaps.withColumn("expected_s", limit_s), incidents)
    return declared.select(
        *("zone", "tag", "kind"),
        _time("begin").alias("begin"),
        _time("end").alias("end"),
        (_from_to("begin.ns", "end.ns") / float(_SECOND_NS)).alias("seconds"),
        *("expected_s", "declared_by"),
    )


def _rows(rows: DataFrame, kind: str, begin: str, end: str) -> DataFrame:
    ends = (F.col(begin).alias("begin"), F.col(end).alias("end"))
    return rows.select("tag", F.lit(kind).alias("kind"), *ends, "date", "zone")


def _across_dates(within: DataFrame, kind: str, edge: str, limit_s: Column) -> DataFrame:
    """Gaps between the last row of one date and the first row of the next date that has any."""
    dates = Window.partitionBy("zone", "tag").orderBy("begin")
    edges = within.where(F.col("kind") == edge).withColumn("before", F.lag("end").over(dates))
    found = edges.where(_from_to("before.ns", "begin.ns") > limit_s * _SECOND_NS)
    return _rows(found, kind, "before", "begin").select(*GAP)


def _open_ended(within: DataFrame, limit_s: Column, as_of_ns: int) -> DataFrame:
    """Gaps that last until now: tags without a fact, or without a usable one."""
    unknown = (F.lit(None).cast(field.dataType).alias(field.name) for field in END.fields[1:])
    now = F.struct(F.lit(as_of_ns).cast("long").alias("ns"), *unknown)

    def last(whole: str, *gaps: str) -> Column:
        """Of one date. Where facts of the future follow, it is the last one before the gap that these end; without such
        a gap the tag is alive."""
        return F.min(
            F.when(F.col("kind") == whole, F.when(F.col("end.ns") <= as_of_ns, F.col("end")).otherwise(now)).when(
                F.col("kind").isin(*gaps) & (F.col("end.ns") > as_of_ns), F.col("begin")
            )
        )

    known = within.where(F.col("begin.ns") <= as_of_ns)
    of_dates = known.groupBy("zone", "tag", "date").agg(
        last("facts", "missing").alias("seen"),
        last("usable", "missing", "stale").alias("sound"),
        F.min("begin").alias("first"),
    )
    sound = F.coalesce(F.max("sound"), F.min("first")).alias("sound")
    ends = of_dates.groupBy("zone", "tag").agg(F.max("seen").alias("seen"), sound)

    def open_since(kind: str, since: str) -> DataFrame:
        rows = ends.where(_from_to(f"{since}.ns", F.lit(as_of_ns)) > limit_s * _SECOND_NS)
        return rows.where("seen.ns > sound.ns" if kind == "stale" else "true").select(
            "zone", "tag", F.lit(kind).alias("kind"), F.col(since).alias("begin"), now.alias("end")
        )

    return open_since("silent", "seen").unionAll(open_since("stale", "sound"))


def _never(within: DataFrame, named: Sequence[str]) -> DataFrame:
    """Tags that the settings name and that have no fact at all."""
    tags = within.sparkSession.createDataFrame([(tag,) for tag in named], "tag string")
    absent = tags.join(within.select("tag").distinct(), "tag", "left_anti")
    nothing = (F.lit(None).cast(END).alias(name) for name in ("begin", "end"))
    return absent.select(F.lit(None).cast("string").alias("zone"), "tag", F.lit("silent").alias("kind"), *nothing)


def _declared(gaps: DataFrame, incidents: DataFrame) -> DataFrame:
    """Each gap with the declarations that explain it, if there are any."""
    detail = {name: F.get_json_object("detail", f"$.{name}") for name in ("first_time", "last_time", "reason")}
    origins = F.from_json(
        F.get_json_object("detail", "$.origins"),
        "array<struct<zone:string,life:string,first_sequence:long,last_sequence:long>>",
    )
    declarations = incidents.where(F.col("what").isin(SAMPLES_LOST, UNREAD, *OF_ORIGINS)).select(
        "what",
        F.col("zone").alias("of_zone"),
        F.col("offset").alias("first_offset"),
        F.col("last_offset").alias("until_offset"),
        _nanoseconds(detail["first_time"]).alias("first_ns"),
        _nanoseconds(detail["last_time"]).alias("last_ns"),
        detail["reason"].alias("reason"),
        F.from_json(F.get_json_object("detail", "$.tags"), "array<string>").alias("tags"),
        F.explode_outer(origins).alias("origin"),
    )
    is_of_source = (F.col("what") == SAMPLES_LOST) & (F.col("of_zone") == F.col("zone")) & _names() & _is_within()
    found = gaps.join(declarations, is_of_source | _was_between() | _is_of_origin(), "left")
    by, is_loss = F.concat_ws(" ", "what", "reason"), F.col("what") == SAMPLES_LOST
    declared = found.groupBy(*gaps.columns).agg(
        F.sort_array(F.collect_list(F.when(is_loss, F.struct("first_ns", "last_ns")))).alias("losses"),
        F.collect_set(F.when(is_loss, by)).alias("by_losses"),
        F.collect_set(F.when(~is_loss, by)).alias("by_others"),
    )
    is_covered = _uncovered_ns("losses") <= F.col("expected_s") * _SECOND_NS
    names = F.array_union("by_others", F.when(is_covered, F.col("by_losses")).otherwise(F.array()))
    declared_by = F.when(F.size(names) > 0, F.array_join(F.sort_array(names), ", "))
    return declared.select(*gaps.columns, declared_by.alias("declared_by"))


def _is_within() -> Column:
    """Whether the loss of a source overlaps a gap or touches it."""
    return (F.col("last_ns") >= F.col("begin.ns")) & (F.col("first_ns") <= F.col("end.ns"))


def _uncovered_ns(losses: str) -> Column:
    """The longest part of a gap that no loss covers; `losses` are in order."""
    nothing = F.struct(F.col("begin.ns").alias("reached_ns"), F.lit(0).cast("long").alias("longest_ns"))

    def with_loss(found: Column, loss: Column) -> Column:
        begin_ns = F.greatest(found["reached_ns"], loss["first_ns"])
        longest = F.greatest(found["longest_ns"], _from_to(found["reached_ns"], begin_ns))
        return F.struct(
            F.greatest(found["reached_ns"], loss["last_ns"]).alias("reached_ns"), longest.alias("longest_ns")
        )

    def with_rest(found: Column) -> Column:
        end_ns = F.greatest(found["reached_ns"], F.col("end.ns"))
        return F.greatest(found["longest_ns"], _from_to(found["reached_ns"], end_ns))

    return F.aggregate(losses, nothing, with_loss, with_rest)


def _names() -> Column:
    return (F.size("tags") >= TAGS_NAMED_MAX) | (F.size("tags") == 0) | F.array_contains("tags", F.col("tag"))


def _was_between() -> Column:
    """Whether facts that no task could read lie between the ends of a gap."""
    low, high = F.least("begin.offset", "end.offset"), F.greatest("begin.offset", "end.offset")
    return (F.col("what") == UNREAD) & (F.col("first_offset") < high) & (F.col("until_offset") > low)


def _is_of_origin() -> Column:
    """Whether facts that a node lost lie between the ends of a gap, by the sequences of their origin. Lives sort by
    their begin, and one that lies between those of the ends is lost whole."""
    is_after = F.col("origin.last_sequence") > F.col("begin.sequence")
    is_before = F.col("origin.first_sequence") < F.col("end.sequence")
    begun, ended = (F.col("origin.life") == F.col(f"{end}.life") for end in ("begin", "end"))
    lives = F.least("begin.life", "end.life"), F.greatest("begin.life", "end.life")
    is_between = F.col("origin.life").between(*lives) & (is_after | ~begun) & (is_before | ~ended)
    return F.col("what").isin(*OF_ORIGINS) & (F.col("origin.zone") == F.col("zone")) & is_between


def _nanoseconds(text: Column) -> Column:
    return F.try_multiply(F.unix_micros(F.try_to_timestamp(text)), F.lit(1000))


def _from_to(earlier: Column | str, later: Column | str) -> Column:
    """The ns between two times, at most the largest long: clocks may be centuries wrong."""
    begin, end = (F.col(time) if isinstance(time, str) else time for time in (earlier, later))
    between = F.coalesce(F.try_subtract(end, begin), F.lit(2**63 - 1))
    return F.when(begin.isNotNull() & end.isNotNull(), between)


def _time(end: str) -> Column:
    return F.timestamp_micros(floored(F.col(f"{end}.ns"), 1000))
