"""The life of a source, as a table, how long to wait before the next one, and what of an outage the log tells.

    idle --start--> connecting --up--> connected --down--> waiting --start--> connecting
                    connecting --down--> waiting
    any of them --stop--> stopped

Core: what the table lacks raises, for then the supervisor itself is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Where a source is in its life."""

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
    """The state after an event. What the table lacks is our own mistake."""
    assert (state, event) in TRANSITIONS, f"a source that is {state.value} cannot {event.value}"
    return TRANSITIONS[state, event]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waiting times that double from `delay_ms` to `delay_max_ms`, with jitter so that many sources do not knock at
    once."""

    delay_ms: int
    delay_max_ms: int

    def wait_ms(self, failures: int, jitter: float) -> int:
        """How long to wait after this many failures in a row (from 1); `jitter` is a random number in [0, 1)."""
        assert failures >= 1, "the first life needs no wait"
        full_ms = min(self.delay_max_ms, self.delay_ms << min(failures - 1, 30))
        return int(full_ms * (0.5 + jitter / 2))


FORGET_S = 5.0
"""A life that gave values for this long was a success: the next loss starts with the shortest wait again. A server that
drops its clients, or that a service manager restarts over and over, does so within the first seconds."""


class Failures:
    """Failed lives in a row."""

    def __init__(self) -> None:
        self.count = 0
        self._first_value_s: float | None = None

    def begin(self) -> None:
        """A life begins."""
        self._first_value_s = None

    def see_value(self, now_s: float) -> None:
        """The life gave its first good value."""
        self._first_value_s = now_s

    def end(self, alive_s: float) -> int:
        """A life has ended, and gave its last sign of life at `alive_s`. Returns the failures in a row, this one
        included."""
        delivered_s = 0.0 if self._first_value_s is None else alive_s - self._first_value_s
        self.count = 1 if delivered_s >= FORGET_S else self.count + 1
        return self.count

    def forget(self) -> None:
        """Begin again with the shortest wait."""
        self.count = 0


REASONS_PER_OUTAGE_MAX = 20  # an error whose text is new each time must not fill the log
_DIGITS = re.compile(r"\d+")


class Outage:
    """What is known of a source that is away: since when, and which reasons the log has told."""

    def __init__(self) -> None:
        self.first_ns: int | None = None  # the last sign of life before it; 0: there was none
        self._told: set[str] = set()

    def is_news(self, why: str) -> bool:
        """Whether this reason is to be told: the first time in this outage. Numbers in it make no difference."""
        reason = _DIGITS.sub("#", why)
        if reason in self._told or len(self._told) >= REASONS_PER_OUTAGE_MAX:
            return False
        self._told.add(reason)
        return True
