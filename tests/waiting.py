"""Waiting in tests: for a condition with a limit, never for a fixed time.

This is the only module of the tests that may pause. A test that needs a pause for another reason tests the clock of the
machine; give the code under test a clock instead.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

LIMIT_S = 100.0  # far above the time of any condition, so that only a real hang reaches it on a busy machine
STEP_S = 0.01


def wait_until(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Return once `condition()` is true; fail with `what` when it is not within `limit_s`."""
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain: {what}"
        pause.wait(STEP_S)


async def wait_until_async(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """As `wait_until`, leaving the event loop to run; `condition` may be a plain or a coroutine function."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, f"waited {limit_s} s in vain: {what}"
        await asyncio.sleep(STEP_S)
