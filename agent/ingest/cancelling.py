"""A cancellation that a library forgot. pymodbus waits with asyncio.wait_for, and that of Python 3.11 forgets one that meets the answer or
the error; or it makes an error of its own out of it. A loop that goes on after either would never be stopped.
"""

from __future__ import annotations

import asyncio


def end_if_cancelled() -> None:
    """End a task whose cancellation was forgotten. Only for tasks that nobody but their group cancels, and that have no group themselves."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
