"""`fleet`: one node that pulls from many plants over one broker.

The node is `bsfg run` and the broker is as `bsfg broker config` writes it; the plants are simulated in a few processes
(plants.py). As always, the node pulls the stream `health` of each, too, in which there is something once a minute.
Measured: the time from the node's start until it has an answer of every plant; the processor of node and broker while
nothing happens, and at 5,000 facts/s in all; the lag from an append until its plant has the confirmation; memory; the
time of a status; and how long after a plant has stopped without a word its node is named.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from agent.client import Client, NodeSilent
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child, ProcessFailed
from bench.common.measuring import Latency, Report, cores_used, files_bytes, machine, rounded, rss_mib
from bench.common.testbed import ASKING, Testbed, Worker, scratch_folder
from bench.replication.endpoints import STREAM

FACTS_PER_S = 5000
PLANTS_OF_PROCESS = 500
SETTLE_S, LOOK_S = 3.0, 0.25
READY_S_MAX, NAMED_S_MAX = 300.0, 120.0
MEMORY_MIB_MAX, IDLE_CORES_MAX, READY_S, NAMED_S = 200.0, 0.25, 10.0, 10.0
LAG_MS = 50.0


def run(plants: int, seconds: float, below: Path | None) -> Report:
    """Measure `plants` plants, idle and under load for `seconds` each."""
    zones = [f"plant-{number:04}" for number in range(plants)]
    with scratch_folder(below) as folder:
        described = machine(folder)
        links = [f"{zone}:{ASKING}" for zone in zones]
        with Mosquitto.started(folder / "site", [*zones, ASKING], links) as broker:
            found = _measure(Testbed(folder, broker), zones, seconds)
    return _report(plants, found, described, seconds)


def _measure(bed: Testbed, zones: list[str], seconds: float) -> dict[str, Any]:
    facts, settle_s = max(1, FACTS_PER_S // len(zones)), min(SETTLE_S, seconds)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(group) for group in plant_groups(bed, zones[1:], facts)]
        alone = stack.enter_context(_plants(bed, "plants-alone", zones[:1], facts))
        node, state = pulling_node(bed, zones), bed.folder / ASKING / "state"
        stack.callback(node.stop)
        begun = time.monotonic()
        node.start()
        node.wait_ready(lambda: counts(state).get("peers_connected") == 2 * len(zones), READY_S_MAX)
        found: dict[str, Any] = {"ready_s": rounded(time.monotonic() - begun)}
        time.sleep(settle_s)
        pids = {"node": node.pid, "broker": bed.broker.pid}
        found["idle_cores"] = cores_used(pids, partial(time.sleep, seconds))
        for worker in (*workers, alone):
            os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(settle_s)
        found["loaded_cores"] = cores_used(pids, partial(time.sleep, seconds))
        begun = time.monotonic()
        Client(state).status()
        found["status_s"] = rounded(time.monotonic() - begun)
        for worker in (*workers, alone):
            os.kill(worker.pid, signal.SIGUSR1)
        time.sleep(settle_s)
        found["rss_mib"] = {"node": rss_mib(node.pid), "broker": rss_mib(bed.broker.pid)}
        alone.freeze()
        begun = time.monotonic()
        node.wait_ready(lambda: _is_named(state, zones[0]), NAMED_S_MAX)
        found["named_s"] = rounded(time.monotonic() - begun)
        alone.thaw()
        found["lags_ns"] = [lag for worker in (*workers, alone) for lag in worker.ended()["lags_ns"]]
        found["bytes_per_fact"] = files_bytes(bed.folder / ASKING) / (len(zones) + facts * len(found["lags_ns"]))
        return found


def plant_groups(bed: Testbed, zones: list[str], facts: int) -> Iterator[contextlib.AbstractContextManager[Worker]]:
    """The processes of the plants of these zones, not started; under load a plant appends so many facts a second."""
    for number, at in enumerate(range(0, len(zones), PLANTS_OF_PROCESS)):
        yield _plants(bed, f"plants-{number}", zones[at : at + PLANTS_OF_PROCESS], facts)


def _plants(bed: Testbed, name: str, zones: list[str], facts: int) -> contextlib.AbstractContextManager[Worker]:
    return bed.worker(name, "plants", zones[0], zones=zones, facts_per_plant=facts)


def pulling_node(bed: Testbed, zones: list[str]) -> Child:
    """The node that pulls from these zones; not started."""
    folder = bed.folder / ASKING
    folder.mkdir()
    text = f'[node]\nzone = "{ASKING}"\n[page]\nlisten_port = 0\n{bed.broker.section(ASKING)}'
    for zone in zones:
        text += f'[[peer]]\nzone = "{zone}"\nbroker = "site"\npulls = ["{STREAM}"]\nanti_entropy_hours = 0\n'
    config = folder / "node.toml"
    config.write_text(text, encoding="utf-8")
    return Child("node", [sys.executable, "-m", "agent.cli", "run", "--config", config], folder / "log")


def counts(state: Path) -> dict[str, int]:
    """The counts of a node's status; empty while it does not answer."""
    time.sleep(LOOK_S)  # a status of thousands of pulls costs the node what is measured
    try:
        found: dict[str, int] = Client(state).status()["counts"]
    except NodeSilent:
        return {}
    return found


def _is_named(state: Path, zone: str) -> bool:
    time.sleep(LOOK_S)
    return any(
        zone in reason["subject"] and "no answer" in reason["text"] for reason in Client(state).status()["reasons"]
    )


def _report(plants: int, found: dict[str, Any], described: dict[str, Any], seconds: float) -> Report:
    lags_ns, memory = found.pop("lags_ns"), sum(found["rss_mib"].values())
    if not lags_ns:
        raise ProcessFailed("no plant was ever confirmed a batch under load")
    lag, idle = Latency.of(lags_ns), sum(found["idle_cores"].values())
    reached = {
        "memory": memory <= MEMORY_MIB_MAX,
        "idle": idle <= IDLE_CORES_MAX,
        "ready": found["ready_s"] <= READY_S,
        "named": found["named_s"] <= NAMED_S,
    }
    values = {
        **lag.to_dict(),
        **found,
        "limit": {"what": "a lag that nobody notices", "p50_ms": LAG_MS},
        "ratio": rounded(lag.p50_ms / LAG_MS),
        "bytes_per_fact": rounded(found["bytes_per_fact"]),
        "is_reached": reached,
        "plants": plants,
        "seconds": seconds,
    }

    def parts(name: str, digits: str) -> str:
        return ", ".join(f"{part} {value:{digits}}" for part, value in found[name].items())

    cores = f"idle: {parts('idle_cores', '.3f')} (at most {IDLE_CORES_MAX} together); loaded: "
    times = f"ready {found['ready_s']} s (at most {READY_S:.0f}), a status {found['status_s']} s, a plant that stopped"
    lines = [
        f"fleet      {plants:,} plants: {lag}, append to confirmed at {FACTS_PER_S:,} facts/s",
        f"cores      {cores}{parts('loaded_cores', '.3f')}",
        f"memory     {parts('rss_mib', '.0f')} MiB (at most {MEMORY_MIB_MAX:.0f} together)",
        f"times      {times} is named after {found['named_s']} s (at most {NAMED_S:.0f})",
    ]
    return Report("fleet", values, lines, described)
