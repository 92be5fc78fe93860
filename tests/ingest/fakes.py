"""A store that remembers what it was given, and programs of the plant as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from agent.columns import SampleColumns, pack
from agent.errors import StoreBusy, StoreFull
from agent.ingest.completeness import Stored
from agent.message import Message, Sample, TagDefinition, check_definition, check_message

STOP_S = 20.0


class FakeStore:
    """Satisfies StorePort. `refusing` makes it refuse at once. After it has taken something, it refuses facts of
    `full_streams`, or everything if `is_full`, as a disk is; `failing_futures` makes that many appends fail with
    `failure`. `before`: how many messages there were before each append of samples, and what was complete."""

    def __init__(self) -> None:
        self.definitions: list[TagDefinition] = []
        self.samples: list[tuple[str, Sample]] = []
        self.messages: dict[str, Message] = {}  # of the operational stream
        self.events: dict[str, Message] = {}
        self.complete: dict[tuple[str, str], Stored] = {}
        self.before: list[tuple[int, Mapping[tuple[str, str], Stored]]] = []
        self.refusing = self.is_full = False
        self.full_streams = set[str]()
        self.failing_futures = 0
        self.failure: Exception = StoreBusy("after all")

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        self._check()
        if self.is_full:
            return failed(StoreFull("full"))
        for definition in definitions:
            check_definition(definition)
            if definition not in self.definitions:
                self.definitions.append(definition)
        return done([self.definitions.index(definition) + 1 for definition in definitions])

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        self._check()
        if self.failing_futures:
            self.failing_futures -= 1
            return failed(self.failure)
        if self.is_full or stream in self.full_streams:
            return failed(StoreFull("full"))
        pack(columns, len(self.definitions))  # raises ValueError, as the store would
        self.before.append((len(self.messages), dict(self.complete)))
        self.samples += [(stream, row) for row in columns.rows()]
        return done(None)

    def append_message(self, stream: str, message: Message) -> Future[Any]:
        self._check()
        if self.is_full or stream in self.full_streams:
            return failed(StoreFull("full"))
        check_message(message)
        kept = self.messages if stream == "facts.operational" else self.events
        assert stream in ("facts.operational", "events", "alarms")
        kept.setdefault(message.envelope.message_id, message)
        return done(None)

    def set_completeness(self, source: str, parts: Mapping[str, Stored | None]) -> Future[Any]:
        self._check()
        if self.is_full:
            return failed(StoreFull("full"))
        for part, known in parts.items():
            if known is None:
                self.complete.pop((source, part), None)
            else:
                self.complete[source, part] = known
        return done(None)

    def told(self) -> list[dict[str, Any]]:
        """What the facts of the operational stream say, in order."""
        return [json.loads(message.fact.object_json) for message in self.messages.values()]

    def of(self, tag: str) -> list[Sample]:
        """The samples of a tag, by its scope/id."""
        numbers = {i for i, d in enumerate(self.definitions, 1) if d.subject == f"tag:{tag}"}
        return [sample for _, sample in self.samples if sample.tag in numbers]

    def good(self, tag: str) -> list[Sample]:
        return [sample for sample in self.of(tag) if sample.quality == 0]

    def _check(self) -> None:
        if self.refusing:
            raise StoreFull("full")


class SlowStore(FakeStore):
    """Takes samples, and leaves to the test when they are committed."""

    def __init__(self, *, is_slow: bool = True) -> None:
        super().__init__()
        self.is_slow = is_slow
        self.waiting: list[Future[Any]] = []

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        found = super().append_columns(stream, columns)
        if not self.is_slow:
            return found
        self.waiting.append(Future())
        return self.waiting[-1]


def failed(error: Exception) -> Future[Any]:
    """A future that has."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def done(result: Any) -> Future[Any]:
    """A future that is."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Program:
    """A server of the plant in its own process."""

    def __init__(self, module: str, port: int, *options: str) -> None:
        command = [sys.executable, "-m", module, "--port", str(port), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            self.stop()
            raise AssertionError(f"{module} said {line!r} instead of ready")
        self.port = int(line.split()[1])

    def kill(self) -> None:
        """As a power cut would."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        """As systemd would; returns the exit status."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        finally:
            if self._process.poll() is None:
                self.kill()
            if self._process.stdout is not None:
                self._process.stdout.close()


@contextmanager
def running(module: str, *options: str, port: int = 0) -> Iterator[Program]:
    """A server of the plant for the length of a block."""
    program = Program(f"agent.demo.plant.{module}", port, *options)
    try:
        yield program
    finally:
        program.stop()
