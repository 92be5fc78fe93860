"""`page`: the page of a zone above many plants, and what health and page cost a node.

The node is `bsfg run` and pulls from simulated plants (plants.py) over a real broker; their health, made by the
product's own code, is in its store. `bsfg page` on it is asked for the whole fleet, and searched. Memory is that of the
page at its most, and what the node has grown by since its plants were level and its status had been asked for. Then
another node polls a device with 10,000 tags once an hour, so that what it uses is its own: measured with a browser on
its page, and without a page, in turns; each part is longer than a minute, in which health is recorded once.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.client import Client
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child, ProcessFailed
from bench.common.measuring import (
    Latency,
    Report,
    files_bytes,
    machine,
    median,
    peak_rss_mib,
    process_cpu_ns,
    rounded,
    rss_mib,
)
from bench.common.testbed import ASKING, Testbed, scratch_folder
from bench.ingest.modbus import served_device
from bench.ingest.modbus_server import tag_file
from bench.replication.fleet import READY_S_MAX, counts, plant_groups, pulling_node

PAGE_MS, SEARCH_MS = 1000.0, 100.0
PAGE_MIB_MAX, NODE_MIB_MAX, CORES_MAX = 80.0, 5.0, 0.01
ASKED = 30
TAGS, TURNS, TURN_S_MIN = 10_000, 2, 1.0


def run(plants: int, seconds: float, below: Path | None) -> Report:
    """Measure with so many plants; the second part is `seconds` a turn."""
    zones = [f"plant-{number:04}" for number in range(plants)]
    with scratch_folder(below) as folder:
        described = machine(folder)
        links = [f"{zone}:{ASKING}" for zone in zones]
        with Mosquitto.started(folder / "site", [*zones, ASKING], links) as broker:
            found = _fleet(Testbed(folder, broker), zones)
        found |= _tags(folder / "tags", seconds)
    return _report(found, plants, seconds, described)


def _fleet(bed: Testbed, zones: list[str]) -> dict[str, Any]:
    node, state = pulling_node(bed, zones), bed.folder / ASKING / "state"
    with contextlib.ExitStack() as stack:
        for group in plant_groups(bed, zones, facts=1):
            stack.enter_context(group)
        stack.callback(node.stop)
        node.start()
        node.wait_ready(lambda: counts(state).get("peers_connected") == 2 * len(zones), READY_S_MAX)
        for _ in range(ASKED):  # its first answers of thousands of pulls take some MiB once, with a page or without
            Client(state).status(everything=True)
        before_mib = rss_mib(node.pid)
        page, port = stack.enter_context(_page(bed.folder / ASKING))
        page.wait_ready(lambda: len(zones) + 1 == _zones_told(port), READY_S_MAX)
        stack.enter_context(_browser(port, "/fleet"))
        middle = zones[len(zones) // 2]
        found: dict[str, Any] = {
            "page": _latency(port, "/fleet?all=1"),
            "search": _latency(port, f"/fleet?q={middle}"),
            "search_tags": _latency(port, f"/tags?q={middle}"),
        }
        found["rss_mib"] = {"page": peak_rss_mib(page.pid), "node_grew": rss_mib(node.pid) - before_mib}
        facts = sum(stream["end_offset"] for stream in Client(state).status()["streams"])
        found["bytes_per_fact"] = files_bytes(bed.folder / ASKING) / facts
        return found


def _tags(folder: Path, seconds: float) -> dict[str, Any]:
    """The processor time of a node with many tags that has nothing to do, with and without a page."""
    folder.mkdir()
    with served_device(folder, "device", tags=TAGS, words=True, devices=1) as (_, asked):
        (folder / "tags.csv").write_text(tag_file("device", TAGS, words=True))
        (folder / "node.toml").write_text(
            f'[node]\nzone = "{ASKING}"\n[page]\nlisten_port = 0\n[[modbus]]\nname = "device"\nhost = "127.0.0.1"\n'
            f'port = {asked["port"]}\ntags_file = "tags.csv"\naddress_base = 0\npoll_interval_ms = 3600000\n'
        )
        words = [sys.executable, "-m", "agent.cli", "run", "--config", str(folder / "node.toml")]
        with Child("node", words, folder / "log") as node:
            node.start()
            node.wait_ready(lambda: counts(folder / "state").get("sources_connected") == 1)
            time.sleep(min(5.0, seconds))
            alone, open_ = list[float](), list[float]()
            for _ in range(TURNS):
                alone.append(_cores(node, seconds))
                with _page(folder) as (_, port), _browser(port, "/"):
                    open_.append(_cores(node, seconds))
    return {"cores": {"alone": rounded(median(alone)), "page_open": rounded(median(open_))}}


@contextlib.contextmanager
def _page(folder: Path) -> Iterator[tuple[Child, int]]:
    words = [sys.executable, "-m", "agent.cli", "page", "--config", str(folder / "node.toml")]
    with Child("page", words, folder / "page.log") as page:
        page.start()
        yield page, int(page.wait_line("page: ").rstrip("/").rpartition(":")[2])


@contextlib.contextmanager
def _browser(port: int, path: str) -> Iterator[None]:
    """One that has a page open, and reads what is new."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def read() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while True:  # the server ends a stream each minute
                connection.request("GET", f"/live?page={path}")
                while connection.getresponse().read(65_536):
                    pass

    reader = threading.Thread(target=read, name="browser", daemon=True)
    reader.start()
    try:
        yield
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(2)
        reader.join(10)


def _ask(port: int, path: str) -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        if answer.status != 200:
            raise ProcessFailed(f"{path} was answered with {answer.status}")
        return body


def _zones_told(port: int) -> int:
    """How many zones the fleet has, by its first sentence."""
    told = re.search(r"([\d,]+) zones", _ask(port, "/fleet"))
    return int(told[1].replace(",", "")) if told else 0


def _latency(port: int, path: str) -> Latency:
    lasted_ns = list[int]()
    for _ in range(ASKED):
        begun_ns = time.monotonic_ns()
        _ask(port, path)
        lasted_ns.append(time.monotonic_ns() - begun_ns)
    return Latency.of(lasted_ns)


def _cores(node: Child, seconds: float) -> float:
    before_ns, begun_ns = process_cpu_ns(node.pid), time.monotonic_ns()
    time.sleep(max(TURN_S_MIN, seconds))
    return (process_cpu_ns(node.pid) - before_ns) / (time.monotonic_ns() - begun_ns)


def _report(found: dict[str, Any], plants: int, seconds: float, described: dict[str, Any]) -> Report:
    page, search, memory, cores = found["page"], found["search"], found["rss_mib"], found["cores"]
    reached = {
        "page": page.max_ms <= PAGE_MS,
        "search": search.p99_ms <= SEARCH_MS,
        "page_memory": memory["page"] <= PAGE_MIB_MAX,
        "node_memory": memory["node_grew"] <= NODE_MIB_MAX,
        "cores": cores["page_open"] <= CORES_MAX,
    }
    values = {
        **page.to_dict(),
        "limit": {"what": "a page that a person waits for", "p50_ms": PAGE_MS},
        "ratio": rounded(page.p50_ms / PAGE_MS),
        "search": search.to_dict(),
        "search_tags": found["search_tags"].to_dict(),
        "rss_mib": {name: rounded(value) for name, value in memory.items()},
        "cores": cores,
        "bytes_per_fact": rounded(found["bytes_per_fact"]),
        "is_reached": reached,
        "plants": plants,
        "seconds": seconds,
    }
    alone, grew = f"a node with {TAGS:,} tags and nothing else to do: {cores['alone']:.4f}", memory["node_grew"]
    lines = [
        f"page       {plants:,} plants: {page}, the whole fleet (at most {PAGE_MS:.0f} ms)",
        f"search     {search} in the fleet (at most {SEARCH_MS:.0f} ms); {found['search_tags']} in the tags",
        f"memory     page {memory['page']:.0f} MiB (at most {PAGE_MIB_MAX:.0f}), node {grew:+.1f} (at most {NODE_MIB_MAX:.0f})",
        f"cores      {alone}, {cores['page_open']:.4f} with its page open (at most {CORES_MAX})",
    ]
    return Report("page", values, lines, described)
