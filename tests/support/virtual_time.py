"""An event loop in which time costs nothing: its clock jumps to the next timer.

For what waits on timers only. Nothing may come from outside: no socket, no thread, no process.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


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


def run_virtual(work: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns or raises, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
