"""`ingest`: OPC UA values from the socket to the committed store, compared with asyncua's two ways of receiving them.

A server process publishes prepared notifications as fast as its client asks (`opcua_server`). Its clients take turns,
each a process of its own: the product, whose values count when they are committed (decoding, sampling, hand-over,
sealing and fsync included), asyncua's handler, and asyncua's callback for whole responses, both of which only count.
The limit does far less than the product: it is the cost of the library alone, before anything is done with a value.

The comparison is the processor time a value. The rate of values is printed too, but it also depends on the server's
process. With `--minutes` the product then runs for that long at a steady rate, and its memory is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.demo.processes import free_port
from bench.common.measuring import Report, machine, median, rounded
from bench.common.testbed import Worker, scratch_folder, start_worker
from bench.ingest.measured import client, figures, growth

ENCRYPTED_TURNS = 3  # the difference is small beside what a shared machine does in a few seconds
SECONDS_MIN = 1.0  # shorter runs only show that it works
SOAK_ITEMS, SOAK_VALUES_PER_S = 10_000, 20_000.0
LIMITS = {"handler": "asyncua's handler, one call a value", "batch": "asyncua's callback, one call a response"}
HOST = "127.0.0.1"


def run(items: Sequence[int], seconds: float, minutes: float, below: Path | None) -> Report:
    """Each number of items for `seconds` and client; one of them encrypted; then `minutes` at a steady rate."""
    with scratch_folder(below) as folder:
        described = machine(folder)
        rounds = [_round(folder, count, seconds) for count in items]
        middle = items[len(items) // 2]
        encrypted = _encrypted(folder, middle, seconds)
        soak = _soak(folder, minutes) if minutes else None
    main = next(turn for turn in rounds if turn["items"] == middle)
    plain = main["agent"]
    values = {
        "facts_per_s": round(plain["values_per_s"]),
        "cpu_us_per_fact": rounded(plain["cpu_us_per_value"]),
        "limit": {"what": LIMITS["batch"], **figures(main["batch"])},
        "ratio": rounded(round(plain["values_per_s"]) / round(main["batch"]["values_per_s"])),
        "bytes_per_fact": rounded(plain["bytes_per_fact"]),
        "by_items": [_told(turn) for turn in rounds],
        "encrypted": encrypted,
        "peak_rss_mib": {name: main[name]["peak_rss_mib"] for name in ("agent", "handler", "batch")},
        "items": middle,
        "seconds": seconds,
    }
    if soak is not None:
        values["soak"] = soak
    return Report("ingest", values, _lines(values), described)


def _round(folder: Path, items: int, seconds: float) -> dict[str, Any]:
    """The product and both ways of the library, one after the other, with so many items."""
    found: dict[str, Any] = {"items": items}
    with _server(folder, f"server-{items}") as (server, url):
        for role in ("agent", "handler", "batch"):
            found[role] = client(folder, f"opcua-{role}", server, url=url, items=items, seconds=seconds)
    return found


def _encrypted(folder: Path, items: int, seconds: float) -> dict[str, Any]:
    """The product with Basic256Sha256, SignAndEncrypt, in turns with the product without."""
    own: dict[str, Any] = {
        name: str(folder / f"server-{name}.pem") for name in ("certificate_file", "private_key_file")
    }
    asked = {
        "certificate_file": str(folder / "agent.pem"),
        "private_key_file": str(folder / "agent-key.pem"),
        "server_certificate_file": own["certificate_file"],
    }
    plain, encrypted = [], []
    with _server(folder, "server-encrypted", **own) as (server, url):
        for _ in range(ENCRYPTED_TURNS if seconds >= SECONDS_MIN else 1):
            plain.append(client(folder, "opcua-agent", server, url=url, items=items, seconds=seconds))
            encrypted.append(client(folder, "opcua-agent", server, url=url, items=items, seconds=seconds, **asked))
    costs = [median([turn["cpu_us_per_value"] for turn in turns]) for turns in (plain, encrypted)]
    middle = next(turn for turn in encrypted if turn["cpu_us_per_value"] == costs[1])
    return {**figures(middle), "cpu_share_of_encryption": rounded(1 - costs[0] / costs[1])}


def _soak(folder: Path, minutes: float) -> dict[str, Any]:
    """Memory of the product over a long run at a steady rate."""
    with _server(folder, "server-soak", rate=SOAK_VALUES_PER_S) as (server, url):
        found = client(folder, "opcua-agent", server, url=url, items=SOAK_ITEMS, seconds=60 * minutes)
    return {"minutes": minutes, "items": SOAK_ITEMS, **figures(found), "rss_mib": growth(found)}


@contextmanager
def _server(folder: Path, name: str, *, rate: float = 0.0, **options: object) -> Iterator[tuple[Worker, str]]:
    """A server process for the length of a block, and its URL."""
    port = free_port(HOST)
    with start_worker(folder, name, "opcua-server", port=port, rate=rate, **options) as worker:
        yield worker, f"opc.tcp://{HOST}:{port}/bench"


def _told(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "items": turn["items"],
        **{role: figures(turn[role]) for role in ("agent", "handler", "batch")},
        "cpu_by_batch": rounded(turn["agent"]["cpu_us_per_value"] / turn["batch"]["cpu_us_per_value"]),
        "cpu_by_handler": rounded(turn["agent"]["cpu_us_per_value"] / turn["handler"]["cpu_us_per_value"]),
        "peak_rss_mib": turn["agent"]["peak_rss_mib"],
    }


def _lines(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for turn in values["by_items"]:
        agent, handler, batch = turn["agent"], turn["handler"], turn["batch"]
        lines.append(
            f"ingest     {turn['items']:6} items: {agent['facts_per_s']:8,} values/s committed, "
            f"{agent['cpu_us_per_fact']} us of CPU each, {turn['peak_rss_mib']} MiB"
        )
        lines.append(
            f"limit      asyncua's batch callback {batch['cpu_us_per_fact']} us, handler {handler['cpu_us_per_fact']} us, "
            f"nothing kept; ratio {turn['cpu_by_batch']} and {turn['cpu_by_handler']}"
        )
    encrypted = values["encrypted"]
    share = encrypted["cpu_share_of_encryption"]
    lines.append(f"encrypted  {encrypted['cpu_us_per_fact']} us of CPU a value, {share:.0%} of it for SignAndEncrypt")
    lines.append(f"at rest    {values['bytes_per_fact']} bytes a fact, all files")
    if soak := values.get("soak"):
        rss = soak["rss_mib"]
        lines.append(
            f"soak       {soak['minutes']} minutes at {soak['facts_per_s']:,} values/s: {rss['first']} MiB at first, "
            f"{rss['last']} at the end, {soak['cpu_share']:.0%} of a core"
        )
    return lines
