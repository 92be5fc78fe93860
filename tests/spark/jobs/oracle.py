"""What the jobs must give, in plain Python, one fact at a time; it shares no code with them but the rule of
counters."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.counter import CounterReader, Reading
from agent.message import Sample
from tests.spark.making import DEFINITIONS, SECOND_NS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_S = 86_400
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Told:
    """A fact of a zone; `named` has its subject, predicate and unit where it is not of DEFINITIONS."""

    zone: str
    offset: int
    sample: Sample
    named: Any = None

    @property
    def definition(self) -> Any:
        return self.named or DEFINITIONS[self.sample.tag - 1]

    @property
    def severity(self) -> int:
        """0 Good, 1 Uncertain, 2 and 3 Bad: the top two bits of a StatusCode."""
        return self.sample.quality // 2**30

    @property
    def series(self) -> Key:
        return self.zone, self.definition.subject, self.definition.predicate

    @property
    def day(self) -> int:
        return self.sample.source_time_ns // (DAY_S * SECOND_NS)


def number(one: Told, limits: dict[str, tuple[float, float]]) -> tuple[str | None, float | None]:
    """Problem and number; `limits` by tag."""
    value = one.sample.value
    if one.severity >= 2:
        return "bad", None
    if one.severity == 1:
        return "uncertain", None
    if not isinstance(value, int | float):
        return None, None
    if math.isnan(value):
        return "nan", None
    if math.isinf(value):
        return "infinite", None
    low, high = limits.get(one.definition.subject, (-math.inf, math.inf))
    return (None, float(value)) if low <= value <= high else ("range", None)


def rollup(
    told: Iterable[Told],
    window_s: int,
    hold_s: int,
    modulus: dict[str, int | None],
    limits: dict[str, tuple[float, float]],
) -> dict[Key, dict[str, Any]]:
    """(date, zone, start, tag, predicate, unit) to figures."""
    series: dict[Key, list[Told]] = defaultdict(list)
    for one in told:
        series[one.series].append(one)
    rows: dict[Key, dict[str, Any]] = defaultdict(lambda: defaultdict(float, numbers=[], count=0))
    days = {(one.zone, one.day) for group in series.values() for one in group}
    window_ns = window_s * SECOND_NS
    for group in series.values():
        group.sort(key=lambda one: (one.sample.source_time_ns, one.offset))
        subject = group[0].definition.subject
        reader = CounterReader(modulus[subject], DAY_S * SECOND_NS) if subject in modulus else None
        for one, after in zip(group, [*group[1:], None], strict=True):
            at_ns, (_, value) = one.sample.source_time_ns, number(one, limits)
            row = rows[key(one, at_ns // window_ns, window_s)]
            row["count"] += 1
            row["good_count"] += one.severity == 0
            row["bad_count"] += one.severity >= 2
            if value is None:
                continue
            row["numbers"].append(value)
            until_ns = min(at_ns + hold_s * SECOND_NS, after.sample.source_time_ns if after else 2**62)
            for window in range(at_ns // window_ns, (max(until_ns - 1, at_ns)) // window_ns + 1):
                if (one.zone, window * window_s // DAY_S) not in days:
                    continue
                held_ns = min(until_ns, (window + 1) * window_ns) - max(at_ns, window * window_ns)
                if held_ns > 0 or window == at_ns // window_ns:
                    held = rows[key(one, window, window_s)]
                    held["covered_s"] += held_ns / SECOND_NS
                    held["weighted"] += value * held_ns / SECOND_NS if held_ns else 0
            increase = reader.read(Reading(value, at_ns), one.definition.unit) if reader else None
            if increase:
                row["increase"] += increase.counted
                row["increase_s"] += (at_ns - increase.before.time_ns) / SECOND_NS
                row["counted"] = 1
    return {one: figures(row, window_s) for one, row in rows.items()}


def key(one: Told, window: int, window_s: int) -> Key:
    """Of a row."""
    start = EPOCH + timedelta(seconds=window * window_s)
    return start.date(), one.zone, start, one.definition.subject, one.definition.predicate, one.definition.unit or None


def figures(row: dict[str, Any], window_s: int) -> dict[str, Any]:
    """A finished row."""
    numbers, covered, counted = row["numbers"], row["covered_s"], bool(row["counted"])

    def near(value: float) -> Any:
        return pytest.approx(value, rel=1e-9, abs=1e-9)

    return {
        "count": row["count"],
        "good_count": row["good_count"],
        "bad_count": row["bad_count"],
        "value_count": len(numbers),
        "min": min(numbers, default=None),
        "max": max(numbers, default=None),
        "mean": near(sum(numbers) / len(numbers)) if numbers else None,
        "first": numbers[0] if numbers else None,
        "last": numbers[-1] if numbers else None,
        "covered_s": near(covered),
        "time_mean": near(row["weighted"] / covered) if covered else None,
        "good_share": near(covered / window_s),
        "increase": near(row["increase"]) if counted else None,
        "increase_s": near(row["increase_s"]) if counted else None,
        "rate": near(row["increase"] / row["increase_s"]) if counted and row["increase_s"] else None,
    }
