"""`pair`: a message at the leader of two gateways, until it is durable there (`local`), and at the follower, too
(`quorum`); and what the nodes cost.

The three nodes are `bsfg run`, the broker is as `bsfg broker config` writes it. Messages of both promises are appended
in turns, over the leader's socket. One of `quorum` waits for the commit of the leader, the way to the follower, its
commit, and the way back. The limit is one bare round trip through the same broker and two fsyncs.
"""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from agent.client import Client, NodeSilent
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from bench.common.measuring import Latency, Report, cores_used, files_bytes, machine, rounded, rss_mib
from bench.common.testbed import ASKING, BARE_SERVING, Testbed, scratch_folder
from bench.replication.lag import measure_limit

ZONE, BOXES, WITNESS = "plant-a", ("plant-a", "plant-a-2"), ASKING
STREAM = "facts.operational"
INTERVAL_S, SETTLE_S, SETTLED_S_MAX = 0.02, 2.0, 60.0


def run(seconds: float, below: Path | None) -> Report:
    """Measure for `seconds` without messages, and for as long with them."""
    ends = [
        BOXES,
        BOXES[::-1],
        (BARE_SERVING, ASKING),
        *((box, WITNESS) for box in BOXES),
        *((WITNESS, box) for box in BOXES),
    ]
    links = [":".join(pair) for pair in ends]
    with scratch_folder(below) as folder:
        described = machine(folder)
        with Mosquitto.started(folder / "site", [*BOXES, WITNESS, BARE_SERVING], links) as broker:
            found = _measure(Testbed(folder, broker), seconds)
    return _report(found, described, seconds)


def _measure(bed: Testbed, seconds: float) -> dict[str, Any]:
    round_trips_ns, fsyncs_ns, taken_ns = list[int](), list[int](), {"local": list[int](), "quorum": list[int]()}
    count = max(20, int(seconds / INTERVAL_S / 4))
    with contextlib.ExitStack() as stack:
        nodes = {name: _node(bed, name) for name in (*BOXES, WITNESS)}
        for node in nodes.values():
            stack.callback(node.stop)
            node.start()
        nodes[WITNESS].wait_ready(lambda: _leaders(bed) != [], SETTLED_S_MAX)
        (leader,) = _leaders(bed)
        (follower,) = set(BOXES) - {leader}
        parts = {"leader": nodes[leader], "follower": nodes[follower], "witness": nodes[WITNESS]}
        pids = {name: part.pid for name, part in parts.items()}
        time.sleep(min(SETTLE_S, seconds))
        idle = cores_used(pids, partial(time.sleep, seconds))
        measure_limit(bed, count, round_trips_ns, fsyncs_ns)
        client = Client(_state(bed, leader))

        def append() -> None:
            end_s, number = time.monotonic() + seconds, 0
            while time.monotonic() < end_s:
                for promise, durations_ns in taken_ns.items():
                    number += 1
                    begun_ns = time.monotonic_ns()
                    client.append("line:1", "part_made", {"number": number}, message_id=f"m{number}", acks=promise)
                    durations_ns.append(time.monotonic_ns() - begun_ns)
                    time.sleep(INTERVAL_S)

        loaded = cores_used(pids, append)
        measure_limit(bed, count, round_trips_ns, fsyncs_ns)
        return {
            "taken_ns": taken_ns,
            "limit_ns": (round_trips_ns, fsyncs_ns),
            "idle_cores": idle,
            "loaded_cores": loaded,
            "rss_mib": {name: rss_mib(pid) for name, pid in pids.items()},
            "bytes_per_fact": files_bytes(_state(bed, leader)) / sum(map(len, taken_ns.values())),
        }


def _node(bed: Testbed, name: str) -> Child:
    """A gateway, or the witness; not started."""
    folder = bed.folder / name
    folder.mkdir()
    exports = f'["{STREAM}"]'
    text = "[page]\nlisten_port = 0\n[store]\ndisk_free_bytes_min = 2_000_000\nballast_bytes = 1_000_000\n"
    text += bed.broker.section(name)
    if name == WITNESS:
        text += f'[node]\nzone = "{WITNESS}"\n'
        for box in BOXES:
            text += f'[[peer]]\nzone = "{ZONE}"\nnode = "{box}"\nbroker = "site"\npulls = {exports}\n'
    else:
        (partner,) = set(BOXES) - {name}
        text += f'[node]\nzone = "{ZONE}"\nname = "{name}"\n[pair]\npartner = "{partner}"\nwitness = "{WITNESS}"\n'
        text += f'[[peer]]\nzone = "{WITNESS}"\nbroker = "site"\nexports = {exports}\nasks = true\n'
        text += f'[[peer]]\nzone = "{ZONE}"\nnode = "{partner}"\nbroker = "site"\n'
        text += f"exports = {exports}\npulls = {exports}\n"
    config = folder / "node.toml"
    config.write_text(text, encoding="utf-8")
    return Child(name, [sys.executable, "-m", "agent.cli", "run", "--config", config], folder / "log")


def _state(bed: Testbed, name: str) -> Path:
    return bed.folder / name / "state"


def _leaders(bed: Testbed) -> list[str]:
    """The gateway that leads, if the other one follows and the witness is heard."""
    roles = dict[str, str]()
    for box in BOXES:
        try:
            pair = Client(_state(bed, box)).status()["pair"]
        except NodeSilent:
            return []
        roles[box] = pair["role"] if pair["witness_heard_ms"] is not None else ""
    return [box for box, role in roles.items() if role == "leads"] if "follows" in roles.values() else []


def _report(found: dict[str, Any], described: dict[str, Any], seconds: float) -> Report:
    local, quorum = (Latency.of(found["taken_ns"][promise]) for promise in ("local", "quorum"))
    round_trip, fsync = map(Latency.of, found["limit_ns"])
    limit_ms = round_trip.p50_ms + 2 * fsync.p50_ms
    cores = {name: found[name] for name in ("idle_cores", "loaded_cores", "rss_mib")}
    values = {
        **quorum.to_dict(),
        "local": local.to_dict(),
        "limit": {"what": "a round trip through the same broker and 2 fsyncs, bare", "p50_ms": rounded(limit_ms)},
        "ratio": rounded(quorum.p50_ms / rounded(limit_ms)),
        **cores,
        "bytes_per_fact": rounded(found["bytes_per_fact"]),
        "seconds": seconds,
    }
    shown = [", ".join(f"{part} {value:.3g}" for part, value in of.items()) for of in cores.values()]
    lines = (
        f"quorum     {quorum}, a message from its append until both gateways have it",
        f"local      {local}",
        f"limit      p50 {limit_ms:.2f} ms: a round trip, 2 fsyncs, bare; ratio {values['ratio']}",
        f"cores      idle: {shown[0]}; with messages: {shown[1]}",
        f"memory     {shown[2]} MiB",
    )
    return Report("pair", values, lines, described)
