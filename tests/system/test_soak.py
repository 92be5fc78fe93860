"""Three zones, disturbed again and again: a node does not grow with what it has been through."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from agent.demo import layout
from agent.demo.processes import Child
from agent.demo.scenario import RunningZones, run_zones
from tests.sim import first_seed, scaled
from tests.support.memory import rss_bytes
from tests.waiting import wait_until

pytestmark = pytest.mark.system

SECONDS = scaled(40, 60 * int(os.environ.get("MINUTES", "60")))
GROWN_SHARE_MAX = 0.15  # of the second half; caches of pages and batches fill for an hour
MORE_MAX = 4  # open files and threads: a request under way has some of its own
AWAY_S = (0.0, 0.3, 1.5)  # shorter and longer than a reconnection takes


def held(node: Child) -> tuple[int, int, int]:
    """Bytes in memory, open files and threads of a node."""
    process = Path(f"/proc/{node.pid}")
    return rss_bytes(node.pid), len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


def disturbances(
    stage: RunningZones, bsfg: Callable[..., str], chance: random.Random
) -> dict[str, Callable[[], object]]:
    """What happens to a network in its life, by name."""
    tags = next(file for file in (stage.folder / layout.PLANT / "tags.d").iterdir() if file.name == "boiler.csv")
    header, *rows = tags.read_text().splitlines()
    config = stage.configs[layout.PLANT]

    def restart(process: Child) -> None:
        process.kill()
        began_s, away_s = time.monotonic(), chance.choice(AWAY_S)
        wait_until(lambda: time.monotonic() - began_s >= away_s, "the end of an outage")
        process.start()

    def edit_tags() -> None:
        tags.write_text("\n".join([header, *chance.sample(rows, len(rows) - 1)]) + "\n")

    def reload() -> None:
        interval = f"poll_interval_ms = {chance.choice((200, 300))}\n"
        lines = config.read_text().splitlines(keepends=True)
        config.write_text("".join(interval if line.startswith("poll_interval_ms") else line for line in lines))
        bsfg("reload", "--config", config)

    def look() -> None:
        stage.statuses()
        urlopen(stage.page, timeout=30).read()  # noqa: S310 our own page

    def read() -> None:
        place = ("--config", stage.configs[layout.ENTERPRISE], "--consumer", "local.soak")
        bsfg("fetch", *place, "--stream", layout.TELEMETRY, "--limit", 100)

    opcua, modbus = stage.plant
    restarts = {"broker": stage.broker, "OPC UA server": opcua, "Modbus device": modbus}
    found: dict[str, Callable[[], object]] = {name: lambda it=it: restart(it) for name, it in restarts.items()}  # type: ignore[misc]
    return found | {"tag file": edit_tags, "reload": reload, "page": look, "consumer": read}


@pytest.mark.timeout(SECONDS + 300)
def test_a_node_does_not_grow_with_what_it_goes_through(tmp_path: Path, bsfg: Callable[..., str]) -> None:
    """Broker, servers and devices are killed, tags and settings edited, pages and consumers served, again and again: at
    the end, each node has no more open files and threads than in the middle, and hardly more memory."""
    chance, counts = random.Random(first_seed()), Counter[str]()
    with run_zones(tmp_path, keep=False) as stage:
        todo = disturbances(stage, bsfg, chance)
        before = dict[str, tuple[int, int, int]]()
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < SECONDS:
            if not before and passed_s > SECONDS / 2:
                before = {zone: held(node) for zone, node in stage.nodes.items()}
            name = chance.choice(list(todo))
            counts[name] += 1
            todo[name]()
        print(dict(counts))
        for zone, node in stage.nodes.items():
            (bytes_before, *before_counts), (bytes_now, *now_counts) = before[zone], held(node)
            print(
                f"{zone}: {bytes_before / 1e6:.1f} -> {bytes_now / 1e6:.1f} MB, files, threads {before_counts} -> {now_counts}"
            )
            assert all(now <= then + MORE_MAX for then, now in zip(before_counts, now_counts, strict=True)), zone
            assert bytes_now <= bytes_before * (1 + GROWN_SHARE_MAX), zone
