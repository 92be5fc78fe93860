"""What the jobs must give, in plain Python, one fact at a time; it shares no code with them, and can take the facts
from `bsfg sql`."""

import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agent.message import Sample
from tests.spark.making import DEFINITIONS, SECOND_NS, UNCERTAIN

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
    life: str = ""

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


def counting(told: Iterable[Told]) -> list[Told]:
    """Those of a tag and time that the highest life has recorded."""
    facts = list(told)
    highest: dict[Key, str] = defaultdict(str)
    for fact in facts:
        highest[(*fact.series, fact.sample.source_time_ns)] = max(
            fact.life, highest[(*fact.series, fact.sample.source_time_ns)]
        )
    return [fact for fact in facts if fact.life == highest[(*fact.series, fact.sample.source_time_ns)]]


def number(fact: Told, limits: dict[str, tuple[float, float]]) -> tuple[str | None, float | None]:
    """Problem and number; `limits` by tag."""
    value = fact.sample.value
    if fact.severity >= 2:
        return "bad", None
    if fact.severity == 1:
        return "uncertain", None
    if not isinstance(value, int | float):
        return None, None
    if math.isnan(value):
        return "nan", None
    if math.isinf(value):
        return "infinite", None
    low, high = limits.get(fact.definition.subject, (-math.inf, math.inf))
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
    for fact in told:
        series[fact.series].append(fact)
    rows: dict[Key, dict[str, Any]] = defaultdict(lambda: defaultdict(float, numbers=[], count=0))
    days = {(fact.zone, fact.day) for group in series.values() for fact in group}
    window_ns = window_s * SECOND_NS
    for group in series.values():
        group.sort(key=lambda fact: (fact.sample.source_time_ns, fact.offset))
        subject = group[0].definition.subject
        readings = [
            (number(fact, limits)[1], fact.definition.unit, fact.sample.source_time_ns, fact.life) for fact in group
        ]
        increases = counted(readings, modulus[subject]) if subject in modulus else {}
        for place, (fact, after) in enumerate(zip(group, [*group[1:], None], strict=True)):
            at_ns, (_, value) = fact.sample.source_time_ns, number(fact, limits)
            row = rows[key(fact, at_ns // window_ns, window_s)]
            row["count"] += 1
            row["good_count"] += fact.severity == 0
            row["bad_count"] += fact.severity >= 2
            if value is None:
                continue
            row["numbers"].append(value)
            until_ns = min(at_ns + hold_s * SECOND_NS, after.sample.source_time_ns if after else 2**62)
            for window in range(at_ns // window_ns, (max(until_ns - 1, at_ns)) // window_ns + 1):
                if (fact.zone, window * window_s // DAY_S) not in days:
                    continue
                held_ns = min(until_ns, (window + 1) * window_ns) - max(at_ns, window * window_ns)
                if held_ns > 0 or window == at_ns // window_ns:
                    held = rows[key(fact, window, window_s)]
                    held["covered_s"] += held_ns / SECOND_NS
                    held["weighted"] += value * held_ns / SECOND_NS if held_ns else 0
            if place in increases:
                row["increase"] += increases[place][0]
                row["increase_s"] += increases[place][1] / SECOND_NS
                row["counted"] = 1
    return {key_of_row: figures(row, window_s) for key_of_row, row in rows.items()}


def counted(readings: list[tuple[float | None, str, int, str]], modulus: int | None) -> dict[int, tuple[float, int]]:
    """By place, what a counter has counted since the reading before, and in how many ns: value, unit, time and life of
    each fact, None where it has no number."""
    found: dict[int, tuple[float, int]] = {}
    known = [(place, *reading) for place, reading in enumerate(readings) if reading[0] is not None]
    for _, of_unit in groupby(known, key=lambda entry: entry[2]):
        base: tuple[float, int, str] | None = None
        low: list[float] = []
        high = since_reset = 0.0  # before a reset that the counter has not made up for; what it has counted since
        for place, value, _, at_ns, life in of_unit:
            assert value is not None
            if base is None or at_ns - base[1] > DAY_S * SECOND_NS:
                base, low, high = (value, at_ns, life), [], 0.0
                continue
            before, before_ns, before_life = base
            if life != before_life and (
                before / 2 < value < before or (modulus and value - before >= modulus * 3 / 4)
            ):  # read by the other gateway, whose clock is behind
                continue
            wrapped = value + (modulus or 0) - before
            if value >= before:  # also where it comes back after low readings
                amount = value - before
                if high and value < high:
                    since_reset += amount
                elif high:  # past the old reading: from far below in one step, there was no reset
                    amount = amount if before > high / 2 else max(0.0, value - high - since_reset)
                    high = 0.0
            elif modulus and wrapped <= modulus / 4:
                amount = wrapped
            elif low and value > low[-1]:  # it goes on from a low reading: it was set to 0
                amount = value
                high, since_reset = max(high, before), value + (since_reset if high else 0.0)
            else:
                low.append(value)
                continue
            found[place] = amount, at_ns - before_ns
            base, low = (value, at_ns, life), []
    return found


def local_days(rows: dict[Key, dict[str, Any]], zone: str) -> dict[Key, tuple[int, float]]:
    """From rows by hour: facts and covered seconds by day of a time zone, zone, tag, predicate and unit."""
    found: dict[Key, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for (_, plant, start, *what), row in rows.items():
        day: date = start.astimezone(ZoneInfo(zone)).date()
        facts, covered = found[day, plant, *what]
        covered_s = row["covered_s"]
        found[day, plant, *what] = facts + row["count"], covered + getattr(covered_s, "expected", covered_s)
    return dict(found)


def by_sql(store: Path) -> list[Told]:
    """The facts of a store as `bsfg sql` tells them, in the order in which it has received them."""
    query = "SELECT *, life FROM facts WHERE stream = 'facts.telemetry' ORDER BY \"offset\""
    command = [sys.executable, "-m", "agent.cli", "sql", "--json", "--file", str(store), query]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [of_sql(json.loads(line), n) for n, line in enumerate(lines, 1)]


def of_sql(row: dict[str, Any], offset: int) -> Told:
    """A fact as `bsfg sql` tells it. A message has a place in the order, and neither number nor Good or Bad quality."""
    named = SimpleNamespace(subject=row["subject"], predicate=row["predicate"], unit=row["unit"] or "")
    kind, value, quality = row["value_type"], row["value"], row["quality"]
    if kind == "double":
        value = math.nan if value is None else float(value)
    elif kind == "bool":
        value = bool(value)
    elif kind is None:
        value, quality = None, UNCERTAIN
    return Told(row["zone"], offset, Sample(1, row["source_time_ns"], value, quality), named, row["life"])


def key(fact: Told, window: int, window_s: int) -> Key:
    """Of a row."""
    start = EPOCH + timedelta(seconds=window * window_s)
    return (
        start.date(),
        fact.zone,
        start,
        fact.definition.subject,
        fact.definition.predicate,
        fact.definition.unit or None,
    )


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
