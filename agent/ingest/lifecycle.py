"""The life of a source, as a table, and how long to wait before the next one.

    idle --start--> connecting --up--> connected --down--> waiting --start--> connecting
                    connecting --down--> waiting
    any of them --stop--> stopped

Core: what the table lacks raises, for then the supervisor itself is wrong.
"""

from __future__ import annotations

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
