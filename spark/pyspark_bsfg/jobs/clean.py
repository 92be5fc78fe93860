"""Cleaned facts: one row for each fact, with its number, if it has a usable one. Core: DataFrames in and out, no IO.

    all columns of the landed table, and

    problem     NULL if nothing is wrong; else bad, uncertain, nan, infinite, or the name of the first rule that the fact breaks
    number      the value of a numeric fact without a problem; NULL otherwise, also for texts and messages

Only repetitions are dropped. Of rows with the same stream, zone, life and sequence, the one with the lowest offset
stays. Where two gateways have recorded for one zone, of the facts of a tag and time (messages: with the same id) those
of the highest life stay. There is no watermark: after a late fact its date and zone are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark programmer reads
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from agent.message import SampleRank
from pyspark_bsfg.jobs.settings import Rule
from pyspark_bsfg.schema import IDENTITY, LANDED

VERSION = 3  # of the rows; with another version every date and zone is computed again
CLEAN = StructType([*LANDED.fields, StructField("problem", StringType()), StructField("number", DoubleType())])

_SEVERITY_BITS = 30  # OPC UA part 4, 7.39: the top two bits of a StatusCode say 0 Good, 1 Uncertain, 2 or 3 Bad


def severity() -> Column:
    """0 Good, 1 Uncertain, 2 and 3 Bad; NULL for a message."""
    return F.shiftrightunsigned("quality", _SEVERITY_BITS)


def cleaned(facts: DataFrame, rules: Sequence[Rule] = (), *, is_uncertain_accepted: bool = False) -> DataFrame:
    """Rows of LANDED to rows of CLEAN."""
    # Facts with the same identity have the same tag and time, so that one order shows both kinds of repetitions.
    own_id = F.when(F.col("value_type") == "message", F.col("message_id"))
    time_ns, life, offset = SampleRank._fields
    place = Window.partitionBy("zone", "tag", "predicate", time_ns, own_id)
    identity = F.struct(*IDENTITY)
    before = F.lag(identity).over(place.orderBy(*IDENTITY, offset))
    marked = facts.withColumns({"highest": F.max(life).over(place), "before": before})
    is_new = F.col("before").isNull() | (F.col("before") != identity)
    single = marked.where((F.col(life) == F.col("highest")) & is_new).drop("highest", "before")
    problem = problem_of(rules, is_uncertain_accepted=is_uncertain_accepted)
    return single.withColumn("problem", problem).withColumn("number", F.when(F.col("problem").isNull(), F.col("value")))


def problem_of(rules: Sequence[Rule], *, is_uncertain_accepted: bool = False) -> Column:
    """Why the value of a fact is not used; NULL if nothing is wrong."""
    problem = F.when(severity() >= 2, "bad")
    if not is_uncertain_accepted:
        problem = problem.when(severity() == 1, "uncertain")
    problem = problem.when(F.isnan("value"), "nan").when(F.abs("value") == float("inf"), "infinite")
    for rule in rules:
        problem = problem.when(_broken(rule), rule.name)
    return problem


def tag_is(pattern: str) -> Column:
    """Whether the tag matches a pattern in which `*` stands for any text."""
    escaped = pattern.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return F.col("tag").like(escaped.replace("*", "%")) if "*" in pattern else F.col("tag") == pattern


def floored(number: Column, divisor: int) -> Column:
    """The quotient of a long, rounded down, in integers: a double is inexact at the edge of a window."""
    below = F.when(number % F.lit(divisor) < 0, 1).otherwise(0)
    return F.call_function("div", number, F.lit(divisor)) - below


def _broken(rule: Rule) -> Column:
    outside = F.lit(False)
    if rule.min is not None:
        outside |= F.col("value") < rule.min
    if rule.max is not None:
        outside |= F.col("value") > rule.max
    return tag_is(rule.tag) & outside
