"""Core: the samples of a tag as a picture of some hundred columns: least and greatest value in each, gaps, bad quality.

A time without samples is a gap if it is much longer than usual for the tag, or ends with a bad value; it is never
bridged by a line. Values that are not numbers have no picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from agent.page.words import number

BAD = 2  # severity of a StatusCode, its upper two bits; OPC 10000-4, 7.39.1
COLUMNS = 600
HEIGHT = 200.0
GAP_INTERVALS = 5
"""A gap is so many usual intervals; a device that misses one poll makes none."""


@dataclass(slots=True)
class Trend:
    """A picture of COLUMNS by HEIGHT. `paths`: outlines of the range between least and greatest, one for each time
    without a gap. `gaps` and `bad`: first column and width."""

    first_ms: int
    last_ms: int
    low: float | None = None
    high: float | None = None
    samples: int = 0
    paths: list[str] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    bad: list[tuple[float, float]] = field(default_factory=list)


def trend_of(
    times_ms: Sequence[int], values: Sequence[object], qualities: Sequence[int], first_ms: int, last_ms: int
) -> Trend:
    """The picture of samples in the order of their times."""
    trend = Trend(first_ms, last_ms, samples=len(times_ms))
    scale = COLUMNS / max(1, last_ms - first_ms)
    steps = [b - a for a, b in pairwise(times_ms)]
    gap_ms = max(GAP_INTERVALS * median(steps), 2 / scale) if steps else last_ms - first_ms
    runs: list[dict[int, tuple[float, float]]] = [{}]
    bad_from: int | None = None
    before_ms = first_ms
    for at_ms, value, quality in zip(times_ms, values, qualities, strict=True):
        found = None if quality >> 30 >= BAD else number(float(value) if isinstance(value, bool) else value)
        if at_ms - before_ms > gap_ms and bad_from is None:
            trend.gaps.append(((before_ms - first_ms) * scale, (at_ms - before_ms) * scale))
            runs.append({})
        before_ms = at_ms
        if found is None:
            if bad_from is None:
                bad_from = at_ms
                runs.append({})
            continue
        if bad_from is not None:
            trend.bad.append(((bad_from - first_ms) * scale, (at_ms - bad_from) * scale))
            bad_from = None
        column, run = int((at_ms - first_ms) * scale), runs[-1]
        low, high = run.get(column, (found, found))
        run[column] = min(low, found), max(high, found)
    if bad_from is not None:
        trend.bad.append(((bad_from - first_ms) * scale, (last_ms - bad_from) * scale))
    elif last_ms - before_ms > gap_ms:
        trend.gaps.append(((before_ms - first_ms) * scale, (last_ms - before_ms) * scale))
    _draw(trend, [run for run in runs if run])
    return trend


def _draw(trend: Trend, runs: list[dict[int, tuple[float, float]]]) -> None:
    """The outline of each run: along the greatest values, and back along the least."""
    if not runs:
        return
    trend.low = low = min(one[0] for run in runs for one in run.values())
    trend.high = high = max(one[1] for run in runs for one in run.values())
    scale = (HEIGHT - 8) / (high - low) if high > low else 0.0
    middle = HEIGHT / 2 if high == low else HEIGHT - 4

    def y(value: float) -> str:
        return f"{middle - (value - low) * scale:.1f}"

    for run in runs:
        columns = sorted(run)
        there = [f"{column} {y(run[column][1])}" for column in columns]
        back = [f"{column} {y(run[column][0])}" for column in reversed(columns)]
        end = f"{columns[-1] + 0.8} {y(run[columns[-1]][1])}"  # so that a single column is seen
        trend.paths.append(f"M{'L'.join([*there, end, *back])}Z")
