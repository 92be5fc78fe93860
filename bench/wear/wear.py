"""`wear`: the bytes that two nodes write to their disks for each fact, by cause, and the resulting lifetime of flash.

Both nodes are `bsfg run`, each with a file system of its own (file_system.py). The first reads an OPC UA server that
publishes a thousand values at a time, evenly, so that each tag changes once a second; the second pulls through a broker
with mutual TLS and confirms. Commits happen in real time, as in the plant. Each frame of the log is
attributed to the table of its page (wal_watch.py); a commit without facts that has a confirmation is attributed to the
confirmation as a whole. `other files` is what a process wrote besides log and database. `file system` is what the
device wrote beyond the writes of the process: journal and metadata.

The limit is the sealed bytes themselves, written once. The lag is the age of the oldest fact of each batch when the
commit of that batch was seen, at either node, and of each confirmation, looked at every few milliseconds.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child, ProcessFailed, free_port
from agent.health.flash import EXAMPLE_AMPLIFICATION, EXAMPLE_BYTES, EXAMPLE_CYCLES, SECONDS_PER_DAY, flash_years
from bench.common.measuring import Latency, Report, machine, process_cpu_ns, rounded
from bench.common.testbed import ASKING, SERVING, scratch_folder, start_worker
from bench.ingest.opcua_clients import NAMESPACE
from bench.wear.file_system import FileSystem, own_file_system
from bench.wear.wal_watch import WalWatch

STREAM = "facts.telemetry"
INTERVALS_MS = (250, 1000)
WARM_S = 10.0
LATE = 6.0  # a log takes 16 s to fill at four commits a second, a minute at one
START_S = 120.0
LOOK_S = 0.004


@dataclass
class Node:
    """One node: its process, its disk, its log, and what was seen of its batches."""

    zone: str
    process: Child
    disk: FileSystem
    file: Path
    watch: WalWatch
    started_ns: int = field(default_factory=time.monotonic_ns)
    batches: int = 0
    facts: int = 0
    sealed_bytes: int = 0
    oldest_ns: list[int] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    seen: int = 0

    @property
    def is_measured(self) -> bool:
        """Whether its measurement runs."""
        return bool(self.before) and not self.after

    def look(self, warm_s: float, seconds: float) -> None:
        """Begin and end the measurement when the log restarts, so that it covers whole checkpoints and no growing log;
        if the log does not restart in time, begin and end it anyway."""
        now_s = time.monotonic()
        since_s = self.before.get("ns", self.started_ns) / 1e9
        limit_s = seconds if self.before else warm_s
        is_turn = self.watch.turns > 0 and (not self.before or now_s > since_s + seconds)
        if self.after or not (is_turn or now_s > since_s + LATE * limit_s) or (self.before and not self.facts):
            return
        if self.before:
            self.after = self.counters()
        else:
            self.before = self.counters()
            self.watch.begin()

    def counters(self) -> dict[str, int]:
        """What the node has used so far."""
        written = self.disk.written_bytes()
        io = dict(line.split(": ") for line in Path(f"/proc/{self.process.pid}/io").read_text("ascii").splitlines())
        found = {
            "ns": time.monotonic_ns(),
            "cpu_ns": process_cpu_ns(self.process.pid),
            "process": int(io["write_bytes"]),
        }
        return found if written is None else {**found, "device": written}


def run(
    tags: int, seconds: float, intervals_ms: Sequence[int], target: int, keep_hours: float, below: Path | None
) -> Report:
    """Measure for `seconds` at each commit interval."""
    intervals_ms = intervals_ms or INTERVALS_MS
    with scratch_folder(below) as folder:
        described = machine(folder)
        rounds = [
            _round(folder, seconds, interval_ms, tags=tags, target=target, keep_hours=keep_hours)
            for interval_ms in intervals_ms
        ]
    last = rounds[-1]
    values = {
        "facts_per_s": last["facts_per_s"],
        "bytes_per_fact": last[SERVING]["bytes_per_fact"],
        "limit": {"what": "the sealed bytes, written once", "bytes_per_fact": last["sealed_bytes_per_fact"]},
        "ratio": rounded(last[SERVING]["bytes_per_fact"] / last["sealed_bytes_per_fact"]),
        "rounds": rounds,
        "flash": {"bytes": EXAMPLE_BYTES, "cycles": EXAMPLE_CYCLES, "amplification": EXAMPLE_AMPLIFICATION},
        "tags": tags,
        "seconds": seconds,
    }
    return Report("wear", values, [line for turn in rounds for line in _lines(turn)], described)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"interval   {found['commit_interval_ms']} ms, {found['facts_per_s']:,} facts/s, "
        f"{found['sealed_bytes_per_fact']} bytes sealed; counted at the {found['counted_at']}"
    )
    for zone in (SERVING, ASKING):
        worn = found[zone]
        yield (
            f"{zone:<10} {worn['bytes_per_fact']} bytes a fact, {worn['gb_a_day']} GB a day, {worn['flash_years']} years; "
            f"{worn['commits_per_s']} commits/s, {worn['confirmations_alone_per_s']} for confirmations; "
            f"CPU {worn['cpu_us_per_fact']} us a fact"
        )
        yield "           " + ", ".join(f"{cause} {size}" for cause, size in worn["causes"].items())
        yield f"           oldest fact of a commit: {Latency(**worn['lag'])}"
    yield f"confirmed  {Latency(**found['confirmed'])}"


# ------------------------------------------------------------------------------------------------------------ one round


def _round(folder: Path, seconds: float, interval_ms: int, **options: Any) -> dict[str, Any]:
    here = folder / f"interval-{interval_ms}"
    here.mkdir()
    with contextlib.ExitStack() as stack:
        nodes = _started(here, stack, interval_ms, **options)
        confirmed_ns = _watched(nodes, seconds)
        found = {node.zone: _figures(node) for node in nodes}
    plant = nodes[0]
    return {
        "commit_interval_ms": interval_ms,
        "facts_per_s": round(plant.facts / found[SERVING]["seconds"]),
        "sealed_bytes_per_fact": rounded(plant.sealed_bytes / plant.facts),
        "facts_per_batch": round(plant.facts / plant.batches),
        "counted_at": "device" if plant.disk.device else "process: without root there is no device of its own",
        **found,
        "confirmed": Latency.of(confirmed_ns).to_dict(),
    }


def _started(
    here: Path, stack: contextlib.ExitStack, interval_ms: int, *, tags: int, target: int, keep_hours: float
) -> list[Node]:
    """Start the server, the broker and both nodes, and wait until both have stored facts."""
    broker = stack.enter_context(Mosquitto.started(here / "site", (SERVING, ASKING), (f"{SERVING}:{ASKING}",)))
    port = free_port()
    source = _source_toml(here, tags, port)
    stack.enter_context(start_worker(here, "server", "opcua-server", port=port, rate=float(tags), data_set="B"))
    store = f"commit_interval_ms = {interval_ms}\n" + (f"batch_facts_target = {target}\n" if target else "")
    store += f'[[stream]]\nname = "{STREAM}"\nkeep_hours = {keep_hours}\n'
    begun = []
    for zone, other, peer in ((SERVING, ASKING, "exports"), (ASKING, SERVING, "pulls")):
        disk = stack.enter_context(own_file_system(here / zone))
        config = here / f"{zone}.toml"
        config.write_text(
            f'[node]\nzone = "{zone}"\nstate_dir = "{disk.folder}/state"\n[store]\n{store}{broker.section(zone)}'
            f'[[peer]]\nzone = "{other}"\nbroker = "site"\n{peer} = ["{STREAM}"]\n'
            + (source if zone == SERVING else ""),
            encoding="utf-8",
        )
        process = Child(zone, [sys.executable, "-m", "agent.cli", "run", "--config", config], here / f"{zone}.log")
        stack.callback(process.stop)
        process.start()
        begun.append((zone, process, disk, disk.folder / "state" / "facts.db"))
    for _, process, _, file in reversed(begun):
        process.wait_ready(partial(_has_facts, file, 2 * tags), START_S)
    return [Node(*node, WalWatch(node[-1])) for node in begun]


def _source_toml(here: Path, tags: int, port: int) -> str:
    rows = (f"bench/item-{n},nsu={NAMESPACE};i={n}\n" for n in range(1, tags + 1))
    (here / "tags.csv").write_text("tag,address\n" + "".join(rows), encoding="utf-8")
    return (
        f'[[opcua]]\nname = "bench"\nurl = "opc.tcp://127.0.0.1:{port}/bench"\ntags_file = "{here}/tags.csv"\n'
        f'security_policy = "None"\nsecurity_mode = "None"\ninsecure = true\nitems_per_subscription_max = {tags}\n'
    )


def _has_facts(file: Path, facts: int) -> bool:
    """Whether a store holds so many facts; not while it is being made."""
    try:
        with closing(_reader(file)) as database:
            row = database.execute("SELECT max(last_offset) FROM batch").fetchone()
    except sqlite3.Error:
        return False
    return bool(row[0]) and row[0] > facts


def _reader(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _watched(nodes: Sequence[Node], seconds: float) -> list[int]:
    """Follow both stores until each is measured; the ages of the newest fact of each confirmation."""
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(closing(_reader(node.file))) for node in nodes]
        times: list[tuple[int, int]] = []  # last offset and newest source time of the first node's batches
        confirmed_ns: list[int] = []
        while not all(node.after for node in nodes):
            time.sleep(LOOK_S)
            for node, reader in zip(nodes, readers, strict=True):
                if not node.after and node.watch.poll():  # what comes later is not counted
                    found = _take(node, reader)
                    if node is nodes[0]:
                        times += found
                        frontier = reader.execute("SELECT max(frontier) FROM consumer").fetchone()[0]
                        while times and times[0][0] <= frontier:
                            confirmed_ns.append(time.time_ns() - times.pop(0)[1])
                if (
                    node is not nodes[0] or not node.is_measured or confirmed_ns
                ):  # a short run waits for the first of them
                    node.look(min(WARM_S, seconds), seconds)
                if not node.process.running:
                    raise ProcessFailed(f"{node.zone} has ended:\n{node.process.log_tail()}")
    return confirmed_ns


def _take(node: Node, reader: sqlite3.Connection) -> list[tuple[int, int]]:
    """Count the batches that a node committed since the last call. Returns their last offsets and newest source
    times."""
    found = []
    for last, count, oldest, newest, size in _batches(reader, node.seen):
        node.seen = last
        if node.is_measured:
            node.batches, node.facts, node.sealed_bytes = node.batches + 1, node.facts + count, node.sealed_bytes + size
            node.oldest_ns.append(time.time_ns() - oldest)
            found.append((last, newest))
    return found


def _batches(reader: sqlite3.Connection, after: int) -> list[tuple[int, int, int, int, int]]:
    return reader.execute(
        "SELECT last_offset, count, time_min_ns, time_max_ns, length(body) + 16 FROM batch"
        " WHERE stream = 1 AND first_offset > ? ORDER BY first_offset",
        (after,),
    ).fetchall()


def _figures(node: Node) -> dict[str, Any]:
    """What a node wrote and used between two looks, for each fact."""
    used = {name: node.after[name] - node.before[name] for name in node.after}
    took_s = used["ns"] / 1e9
    causes = node.watch.causes()
    causes["other files"] = max(0, used["process"] - sum(causes.values()))
    written = used["process"]
    if "device" in used:
        causes["file system"] = used["device"] - sum(causes.values())
        written = used["device"]
    years = flash_years(written / took_s, EXAMPLE_BYTES, EXAMPLE_CYCLES, EXAMPLE_AMPLIFICATION)
    return {
        "seconds": rounded(took_s),
        "bytes_per_fact": rounded(written / node.facts),
        "gb_a_day": rounded(written / took_s * SECONDS_PER_DAY / 1e9),
        "flash_years": rounded(years),
        "causes": {cause: rounded(size / node.facts) for cause, size in causes.items()},
        "process_bytes_per_fact": rounded(used["process"] / node.facts),
        "commits_per_s": rounded(len(node.watch.commits) / took_s),
        "confirmations_alone_per_s": rounded(node.watch.confirmations_alone() / took_s),
        "pages_per_commit": rounded(sum(map(len, node.watch.commits)) / len(node.watch.commits)),
        "cpu_us_per_fact": rounded(used["cpu_ns"] / node.facts / 1000),
        "lag": Latency.of(node.oldest_ns).to_dict(),
    }
