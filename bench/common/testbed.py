"""The test bed of a benchmark: a folder on a real disk, a private broker with mutual TLS, and worker processes.

Each side of a benchmark is a process of its own (`bench.worker`), because two sides in one interpreter would share a
lock that they do not share in the field. A worker gets its options in one JSON argument, prints `READY` when it can
begin and `RESULT {...}` when it is done, and runs until it is stopped. The broker is configured by the product's own
generator. Nothing keeps running afterwards.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child, ProcessFailed

FOLDER = Path("/var/tmp")  # noqa: S108 - kept on disk by every distribution; /tmp may be memory, where fsync costs nothing
SERVING, ASKING = "plant-a", "idmz"  # the two zones of the product's side
BARE_SERVING = "plant-b"  # the limit's serving zone, so that both can use one broker
RESULT_S_MAX = 120.0  # four million facts on a slow card; the longest --seconds comes on top


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """How one zone reaches the broker."""

    zone: str
    host: str
    port: int
    ca_file: str
    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class Testbed:
    """A running broker and a folder on the measured disk."""

    folder: Path
    broker: Mosquitto

    def access(self, zone: str) -> BrokerAccess:
        """How `zone` reaches the broker."""
        identity = self.broker.identity(zone)
        files = (str(identity.ca_file), str(identity.cert_file), str(identity.key_file))
        return BrokerAccess(zone, self.broker.host, self.broker.port, *files)

    def worker(self, name: str, role: str, zone: str, **options: Any) -> contextlib.AbstractContextManager[Worker]:
        """A worker of `zone`, ready when the block begins and stopped at its end."""
        return start_worker(self.folder, name, role, broker=asdict(self.access(zone)), **options)


class Worker(Child):
    """One worker process."""

    def result(self, limit_s: float = RESULT_S_MAX) -> dict[str, Any]:
        """Wait for the worker's RESULT. Raises ProcessFailed if it does not come in `limit_s`."""
        found: dict[str, Any] = json.loads(self.wait_line("RESULT ", limit_s).removeprefix("RESULT "))
        return found

    def result_with(self, other: Worker, limit_s: float = RESULT_S_MAX) -> dict[str, Any]:
        """As `result`, for a worker that depends on another: a failure also shows the other's log."""
        try:
            return self.result(limit_s)
        except ProcessFailed as error:
            raise ProcessFailed(f"{error}\n{other.name}:\n{other.log_tail()}") from error

    def ended(self) -> dict[str, Any]:
        """Stop the worker and return what it reports in its ENDED line."""
        self.stop()
        last = [line for line in self.log_text().splitlines() if line.startswith("ENDED ")]
        assert last, f"{self.name} printed no ENDED line:\n{self.log_tail()}"
        found: dict[str, Any] = json.loads(last[-1].removeprefix("ENDED "))
        return found


@contextlib.contextmanager
def start_worker(folder: Path, name: str, role: str, **options: Any) -> Iterator[Worker]:
    """A worker process, ready when the block begins and stopped at its end."""
    arguments = [sys.executable, "-m", "bench.worker", role, json.dumps(options, default=str)]
    worker = Worker(name, arguments, folder / f"{name}.log")
    worker.start()
    try:
        worker.wait_line("READY")
        yield worker
    finally:
        worker.stop()


@contextlib.contextmanager
def scratch_folder(below: Path | None) -> Iterator[Path]:
    """An empty folder on a disk, deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="bsfg-bench-", dir=below or FOLDER) as name:
        yield Path(name)


@contextlib.contextmanager
def open_testbed(below: Path | None) -> Iterator[Testbed]:
    """A scratch folder with a broker for the product's two zones and for the limit's."""
    zones = (SERVING, BARE_SERVING, ASKING)
    links = (f"{SERVING}:{ASKING}", f"{BARE_SERVING}:{ASKING}")
    with scratch_folder(below) as folder, Mosquitto.started(folder, zones=zones, links=links) as broker:
        yield Testbed(folder, broker)
