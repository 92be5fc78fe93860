"""Parses times as people write them, in nanoseconds since 1970, and compares them as texts. Core: no IO.

Accepted are ISO 8601 and the output of SQLite's datetime(): `2026-11-21`, `2026-11-21 06:00`,
`2026-11-21T06:00:00.1234567Z`, `2026-11-21T07:00+01:00`. Without a zone the time is UTC. The product's own form
(`message.time_text`) ends in Z and has no trailing zeros in its fraction.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from agent.query.scan.errors import TimeUnreadable

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)? ?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_BEGINNING = re.compile(r"\s*\d{4}(?:-|\Z)", re.ASCII)
_AGO = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
"""The first and the last second that datetime has: years 1 to 9999."""
_TEXTS_KEPT = 4096


@lru_cache(_TEXTS_KEPT)
def parse_time_ns(text: str) -> int | None:
    """The time that a text names; None if it names none, or one whose year in UTC is not 1 to 9999."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        return None
    date, minute, second, fraction, _, sign, hours, minutes = found.groups()
    try:
        whole = datetime.fromisoformat(f"{date}T{minute or '00:00'}:{second or '00'}+00:00")
    except ValueError:
        return None
    seconds = (whole - _EPOCH) // timedelta(seconds=1)
    if sign:
        seconds -= (int(hours) * 3600 + int(minutes) * 60) * (1 if sign == "+" else -1)
    if not _FIRST_S <= seconds <= _LAST_S:
        return None
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


def parse_moment_ns(text: str, now_ns: int) -> int:
    """As `parse_time_ns`, or a time before now: `90s`, `15m`, `2h`, `7d`. Raises TimeUnreadable."""
    if ago := _AGO.fullmatch(text.strip()):
        return now_ns - int(ago[1]) * _SECONDS[ago[2]] * 1_000_000_000
    if (found := parse_time_ns(text)) is None:
        raise TimeUnreadable(f"{text!r} is not a time", "write 2026-11-21T06:00:00Z, or 2h for two hours ago")
    return found


def compare(first: str, second: str) -> int:
    """Compare two texts by the times that they name, or as texts if one of them only begins as one, as `2026-11` does;
    returns -1, 0 or 1. Raises TimeUnreadable for a text that does not."""
    if _is_ours(first) and _is_ours(second):
        left, right = first[:-1], second[:-1]
        return (left > right) - (left < right)
    first_ns, second_ns = parse_time_ns(first), parse_time_ns(second)
    if first_ns is None or second_ns is None:
        for text in (first, second):
            if not _BEGINNING.match(text):
                raise TimeUnreadable(f"{text!r} is not a time", "write 2026-11-21, or 2026-11-21 07:00+01:00")
        return (first.encode() > second.encode()) - (first.encode() < second.encode())
    return (first_ns > second_ns) - (first_ns < second_ns)


def _is_ours(text: str) -> bool:
    """Whether a text has the product's own form, in which texts compare like the times they name."""
    if len(text) < 20 or text[-1] != "Z" or text[4] + text[7] + text[10] + text[13] + text[16] != "--T::":
        return False
    return len(text) == 20 or text[-2] != "0"
