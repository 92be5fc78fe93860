"""Detects that the wall clock was set, by comparison with the monotonic clock while the store is open, and with the
newest recorded time when it is opened. Core: no IO.

Retention counts the store's own age, so no jump releases facts. But the times in facts recorded around a jump are
wrong, and readers need to know the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

CLOCK_JUMP_MS = 2_000
"""A difference between the wall clock and the monotonic clock from which the wall clock counts as set: above a leap
second, and far above the time between two readings."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Readings of the wall clock and the monotonic clock at one moment."""

    unix_ms: int
    monotonic_ns: int

    def jump_ms(self, now: ClockReading) -> int:
        """By how many milliseconds the wall clock was set between two readings; 0 if it was not."""
        passed_ms = (now.monotonic_ns - self.monotonic_ns) // 1_000_000
        jump_ms = now.unix_ms - self.unix_ms - passed_ms
        return jump_ms if abs(jump_ms) >= CLOCK_JUMP_MS else 0

    def jump_text(self, now: ClockReading) -> str:
        """The jump between two readings, for an operator."""
        jump_ms = self.jump_ms(now)
        how = "forward" if jump_ms > 0 else "back"
        return f"set {how} by {abs(jump_ms) / 1000:,.1f} s while the node ran, to {_utc(now.unix_ms)}"


def is_clock_behind(newest_unix_ms: int, now_unix_ms: int) -> bool:
    """Whether the wall clock is behind the newest time that the store has recorded."""
    return newest_unix_ms - now_unix_ms >= CLOCK_JUMP_MS


def clock_set_back(newest_unix_ms: int, now_unix_ms: int) -> str:
    """The message for an operator when `is_clock_behind` is true."""
    behind_s = (newest_unix_ms - now_unix_ms) / 1000
    return (
        f"the clock shows {_utc(now_unix_ms)}, {behind_s:,.1f} s before the newest facts were recorded"
        f" ({_utc(newest_unix_ms)}); check the clock and NTP"
    )


def _utc(unix_ms: int) -> str:
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms after 1970"
