"""An event loop in which time costs nothing: its clock, and the clocks of the machine with it, jump to the next timer.

For what waits on timers only. Nothing may come from outside: no socket, no process; what the product would do in a
thread is done at once.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast
from unittest import mock

STARTED_S = time.time()
LOOK_S = 1e-6


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        loop = self

        class Jumping(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                assert timeout is not None, "nothing will ever happen"
                loop.now += max(0.0, timeout)
                return super().select(0)

        self.now = 0.0
        super().__init__(Jumping())

    def time(self) -> float:
        return self.now

    def look(self) -> float:
        """The time, which is later at each look."""
        self.now += LOOK_S
        return self.now


def run_virtual(work: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns or raises, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        now_s = cast(VirtualLoop, runner.get_loop()).look
        clocks = {
            "monotonic": now_s,
            "monotonic_ns": lambda: round(now_s() * 1e9),
            "clock_gettime_ns": lambda _: round(now_s() * 1e9),
            "time": lambda: STARTED_S + now_s(),
            "time_ns": lambda: round((STARTED_S + now_s()) * 1e9),
        }
        with mock.patch.multiple(time, **clocks), mock.patch.object(asyncio, "to_thread", _at_once):
            return runner.run(work)


async def _at_once(work: Callable[..., Any], *given: Any, **named: Any) -> Any:
    await asyncio.sleep(0)
    return work(*given, **named)
