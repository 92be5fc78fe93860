"""Detects each wrap and each restart of a counter, so that the count between two readings is exact. Core.

A reading is stored as the device gives it. A counter only increases, so a lower reading means that it has wrapped at
its modulus or that the device has restarted it. It counts as a wrap if the increase through the modulus is at most a
quarter of the modulus. That is the case for every counter that is read at least four times between two wraps. Otherwise
it is a restart, and the count between the last reading and the restart is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agent.columns import SampleColumns
from agent.ingest import quality
from agent.message import Envelope, Fact, Message, Value, canonical_json, time_text

WRAPPED, RESTARTED = "counter_wrapped", "counter_restarted"
WRAP_PART = 4  # a wrap is an increase of at most a quarter of the modulus


@dataclass(frozen=True, slots=True)
class CounterFall:
    """A reading below the previous one. `counted` is the count between them; None after a restart."""

    tag: int
    before: int | float
    before_ns: int
    after: int | float
    after_ns: int
    counted: int | float | None

    @property
    def predicate(self) -> str:
        return RESTARTED if self.counted is None else WRAPPED


class CounterTracker:
    """Keeps the last reading of each counter of a source. `last` gives the last reading of an earlier process by
    tag."""

    def __init__(self, moduli: Mapping[int, int | float], last: Callable[[int], tuple[int, Value]]) -> None:
        self._moduli, self._last = moduli, last
        self._readings: dict[int, tuple[int, int | float]] = {}

    def keep(self, moduli: Mapping[int, int | float]) -> None:
        """Follow exactly these counters. The moduli are in units of the values."""
        self._moduli = moduli
        self._readings = {tag: reading for tag, reading in self._readings.items() if tag in moduli}

    def falls(self, samples: SampleColumns) -> Iterator[CounterFall]:
        """The falls in these samples. Bad samples are ignored."""
        if not self._moduli:
            return
        for tag, time_ns, value, status in samples.rows():
            modulus = self._moduli.get(tag)
            if modulus is None or quality.is_bad(status) or not isinstance(value, int | float):
                continue
            before_ns, before = self._readings.get(tag) or self._last(tag)
            self._readings[tag] = time_ns, value
            if isinstance(before, int | float) and value < before:
                counted = value - before + modulus
                is_wrap = 0 <= counted <= modulus / WRAP_PART
                yield CounterFall(tag, before, before_ns, value, time_ns, counted if is_wrap else None)


def fall_message(fall: CounterFall, subject: str, zone: str) -> Message:
    """The fact that records a wrap or restart. Its id is derived from its content, so a repeated append is stored
    once."""
    content: dict[str, object] = {
        "after": fall.after,
        "after_time": time_text(fall.after_ns),
        "before": fall.before,
        "before_time": time_text(fall.before_ns),
    }
    if fall.counted is not None:
        content["counted"] = fall.counted
    identity = f"{zone}/{fall.predicate}/{subject}/{fall.before_ns}-{fall.after_ns}"
    envelope = Envelope(identity, from_zone=zone, to_zone="*", produced_at_unix_ms=fall.after_ns // 1_000_000)
    return Message(envelope, Fact(subject, fall.predicate, canonical_json(content)))
