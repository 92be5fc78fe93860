"""The states of a source as a table, the back-off between connections, the end of the previous process, and the reasons
of an outage that are logged.

    idle --start--> connecting --up--> connected --down--> waiting --start--> connecting
                    connecting --down--> waiting
    any of them --stop--> stopped

Core. A transition that is not in the table raises AssertionError, because it is a bug of the supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from agent.ingest.clock import BUILT_NS
from agent.ingest.gap import GAP_INTERVAL_S, SOURCE_LOST
from agent.message import Sample


class State(Enum):
    """The state of a source."""

    IDLE = "idle"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    STOPPED = "stopped"


class Event(Enum):
    """What happens to a source."""

    START = "start"
    UP = "up"
    DOWN = "down"
    STOP = "stop"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.IDLE, Event.START): State.CONNECTING,
    (State.CONNECTING, Event.UP): State.CONNECTED,
    (State.CONNECTING, Event.DOWN): State.WAITING,
    (State.CONNECTED, Event.DOWN): State.WAITING,
    (State.WAITING, Event.START): State.CONNECTING,
    (State.IDLE, Event.STOP): State.STOPPED,
    (State.CONNECTING, Event.STOP): State.STOPPED,
    (State.CONNECTED, Event.STOP): State.STOPPED,
    (State.WAITING, Event.STOP): State.STOPPED,
}


def next_state(state: State, event: Event) -> State:
    """The state after an event. Asserts that the table has the transition."""
    assert (state, event) in TRANSITIONS, f"a source that is {state.value} cannot {event.value}"
    return TRANSITIONS[state, event]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times that double from `delay_ms` to `delay_max_ms`, with jitter, so that many sources do not connect at
    the same time."""

    delay_ms: int
    delay_max_ms: int

    def wait_ms(self, failures: int, jitter: float) -> int:
        """How long to wait after this many failures in a row (from 1); `jitter` is a random number in [0, 1)."""
        assert failures >= 1, "only a failure is followed by a wait"
        full_ms = min(self.delay_max_ms, self.delay_ms << min(failures - 1, 30))
        return int(full_ms * (0.5 + jitter / 2))


FORGET_S = 5.0
"""A life with values for this long is a success: the next loss starts with the shortest wait again. A server that drops
its clients, or that a service manager restarts repeatedly, does so within the first seconds."""


class Failures:
    """Failed lives in a row."""

    def __init__(self) -> None:
        self.count = 0
        self._first_value_s: float | None = None

    def begin(self) -> None:
        """A life begins."""
        self._first_value_s = None

    def note_value(self, now_s: float) -> None:
        """The life gave its first good value."""
        self._first_value_s = now_s

    def end(self, alive_s: float) -> int:
        """A life has ended with its last sign of life at `alive_s`. Returns the failures in a row, this one
        included."""
        delivered_s = 0.0 if self._first_value_s is None else alive_s - self._first_value_s
        self.count = 1 if delivered_s >= FORGET_S else self.count + 1
        return self.count

    def forget(self) -> None:
        """Start with the shortest wait again."""
        self.count = 0


AHEAD_NS = 120 * 1_000_000_000  # a mark may be a minute old, and a clock a minute ahead of another (decision 0042)
# A loss is declared this late at most, with two seconds for doing it.
REPORTED_LATE_NS = int((GAP_INTERVAL_S + 2.0) * 1e9)
# After this time, the events of an outage are recorded or declared (opcua/rescue: RESCUE_S).
EVENTS_LATE_NS = 60 * 1_000_000_000


class Newest(NamedTuple):
    """The newest sample of a tag, the time of its newest good sample (0: not found), and a time on this node's clock
    that is at most a minute before the newest sample was recorded (0: not known)."""

    sample: Sample
    good_ns: int
    recorded_ns: int = 0


class FastClock(NamedTuple):
    """The same moment on the clock of a source that was ahead, and on ours."""

    first_ns: int
    ours_ns: int

    def last_ns(self, now_ns: int) -> int:
        """The present time on the source's clock if it was not corrected. `now_ns` is our clock."""
        return self.first_ns + max(0, now_ns - self.ours_ns)


class Stop(NamedTuple):
    """A time on the source's clock at or before the end of the previous process. `ahead` is set if that clock may have
    been ahead then."""

    first_ns: int
    ahead: FastClock | None


def stop_of(streams: Iterable[Sequence[Newest]], undelivered_ns: int) -> Stop | None:
    """The end of the process that recorded these samples; None if there are none. In each stream the sample that was
    recorded last comes first. `undelivered_ns`: how old values could be that were not yet delivered. A sample whose
    time is later than its recording came from a wrong clock and is ignored; if all did, the time of the last recording
    counts."""
    stops = [_stop_of(newest, undelivered_ns) for newest in streams if newest]
    ahead = [one.ahead for one in stops if one.ahead is not None]
    return Stop(max(one.first_ns for one in stops), max(ahead, default=None)) if stops else None


class DeclaredGap(NamedTuple):
    """A gap that a fact in the store declares, in the times of its source."""

    first_ns: int
    last_ns: int
    is_outage: bool


def values_missing_since(stop_ns: int, gaps: Sequence[DeclaredGap]) -> int:
    """Since when values may be missing that no fact declares. `stop_ns` is the end of the last process, `gaps` are
    those that it declared, newest first. Losses are merged for GAP_INTERVAL_S: the last of them may not have been
    declared."""
    unreported = [one.last_ns for one in gaps[:1] if stop_ns - one.last_ns <= REPORTED_LATE_NS]
    return min([stop_ns, *unreported])


def events_missing_since(stop_ns: int, gaps: Iterable[DeclaredGap]) -> int:
    """The same for events. The newest values do not date them: events from before an outage may still have been on
    their way when the process ended."""
    since_ns = stop_ns - REPORTED_LATE_NS
    for one in gaps:
        if one.last_ns < since_ns - EVENTS_LATE_NS:
            break
        if one.is_outage:
            since_ns = min(since_ns, one.first_ns)
    return since_ns


def _stop_of(newest: Sequence[Newest], undelivered_ns: int) -> Stop:
    right_ns = [one.sample.source_time_ns for one in newest if not _is_ahead(one)]
    last, ahead = newest[0], None
    if _is_ahead(last):
        ahead = FastClock(last.sample.source_time_ns - undelivered_ns, last.recorded_ns - undelivered_ns)
    if not right_ns:  # subtracted twice: the last sample may have been late by it, and those that had not arrived too
        return Stop(last.recorded_ns - 2 * undelivered_ns, ahead)
    # The order of recording counts, because a clock may have been set back, but not for a device that is far behind.
    last_ns, newest_ns = right_ns[0], max(right_ns)
    return Stop((last_ns if newest_ns - last_ns <= AHEAD_NS else newest_ns) - undelivered_ns, ahead)


def _is_ahead(one: Newest) -> bool:
    return one.recorded_ns > BUILT_NS and one.sample.source_time_ns > one.recorded_ns + AHEAD_NS


REASONS_PER_OUTAGE_MAX = 20  # an error with another text each time must not fill the log
_DIGITS = re.compile(r"\d+")


class Outage:
    """An outage of a source: its beginning, and the reasons that were logged."""

    def __init__(self, first_ns: int | None = None, reason: str = SOURCE_LOST, ahead: FastClock | None = None) -> None:
        self.first_ns = first_ns  # the last sign of life before it; 0: there was none; None: not known yet
        self.reason = reason
        self.ahead = ahead  # see Stop
        self.is_declared = False  # up to the first values of a life that is not connected yet
        self._logged: set[str] = set()

    def is_new_reason(self, why: str) -> bool:
        """Whether this reason is logged for the first time in this outage. Numbers in the text are ignored."""
        reason = _DIGITS.sub("#", why)
        if reason in self._logged or len(self._logged) >= REASONS_PER_OUTAGE_MAX:
            return False
        self._logged.add(reason)
        return True
