"""`ingest --source modbus`: values of a Modbus device from the socket to the committed store, compared with bare block
reads.

A server process answers from prepared registers (`modbus_server`). Its clients take turns, each a process of its own:
the product, whose values count when they are committed (plan, decoding, sampling, hand-over, sealing and fsync
included), and pymodbus, which reads the same registers in blocks of 125 and drops them. Both ask again as soon as they
can. The comparison is the processor time a tag, once with mixed types and once with words only, which need the least
work of the library.

Then 50 devices with 200 tags each are polled once a second by the product on one core. How late each poll begins is
measured in the server: the time of a poll's first request against the most punctual poll of that device. With
`--minutes` this continues for so long, and memory is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.demo.processes import free_port
from bench.common.measuring import Latency, Report, machine, rounded
from bench.common.testbed import Worker, scratch_folder, start_worker
from bench.ingest.measured import client, figures, growth

LIMIT = "pymodbus, blocks of 125 registers, nothing kept"
DEVICES, DEVICE_TAGS, DEVICE_INTERVAL_S = 50, 200, 1.0
FLEET_ROUNDS, FLEET_S_MIN = 4, 3.0  # times `seconds`: polls once a second need longer
WARM_POLLS = 2  # of each device, before its grid is judged
HOST = "127.0.0.1"


def run(items: Sequence[int], seconds: float, minutes: float, below: Path | None) -> Report:
    """Each number of items for `seconds` and client; words only; then many devices."""
    middle = items[len(items) // 2]
    with scratch_folder(below) as folder:
        described = machine(folder)
        rounds = [_round(folder, count, seconds, words=False) for count in items]
        words = _round(folder, middle, seconds, words=True)
        fleet = _fleet(folder, 60 * minutes or max(FLEET_S_MIN, FLEET_ROUNDS * seconds))
    main = next(turn for turn in rounds if turn["items"] == middle)
    agent, bare = main["agent"], main["bare"]
    values = {
        "source": "modbus",
        "facts_per_s": round(agent["values_per_s"]),
        "cpu_us_per_fact": rounded(agent["cpu_us_per_value"]),
        "limit": {"what": LIMIT, **figures(bare)},
        "ratio": rounded(round(agent["values_per_s"]) / round(bare["values_per_s"])),
        "bytes_per_fact": rounded(agent["bytes_per_fact"]),
        "by_items": [_told(turn) for turn in rounds],
        "words": _told(words),
        "fleet": fleet,
        "peak_rss_mib": {name: main[name]["peak_rss_mib"] for name in ("agent", "bare")},
        "items": middle,
        "seconds": seconds,
    }
    return Report("ingest", values, _lines(values), described)


def _round(folder: Path, tags: int, seconds: float, *, words: bool) -> dict[str, Any]:
    """The product and the library, one after the other, with so many tags."""
    found: dict[str, Any] = {"items": tags}
    with served_device(folder, f"server-{tags}-{words}", tags=tags, words=words, devices=1) as (server, asked):
        for role in ("agent", "bare"):
            found[role] = client(folder, f"modbus-{role}", server, seconds=seconds, **asked)
    return found


def _fleet(folder: Path, seconds: float) -> dict[str, Any]:
    """Many devices on one core."""
    with served_device(folder, "server-fleet", tags=DEVICE_TAGS, words=False, devices=DEVICES) as (server, asked):
        found = client(folder, "modbus-fleet", server, seconds=seconds, **asked)
        grids: list[list[float]] = server.ended()["polls_s"]
    late_ns = [late for moments in grids for late in _late_ns(moments[WARM_POLLS:])]
    assert late_ns, "no device was polled long enough"
    return {
        "devices": DEVICES,
        "tags": DEVICES * DEVICE_TAGS,
        **figures(found),
        "late": Latency.of(late_ns).to_dict(),
        "polls": len(late_ns),
        "polls_missed": found["polls_missed"],
        "rss_mib": growth(found),
    }


def _late_ns(moments: Sequence[float]) -> list[int]:
    """How late each poll of a device began, against its most punctual one."""
    if not moments:
        return []
    offsets = [at - round((at - moments[0]) / DEVICE_INTERVAL_S) * DEVICE_INTERVAL_S for at in moments]
    return [round((offset - min(offsets)) * 1e9) for offset in offsets]


@contextmanager
def served_device(folder: Path, name: str, **options: Any) -> Iterator[tuple[Worker, dict[str, Any]]]:
    """A server process for the length of a block, and what its clients must know."""
    asked = {"port": free_port(HOST), **options}
    with start_worker(folder, name, "modbus-server", **asked) as worker:
        yield worker, asked


def _told(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "items": turn["items"],
        **{role: figures(turn[role]) for role in ("agent", "bare")},
        "cpu_by_bare": rounded(turn["agent"]["cpu_us_per_value"] / turn["bare"]["cpu_us_per_value"]),
        "peak_rss_mib": turn["agent"]["peak_rss_mib"],
    }


def _lines(values: Mapping[str, Any]) -> list[str]:
    lines = []
    for turn, kind in [*((turn, "mixed") for turn in values["by_items"]), (values["words"], "words")]:
        agent, bare = turn["agent"], turn["bare"]
        lines.append(
            f"ingest     {turn['items']:6} {kind} tags: {agent['facts_per_s']:8,} values/s committed, "
            f"{agent['cpu_us_per_fact']} ms of CPU for 1,000"
        )
        lines.append(
            f"limit      pymodbus alone {bare['facts_per_s']:8,} values/s, {bare['cpu_us_per_fact']} ms for 1,000, "
            f"nothing kept; ratio {turn['cpu_by_bare']}"
        )
    fleet = values["fleet"]
    lines.append(
        f"fleet      {fleet['devices']} devices, {fleet['tags']:,} tags once a second on one core: "
        f"{fleet['cpu_share']:.0%} of it, polls late by p50 {fleet['late']['p50_ms']:.1f}, p99 {fleet['late']['p99_ms']:.1f} ms"
    )
    lines.append(f"at rest    {values['bytes_per_fact']} bytes a fact, all files")
    return lines
