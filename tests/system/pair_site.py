"""Two gateways of one plant, as real processes: their nodes, the node above (their witness), two brokers, a node-opcua
server and a libmodbus device that both gateways may read.

    uplink broker      idmz <- plant-a, idmz <- plant-a-2, and both ask the witness there
    pair broker        plant-a <-> plant-a-2: frozen, it is the cut cable between the two boxes
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from agent.client import Client, NodeSilent
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child, free_port
from agent.fact_store import StoreReader
from agent.local_socket import LocalError
from agent.pair import LEASE_MS
from agent.query.scan import Bounds, Scanner
from tests.foreign.modbus.device import ModbusDevice, words_map
from tests.foreign.plant import QUICK as QUICK_OPCUA
from tests.foreign.server import ForeignServer
from tests.waiting import wait_until

ZONE, WITNESS = "plant-a", "idmz"
BOXES = ("plant-a", "plant-a-2")
STREAMS = TELEMETRY, OPERATIONAL = "facts.telemetry", "facts.operational"
WORDS = 8
COUNTS = ("count_a", "count_b")
QUICK_MODBUS = {"poll_interval_ms": 200, "timeout_ms": 2000, "reconnect_delay_ms": 50, "reconnect_delay_max_ms": 400}
TELLS_S = 60.0
STEADY_S = 1.0


class Sample(NamedTuple):
    """A stored sample, with the life that recorded it."""

    tag: str
    time_ns: int
    value: Any
    quality: int
    life: bytes


class PairSite:
    """The processes of one site. `nodes` by the names of the nodes."""

    def __init__(
        self, folder: Path, uplink: Mosquitto, pair: Mosquitto, server: ForeignServer, device: ModbusDevice
    ) -> None:
        self.folder, self.uplink, self.pair, self.server, self.device = folder, uplink, pair, server, device
        self.modbus = dict[str, object]()
        self.nodes: dict[str, Child] = {}
        self.configs: dict[str, Path] = {}

    def add_node(self, name: str, text: str) -> None:
        """Write a node's configuration; the process is started by the caller."""
        (self.folder / name).mkdir(exist_ok=True)
        self.configs[name] = self.folder / name / "node.toml"
        self.configs[name].write_text(text)
        command: list[str | Path] = [sys.executable, "-m", "agent.cli", "run", "--config", self.configs[name]]
        self.nodes[name] = Child(f"node {name}", command, self.folder / name / "log")

    def store(self, name: str) -> Path:
        """The store file of a node."""
        return self.folder / name / "state" / "facts.db"

    def client(self, name: str) -> Client:
        """A client at a node's socket."""
        return Client(self.folder / name / "state")

    def pair_status(self, name: str) -> dict[str, Any]:
        """What a box says of the pair; empty if it does not answer."""
        try:
            return self.client(name).status().get("pair") or {}
        except (NodeSilent, LocalError):
            return {}

    def pair_state(self, name: str) -> str:
        """What a box says of itself: leads, follows, alone; empty if it does not answer."""
        return str(self.pair_status(name).get("role", ""))

    def leaders(self) -> list[str]:
        """The boxes that record now, by their own word."""
        return [name for name in BOXES if self.pair_state(name) in {"leads", "alone"}]

    def problems(self, name: str, subject: str) -> list[str]:
        """What a node says is wrong with a subject, each with what to do."""
        reasons = self.client(name).status()["reasons"]
        return [
            f"{reason['problem']}: {reason['text']} -> {reason['hint']}"
            for reason in reasons
            if reason["subject"] == subject
        ]

    def wait_settled(self) -> str:
        """Wait until one box leads and the other follows for a while, and both have heard the witness, which may have
        lent the lead to the other one of them: boxes that start at once may both begin. The leader's name."""
        states = dict[str, str]()

        def is_settled() -> bool:
            found = {name: self.pair_status(name) for name in BOXES}
            states.clear()
            states.update({str(status.get("role")): name for name, status in found.items()})
            heard_ms = [status.get("witness_heard_ms") for status in found.values()]
            if states.keys() != {"follows", "leads"} or not all(ms is not None and ms < LEASE_MS for ms in heard_ms):
                return False
            return all(time.time() - status["since_unix_ms"] / 1000 >= STEADY_S for status in found.values())

        wait_until(is_settled, "one box to lead and the other to follow", TELLS_S)
        return states["leads"]

    def switch(self, name: str) -> str:
        """What `bsfg pair switch` prints at a box. It is refused while the other box has fewer sources connected, as
        just after its start, so it is typed again until it succeeds."""
        command = [sys.executable, "-m", "agent.cli", "pair", "switch", "--config", str(self.configs[name])]
        said = [""]

        def is_done() -> bool:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            said[0] = done.stdout
            return done.returncode == 0

        wait_until(is_done, "the switch", TELLS_S)
        return said[0]

    def other(self, name: str) -> str:
        """The other box."""
        return next(box for box in BOXES if box != name)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of a node's present process."""
        lines = self.nodes[name].log_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    # ------------------------------------------------------------------------------------------------------- the stores

    def samples(self, name: str) -> list[Sample]:
        """All samples of the plant in a node's store, in the order of its log."""
        with closing(StoreReader(self.store(name))) as reader:
            bounds = Bounds(frozenset({TELEMETRY}), zones=frozenset({ZONE}))
            found = list[Sample]()
            for facts in Scanner(reader).scan(bounds):
                columns = (facts.column(column) for column in ("subject", "source_time_ns", "quality"))
                life = facts.batch.header.origin.life
                rows = zip(*columns, facts.values(), strict=True)
                found += [Sample(tag, time_ns, value, quality, life) for tag, time_ns, quality, value in rows]
            return found

    def newest_ns(self, name: str) -> dict[str, int]:
        """The newest good source time of each source (its tags' scope) in a node's store."""
        newest = dict[str, int]()
        for sample in self.samples(name):
            if sample.quality == 0:
                scope = sample.tag.partition("/")[0]
                newest[scope] = max(newest.get(scope, 0), sample.time_ns)
        return newest


class Seen(NamedTuple):
    """How long after a moment the first value of each source was stored, in seconds."""

    opcua_s: float
    modbus_s: float


def wait_values_after(site: PairSite, name: str, moment_ns: int) -> Seen:
    """Wait until a box has stored a value of both sources that is newer than a moment of the wall clock."""
    since = dict[str, float]()

    def arrived() -> bool:
        for scope, newest_ns in site.newest_ns(name).items():
            if newest_ns > moment_ns and scope not in since:
                since[scope] = (time.time_ns() - moment_ns) / 1e9
        return {"tag:f", "tag:m"} <= since.keys()

    wait_until(arrived, f"values of both sources at {name}", TELLS_S)
    return Seen(since["tag:f"], since["tag:m"])


@contextlib.contextmanager
def run_pair(
    folder: Path, server: ForeignServer, device: ModbusDevice, modbus: Mapping[str, object] | None = None
) -> Iterator[PairSite]:
    """Both boxes and their witness, settled: one leads. `modbus` are more settings of the device. All ends with the
    block."""
    names = (*BOXES, WITNESS)
    up = [f"{box}:{WITNESS}" for box in BOXES] + [f"{WITNESS}:{box}" for box in BOXES]
    between = [f"{BOXES[0]}:{BOXES[1]}", f"{BOXES[1]}:{BOXES[0]}"]
    with ExitStack() as stack:
        uplink = stack.enter_context(Mosquitto.started(folder / "site", names, up))
        pair = stack.enter_context(uplink.second_process("pair", between))
        site = PairSite(folder, uplink, pair, server, device)
        site.modbus = dict(modbus or {})
        for box in BOXES:
            site.add_node(box, _box_toml(site, box))
        site.add_node(WITNESS, _witness_toml(site))
        for node in site.nodes.values():
            stack.callback(node.stop)
            node.start()
        for name, node in site.nodes.items():
            node.wait_ready(lambda name=name: _answers(site, name))  # type: ignore[misc]
        stack.callback(pair.thaw)
        stack.callback(uplink.thaw)
        yield site


def _answers(site: PairSite, name: str) -> bool:
    try:
        site.client(name).status()
    except NodeSilent:
        return False
    return True


def _box_toml(site: PairSite, name: str) -> str:
    partner = next(box for box in BOXES if box != name)
    folder = site.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "plc.csv").write_text(site.server.tags(*COUNTS))
    (folder / "meter.csv").write_text(words_map(0, WORDS, scope="m"))
    opcua = {"name": "plc", "url": site.server.url, "tags_file": "plc.csv", **QUICK_OPCUA}
    modbus = {
        "name": "meter",
        "host": "127.0.0.1",
        "port": site.device.port,
        "tags_file": "meter.csv",
        "address_base": 0,
        **QUICK_MODBUS,
        **site.modbus,
    }
    return "\n".join(
        [
            _section("[node]", zone=ZONE, name=name),
            _section("[store]", disk_free_bytes_min=2_000_000, ballast_bytes=1_000_000),
            _section("[pair]", partner=partner, witness=WITNESS),
            _section("[page]", listen_port=free_port()),
            _broker(site.uplink, "uplink", name),
            _broker(site.pair, "pair", name),
            _section("[[peer]]", zone=WITNESS, broker="uplink", exports=STREAMS, asks=True),
            _section("[[peer]]", zone=ZONE, node=partner, broker="pair", exports=STREAMS, pulls=STREAMS),
            _section("[[opcua]]", **opcua),
            _section("[[modbus]]", **modbus),
        ]
    )


def _witness_toml(site: PairSite) -> str:
    peers = [_section("[[peer]]", zone=ZONE, node=box, broker="uplink", pulls=STREAMS) for box in BOXES]
    return "\n".join([_section("[node]", zone=WITNESS), _broker(site.uplink, "uplink", WITNESS), *peers])


def _broker(broker: Mosquitto, name: str, node: str) -> str:
    return f"{broker.section(node, name)}optional = true\n"


def _section(title: str, **settings: object) -> str:
    return "\n".join([title, *(f"{name} = {_toml(value)}" for name, value in settings.items()), ""])


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value)
