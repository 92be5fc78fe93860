"""Foreign servers as processes that a test controls line by line: one command on standard input, one answer, a JSON
object, on standard output. What a command looks like is the server's affair (`server.py`, `modbus/device.py`).
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SERVERS = Path(__file__).resolve().parent / "servers"
INSTALLED = ROOT / "build" / "foreign"
START_S = 60.0  # node-opcua needs two seconds of CPU time, on a machine that may do much else
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Stack:
    """An implementation of a protocol: how its server is started, and the variable that names the folder of its
    modules."""

    name: str
    command: tuple[str, ...]
    modules_variable: str = ""
    modules: Path = Path()

    def why_not(self) -> str:
        """Why it cannot be used here; empty when it can."""
        reason = INSTALLED / f"{self.name}.why_not"
        if reason.exists():
            return f"{self.name}: {reason.read_text().strip()}"
        if not (INSTALLED / f"{self.name}.ready").exists():
            return f"{self.name}: tools/setup foreign was not run"
        if shutil.which(self.command[0]) is None:
            return f"{self.name}: {self.command[0]} is not installed"
        return ""


class Refused(Exception):
    """The server did not do what it was told."""


class ServerProcess:
    """The process of one server; started, killed and started again. Its standard error is kept in `folder`/log."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        self._stack, self._folder = stack, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._exchanging = threading.Lock()  # commands of several tasks come in threads

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended since."""
        return self._process is not None

    @property
    def log(self) -> str:
        """What the server wrote to standard error, over all its starts."""
        return (self._folder / "log").read_text()

    def kill(self) -> None:
        """End as a power cut does."""
        self._running().kill()
        self._end()

    def freeze(self) -> None:
        """Let it stand still with its connections open."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it whatever its state, at the end of a test."""
        if self._process is not None:
            self.thaw()
            self.kill()

    def _begin(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Start it; what its first line says."""
        assert self._process is None, "started already"
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        if self._stack.modules_variable:
            environment[self._stack.modules_variable] = str(self._stack.modules)
        environment.pop("PYTHONASYNCIODEBUG", None)  # the library's affair, not ours
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._stack.command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        self._unread = b""
        try:
            return dict(self._answer(START_S)["ready"])
        except BaseException:
            self.kill()
            raise

    def _exchange(self, command: str, what: str) -> Any:
        """One command, a line, and its answer; raises Refused with the server's reason."""
        process = self._running()
        assert process.stdin is not None
        with self._exchanging:
            process.stdin.write(command.encode() + b"\n")
            process.stdin.flush()
            try:
                answer = self._answer(ANSWER_S)
            except Refused:
                self.kill()  # what it still answers would be taken for the answer to the next command
                raise
        if "error" in answer:
            raise Refused(f"{what}: {answer['error']}")
        return answer["ok"]

    def _answer(self, limit_s: float) -> dict[str, Any]:
        process = self._running()
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while b"\n" not in self._unread:
            readable, _, _ = select.select([descriptor], [], [], limit_s)
            data = os.read(descriptor, 1 << 20) if readable else b""
            if not data:
                what = "ended" if readable else f"did not answer in {limit_s:.0f} s"
                raise Refused(f"the {self._stack.name} server {what}; it wrote:\n{self.log[-2000:]}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return dict(json.loads(line))

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    def _end(self) -> None:
        """Wait for the end of a process that was told to end, and hang up."""
        process, self._process = self._running(), None
        process.communicate(timeout=ANSWER_S)
