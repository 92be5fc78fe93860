"""Records each wrap and each restart of a counter, so that the count between two readings is exact. Core.

A reading is stored as the device gives it. Which fall is a wrap, a restart or neither is decided in `agent.counter`. A
restart is recorded when the counter goes on from it; the count between the last reading and the restart is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agent.columns import SampleColumns
from agent.counter import CounterChange, CounterReader, CounterReading
from agent.ingest import quality
from agent.message import Envelope, Fact, Message, Value, canonical_json, json_value, time_text

WRAPPED, RESTARTED = "counter_wrapped", "counter_restarted"


@dataclass(frozen=True, slots=True)
class CounterFall:
    """A reading below the previous one. `counted` is the count between them; None after a restart."""

    tag: int
    before: float
    before_ns: int
    after: float
    after_ns: int
    counted: float | None

    @property
    def predicate(self) -> str:
        return RESTARTED if self.counted is None else WRAPPED


class CounterTracker:
    """Follows the counters of a source. `last` gives the last reading of an earlier process by tag."""

    def __init__(self, moduli: Mapping[int, float], last: Callable[[int], tuple[int, Value]]) -> None:
        self._moduli, self._last = moduli, last
        self._readers: dict[int, CounterReader] = {}

    def keep(self, moduli: Mapping[int, float]) -> None:
        """Follow exactly these counters. The moduli are in units of the values."""
        self._readers = {
            tag: reader for tag, reader in self._readers.items() if moduli.get(tag) == self._moduli.get(tag)
        }
        self._moduli = moduli

    def falls(self, samples: SampleColumns) -> Iterator[CounterFall]:
        """The wraps and restarts that these samples show. Bad samples are ignored."""
        if not self._moduli:
            return
        for tag, time_ns, value, status in samples.rows():
            if tag not in self._moduli or quality.is_bad(status) or not isinstance(value, int | float):
                continue
            increase = self._reader(tag).read(CounterReading(value, time_ns))
            if increase is None or increase.change is CounterChange.COUNTED:
                continue
            before, after = increase.before, increase.after
            counted = increase.counted if increase.change is CounterChange.WRAPPED else None
            yield CounterFall(tag, before.value, before.time_ns, after.value, after.time_ns, counted)

    def _reader(self, tag: int) -> CounterReader:
        if tag not in self._readers:
            self._readers[tag] = CounterReader(self._moduli[tag])
            before_ns, before = self._last(tag)
            if isinstance(before, int | float):
                self._readers[tag].read(CounterReading(before, before_ns))
        return self._readers[tag]


def fall_message(fall: CounterFall, subject: str, zone: str) -> Message:
    """The fact that records a wrap or restart. Its id is derived from its content, so a repeated append is stored
    once."""
    content: dict[str, object] = {
        "after": json_value(fall.after),
        "after_time": time_text(fall.after_ns),
        "before": json_value(fall.before),
        "before_time": time_text(fall.before_ns),
    }
    if fall.counted is not None:
        content["counted"] = json_value(fall.counted)
    identity = f"{zone}/{fall.predicate}/{subject}/{fall.before_ns}-{fall.after_ns}"
    envelope = Envelope(identity, from_zone=zone, to_zone="*", produced_at_unix_ms=fall.after_ns // 1_000_000)
    return Message(envelope, Fact(subject, fall.predicate, canonical_json(content)))
