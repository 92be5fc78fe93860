"""Shared by both servers of the plant: the ready line, and the event that a signal sets."""

from __future__ import annotations

import asyncio
import signal


def say_ready(port: int) -> None:
    """The line a caller waits for on standard output."""
    print(f"ready {port}", flush=True)


def stop_requested() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set. Create it before the ready line, after which a signal may come at once."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped
