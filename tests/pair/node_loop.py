"""An event loop whose callbacks are events of a simulated world, so that the tasks of the product run there unchanged.

It ends without a farewell, as the process of a node that is killed: its tasks take no further step.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

CLOSINGS_MAX = 5
"""A group that is closed waits for its tasks first."""


class NodeLoop(asyncio.AbstractEventLoop):
    """The loop of one life of a node. `after` makes an event, `time_s` is the node's clock, `fail` takes an error that
    no task has handled."""

    def __init__(
        self,
        after: Callable[[int, Callable[[], None]], None],
        time_s: Callable[[], float],
        fail: Callable[[str], object],
    ) -> None:
        self._after, self._time_s, self._fail = after, time_s, fail
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def start(self, work: Any) -> None:
        """Run this until the node dies."""
        self.create_task(work).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(repr(error))

    def abandon(self) -> None:
        """The node is dead."""
        self._is_over = True
        asyncio._set_running_loop(self)
        for _ in range(CLOSINGS_MAX):
            for task in self._tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(RuntimeError, AssertionError):  # it waits at its end, or is no task any more
                    task.get_coro().close()  # type: ignore[union-attr]
        asyncio._set_running_loop(None)
        self._tasks.clear()

    # --- what the tasks need of a loop

    def time(self) -> float:
        return self._time_s()

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)  # tidy: this is the loop
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._call_in(0, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._call_in(max(0, math.ceil((when - self.time()) * 1_000 - 1e-3)), handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "exception" in context:
            self._fail(repr(context["exception"]))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when it is due."""

    def _call_in(self, delay_ms: int, handle: asyncio.Handle) -> None:
        if not self._is_over:
            self._after(delay_ms, partial(self._run, handle))

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)
