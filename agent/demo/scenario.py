"""The steps of the demonstration, in order, what it prints of them, and the comparison of counts at its end.

    the plant's values change        facts travel plant-a -> idmz -> enterprise, each hop durable
    the broker is frozen (SIGSTOP)   the zones are cut off from each other and keep recording
    the broker continues             the zones above catch up
    the IDMZ node is killed (-9)     and started again
    the plant stops                  the counts of the three stores and of Spark are compared

The plant is real servers with real protocols, and the nodes are `bsfg run`. The stores are counted by this program, the
Parquet files by Spark. The page shows more than is printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.client import Client, NodeSilent
from agent.demo import layout
from agent.demo.layout import TELEMETRY
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child, free_port
from agent.errors import BsfgError
from agent.fact_store import StoreReader

LINE_S = 3.0
Status = Mapping[str, Any]
_POLL_S = 0.25
_SPARK_S_MAX = 240.0
_COMMAND_S_MAX = 30.0
_ROWS_SHOWN = 8
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short run takes half the time without the second compiler
_JOBS = """
[source]
path = "{store}"

[land]
table = "{out}/facts"
checkpoint = "{out}/checkpoint"
format = "parquet"

[clean]
table = "{out}/clean"

[rollup]
table = "{out}/rollup"
"""


class View:
    """Prints with `echo`. The figures are each node's status."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._started_s = time.monotonic()
        self._line_s = 0.0

    def say(self, headline: str) -> None:
        """The present step."""
        self._echo(f"{time.monotonic() - self._started_s:5.1f} s  {headline}")

    def show(self, statuses: Mapping[str, Status | None]) -> None:
        """The present status of the nodes, if the last line is old enough."""
        now_s = time.monotonic()
        if now_s - self._line_s > LINE_S:
            self._line_s = now_s
            self.say("  " + "  |  ".join(f"{zone} {_text(status)}" for zone, status in statuses.items()))


def _text(status: Status | None) -> str:
    """The facts of a zone, and whether it is level with the zone below."""
    if status is None:
        return "does not answer"
    facts = sum(stream["end_offset"] for stream in status["streams"])
    lost = sorted({peer["zone"] for peer in status["peers"] if not peer["connected"]})
    lag_s = max((peer["lag_seconds"] or 0.0 for peer in status["peers"]), default=None)
    link = f"lost {', '.join(lost)}" if lost else "serves" if lag_s is None else f"pulls, {lag_s:.1f} s behind"
    return f"{facts:,} ({link})"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each part lasts, in seconds."""

    run_s: float = 12.0
    cut_s: float = 15.0
    after_kill_s: float = 5.0
    converge_s_max: float = 60.0


class DemoFailed(BsfgError):
    """The demonstration failed; its folder with all logs is kept."""


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """Facts of the telemetry stream as each zone holds them, and as Spark counted them; messages beside them."""

    facts: dict[str, int]
    messages: dict[str, int]
    spark: dict[str, Any]

    @property
    def rolled_up(self) -> int:
        """Facts that the rollup's rows represent."""
        return int(self.spark["facts_rolled_up"])

    @property
    def equal(self) -> bool:
        """Whether every zone and Spark counted the same, and there was something to count."""
        counts = {*self.facts.values(), self.rolled_up}
        return len(counts) == 1 and counts != {0} and len(set(self.messages.values())) == 1


@dataclass(slots=True)
class RunningZones:
    """The processes of one demonstration and where they live."""

    folder: Path
    broker: Mosquitto
    plant: tuple[Child, ...]
    nodes: dict[str, Child]
    page_ports: dict[str, int]
    configs: dict[str, Path] = field(default_factory=dict)
    page: str = ""
    """The address of the enterprise's page."""

    def status(self, zone: str) -> dict[str, Any] | None:
        """The status of a node, or None when it does not answer."""
        try:
            return Client(self.folder / zone / "state").status()
        except NodeSilent:
            return None

    def statuses(self) -> dict[str, dict[str, Any] | None]:
        """The status of every zone's node."""
        return {zone: self.status(zone) for zone in self.nodes}

    def store(self, zone: str) -> Path:
        """The store file of a zone."""
        return self.folder / zone / "state" / "facts.db"

    def facts(self, zone: str, stream: str) -> int:
        """Facts of a stream in a zone's store, read from its file."""
        with contextlib.closing(StoreReader(self.store(zone))) as reader:
            return reader.end_offset(stream)


@contextlib.contextmanager
def run_zones(folder: Path, *, keep: bool) -> Iterator[RunningZones]:
    """Start broker, plant and nodes in `folder`; end them all at the end, unless they are to be kept."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Mosquitto.started(folder / "site", layout.ZONES, layout.LINKS))
        plant, address = _plant(folder)
        for child in plant:
            stack.callback(child.stop)
            child.start()
        for child in plant:
            child.wait_line("ready")
        made = RunningZones(folder, broker, plant, {}, {zone: free_port() for zone in layout.ZONES})
        for zone in layout.ZONES:
            config = folder / zone / "node.toml"
            source = address if zone == layout.PLANT else None
            text = layout.node_toml(zone, broker.identity(zone), broker.port, made.page_ports[zone], source)
            config.write_text(text, encoding="utf-8")
            made.configs[zone] = config
            arguments: list[str | Path] = [sys.executable, "-m", "agent.cli", "run", "--config", config]
            made.nodes[zone] = Child(f"node {zone}", arguments, folder / zone / "log")
        for node in made.nodes.values():
            stack.callback(node.stop)
            node.start()
        for zone, node in made.nodes.items():
            node.wait_ready(lambda zone=zone: made.status(zone) is not None)  # type: ignore[misc]
        page = Child(
            "page",
            [sys.executable, "-m", "agent.cli", "page", "--config", made.configs[layout.ENTERPRISE]],
            folder / "page.log",
        )
        stack.callback(page.stop)
        page.start()
        made.page = page.wait_line("page: ").removeprefix("page: ")
        yield made
        if keep:
            _wait_for_interrupt(made)


def run_demo(
    folder: Path, view: View, timing: Timing, report: Callable[[DemoOutcome], None], *, keep: bool = False
) -> DemoOutcome:
    """Run all steps and call `report` with the outcome while everything still runs.

    Raises DemoFailed when the zones do not agree in time.
    """
    view.say(f"starting a broker, a plant and three nodes in {folder}")
    with run_zones(folder, keep=keep) as zones:
        view.say(f"the page of the enterprise, with every zone below it: {zones.page}")
        _watch(zones, view, lambda: zones.facts(layout.ENTERPRISE, TELEMETRY) > 0, timing.converge_s_max)
        view.say("facts travel plant-a -> idmz -> enterprise; each zone has its own store, each arrow is a pull")
        _watch_for(zones, view, timing.run_s / 2)
        view.say("an application at the plant appends a message: " + _append_message(zones))
        _watch_for(zones, view, timing.run_s / 2)
        view.say(
            f"the IDMZ's broker is frozen: no zone reaches another for {timing.cut_s:.0f} s, the plant keeps recording"
        )
        zones.broker.freeze()
        _watch_for(zones, view, timing.cut_s)
        zones.broker.thaw()
        view.say("the broker is back: the zones above catch up")
        _watch(zones, view, lambda: _lag(zones) <= 100, timing.converge_s_max)
        view.say("kill -9 of the idmz node, and a new start")
        zones.nodes[layout.IDMZ].kill()
        _watch_for(zones, view, timing.after_kill_s / 2)
        zones.nodes[layout.IDMZ].start()
        _watch_for(zones, view, timing.after_kill_s)
        view.say("the plant stops")
        for child in zones.plant:
            child.stop()
        facts, messages = _settled(zones, view, timing)
        view.say("Spark counts the enterprise store and rolls it up by minute and tag")
        spark = rollup(zones.store(layout.ENTERPRISE), folder / "rollup")
        outcome = DemoOutcome(facts, messages, spark)
        report(outcome)
    return outcome


def rollup(store: Path, out: Path) -> dict[str, Any]:
    """Run the Spark jobs in a process of their own. Returns what the files of the rollup then contain."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    out.mkdir()
    settings = out / "jobs.toml"
    settings.write_text(_JOBS.format(store=store, out=out), encoding="utf-8")
    command = [sys.executable, "-m", "pyspark_bsfg", str(settings)]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": _QUICK_JVM}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SPARK_S_MAX, check=False, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"Spark did not end within {_SPARK_S_MAX:.0f} s: is the machine busy?") from error
    if done.returncode != 0:
        raise DemoFailed(f"the jobs failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])["jobs"]
    rows = ds.dataset(out / "rollup" / "1m", format="parquet", partitioning="hive").to_table()
    shown = rows.sort_by([("start", "ascending"), ("zone", "ascending"), ("tag", "ascending")]).slice(0, _ROWS_SHOWN)
    shown = shown.select(["start", "zone", "tag", "count", "min", "mean", "max", "last"])
    return {
        "facts_read": found["land"]["facts_landed"],
        "facts_rolled_up": pc.sum(rows["count"]).as_py(),
        "rows": rows.num_rows,
        "sample": [row | {"start": f"{row['start']:%Y-%m-%d %H:%M}"} for row in shown.to_pylist()],
    }


def _plant(folder: Path) -> tuple[tuple[Child, ...], layout.PlantAddress]:
    """The two simulated servers, not started. They write their tag maps. Their ports are fixed, so that they can be
    restarted."""
    for zone in layout.ZONES:
        (folder / zone).mkdir(parents=True, exist_ok=True)
    tags = folder / layout.PLANT / "tags.d"
    tags.mkdir()
    address = layout.PlantAddress(free_port(), free_port(), tags / "press.csv", tags / "boiler.csv")
    servers = (
        ("opcua_server", address.opcua_port, address.opcua_tags_file),
        ("modbus_server", address.modbus_port, address.modbus_tags_file),
    )
    children = [
        Child(
            module.replace("_", " "),
            [sys.executable, "-m", f"agent.demo.plant.{module}", "--port", str(port), "--tags-file", tags_file],
            folder / f"{module}.log",
        )
        for module, port, tags_file in servers
    ]
    return tuple(children), address


def _append_message(zones: RunningZones) -> str:
    """Run `bsfg append` as an application of the plant would; the first part of its output."""
    command = [sys.executable, "-m", "agent.cli", "append", "--config", str(zones.configs[layout.PLANT])]
    command += ["batch:B-1042", "step_completed", '{"result":"ok","step":"mash"}']
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S_MAX, check=False)
    if done.returncode != 0:
        raise DemoFailed(f"bsfg append failed: {done.stderr}")
    return done.stdout.partition(",")[0]


def _lag(zones: RunningZones) -> int:
    """How many facts of the plant the enterprise zone does not hold yet."""
    return zones.facts(layout.PLANT, TELEMETRY) - zones.facts(layout.ENTERPRISE, TELEMETRY)


def _settled(zones: RunningZones, view: View, timing: Timing) -> tuple[dict[str, int], dict[str, int]]:
    """Counts per zone, once they are equal and have not changed for two seconds."""
    seen: list[tuple[dict[str, int], dict[str, int]]] = []

    def still() -> bool:
        counts = tuple({zone: zones.facts(zone, stream) for zone in layout.ZONES} for stream in layout.STREAMS)
        seen.append((counts[0], counts[1]))
        recent = seen[-8:]
        return (
            len(recent) == 8
            and recent.count(recent[0]) == 8
            and all(len(set(per_zone.values())) == 1 for per_zone in recent[0])
        )

    _watch(zones, view, still, timing.converge_s_max)
    return seen[-1]


def _watch_for(zones: RunningZones, view: View, seconds: float) -> None:
    end = time.monotonic() + seconds
    _watch(zones, view, lambda: time.monotonic() >= end, seconds + 10)


def _watch(zones: RunningZones, view: View, until: Callable[[], bool], limit_s: float) -> None:
    """Update the view until a condition holds. Raises DemoFailed after `limit_s` seconds, or when a node dies."""
    deadline = time.monotonic() + limit_s
    while True:
        view.show(zones.statuses())
        if until():
            return
        if time.monotonic() > deadline:
            held = {zone: zones.facts(zone, TELEMETRY) for zone in layout.ZONES}
            raise DemoFailed(f"the zones do not agree after {limit_s:.0f} s: {held}; logs are in {zones.folder}")
        time.sleep(_POLL_S)


def _wait_for_interrupt(zones: RunningZones) -> None:
    for child in zones.plant:
        child.start()
    print(f"\nEverything is left running in {zones.folder}. Look around, for example:")
    for config in zones.configs.values():
        print(f"  bsfg status --config {config}")
    print(f"  {zones.page}\nA node that you kill is seen there; bsfg run starts it again. Ctrl-C ends it all.")
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()


def new_folder() -> Path:
    """A temporary folder with a short name, because the path of a Unix socket in it is limited."""
    return Path(tempfile.mkdtemp(prefix="bsfg-demo-"))
