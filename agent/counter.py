"""Core: what a counter has counted from one reading to the next. The one rule of the sources and of the rollups.

A counter only rises. A lower reading is one of four things:

    wrap      the count through the modulus is at most a quarter of it, as it is for each counter that is read at least
              four times between two wraps
    restart   the counter goes on from the low reading, or from a lower one: it was set to 0
    nothing   it comes back, in one step, to at least the reading before: the low readings were wrong
    behind    the reading is of another life, above half of the reading before: two gateways read the counter, and their
              clocks differ. It counts nothing until it has passed the reading before

So a low reading counts nothing until a later one decides. Price: a restarted counter that passes its old reading in one
step is taken for one that came back, and what it counts is then too small by that reading, never too large. A reading
is a finite number; bad samples are not readings. A reading in another unit begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

WRAP_PART = 4  # a wrap is an increase of at most a quarter of the modulus
STEP_PART = 2  # a counter that goes on does not go from below half of its old reading past it in one step


class CounterChange(Enum):
    """What happened between two readings."""

    COUNTED = "counted"
    WRAPPED = "wrapped"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A value of the counter, its time, and the life that recorded it, if several may have."""

    value: float
    time_ns: int
    life: str = ""


@dataclass(frozen=True, slots=True)
class Increase:
    """What was counted since the reading `before`. Of a restart: since the counter was set to 0, before the reading
    `after`."""

    change: CounterChange
    before: CounterReading
    after: CounterReading
    counted: float


class CounterReader:
    """Follows the readings of one counter, in order. Without a modulus no fall is a wrap. Readings that are further
    apart than `apart_ns_max` are not compared: the later one begins anew."""

    def __init__(self, modulus: float | None = None, apart_ns_max: int | None = None) -> None:
        self._modulus, self._apart_ns_max = modulus, apart_ns_max
        self._unit: str | None = None
        self._last: CounterReading | None = None
        self._fallen: list[CounterReading] = []  # the first and the newest of the low readings since then, undecided
        self._old = 0.0  # the highest reading before a restart, while the counter is below it
        self._counted_since = 0.0  # then

    def read(self, reading: CounterReading, unit: str | None = None) -> Increase | None:
        """Take a reading. None if nothing is known to be counted by it."""
        if self._last is None or unit != self._unit or self._is_far(self._last, reading):
            self._unit, self._last, self._fallen, self._old = unit, reading, [], 0.0
            return None
        before, low = self._last, self._fallen
        rise = reading.value - before.value
        if reading.life != before.life and self._is_behind(before.value, rise):
            return None
        if rise >= 0:
            return self._accept(CounterChange.COUNTED, reading, self._without_restart(before, reading))
        if self._modulus and rise + self._modulus <= self._modulus / WRAP_PART:
            return self._accept(CounterChange.WRAPPED, reading, rise + self._modulus)
        if low and reading.value > low[-1].value:
            after = low[0]
            self._counted_since = reading.value + (self._counted_since if self._old else 0.0)
            self._old = max(self._old, before.value)
            return self._accept(CounterChange.RESTARTED, reading, reading.value, after)
        self._fallen = [*low[:1], reading]
        return None

    def _is_far(self, before: CounterReading, reading: CounterReading) -> bool:
        return self._apart_ns_max is not None and reading.time_ns - before.time_ns > self._apart_ns_max

    def _is_behind(self, before: float, rise: float) -> bool:
        """Whether a reading of another gateway can be one from before the last reading."""
        if self._modulus and rise > 0:  # the counter has wrapped between the two
            return rise - self._modulus >= -self._modulus / WRAP_PART
        return -before / STEP_PART < rise < 0

    def _without_restart(self, before: CounterReading, reading: CounterReading) -> float:
        """The rise; less if it shows that a restart was none, which has counted what came after it from 0."""
        rise = reading.value - before.value
        if not self._old:
            return rise
        if reading.value < self._old:
            self._counted_since += rise
            return rise
        old, self._old = self._old, 0.0
        if before.value > old / STEP_PART:
            return rise
        return max(0.0, reading.value - old - self._counted_since)

    def _accept(
        self, change: CounterChange, reading: CounterReading, counted: float, after: CounterReading | None = None
    ) -> Increase:
        before, self._last, self._fallen = self._last, reading, []
        assert before is not None
        return Increase(change, before, after or reading, counted)
