"""What both servers of the plant do alike: say when they are ready, run until told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket


def free_port(host: str) -> int:
    """A TCP port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def say_ready(port: int) -> None:
    """The line a caller waits for on standard output."""
    print(f"ready {port}", flush=True)


def stop_requested() -> asyncio.Event:
    """Set when the process is asked to end. To be made before the ready line: whoever reads that may end us at once."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped
