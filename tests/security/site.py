"""The site under attack: plant-a, idmz and enterprise as `bsfg run` processes, Mosquitto with generated configuration,
and a zone `evil` with a valid certificate and rights of its own.

    enterprise <- idmz <- plant-a        honest: messages of plant-a travel to the enterprise
                  idmz <- evil           idmz pulls from evil, serves it and accepts its appends

evil is a peer of idmz by the site's configuration and has no other rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent import batch, local_socket
from agent.client import Client, NodeSilent
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from agent.fact_store import ConsumerState, StoreReader
from agent.message import parse_json
from tests.security.attacker import Attacker
from tests.sim import IS_LONG
from tests.waiting import wait_until

PLANT, IDMZ, ENTERPRISE, EVIL = "plant-a", "idmz", "enterprise", "evil"
HONEST = (PLANT, IDMZ, ENTERPRISE)
LINKS = (f"{PLANT}:{IDMZ}", f"{IDMZ}:{ENTERPRISE}", f"{IDMZ}:{EVIL}", f"{EVIL}:{IDMZ}")
STREAM = "facts.operational"
TELEMETRY = "facts.telemetry"
LIMIT_S = 20.0


def both(name: str) -> str:
    """A line of node.toml with both streams."""
    return f'{name} = ["{STREAM}", "{TELEMETRY}"]\n'


PEERS: Mapping[str, Mapping[str, str]] = {
    PLANT: {IDMZ: both("exports")},
    IDMZ: {
        PLANT: both("pulls"),
        ENTERPRISE: both("exports"),
        EVIL: both("exports") + both("appends"),
    },
    ENTERPRISE: {IDMZ: both("pulls") + f'relays = ["{PLANT}", "{EVIL}"]\n'},
}


@dataclass
class Site:
    """The processes, and their reports."""

    folder: Path
    broker: Mosquitto
    attacker: Attacker
    nodes: dict[str, Child] = field(default_factory=dict)
    _numbers: int = 0
    _incidents_before: list[str] = field(default_factory=list)

    # --- life ------------------------------------------------------------------------------------------------------

    def add(self, zone: str, more: str = "") -> None:
        """Start the node of a zone; `more` are further sections of its node.toml."""
        folder = self.folder / zone
        folder.mkdir(exist_ok=True)
        text = f'[node]\nzone = "{zone}"\n{more}{self.broker.section(zone)}'
        for peer, lines in PEERS[zone].items():
            text += f'[[peer]]\nzone = "{peer}"\nbroker = "site"\n{lines}'
            if peer == EVIL:
                text += f"pulls = {json.dumps([STREAM, TELEMETRY])}\n"
        config = folder / "node.toml"
        config.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "agent.cli", "run", "--config", config]
        self.nodes[zone] = Child(f"node {zone}", command, folder / "log", {"PYTHONASYNCIODEBUG": ""})
        self.nodes[zone].start()

    def wait_ready(self) -> None:
        """Wait until every node answers and is connected."""
        for zone, node in self.nodes.items():
            node.wait_ready(lambda zone=zone: self.is_connected(zone))  # type: ignore[misc]

    def revive(self) -> None:
        """Restart what an earlier attack has stopped, so that a test fails only by its own attack."""
        for node in self.nodes.values():
            if not node.running:
                node.start()
        if not self.attacker.is_running:
            self.attacker.start()
        self.wait_ready()

    def fresh_evil(self) -> int:
        """Let evil serve an empty log under a new life, to an idmz that pulls it. Returns the end of idmz's stream."""
        self.attacker.command("begin", zone=EVIL)
        self.attacker.serve(EVIL, IDMZ)
        peers = self.status(IDMZ)["peers"]
        if any(
            peer["blocked"] for peer in peers if peer["zone"] == EVIL
        ):  # by an earlier attack; it asks once a minute
            self.nodes[IDMZ].kill()
            self.revive()
        self._incidents_before = self.incidents(IDMZ)
        return self.end(IDMZ)

    # --- what is seen ----------------------------------------------------------------------------------------------

    def status(self, zone: str) -> dict[str, Any]:
        """The status of a node; empty when it does not answer."""
        try:
            return Client(self.folder / zone / "state").status()
        except NodeSilent:
            return {}

    def pull(self, zone: str, peer: str, stream: str = STREAM) -> dict[str, Any]:
        """The status of a zone's pull from a peer."""
        (found,) = [row for row in self.status(zone)["peers"] if (row["zone"], row["stream"]) == (peer, stream)]
        return dict(found)

    def command(self, zone: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of bsfg with the configuration of a zone."""
        whole = [sys.executable, "-m", "agent.cli", *words, "--config", str(self.folder / zone / "node.toml")]
        return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)

    def is_connected(self, zone: str) -> bool:
        """Whether a node is connected to the broker."""
        brokers = self.status(zone).get("brokers", [])
        return bool(brokers) and all(broker["connected"] for broker in brokers)

    def connects(self) -> dict[str, int]:
        """How often each node has connected to the broker, which evil uses too."""
        return {zone: self.status(zone)["brokers"][0]["connects_total"] for zone in self.nodes}

    def store(self, zone: str) -> Path:
        """The store file of a zone."""
        return self.folder / zone / "state" / "facts.db"

    def end(self, zone: str, stream: str = STREAM) -> int:
        """The end of a stream in a zone's store."""
        with contextlib.closing(StoreReader(self.store(zone))) as reader:
            return reader.end_offset(stream)

    def life(self, zone: str) -> str:
        """The present life of a zone's store, hex."""
        return str(self.status(zone)["life"])

    def incidents(self, zone: str) -> list[str]:
        """The incidents in a zone's store, newest first, as texts."""
        with contextlib.closing(StoreReader(self.store(zone))) as reader:
            return [str(incident) for incident in reader.incidents()]

    def consumers(self, zone: str) -> list[ConsumerState]:
        """The consumers of a zone's store."""
        with contextlib.closing(StoreReader(self.store(zone))) as reader:
            return reader.consumers()

    def new_incidents(self, zone: str) -> list[str]:
        """Incidents that were added or counted again since `fresh_evil`."""
        return [incident for incident in self.incidents(zone) if incident not in self._incidents_before]

    def log(self, zone: str) -> str:
        """The log of a node, over all its lives."""
        return (self.folder / zone / "log").read_text("utf-8", errors="replace")

    # --- honest work -----------------------------------------------------------------------------------------------

    def append(self, zone: str = PLANT, stream: str = STREAM, content: bytes = b'{"honest":true}') -> str:
        """Append a message as an application of the zone. Returns its id."""
        self._numbers += 1
        message_id = f"{zone}-{self._numbers}"
        value = parse_json("content", content)
        node = Client(self.folder / zone / "state")
        node.append("order:line1/1", "step_completed", value, message_id=message_id, stream=stream)
        return message_id

    def forget_consumers(self, zone: str, at: str = IDMZ) -> None:
        """Remove the consumers of a zone, of which it may have only so many."""
        state = self.folder / at / "state"
        known = asyncio.run(local_socket.ask(state, local_socket.ListConsumers())).answer
        assert isinstance(known, local_socket.Consumers), known
        for consumer in known.consumers:
            if consumer.zone == zone:
                asyncio.run(local_socket.ask(state, local_socket.RemoveConsumer(consumer.name, force=True, now=True)))

    @staticmethod
    def noise(seed: int, size: int) -> str:
        """A text that does not compress."""
        return random.Random(seed).randbytes(size // 2).hex()

    def ids(self, zone: str, stream: str = STREAM, after: int = 0) -> list[str]:
        """The ids of the messages in a zone's store."""
        found = list[str]()
        with contextlib.closing(StoreReader(self.store(zone))) as reader:
            while page := reader.read(stream, after, 100_000, 8_000_000).batches:
                for stored in page:
                    parsed = batch.parse(stored.sealed)
                    if parsed.header.kind is batch.Kind.MESSAGES:
                        found += [message.envelope.message_id for message in batch.open_messages(parsed)]
                after = page[-1].last_offset
        return found

    def wait_fact(
        self, message_id: str, zone: str = ENTERPRISE, *, stream: str = STREAM, limit_s: float = LIMIT_S
    ) -> None:
        """Wait until a message has arrived in a zone's store."""
        wait_until(lambda: message_id in self.ids(zone, stream), f"{message_id} at {zone}", limit_s)

    def assert_honest_flow(self, limit_s: float = LIMIT_S) -> None:
        """A fact that the plant appends now reaches the enterprise."""
        self.wait_fact(self.append(), limit_s=limit_s)

    @contextlib.contextmanager
    def unharmed(self, limit_s: float = LIMIT_S) -> Iterator[None]:
        """An attack in this block ends no process, begins no life, and stops no honest facts."""
        before = {zone: (node.pid, self.life(zone)) for zone, node in self.nodes.items()}
        yield
        self.assert_honest_flow(limit_s)
        for zone, node in self.nodes.items():
            assert node.running, f"{zone} has ended:\n{node.log_tail()}"
            assert (node.pid, self.life(zone)) == before[zone], zone


def identities(broker: Mosquitto, zones: Iterable[str]) -> dict[str, dict[str, str | int]]:
    """The certificates of some zones, and the port of the broker, for the attacker."""
    found = dict[str, dict[str, str | int]]()
    for zone in zones:
        identity = broker.identity(zone)
        files = {"ca": str(identity.ca_file), "cert": str(identity.cert_file), "key": str(identity.key_file)}
        found[zone] = {**files, "port": broker.port}
    return found


@contextlib.contextmanager
def running_site(
    folder: Path,
    *,
    honest: tuple[str, ...] = HONEST,
    taken: tuple[str, ...] = (EVIL, ENTERPRISE),
    more: Mapping[str, str] = {},
) -> Iterator[Site]:
    """A site during a block: nodes of the honest zones, and an attacker with the identities of the taken ones (of the
    enterprise's only to see the answers to another zone)."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Mosquitto.started(folder / "site", (*HONEST, EVIL), LINKS))
        attacker = Attacker(folder / "attacker", broker.host, broker.port, identities(broker, taken))
        attacker.start()
        stack.callback(attacker.close)
        site = Site(folder, broker, attacker)
        for zone in honest:
            site.add(zone, more.get(zone, ""))
            stack.callback(site.nodes[zone].kill)
        site.wait_ready()
        yield site


_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def control_characters(text: str) -> list[str]:
    """Characters that act on a terminal or change the order in which a line is shown."""
    return [json.dumps(match) for match in _CONTROL.findall(text)]


def some(cases: Mapping[str, object], short: int = 8) -> list[str]:
    """The names of all cases in `make sim`. In `make test`, `short` of them: the first, and others chosen by the date,
    so that a week of runs covers all."""
    names = list(cases)
    drawn = random.Random(datetime.now(UTC).toordinal()).sample(names[1:], min(short, len(names)) - 1)
    return names if IS_LONG else [names[0], *(name for name in names if name in drawn)]
