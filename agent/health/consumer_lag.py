"""Core: how far the consumers of a store, and the pulls of a node, are behind in time, and which consumers catch up,
from samples of the last minutes; how long appends took in that time, and how many polls were missed.

Source times do not measure lag: a zone that reads a year of history is not a year late, a relay that fills up holds
facts that were old on arrival, and a device's clock may be hours off. Lag is the time for which a fact has been in this
store unconfirmed. The store's own marks give it to the minute (`fact_store`'s forecast), samples of the end of each
stream to the second.

A consumer catches up if its backlog shrank over the last minute. One that confirms in bursts appears to have stopped
between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import lt, sub

from agent.health.snapshot import Latency

ENDS_MAX = 600
"""Ten minutes at one sample a second. Beyond that the store's precision of a minute is enough."""
SAMPLES_MAX = 60
"""A minute: long enough for the largest page on a slow line, short enough to notice a reader that has stopped."""
WINDOW_S, APPENDS_MIN = 600, 100
"""Appends are judged by those of ten minutes, and not by fewer than can have a slowest hundredth."""
POLLED_S_MIN = 300.0
"""The first polls of a source take longer, and a pause of seconds is no lasting lack."""
NOTICED_S = 8.0
"""Until a pull notices that an answer was lost: a heartbeat's interval and the time for an answer."""
_SPAN_S_MIN = 0.5
"""A shorter time gives no usable rate."""


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Facts that a consumer confirms per second, and the seconds until it has everything; None while its backlog does
    not shrink."""

    facts_per_s: float
    seconds_left: float | None


class PullLag:
    """How long facts have been known to be at a peer and not here; while the peer does not answer, also since it last
    did. Sampled every second or two, so a lag that comes and goes in between may be missed, and a pull that is
    never level, because more facts always are on their way, is not late for that."""

    def __init__(self, now_s: float, behind_s: float = 0.0) -> None:
        """`behind_s`: how far it was behind when it began, by what an earlier process knew."""
        self._ends: list[
            tuple[float, int]
        ] = []  # ends of the peer's log beyond our position, and when they were learnt
        self._since_s = now_s - behind_s
        self._level_s = self._since_s - NOTICED_S
        self.lag_s_max = 0.0

    def unseen_s(self, now_s: float, level_s: float | None) -> float:
        """How old a fact of the peer may be that is not here, known or not. `level_s`: what the peer had then is here;
        None: not known since the start."""
        return now_s - (self._level_s if level_s is None else level_s)

    def sample(self, now_s: float, position: int, end: int, *, is_connected: bool) -> float:
        """The lag now: everything up to `position` is here, and the peer's log is known to reach `end`."""
        self._ends = [mark for mark in self._ends if mark[1] > position]
        if is_connected:
            if end > max([position, *(known for _, known in self._ends[-1:])]):
                self._ends.append((now_s, end))
            if len(self._ends) > ENDS_MAX:
                self._ends = self._ends[::2]
            self._since_s = self._ends[0][0] if self._ends else now_s
        lag_s = now_s - self._since_s
        self.lag_s_max = max(self.lag_s_max, lag_s)
        return lag_s


class _Window:
    """What counters have counted in the last ten minutes, or since they began anew."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=12)  # when, the counters then

    def sample(self, now_s: float, totals: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """The seconds that it covers now, and what was counted in them."""
        if self._totals and any(map(lt, totals, self._totals[-1][1])):
            self._totals.clear()
        if not self._totals or now_s - self._totals[-1][0] >= WINDOW_S / 10:
            self._totals.append((now_s, totals))
        while len(self._totals) > 1 and self._totals[1][0] <= now_s - WINDOW_S:
            self._totals.popleft()
        began_s, before = self._totals[0]
        return now_s - began_s, tuple(map(sub, totals, before))


class AppendWindow:
    """The durations of the appends of the last minutes, from the histogram since the start."""

    def __init__(self) -> None:
        self._window = _Window()

    def sample(self, now_s: float, latency: Latency) -> float | None:
        """The bound of the fastest 99 % now; None while they are too few."""
        recent = replace(latency, counts=self._window.sample(now_s, latency.counts)[1])
        return recent.quantile_s(0.99) if recent.count >= APPENDS_MIN else None


class PollWindow:
    """The polls of a source that were missed in the last minutes."""

    def __init__(self) -> None:
        self._window = _Window()

    def sample(self, now_s: float, made: int, missed: int) -> float | None:
        """The percentage now, from both counts since the start of the source; None in its first minutes."""
        covers_s, (made, missed) = self._window.sample(now_s, (made, missed))
        return 100 * missed / (made + missed) if covers_s >= POLLED_S_MIN and made + missed else None


class LagSamples:
    """Sampled about once a second."""

    def __init__(self) -> None:
        self._streams: dict[str, deque[tuple[float, int]]] = {}  # when, end
        self._consumers: dict[str, deque[tuple[float, int, int]]] = {}  # when, frontier, end

    def sample(self, now_s: float, ends: Mapping[str, int], frontiers: Mapping[str, tuple[str, int]]) -> None:
        """Add where each stream ends now, and how far each consumer has confirmed (consumer: stream, frontier)."""
        for stream, end in ends.items():
            self._streams.setdefault(stream, deque(maxlen=ENDS_MAX)).append((now_s, end))
        for gone in self._consumers.keys() - frontiers.keys():
            del self._consumers[gone]
        for name, (stream, frontier) in frontiers.items():
            samples = self._consumers.setdefault(name, deque(maxlen=SAMPLES_MAX))
            samples.append((now_s, frontier, ends[stream]))

    def age_s(self, stream: str, frontier: int, now_s: float) -> float | None:
        """An upper bound of the time for which the first fact after a frontier has been here; None if longer than the
        samples go back."""
        for at_s, end in reversed(self._streams.get(stream, ())):
            if end <= frontier:
                return now_s - at_s
        return None

    def rate(self, name: str) -> ReadRate | None:
        """A consumer's rate since it last confirmed nothing. None while it confirms nothing, or while there are too few
        samples."""
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
        shrunk_by = (first[2] - first[1]) - (end - frontier)
        left_s = (end - frontier) * took_s / shrunk_by if shrunk_by > 0 else None
        return ReadRate((frontier - first[1]) / took_s, left_s)
