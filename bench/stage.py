"""The stage of a benchmark: a folder on a real disk, a private broker with mutual TLS, and processes that play the parts.

Each part of a benchmark runs in a process of its own (`bench.side`), because two ends in one interpreter would share a lock
that they do not share in the field. A part is told what to do in one JSON argument, says `READY` when it can begin and
`RESULT {...}` when it is done, and stays until it is stopped. All of them talk through the broker that the product's own
generator configures; nothing is left running afterwards.
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
SERVING, ASKING = "plant-a", "idmz"  # the product's two zones
BARE_SERVING = "plant-b"  # the limit's serving zone, so that both can stand side by side
RESULT_S_MAX = 120.0  # four million facts on a slow card; the longest --seconds comes on top


@dataclass(frozen=True, slots=True)
class Door:
    """How one zone reaches the broker."""

    zone: str
    host: str
    port: int
    ca_file: str
    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A broker that runs, and a folder."""

    folder: Path
    broker: Mosquitto

    def door(self, zone: str) -> Door:
        """The way of `zone` to the broker."""
        identity = self.broker.identity(zone)
        files = (str(identity.ca_file), str(identity.cert_file), str(identity.key_file))
        return Door(zone, self.broker.host, self.broker.port, *files)

    def part(self, name: str, role: str, zone: str, **options: Any) -> contextlib.AbstractContextManager[Part]:
        """A process that plays `role` for the length of a block; ready when the block begins."""
        return part(self.folder, name, role, door=asdict(self.door(zone)), **options)


class Part(Child):
    """One process of a benchmark."""

    def result(self, limit_s: float = RESULT_S_MAX) -> dict[str, Any]:
        """What it found, once it has."""
        found: dict[str, Any] = json.loads(self.wait_line("RESULT ", limit_s).removeprefix("RESULT "))
        return found

    def result_with(self, other: Part, limit_s: float = RESULT_S_MAX) -> dict[str, Any]:
        """As `result`, of a part that depends on another: if it does not come, the other's log says why."""
        try:
            return self.result(limit_s)
        except ProcessFailed as error:
            raise ProcessFailed(f"{error}\n{other.name}:\n{other.log_tail()}") from error

    def ended(self) -> dict[str, Any]:
        """End it, and take what it says at its end."""
        self.stop()
        last = [line for line in self.log_text().splitlines() if line.startswith("ENDED ")]
        assert last, f"{self.name} ended without a word:\n{self.log_tail()}"
        found: dict[str, Any] = json.loads(last[-1].removeprefix("ENDED "))
        return found


@contextlib.contextmanager
def part(folder: Path, name: str, role: str, **options: Any) -> Iterator[Part]:
    """A process that plays `role` for the length of a block; ready when the block begins."""
    arguments = [sys.executable, "-m", "bench.side", role, json.dumps(options, default=str)]
    player = Part(name, arguments, folder / f"{name}.log")
    player.start()
    try:
        player.wait_line("READY")
        yield player
    finally:
        player.stop()


@contextlib.contextmanager
def workplace(below: Path | None) -> Iterator[Path]:
    """An empty folder on a disk, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bsfg-bench-", dir=below or FOLDER) as name:
        yield Path(name)


@contextlib.contextmanager
def stage(below: Path | None) -> Iterator[Stage]:
    """A workplace with a broker for the product's two zones and for the limit's."""
    zones = (SERVING, BARE_SERVING, ASKING)
    links = (f"{SERVING}:{ASKING}", f"{BARE_SERVING}:{ASKING}")
    with workplace(below) as folder, Mosquitto.started(folder, zones=zones, links=links) as broker:
        yield Stage(folder, broker)
