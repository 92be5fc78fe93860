"""Core: figures as people say them: `61 days`, `1.9 M`, `8.4 GB`, `in 19 h`. The exact figure goes into a title."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from math import floor, log10
from typing import Any

from agent.health.problems import duration

UNKNOWN = "unknown"
_FLOAT_MAX = sys.float_info.max  # an integer in JSON may be greater, and has no float
_YEARS_MS = 4_102_444_800_000  # 2100: a later time is a broken clock, and datetime ends at 9999


def number(value: object) -> float | None:
    """The value if it is a number; what another node recorded may be anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and -_FLOAT_MAX <= value <= _FLOAT_MAX else None  # type: ignore[operator,arg-type]


def text(value: object) -> str:
    """The value if it is text."""
    return value if isinstance(value, str) else ""


def entries(value: object) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def count(value: object) -> str:
    """A number with three digits at most: 8,420, 19.4 k, 1.9 M."""
    found = number(value)
    if found is None:
        return UNKNOWN
    for unit, least, size in (("G", 999.5e6, 1e9), ("M", 999.5e3, 1e6), ("k", 1e4, 1e3)):
        if abs(found) >= least:
            return f"{found / size:.3g} {unit}"
    return f"{found:,.0f}" if found == int(found) or abs(found) >= 1000 else f"{found:.3g}"


def size(value: object) -> str:
    """Bytes: 8.4 GB."""
    found = number(value)
    if found is None:
        return UNKNOWN
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if found >= 0.9995 * length:  # what three digits round up to it
            return f"{found / length:.3g} {unit}"
    return f"{found:.0f} B"


def age(seconds: object) -> str:
    """A duration, or that it is not known."""
    found = number(seconds)
    return UNKNOWN if found is None else f"{found:.0f} s" if 10 <= found < 120 else duration(found)


def moment(unix_ms: object) -> str:
    """A time in UTC, to the second."""
    found = number(unix_ms)
    if found is None or not 0 < found < _YEARS_MS:
        return UNKNOWN
    return f"{datetime.fromtimestamp(found / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def label(found: float, low: float, high: float) -> str:
    """A value on an axis from `low` to `high`, with as many digits as tell its ends apart, and no exponent below
    15."""
    magnitude = max(abs(low), abs(high)) or 1.0
    half = high / 2 - low / 2 or magnitude / 2  # the whole may have no float
    digits = 4 + floor(log10(magnitude / half / 2))
    return value(found, max(digits, min(floor(log10(magnitude)) + 1, 15)))


def value(found: object, digits: int = 7) -> str:
    """The value of a tag on one line."""
    if isinstance(found, float):
        return f"{found:,.{digits}g}"
    if isinstance(found, int) and abs(found) >= 10_000:  # a year has none
        return f"{found:,}"
    return "no value" if found is None else str(found)
