"""An enterprise node as it runs at a customer, in processes of its own, for tests that read it over MQTT: Mosquitto
with TLS and the product's access list, and `bsfg run` on a store that was filled before. `analytics` is the zone of
Spark."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from tests.replication.nodes import write_node_toml
from tests.spark.making import TELEMETRY

ENTERPRISE, READER = "enterprise", "analytics"


@dataclass(frozen=True)
class Served:
    """The running node."""

    broker: Mosquitto
    node: Child
    store: Path

    def options(self, zone: str = READER, **others: object) -> dict[str, str]:
        """Options of the data source, for a reader with the certificate of a zone."""
        mine = self.broker.identity(zone)
        files = {"caFile": mine.ca_file, "certFile": mine.cert_file, "keyFile": mine.key_file}
        at = {"transport": "mqtt", "host": self.broker.host, "port": self.broker.port, "peer": ENTERPRISE}
        return {name: str(value) for name, value in (at | files | others).items()}


def store_path(folder: Path) -> Path:
    """Where the store has to be before the node starts."""
    return folder / "node" / "state" / "facts.db"


@contextmanager
def served(folder: Path, more: str = "", zones: Sequence[str] = (READER,)) -> Iterator[Served]:
    """Start broker and node on the store in `store_path(folder)`; `more` is appended to node.toml."""
    links = [f"{ENTERPRISE}:{READER}"]
    with Mosquitto.started(folder / "mosquitto", (ENTERPRISE, *zones), links) as broker:
        peer = f'zone = "{READER}"\nexports = ["{TELEMETRY}"]\n{more}'
        file = write_node_toml(folder / "node", broker, ENTERPRISE, peer)
        command = [sys.executable, "-m", "agent.cli", "run", "--config", str(file)]
        with Child("node", command, folder / "node.log") as node:
            node.start()
            node.wait_ready(lambda: "node_ready" in node.log_text())
            yield Served(broker, node, store_path(folder))
