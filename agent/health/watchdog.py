"""Core: decides from proof of work alone whether the watchdog may be fed.

A timer that feeds the watchdog proves only that timers work. So each part that must not hang increments a counter of
its own and reports whether it has work. A part with work whose counter does not move for longer than its limit is
stalled, and while one part is stalled the watchdog is not fed. systemd then ends the process with a traceback of every
thread and restarts it; the store recovers by itself.

A device that is away is no stall. The supervisor of a source moves the counter at every attempt, also at failed ones,
so one dead PLC never restarts the other sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PartProgress:
    """One part: how far it has come, whether it has work, and how long it may stand still with work before it is
    stalled."""

    name: str
    counter: int
    busy: bool
    stall_limit_s: float


class WatchdogCore:
    """Keeps for each part the time when its counter last moved or when it last had no work."""

    def __init__(self) -> None:
        self._moved: dict[str, tuple[int, int]] = {}  # name -> counter, now_ns

    def find_stalled(self, progress: Sequence[PartProgress], now_ns: int) -> tuple[str, ...]:
        """The parts that are stalled, by name; while there is any, the watchdog is not fed. A new part has its full
        limit."""
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
        return tuple(stalled)
