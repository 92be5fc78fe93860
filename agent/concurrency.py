"""Task groups and time limits that count cancellations alike under every Python from 3.11.2 on.

asyncio counts how often a task was asked to cancel, and takes one request back when it was its own. The TaskGroup of
3.11 and 3.12 forgets to when a child fails while the parent waits at the end of the block; from then on `timeout` of
3.11 takes its own expiry for a cancellation from outside, and the task ends without a word. Debian 12 has 3.11.2.

Both leave the count as they found it, and neither swallows a cancellation from outside: one that a failure hides is
delivered at the next await. (anyio has both as well, but it repeats a cancellation at each await until its scope is
left, which would end the clean-up of every task here.)
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class TaskEnded(Exception):
    """A permanent task has returned or was cancelled, and nothing had asked it to end."""


class timeout:  # noqa: N801 named as in asyncio, which it replaces
    """Cancels the block after so many seconds and then raises TimeoutError; None is no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timer: asyncio.Handle | None = None
        self._expired = False

    async def __aenter__(self) -> Self:
        self._task = _current_task()
        self._requests_before = self._task.cancelling()
        loop = asyncio.get_running_loop()
        if self._seconds is not None:
            # A limit that is over already still lets the block start, and ends it at its first await.
            is_over = self._seconds <= 0
            self._timer = loop.call_soon(self._expire) if is_over else loop.call_later(self._seconds, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._expired:
            return
        is_cancelled = isinstance(error, asyncio.CancelledError)
        requests_left = await _take_back(self._task, is_delivered=is_cancelled)
        if is_cancelled and requests_left <= self._requests_before:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


class TaskGroup:
    """Runs tasks until all have ended; the first that fails cancels the others and the block.

    The failures are raised together as an ExceptionGroup. A cancelled parent cancels its tasks.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._permanent: dict[asyncio.Task[Any], asyncio.Event | None] = {}
        self._errors: list[BaseException] = []
        self._parent: asyncio.Task[Any] | None = None
        self._all_done: asyncio.Future[None] | None = None
        self._is_over = False
        self._is_aborting = False
        self._cancelled_parent = False

    async def __aenter__(self) -> Self:
        assert self._parent is None, "a group is entered once"
        self._parent = _current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._parent is not None
        cancellation = error if isinstance(error, asyncio.CancelledError) else None
        if error is not None:
            self._abort()
        waiting = await self._wait()
        if error is not None and cancellation is None:
            self._errors.append(error)
        cancellation = cancellation or waiting
        self._is_over = True
        if self._cancelled_parent:
            # asyncio of 3.11 and 3.12 looks at this before the wait, in which a child may fail.
            await _take_back(self._parent, is_delivered=cancellation is not None)
        try:
            self._raise_errors(cancellation)
        finally:
            self._errors = []  # a failure refers to its frames, which refer to this group

    def create_task(self, work: Coroutine[Any, Any, Result], *, name: str) -> asyncio.Task[Result]:
        """Start a task of this group; a group that is ending takes none."""
        if self._parent is None or self._is_over or self._is_aborting:
            work.close()
            raise RuntimeError(f"{name} cannot start: its group is {'ending' if self._parent else 'not entered'}")
        task = asyncio.get_running_loop().create_task(work, name=name)  # tidy: this is the group
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def create_permanent(
        self, work: Coroutine[Any, Any, Result], *, name: str, until: asyncio.Event | None = None
    ) -> asyncio.Task[Result]:
        """Start a task that runs until the group is cancelled, or until `until` is set. If it returns or is cancelled
        before, it has failed with TaskEnded."""
        task = self.create_task(work, name=name)  # tidy: this is the group
        self._permanent[task] = until
        return task

    async def _wait(self) -> asyncio.CancelledError | None:
        """Wait for all tasks; the last cancellation that arrived meanwhile."""
        arrived = None
        while self._tasks:
            self._all_done = asyncio.get_running_loop().create_future()
            try:
                await self._all_done
            except asyncio.CancelledError as cancellation:
                arrived = cancellation
                self._abort()
        return arrived

    def _raise_errors(self, cancellation: asyncio.CancelledError | None) -> None:
        assert self._parent is not None
        for error in self._errors:
            if isinstance(error, SystemExit | KeyboardInterrupt):
                raise error
        if not self._errors:
            if cancellation is not None:
                raise cancellation
            return
        if self._parent.cancelling():
            _deliver_again(self._parent)  # the failures hide it
        raise BaseExceptionGroup("unhandled errors in a TaskGroup", self._errors) from None

    def _abort(self) -> None:
        if not self._is_aborting:  # once: a second request would end the clean-up of a task
            self._is_aborting = True
            for task in self._tasks:
                task.cancel()

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        assert self._parent is not None
        self._tasks.discard(task)
        if self._all_done is not None and not self._tasks and not self._all_done.done():
            self._all_done.set_result(None)
        is_permanent, until = task in self._permanent, self._permanent.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is None:
            if not is_permanent or self._is_aborting or (until is not None and until.is_set()):
                return
            how = "was cancelled" if task.cancelled() else "returned"
            log.critical("task_ended", extra={"task": task.get_name(), "how": how})
            error = TaskEnded(f"the task {task.get_name()!r} {how}, and nothing had asked it to end")
        self._errors.append(error)
        if not self._is_aborting:
            self._abort()
            self._cancelled_parent = self._parent.cancel()


class _Outcome(Future[Result]):
    """What a call returns, or as a block the error in it."""

    def __enter__(self) -> None:
        self.set_running_or_notify_cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not self.cancelled():  # cancelled before it began
            self.set_exception(error)
        return True


async def in_own_thread(call: Callable[[], Result], *, name: str) -> Result:
    """The result of a call that may block for minutes, as asking for a host's address does. It fills none of the
    threads that all parts share, and the process ends without it."""
    outcome = _Outcome[Result]()

    def run() -> None:
        with outcome:
            outcome.set_result(call())

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(outcome)


def end_if_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled and an error has hidden it, or a library lost it, as
    asyncio.wait_for of Python 3.11 does. A loop that went on could not be stopped."""
    if _current_task().cancelling():
        raise asyncio.CancelledError


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "runs in a task"
    return task


async def _take_back(task: asyncio.Task[Any], *, is_delivered: bool) -> int:
    """Take one request to cancel the running task back; how many are left."""
    requests_left = task.uncancel()
    if requests_left or is_delivered:
        return requests_left
    # A group inside may have had it delivered again, and before 3.13 uncancel leaves that pending.
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    if requests_left := task.cancelling():  # from outside, meanwhile
        _deliver_again(task)
    return requests_left


def _deliver_again(task: asyncio.Task[Any]) -> None:
    """Have the running task's cancellation raised at its next await; the count stays."""
    task.uncancel()
    task.cancel()
