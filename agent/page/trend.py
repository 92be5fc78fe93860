"""Core: the samples of a tag as a picture of some hundred columns: least and greatest value in each, gaps, bad quality.

A time without samples is a gap if it is much longer than usual for the tag, or ends with a bad value; it is never
bridged by a line. Values that are not numbers have no picture; their last changes are listed instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any, cast

from agent.message import Json, Value, json_value
from agent.page.words import number

BAD = 2  # severity of a StatusCode, its upper two bits; OPC 10000-4, 7.39.1
COLUMNS = 600
HEIGHT = 200.0
CHANGES_MAX = 50
GAP_INTERVALS = 5
"""A gap is so many usual intervals; a device that misses one poll makes none."""

_Run = list[tuple[int, float, float]]
"""By column: the least and the greatest value."""


@dataclass(slots=True)
class Trend:
    """A picture of COLUMNS by HEIGHT. `paths`: outlines of the range between least and greatest, one for each time
    without a gap. `gaps` and `bad`: first column and width. `changes`: of values that are no numbers, time, value and
    quality, newest first."""

    first_ms: int
    last_ms: int
    low: float | None = None
    high: float | None = None
    samples: int = 0
    paths: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    bad: list[tuple[float, float]] = field(default_factory=list)
    changes: list[tuple[int, object, int]] = field(default_factory=list)


def trend_of(
    times_ms: Sequence[int], values: Sequence[Value], qualities: Sequence[int], first_ms: int, last_ms: int
) -> Trend:
    """The picture of samples in the order of their times."""
    trend = Trend(first_ms, last_ms, samples=len(times_ms))
    if not {str, bytes, Json}.isdisjoint(map(type, values)):
        trend.changes = _changes(times_ms, values, qualities)
        return trend
    span_ms = max(1, last_ms - first_ms)
    scale = COLUMNS / span_ms
    steps = [b - a for a, b in pairwise(times_ms)]
    gap_ms = max(GAP_INTERVALS * median(steps), 2 / scale) if steps else last_ms - first_ms
    found = _numbers(values, qualities)
    is_good = [value is not None for value in found]
    cuts = [at for at, step in enumerate(steps) if (step > gap_ms and is_good[at]) or is_good[at] != is_good[at + 1]]
    if not times_ms or times_ms[0] - first_ms > gap_ms:
        trend.gaps.append((0.0, ((times_ms[0] if times_ms else last_ms) - first_ms) * scale))
    runs, start = list[_Run](), 0
    for stop in (*(at + 1 for at in cuts), len(times_ms)) if times_ms else ():
        end_ms = times_ms[stop] if stop < len(times_ms) else last_ms
        from_ms = times_ms[stop - 1 if is_good[start] else start]
        part = ((from_ms - first_ms) * scale, (end_ms - from_ms) * scale)
        if not is_good[start]:
            trend.bad.append(part)
        else:
            runs.append(_columns(times_ms, found, range(start, stop), first_ms, span_ms))
            if end_ms - from_ms > gap_ms:
                trend.gaps.append(part)
        start = stop
    if runs:
        _draw(trend, runs)
    return trend


def _numbers(values: Sequence[object], qualities: Sequence[int]) -> Sequence[Any]:
    """The values, None for a bad one. In C where all are good and finite: a day of a second's tag is in one picture."""
    is_plain = set(map(type, values)) <= {float, int} and max(qualities, default=0) >> 30 < BAD
    if is_plain and all(map(isfinite, cast("Sequence[float]", values))):
        return values
    return [
        None if quality >> 30 >= BAD else number(float(value) if isinstance(value, bool) else value)
        for value, quality in zip(values, qualities, strict=True)
    ]


def _changes(
    times_ms: Sequence[int], values: Sequence[Value], qualities: Sequence[int]
) -> list[tuple[int, object, int]]:
    states = list(zip(values, qualities, strict=True))
    changed = [at for at, state in enumerate(states) if not at or state != states[at - 1]]
    return [(times_ms[at], json_value(values[at]), qualities[at]) for at in reversed(changed[-CHANGES_MAX:])]


def _columns(times_ms: Sequence[int], found: Sequence[Any], places: range, first_ms: int, span_ms: int) -> _Run:
    """The least and the greatest value of each column that has one."""
    run, at = _Run(), places.start
    while at < places.stop:
        column = (times_ms[at] - first_ms) * COLUMNS // span_ms
        ends_ms = first_ms - (-(column + 1) * span_ms // COLUMNS)
        upto = bisect_left(times_ms, ends_ms, at, places.stop)
        part = found[at:upto]
        run.append((column, min(part), max(part)))
        at = upto
    return run


def _draw(trend: Trend, runs: list[_Run]) -> None:
    """The outline of each run: along the greatest values, and back along the least."""
    trend.low = low = float(min(least for run in runs for _, least, _ in run))
    trend.high = high = float(max(greatest for run in runs for _, _, greatest in run))
    scale = (HEIGHT - 8) / (high - low) if high > low else 0.0
    middle = HEIGHT / 2 if high == low else HEIGHT - 4

    def y(value: float) -> str:
        return f"{middle - (value - low) * scale:.1f}"

    for run in runs:
        there = [f"{column} {y(greatest)}" for column, _, greatest in run]
        back = [f"{column} {y(least)}" for column, least, _ in reversed(run)]
        last, _, greatest = run[-1]
        end = f"{last + 0.8} {y(greatest)}"  # so that a single column is seen
        trend.paths.append(f"M{'L'.join([*there, end, *back])}Z")
