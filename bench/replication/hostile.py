"""`hostile`: the lag of an honest zone while another zone floods the node that serves both.

The serving node is `bsfg run`, with one Mosquitto for all zones, as `bsfg broker config` writes it. An application
appends a message every 20 ms through the node's socket; the honest zone pulls and stores it. The lag is the time from
the start of the append until the message is durable in the honest zone's store. It is measured without a flood, then
under each flood (floods.py; one is of visitors of the node's page), and without a flood after each. The limit is the
lag without a flood in the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.client import AsyncClient, Client, NodeSilent
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child, ProcessFailed
from agent.fact_store import FactStore, StoreReader
from agent.replication.mqtt import BrokerLink, Requester
from agent.replication.pulling import Puller
from bench.common.measuring import Latency, Report, files_bytes, machine, peak_rss_mib, process_cpu_ns, rounded
from bench.common.testbed import ASKING, SERVING, Testbed, scratch_folder
from bench.common.worker_io import Options, broker_access, emit
from bench.replication.endpoints import access, opened, pull_settings, running

HOSTILE = "hostile"
STREAM = "facts.operational"
FLOODS = ("requests", "ranges", "parked", "artifacts", "subscriptions", "silent", "sockets", "page")
INTERVAL_S = 0.020
BACKLOG_MESSAGES, BACKLOG_BYTES = 60, 40_000  # the answer to a range request of the flood: some pages
RATIO_MAX, P99_MS_MAX = 2.0, 50.0
SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Attacked:
    """The test bed: a node, and the broker of its honest and its hostile zone."""

    bed: Testbed
    node: Child
    page: Child
    state_dir: Path

    @property
    def page_port(self) -> int:
        """Where the page is served."""
        return int(self.page.wait_line("page: ").rstrip("/").rpartition(":")[2])


def run(seconds: float, floods: Sequence[str], below: Path | None) -> Report:
    """Measure for `seconds` without a flood, and as long under each of `floods` (empty: all)."""
    floods = floods or FLOODS
    with scratch_folder(below) as folder, _attacked(folder) as attacked:
        described = machine(folder)
        target = folder / "honest"
        target.mkdir()
        file = target / "facts.db"
        with attacked.bed.worker("honest", "hostile-pull", ASKING, file=file) as pulling:
            begun = {"quiet-0": _append_for(attacked, file, seconds)}
            _append_for(attacked, file, min(1.0, seconds))  # definitions, caches
            counts, shares = dict[str, dict[str, int]](), dict[str, dict[str, float]]()
            for kind in floods:
                options = {"kind": kind, "stream": STREAM, "page_port": attacked.page_port}
                with attacked.bed.worker(f"flood-{kind}", "flood", HOSTILE, **options) as flooding:
                    with _measured(attacked, {"puller": pulling, "attacker": flooding}) as shares[kind]:
                        begun[kind] = _append_for(attacked, file, seconds)
                    counts[kind] = flooding.ended()
                begun[f"quiet-{kind}"] = _append_for(attacked, file, seconds)
            durable_ns = pulling.ended()["durable_ns"]
        rss_mib = peak_rss_mib(attacked.node.pid)
        assert attacked.node.running, attacked.node.log_tail()
        kept = files_bytes(target) / len(durable_ns)
    lags_ns = {part: [durable_ns[offset - 1] - at for offset, at in sent.items()] for part, sent in begun.items()}
    return _report(lags_ns, counts, shares, described, kept, rss_mib, seconds)


@contextlib.contextmanager
def _measured(attacked: Attacked, workers: Mapping[str, Child]) -> Iterator[dict[str, float]]:
    """How many cores each process uses in the block; filled at its end."""
    processes, used = (
        {"node": attacked.node, "page": attacked.page, "broker": attacked.bed.broker, **workers},
        dict[str, float](),
    )
    before_ns, begun_ns = (
        {name: process_cpu_ns(process.pid) for name, process in processes.items()},
        time.monotonic_ns(),
    )
    yield used
    elapsed_ns = time.monotonic_ns() - begun_ns
    used |= {
        name: rounded((process_cpu_ns(process.pid) - before_ns[name]) / elapsed_ns)
        for name, process in processes.items()
    }


def _append_for(attacked: Attacked, file: Path, seconds: float) -> dict[int, int]:
    """Append for `seconds`, and wait until the honest zone has stored everything. Returns when each append began."""
    begun_ns, due_ns = dict[int, int](), time.monotonic_ns()
    for _ in range(max(20, int(seconds / INTERVAL_S))):
        due_ns += int(INTERVAL_S * 1e9)
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        started_ns = time.monotonic_ns()
        begun_ns[asyncio.run(_append(attacked.state_dir, secrets.token_hex(8), 1))] = started_ns
    deadline = time.monotonic() + SETTLE_S
    with closing(StoreReader(file)) as reader:
        while reader.end_offset(STREAM) < max(begun_ns):
            if time.monotonic() > deadline:
                raise ProcessFailed(f"the honest zone is not level {SETTLE_S:.0f} s later:\n{attacked.node.log_tail()}")
            time.sleep(0.05)
    return begun_ns


def _report(
    lags_ns: Mapping[str, list[int]],
    counts: Mapping[str, Mapping[str, int]],
    shares: Mapping[str, Mapping[str, float]],
    described: Mapping[str, Any],
    bytes_per_fact: float,
    rss_mib: float,
    seconds: float,
) -> Report:
    calm = Latency.of([lag for part, some in lags_ns.items() if part.startswith("quiet") for lag in some])
    latencies = {kind: Latency.of(lags_ns[kind]) for kind in counts}
    results = {
        kind: {
            **latency.to_dict(),
            "p99_ratio": rounded(latency.p99_ms / calm.p99_ms),
            "is_reached": latency.p99_ms <= max(RATIO_MAX * calm.p99_ms, P99_MS_MAX),
            "counts": counts[kind],
            "cores": shares[kind],
        }
        for kind, latency in latencies.items()
    }
    worst = max(latencies.values(), key=lambda latency: latency.p99_ms)
    values = {
        **worst.to_dict(),
        "limit": {"what": "the lag of the same zone while nothing floods", **calm.to_dict()},
        "ratio": rounded(worst.p50_ms / calm.p50_ms),
        "p99_ratio": rounded(worst.p99_ms / calm.p99_ms),
        "floods": results,
        "bytes_per_fact": rounded(bytes_per_fact),
        "peak_rss_mib": {"node": rss_mib},
        "seconds": seconds,
    }
    lines = [
        f"hostile    quiet: {calm}, a message every {INTERVAL_S * 1000:.0f} ms, append to durable in the next zone"
    ]
    for kind, latency in latencies.items():
        became = ", ".join(f"{what} {count:,}" for what, count in counts[kind].items())
        lines.append(f"{kind:<10} {latency}, p99 {results[kind]['p99_ratio']} of quiet; {became}")
        lines.append(f"{'cores':<10} " + ", ".join(f"{name} {used}" for name, used in shares[kind].items()))
    lines.append(f"memory     node {rss_mib:.0f} MiB at most")
    return Report("hostile", values, lines, described)


# ---------------------------------------------------------------------------------------------------------- the test bed


@contextlib.contextmanager
def _attacked(folder: Path) -> Iterator[Attacked]:
    zones = (SERVING, ASKING, HOSTILE)
    with contextlib.ExitStack() as stack:
        links = (f"{SERVING}:{ASKING}", f"{SERVING}:{HOSTILE}")
        broker = stack.enter_context(Mosquitto.started(folder / "site", zones, links))
        node_folder = folder / SERVING
        node_folder.mkdir()
        config = node_folder / "node.toml"
        config.write_text(_node_toml(broker), encoding="utf-8")
        words = [sys.executable, "-m", "agent.cli"]
        node = stack.enter_context(Child("node", [*words, "run", "--config", config], node_folder / "log"))
        node.start()
        node.wait_ready(lambda: _is_connected(node_folder / "state"))
        asyncio.run(_append_backlog(node_folder / "state"))
        page = stack.enter_context(Child("page", [*words, "page", "--config", config], node_folder / "page.log"))
        page.start()
        yield Attacked(Testbed(folder, broker), node, page, node_folder / "state")


def _node_toml(broker: Mosquitto) -> str:
    text = f'[node]\nzone = "{SERVING}"\n[page]\nlisten_port = 0\n{broker.section(SERVING)}'
    for zone, rights in ((ASKING, ""), (HOSTILE, f'appends = ["{STREAM}"]\n')):
        text += f'[[peer]]\nzone = "{zone}"\nbroker = "site"\nexports = ["{STREAM}"]\n{rights}'
    return text


def _is_connected(state_dir: Path) -> bool:
    try:
        return all(broker["connected"] for broker in Client(state_dir).status()["brokers"])
    except NodeSilent:
        return False


async def _append_backlog(state_dir: Path) -> None:
    for number in range(BACKLOG_MESSAGES):
        await _append(state_dir, f"backlog-{number}", "x" * BACKLOG_BYTES)


async def _append(state_dir: Path, message_id: str, value: object) -> int:
    """The offset of a message that is durable at the node."""
    node = AsyncClient(state_dir)
    answer = await node.append("order:line1/77", "step_completed", value, message_id=message_id, stream=STREAM)
    return answer.offset


# ------------------------------------------------------------------------------------------------------- the honest zone


def pull(options: Options) -> None:
    """The honest zone: pulls until stopped; ENDED has the time at which each offset was durable here."""
    with opened(Path(options["file"]), ASKING) as store:
        asyncio.run(_pull(options, store))


async def _pull(options: Options, store: FactStore) -> None:
    link = BrokerLink(access(broker_access(options)))
    puller = Puller(Requester(link, SERVING), store, pull_settings(STREAM))
    durable_ns = list[int]()

    def committed(ends: Mapping[str, int]) -> None:
        durable_ns.extend([time.monotonic_ns()] * (ends.get(STREAM, 0) - len(durable_ns)))

    store.on_commit(committed)
    async with running(link.run(), puller.run()) as stopped:
        await link.wait_up()
        emit("READY")
        await asyncio.to_thread(stopped.wait)
    emit("ENDED", {"durable_ns": durable_ns})
