"""`lag`: a fact every 10 ms, from the start of its append to its durable confirmation at the sender.

Two processes and the broker as in `replicate`, at the end of the log: the receiver's request waits at the sender, which
answers when the fact is committed; the receiver stores it and confirms with its next request; the sender makes the
frontier durable. Measured alone, and among 100,000 facts/s of data set A in the same stream. The first twentieth is
left out, since it includes definitions and cold caches.

The limit is two request/response round trips through the same broker and two fsyncs of a preallocated page, measured in
the same run. At the end the processor time of the idle pair is measured.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.measuring import (
    Latency,
    Report,
    cores_used,
    files_bytes,
    fsync_ns,
    machine,
    preallocated_file,
    rounded,
)
from bench.common.testbed import ASKING, BARE_SERVING, RESULT_S_MAX, SERVING, Testbed, open_testbed
from bench.replication.bare_loop import BareRequester

LOAD_FACTS_PER_S = 100_000
ROUND_TRIPS = 2
FSYNCS = 2
BARE_INTERVAL_S = 0.005  # a pause as between facts: without one, every process and CPU would stay awake
BARE_BYTES = 400  # a request and a page of one fact are of this order
IDLE_S = 5.0


def run(seconds: float, seed: int, below: Path | None) -> Report:
    """Measure for `seconds` alone, for as long under load, and the limit before, between and after."""
    with open_testbed(below) as testbed:
        described = machine(testbed.folder)
        round_trips_ns: list[int] = []
        fsyncs_ns: list[int] = []
        found: dict[int, dict[str, Any]] = {}
        count = max(20, int(seconds / 3 / BARE_INTERVAL_S))
        measure_limit(testbed, count, round_trips_ns, fsyncs_ns)
        for load in (0, LOAD_FACTS_PER_S):
            found[load] = _probe(testbed, load, seconds, seed)
            measure_limit(testbed, count, round_trips_ns, fsyncs_ns)
    alone, loaded = (Latency.of(measured["lags_ns"]) for measured in found.values())
    round_trip, fsync = Latency.of(round_trips_ns), Latency.of(fsyncs_ns)
    limit_p50_ms, limit_p99_ms = (
        ROUND_TRIPS * getattr(round_trip, share) + FSYNCS * getattr(fsync, share) for share in ("p50_ms", "p99_ms")
    )
    values = {
        **alone.to_dict(),
        "limit": {
            "what": f"{ROUND_TRIPS} bare round trips through the same broker and {FSYNCS} fsyncs",
            "p50_ms": rounded(limit_p50_ms),
            "p99_ms": rounded(limit_p99_ms),
            "round_trip": round_trip.to_dict(),
            "fsync": fsync.to_dict(),
        },
        "ratio": rounded(alone.p50_ms / limit_p50_ms),
        "loaded": {
            **loaded.to_dict(),
            "load_facts_per_s": LOAD_FACTS_PER_S,
            "ratio": rounded(loaded.p50_ms / limit_p50_ms),
            "cpu_share": found[LOAD_FACTS_PER_S]["cpu_share"],
        },
        "cpu_share": found[0]["cpu_share"],
        "idle_cpu_share": found[0]["idle_cpu_share"],
        "bytes_per_fact": found[LOAD_FACTS_PER_S]["bytes_per_fact"],
        "bytes_per_fact_alone": found[0]["bytes_per_fact"],
        "seconds": seconds,
        "seed": seed,
    }
    used = [
        ", ".join(f"{side} {share:.0%}" for side, share in measured["cpu_share"].items()) for measured in found.values()
    ]
    idle = ", ".join(f"{side} {share:.2%}" for side, share in found[0]["idle_cpu_share"].items())
    lines = (
        f"lag        {alone}, a fact every 10 ms, append to confirmed",
        f"limit      p50 {limit_p50_ms:.2f} ms: {ROUND_TRIPS} round trips, {FSYNCS} fsyncs, bare; ratio {values['ratio']}",
        f"loaded     {loaded}, among {LOAD_FACTS_PER_S:,} facts/s; ratio {rounded(loaded.p50_ms / limit_p50_ms)}",
        f"CPU        of a core: {used[0]}; loaded: {used[1]}; waiting for nothing: {idle}",
    )
    return Report("lag", values, lines, described)


def _probe(testbed: Testbed, load_facts_per_s: int, seconds: float, seed: int) -> dict[str, Any]:
    source, target = testbed.folder / f"sender-{load_facts_per_s}", testbed.folder / f"receiver-{load_facts_per_s}"
    source.mkdir()
    target.mkdir()
    options = {"file": source / "facts.db", "asking": ASKING, "seconds": seconds, "seed": seed}
    name = f"lag-{load_facts_per_s}"
    with (
        testbed.worker(name, "lag", SERVING, load_facts_per_s=load_facts_per_s, **options) as sending,
        testbed.worker(f"pull-{name}", "pull", ASKING, file=target / "facts.db") as pulling,
    ):
        sender = sending.result_with(pulling, RESULT_S_MAX + seconds)
        pids = {"sender": sending.pid, "receiver": pulling.pid}
        idle = {} if load_facts_per_s else cores_used(pids, partial(time.sleep, min(IDLE_S, seconds)))
        receiver = pulling.ended()
    assert receiver["facts_stored"] == sender["facts"], (sender["facts"], receiver)
    share = {
        side: rounded(used["cpu_ns"] / 1e9 / seconds) for side, used in (("sender", sender), ("receiver", receiver))
    }
    return {
        "lags_ns": sender["lags_ns"],
        "cpu_share": share,
        "idle_cpu_share": idle,
        "bytes_per_fact": rounded(files_bytes(source) / sender["facts"]),
    }


def measure_limit(testbed: Testbed, count: int, round_trips_ns: list[int], fsyncs_ns: list[int]) -> None:
    """Bare round trips and fsyncs, in turns."""
    with (
        preallocated_file(testbed.folder / "page") as file,
        testbed.worker("echo", "echo", BARE_SERVING, asking=ASKING),
        closing(BareRequester(testbed.access(ASKING))) as asker,
    ):
        for number in range(count):
            time.sleep(BARE_INTERVAL_S)
            round_trips_ns.append(asker.round_trip_ns(BARE_BYTES, BARE_BYTES))
            fsyncs_ns.append(fsync_ns(file, number))
