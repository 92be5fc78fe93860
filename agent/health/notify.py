"""Shell: reports to systemd that the service is ready, alive or stopping, and one line of status, over a datagram
socket.

The protocol is sd_notify's: lines of NAME=value in one datagram to the socket named in NOTIFY_SOCKET, a path or, with a
leading @, a name in the abstract namespace. Outside systemd the variable is not set and nothing is sent. A report never
fails the node: a datagram that cannot be sent is logged once and dropped. If it was for the watchdog, systemd notices.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agent.health.watchdog import PartProgress, WatchdogCore

STATUS_CHARACTERS_MAX = 200  # one line of `systemctl status`
FEEDS_PER_WATCHDOG = 3  # systemd recommends two; one may then be late without harm
START_EXTENSION_S = 60  # requested at each turn while the node waits for a broker; several turns long

log = logging.getLogger(__name__)


class Notifier:
    """Sends reports to the service manager; to none if `address` is empty."""

    def __init__(self, address: str, watchdog_s: float | None = None) -> None:
        self.address = address
        self.watchdog_s = watchdog_s if address else None
        self.is_ready = False
        self._failing = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Notifier:
        """From the environment that systemd set for the process `pid`. A watchdog for another process is ignored."""
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        watchdog_s = int(watchdog_us) / 1e6 if ours and watchdog_us.isdecimal() and int(watchdog_us) else None
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog_s)

    def ready(self) -> bool:
        """The store is open, and every broker is reached or optional."""
        self.is_ready = True
        return self.send("READY=1")

    def still_starting(self) -> bool:
        """Not ready, but working: request more time. A zone that is cut off continues to collect and must not be
        restarted."""
        return self.send(f"EXTEND_TIMEOUT_USEC={START_EXTENSION_S * 1_000_000}")

    def stopping(self) -> bool:
        """The ordered stop has begun."""
        return self.send("STOPPING=1")

    def status(self, text: str) -> bool:
        """One line of status for `systemctl status`."""
        return self.send("STATUS=" + " ".join(text.split())[:STATUS_CHARACTERS_MAX])

    def feed(self) -> bool:
        """Feed the watchdog."""
        return self.send("WATCHDOG=1")

    def send(self, line: str) -> bool:
        """Send one datagram; True if the service manager has received it."""
        assert "\n" not in line, "a report is one line"
        if not self.address:
            return False
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as to:
                to.sendto(line.encode(), name)
        except OSError as error:
            if not self._failing:
                log.warning("service_manager_unreachable", extra={"address": self.address, "why": str(error)})
            self._failing = True
            return False
        self._failing = False
        return True


async def watch(
    notifier: Notifier,
    progress: Callable[[], Sequence[PartProgress]],
    status: Callable[[], str],
    *,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Feed the watchdog while there is proof of work, and keep the status line current, until cancelled.

    Runs on the node's event loop, so a loop that hangs does not feed the watchdog.
    """
    core, sent = WatchdogCore(), ""
    withheld: tuple[str, ...] = ()
    interval_s = (notifier.watchdog_s or 30.0) / FEEDS_PER_WATCHDOG
    while True:
        stalled = core.find_stalled(progress(), clock_ns())
        if not stalled:
            notifier.feed()
            if not notifier.is_ready:
                notifier.still_starting()
        if stalled != withheld:
            withheld = stalled
            log.error("watchdog_withheld" if withheld else "watchdog_fed_again", extra={"stalled": withheld})
        line = f"stalled: {', '.join(withheld)}" if withheld else status()
        if line != sent and notifier.status(line):
            sent = line
        await pause(interval_s)
