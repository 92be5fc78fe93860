"""Child processes of the demonstration, the benchmarks and the tests, each with a log file.

A process is ready when it has printed a given line or when a condition of the caller holds. If it ends before that, the
error has the end of its log. Each has a process group of its own, so that Ctrl-C reaches only its owner, which stops
them in order.

    ProcessFailed           a child ended, or did not become ready, when it should have; the text has the end of its log
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.errors import BsfgError

READY_S_MAX = 60.0  # a Python program with asyncua takes 1 s; on a busy machine with two cores, ten
STOP_S_MAX = 15.0
LOG_TAIL_LINES = 15
_STEP_S = 0.02


class ProcessFailed(BsfgError):
    """A child process ended or hung where it should have been running."""


class Child:
    """One child process: its id, its log, and what can be done to it."""

    def __init__(
        self, name: str, arguments: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.arguments = [str(argument) for argument in arguments]
        self.log = log
        self._environment = dict(os.environ, **(environment or {}))
        self._process: subprocess.Popen[bytes] | None = None
        self._log_from = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id; the process must have been started."""
        assert self._process is not None, self.name
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, appending to its log. It must not be running."""
        assert not self.running, self.name
        with self.log.open("ab") as log:
            self._log_from = log.tell()
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.arguments],  # the kernel ends it when its starter dies
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def wait_ready(self, condition: Callable[[], object], limit_s: float = READY_S_MAX) -> None:
        """Return once `condition()` is true; raise ProcessFailed when the process ends or the limit passes first."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if not self.running:
                raise ProcessFailed(f"{self.name} ended at its start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} is not ready after {limit_s:.0f} s:\n{self.log_tail()}")
            time.sleep(_STEP_S)

    def wait_line(self, start: str, limit_s: float = READY_S_MAX) -> str:
        """The first whole line of this start's log that begins with `start`."""
        found: list[str] = []

        def look() -> bool:
            lines = self.log_text().split("\n")[:-1]
            found.extend(line for line in lines if line.startswith(start))
            return bool(found)

        self.wait_ready(look, limit_s)
        return found[0]

    def stop(self) -> int | None:
        """End it as systemd would: SIGTERM, and SIGKILL to its whole group when it does not. Returns the exit
        status."""
        if self._process is None:
            return None
        if self.running:
            self.thaw()
            self._process.terminate()
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """SIGKILL to the process and its children."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
            assert self._process is not None
            self._process.wait(STOP_S_MAX)

    def freeze(self) -> None:
        """SIGSTOP: the process stops answering and its connections stay open, as with a cut cable."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT; harmless to a process that was not frozen."""
        os.killpg(self.pid, signal.SIGCONT)

    def log_text(self) -> str:
        """Its output since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        """The end of the output since its last start, indented, for an error message."""
        lines = self.log_text().splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (it printed nothing)"


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Whether this loopback port accepts TCP connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
