"""Shared by the processes of a benchmark: their options, the lines they print, and their own measurements.

A worker prints READY, then RESULT {...} once its work is done, and ENDED {...} when it is stopped. `testbed.Worker`
reads these lines. All times are of the monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.common.measuring import peak_rss_mib, tcp_bytes
from bench.common.testbed import BrokerAccess

Options = Mapping[str, Any]


def emit(event: str, values: Mapping[str, Any] | None = None) -> None:
    """Print one line for the process that started this one."""
    print(event if values is None else f"{event} {json.dumps(values)}", flush=True)


def usage(since_cpu_ns: int, port: int) -> dict[str, Any]:
    """What this process used: processor time since `since_cpu_ns`, peak memory, bytes of its broker connections."""
    sent_bytes, received_bytes = tcp_bytes(port)
    return {
        "cpu_ns": time.process_time_ns() - since_cpu_ns,
        "peak_rss_mib": peak_rss_mib(),
        "sent_bytes": sent_bytes,
        "received_bytes": received_bytes,
        "threads": _threads_cpu_ms(),
    }


def _threads_cpu_ms() -> dict[str, float]:
    return {
        thread.name: round(int(stat.read_text("ascii").split()[0]) / 1e6, 1)
        for thread in threading.enumerate()
        if (stat := Path(f"/proc/self/task/{thread.native_id}/schedstat")).exists()
    }


def broker_access(options: Options) -> BrokerAccess:
    """How this worker reaches the broker."""
    return BrokerAccess(**options["broker"])


def stop_event() -> threading.Event:
    """An event that SIGTERM sets."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    return stopped
