"""Core: whether the watchdog may be fed, from proof of work alone.

A timer that feeds the watchdog proves that timers work. So every part that must not hang is represented by a counter
that it moves itself, and by whether it has anything to do: a part with work whose counter stands still for longer than
it may is stalled, and one stalled part withholds the food. systemd then ends the process with a traceback of every
thread and starts it again; the store recovers by itself.

What does not count: a device that is away. A source's counter is moved by its supervisor's turns, also by those that
fail, so that one dead PLC never restarts the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """One part: how far it has come, whether it has work, and how long it may stand still with work before it is
    stalled."""

    name: str
    counter: int
    busy: bool
    stall_limit_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to feed, and the parts because of which not."""

    feed: bool
    stalled: tuple[str, ...] = ()


class WatchdogCore:
    """Remembers of each part when its counter last moved, or when it last had nothing to do."""

    def __init__(self) -> None:
        self._moved: dict[str, tuple[int, int]] = {}  # name -> counter, now_ns

    def decide(self, progress: Sequence[Progress], now_ns: int) -> Decision:
        """Feed unless a part is stalled. A part seen for the first time starts with its full limit."""
        moved: dict[str, tuple[int, int]] = {}
        stalled = []
        for part in progress:
            assert part.name not in moved, f"two parts are called {part.name}"
            counter, since_ns = self._moved.get(part.name, (part.counter, now_ns))
            if not part.busy or part.counter != counter:
                since_ns = now_ns
            moved[part.name] = (part.counter, since_ns)
            if now_ns - since_ns > part.stall_limit_s * NS_PER_S:
                stalled.append(part.name)
        self._moved = moved  # a part that is no longer there is forgotten
        return Decision(feed=not stalled, stalled=tuple(stalled))
