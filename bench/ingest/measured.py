"""Shared by the benchmarks of sources: a client in a process of its own, and its measurements between two moments at
which its values are counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from agent.concurrency import TaskGroup, timeout
from agent.fact_store import FactStore
from agent.ingest import Ingest, IngestPorts, load_tag_maps
from agent.settings.sources import SourceSettings
from agent.settings.store import StoreSettings
from bench.common.measuring import files_bytes, peak_rss_mib, rounded
from bench.common.testbed import SERVING, Worker, start_worker
from bench.common.worker_io import Options

STREAM = "facts.telemetry"
WARM_S = 1.5  # after the first value: caches filled, the first commits made
START_S = 60.0
EDGE_S = 0.01  # how often a count is looked at where a measurement begins and ends
LOOK_S = 5.0  # how often memory is looked at in a long run
SOAK_WARM_SHARE = 0.2  # of a long run, before memory is compared: caches fill, the store's file grows its first pages


def client(folder: Path, role: str, server: Worker, *, seconds: float, **options: Any) -> dict[str, Any]:
    """What one client measured."""
    name = f"{role}-{len(list(folder.iterdir()))}"
    own = folder / name
    own.mkdir()
    with start_worker(folder, f"{name}-log", role, into=str(own), seconds=seconds, **options) as worker:
        return worker.result_with(server, 120 + seconds)


def figures(found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one client, as they are printed."""
    return {
        "facts_per_s": round(found["values_per_s"]),
        "cpu_us_per_fact": rounded(found["cpu_us_per_value"]),
        "cpu_share": rounded(found["cpu_share"]),
    }


def growth(found: Mapping[str, Any]) -> dict[str, float]:
    """The peak memory in the first and in the last fifth of a long run, without its warm-up."""
    rss: list[float] = found["rss_mib"]
    flat = rss[int(len(rss) * SOAK_WARM_SHARE) :]
    fifth = max(1, len(flat) // 5)
    return {"first": max(flat[:fifth]), "last": max(flat[-fifth:]), "peak": found["peak_rss_mib"]}


async def measured_ingest(sources: tuple[SourceSettings, ...], options: Options) -> tuple[dict[str, Any], Ingest]:
    """The product with these sources, into a real store in the folder `into`. Committed values count, once each tag has
    had a value, because creating twenty thousand items takes seconds with few values."""
    folder = Path(options["into"])
    with closing(FactStore.open(folder / "facts.db", SERVING, settings=StoreSettings(ballast_bytes=0))) as store:
        ingest = Ingest(SERVING, sources, load_tag_maps(sources), IngestPorts(store.appends))
        async with TaskGroup() as group:
            group.create_task(ingest.run(), name="ingest")
            is_ready = partial(_has_all_tags, ingest)
            async with timeout(START_S):
                await _until(is_ready)
            found = await measured(lambda: store.end_offset(STREAM), options)
            ingest.stop()
        facts = store.end_offset(STREAM)
    return {**found, "bytes_per_fact": files_bytes(folder) / facts if facts else 0}, ingest


async def measured(count: Callable[[], int], options: Options) -> dict[str, Any]:
    """Values and processor time between two moments at which the count moved, `seconds` apart; memory meanwhile."""
    async with timeout(START_S):
        await _moved(count)
    await asyncio.sleep(min(WARM_S, options["seconds"]))
    await _moved(count)
    start_s, start_cpu_ns, start = time.monotonic(), time.process_time_ns(), count()
    rss: list[float] = []
    while (left_s := start_s + options["seconds"] - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, LOOK_S))
        rss.append(_rss_mib())
    await _moved(count)
    values, took_s = count() - start, time.monotonic() - start_s
    cpu_ns = time.process_time_ns() - start_cpu_ns
    return {
        "values": values,
        "values_per_s": values / took_s,
        "cpu_us_per_value": cpu_ns / values / 1000,
        "cpu_share": cpu_ns / took_s / 1e9,
        "peak_rss_mib": peak_rss_mib(),
        "rss_mib": rss,
    }


async def _moved(count: Callable[[], int]) -> None:
    """Until the count moves: a commit, or values that a library's client received."""
    before = count()
    await _until(lambda: count() != before)


def _has_all_tags(ingest: Ingest) -> bool:
    return not any(source.tags_silent for source in ingest.statistics())


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 there is no event
        await asyncio.sleep(EDGE_S)  # the store counts in another thread, and the library's clients in callbacks


def _rss_mib() -> float:
    """Resident memory now."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise AssertionError("/proc/self/status without VmRSS")
