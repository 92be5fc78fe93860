"""The states of a source as a table, the back-off between connections, and the reasons of an outage that are logged.

    idle --start--> connecting --up--> connected --down--> waiting --start--> connecting
                    connecting --down--> waiting
                    connecting --warm--> standby --up--> connected
                                         standby --down--> waiting
    any of them --stop--> stopped

Core. A transition that is not in the table raises AssertionError, because it is a bug of the supervisor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from agent.ingest.completeness import Moment
from agent.ingest.gap import SOURCE_LOST
from agent.message import Sample


class State(Enum):
    """The state of a source."""

    IDLE = "idle"
    CONNECTING = "connecting"
    STANDBY = "standby"  # connected and warm; another gateway of the zone records
    CONNECTED = "connected"
    WAITING = "waiting"
    STOPPED = "stopped"


class SourceEvent(Enum):
    """What happens to a source."""

    START = "start"
    WARM = "warm"
    UP = "up"
    DOWN = "down"
    STOP = "stop"


TRANSITIONS: dict[tuple[State, SourceEvent], State] = {
    (State.IDLE, SourceEvent.START): State.CONNECTING,
    (State.CONNECTING, SourceEvent.UP): State.CONNECTED,
    (State.CONNECTING, SourceEvent.DOWN): State.WAITING,
    (State.CONNECTING, SourceEvent.WARM): State.STANDBY,
    (State.STANDBY, SourceEvent.UP): State.CONNECTED,
    (State.STANDBY, SourceEvent.DOWN): State.WAITING,
    (State.CONNECTED, SourceEvent.DOWN): State.WAITING,
    (State.WAITING, SourceEvent.START): State.CONNECTING,
    (State.IDLE, SourceEvent.STOP): State.STOPPED,
    (State.CONNECTING, SourceEvent.STOP): State.STOPPED,
    (State.STANDBY, SourceEvent.STOP): State.STOPPED,
    (State.CONNECTED, SourceEvent.STOP): State.STOPPED,
    (State.WAITING, SourceEvent.STOP): State.STOPPED,
}


def next_state(state: State, event: SourceEvent) -> State:
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

    def begin_life(self) -> None:
        """A life begins."""
        self._first_value_s = None

    def note_value(self, now_s: float) -> None:
        """The life gave its first good value."""
        self._first_value_s = now_s

    def end_life(self, alive_s: float) -> int:
        """A life has ended with its last sign of life at `alive_s`. Returns the failures in a row, this one
        included."""
        delivered_s = 0.0 if self._first_value_s is None else alive_s - self._first_value_s
        self.count = 1 if delivered_s >= FORGET_S else self.count + 1
        return self.count

    def forget(self) -> None:
        """Start with the shortest wait again."""
        self.count = 0


class Newest(NamedTuple):
    """The newest sample of a tag, and the time of its newest good sample (0: not found)."""

    sample: Sample
    good_ns: int


REASONS_PER_OUTAGE_MAX = 20  # an error with another text each time must not fill the log
_DIGITS = re.compile(r"\d+")


class Outage:
    """An outage of a source: its beginning, and the reasons that were logged."""

    def __init__(self, since: Moment | None = None, reason: str = SOURCE_LOST) -> None:
        self.since = since  # up to when the source was complete before it; None: not known, or never
        self.reason = reason
        self._logged: set[str] = set()

    def is_new_reason(self, why: str) -> bool:
        """Whether this reason is logged for the first time in this outage. Numbers in the text are ignored."""
        reason = _DIGITS.sub("#", why)
        if reason in self._logged or len(self._logged) >= REASONS_PER_OUTAGE_MAX:
            return False
        self._logged.add(reason)
        return True
