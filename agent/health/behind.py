"""How far behind the consumers of a store are in time, and which of them catch up: a core that remembers the last minutes.

Source times cannot say it: a zone that reads a year's history is not a year late, a relay that fills up holds facts that were old when
they came, and a device's clock may be hours off. What counts is for how long a fact has been here without being read. The store's marks
tell that to the minute (forecast.py); where a stream ended in each of the last seconds tells it to the second.

A consumer catches up if what it lacks has become less over the last minute. One that confirms now and then seems to stand in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

ENDS_MAX = 600
"""Ten minutes at a look a second: beyond, nobody minds a minute more or less."""
SAMPLES_MAX = 60
"""A minute: long enough for the largest page on a slow line, short enough to see a reader that has stopped."""
_SPAN_S_MIN = 0.5
"""Of less nobody can tell a pace."""


@dataclass(frozen=True, slots=True)
class Reads:
    """How a consumer gets on: facts it has confirmed a second, and how long until it has everything, None where it does not close in."""

    facts_per_s: float
    seconds_left: float | None


class Behind:
    """Look at the store about once a second; then ask."""

    def __init__(self) -> None:
        self._streams: dict[str, deque[tuple[float, int]]] = {}  # when, end
        self._consumers: dict[str, deque[tuple[float, int, int]]] = {}  # when, frontier, end

    def look(self, now_s: float, ends: Mapping[str, int], frontiers: Mapping[str, tuple[str, int]]) -> None:
        """Where streams end now, and how far each consumer of one has confirmed (consumer: stream, frontier)."""
        for stream, end in ends.items():
            self._streams.setdefault(stream, deque(maxlen=ENDS_MAX)).append((now_s, end))
        for gone in self._consumers.keys() - frontiers.keys():
            del self._consumers[gone]
        for name, (stream, frontier) in frontiers.items():
            samples = self._consumers.setdefault(name, deque(maxlen=SAMPLES_MAX))
            samples.append((now_s, frontier, ends[stream]))

    def age_s(self, stream: str, frontier: int, now_s: float) -> float | None:
        """For how long, at most, the fact behind a frontier has been here; None for longer than is remembered."""
        for at_s, end in reversed(self._streams.get(stream, ())):
            if end <= frontier:
                return now_s - at_s
        return None

    def reads(self, name: str) -> Reads | None:
        """How a consumer gets on, from where it last stood still; None where it does not move, or nobody can tell yet."""
        samples = self._consumers.get(name)
        if not samples:
            return None
        first = samples[0]
        for sample in samples:
            if sample[1] != first[1]:
                break
            first = sample
        now_s, frontier, end = samples[-1]
        took_s = now_s - first[0]
        if took_s < _SPAN_S_MIN:
            return None
        closed_in = (first[2] - first[1]) - (end - frontier)
        left_s = (end - frontier) * took_s / closed_in if closed_in > 0 else None
        return Reads((frontier - first[1]) / took_s, left_s)
