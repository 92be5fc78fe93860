"""`drain`: a receiver that was away for a day catches up while facts keep being appended.

The sender's store has a backlog of 24 hours of 1,000 tags a second in batches of 250, the size that its group commit
makes of such a plant. A receiver pulls it, and at the same time a second stream without a backlog. Meanwhile 1,000
facts/s are appended to the first stream, then 100,000 for a second receiver, and a probe every 10 ms to both streams. A
probe is timed from the start of its append to its durable confirmation at the sender.

    in_stream       a probe behind the backlog: how long a fact waits in a stream that is drained in order
    own_stream      a probe in a separate stream: how much the drain of another stream delays it

`during` are probes begun before the last fact of the backlog was confirmed; `after`, probes begun once the receiver had
also reached the end of the log. The drain ends when the confirmation of the backlog's last fact is durable. The limit
is the bare loop of `replicate` with equal blobs and no live facts. The backlog repeats 200 runs of data set A.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from agent.fact_store import FactStore
from bench.common.data_sets import definitions, runs, samples
from bench.common.measuring import Latency, Report, files_bytes, machine, rounded
from bench.common.testbed import ASKING, BARE_SERVING, RESULT_S_MAX, SERVING, Testbed, open_testbed
from bench.common.worker_io import Options, broker_access, emit, usage
from bench.replication.endpoints import (
    CONSUMER,
    LOAD_RUNS,
    PROBE_INTERVAL_NS,
    STREAM,
    Probes,
    consumer_of,
    opened,
    pull_settings,
    serve_while,
)

LIVE_STREAM = "facts.live"
STREAMS = (STREAM, LIVE_STREAM)
BATCH_FACTS = 250
DISTINCT_RUNS = 200
LIVE_FACTS_PER_S = (1_000, 100_000)
FACTS_PER_S_MIN = 100_000  # slower than this, something is wrong: a limit for waiting
PAGE_BYTES = pull_settings().receiver.page_bytes_max
PHASES = ("during", "after")
PLACES = {"in_stream": STREAM, "own_stream": LIVE_STREAM}


def run(facts: int, seconds: float, seed: int, below: Path | None) -> Report:
    """Drain `facts` facts at each rate of live facts, measure for `seconds` afterwards, and drain equal blobs bare."""
    facts -= facts % BATCH_FACTS
    with open_testbed(below) as testbed:
        described = machine(testbed.folder)
        source, blobs = testbed.folder / "sender" / "facts.db", testbed.folder / "blobs-out.db"
        source.parent.mkdir()
        filled_with = {"file": source, "blobs": blobs, "facts": facts, "seed": seed, "batch_facts": BATCH_FACTS}
        with testbed.worker(
            "fill", "fill", SERVING, distinct_facts=DISTINCT_RUNS * BATCH_FACTS, **filled_with
        ) as filling:
            filled = filling.result(_limit_s(facts))
        at_rest = files_bytes(source.parent) / facts
        drains = [_drain(testbed, source, facts, live, seconds, seed) for live in LIVE_FACTS_PER_S]
        limit_s = _bare_drain(testbed, blobs, filled["batches"], facts)
    return _report(facts, seed, at_rest, drains, limit_s, described)


def _limit_s(facts: int) -> float:
    return RESULT_S_MAX + facts / FACTS_PER_S_MIN


def _drain(
    testbed: Testbed, source: Path, facts: int, live_facts_per_s: int, seconds: float, seed: int
) -> dict[str, Any]:
    """Drain to one receiver: its duration, and the lag of the probes during and after it."""
    target = testbed.folder / f"receiver-{live_facts_per_s}" / "facts.db"
    target.parent.mkdir()
    name = f"drain-{live_facts_per_s}"
    options = {"file": source, "asking": ASKING, "streams": STREAMS, "seconds": seconds, "seed": seed, "facts": facts}
    with (
        testbed.worker(name, "drain", SERVING, live_facts_per_s=live_facts_per_s, **options) as sending,
        testbed.worker(f"pull-{name}", "pull", ASKING, file=target, streams=STREAMS) as pulling,
    ):
        sender = sending.result_with(pulling, _limit_s(facts) + seconds)
        receiver = pulling.ended()
    assert receiver["facts_stored"] >= facts, receiver
    drain_s = (sender["drained_ns"] - receiver["started_ns"]) / 1e9
    spreads = {
        phase: {place: _spread(sender["lags_ns"][stream][phase]) for place, stream in PLACES.items()}
        for phase in PHASES
    }
    return {
        "live_facts_per_s": live_facts_per_s,
        "drain_s": rounded(drain_s),
        "facts_per_s": round(facts / drain_s),
        **spreads,
        "cpu_us_per_fact": {
            side: rounded(used["cpu_ns"] / 1000 / used["facts"])
            for side, used in (("sender", sender), ("receiver", {**receiver, "facts": receiver["facts_stored"]}))
        },
        "peak_rss_mib": {"sender": sender["peak_rss_mib"], "receiver": receiver["peak_rss_mib"]},
    }


def _spread(lags_ns: list[int]) -> dict[str, Any] | None:
    """The spread of the lags; None if no probe was confirmed."""
    return Latency.of(lags_ns).to_dict() if lags_ns else None


def _bare_drain(testbed: Testbed, blobs: Path, count: int, facts: int) -> float:
    """Seconds in which the bare loop moves the same batches."""
    target = testbed.folder / "blobs-in.db"
    with (
        testbed.worker(
            "blobs-out", "blobs-out", BARE_SERVING, file=blobs, asking=ASKING, bytes_max=PAGE_BYTES
        ) as sending,
        testbed.worker("blobs-in", "blobs-in", ASKING, file=target, blobs=count, storing_apart=False) as receiving,
    ):
        confirmed_ns: int = sending.result_with(receiving, _limit_s(facts))["confirmed_ns"]
        started_ns: int = receiving.ended()["started_ns"]
    return (confirmed_ns - started_ns) / 1e9


def _report(
    facts: int, seed: int, at_rest: float, drains: list[dict[str, Any]], limit_s: float, described: dict[str, Any]
) -> Report:
    first = drains[0]
    limit = facts / limit_s
    values = {
        "facts_per_s": first["facts_per_s"],
        "limit": {
            "what": "bare loop: equal blobs and pages, SQLite to SQLite through the same broker, nothing else going on",
            "facts_per_s": round(limit),
            "drain_s": rounded(limit_s),
        },
        "ratio": rounded(first["facts_per_s"] / limit),
        "drains": drains,
        "bytes_per_fact": rounded(at_rest),
        "page_bytes": PAGE_BYTES,
        "batch_facts": BATCH_FACTS,
        "distinct_facts": min(facts, DISTINCT_RUNS * BATCH_FACTS),
        "facts": facts,
        "seed": seed,
    }
    lines = [
        f"drain      {first['drain_s']:g} s for {facts / 1e6:g} M facts in batches of {BATCH_FACTS}, {first['facts_per_s'] / 1e6:.2f} M facts/s",
        f"limit      {limit_s:.3g} s, {limit / 1e6:.2f} M facts/s in a bare loop with equal blobs; ratio {values['ratio']}",
    ]
    for drained in drains:
        lines.append(
            f"beside     {drained['live_facts_per_s']:,} live facts/s: {drained['drain_s']:g} s, {drained['facts_per_s'] / 1e6:.2f} M facts/s"
        )
        for phase in PHASES:
            for place, name in (("in_stream", "behind the backlog"), ("own_stream", "in a stream of its own")):
                lines.append(f"  {phase:8} {_spread_text(drained[phase][place])}, {name}")
    return Report("drain", values, lines, described)


def _spread_text(spread: dict[str, Any] | None) -> str:
    return str(Latency(**spread)) if spread else "no probe was confirmed"


# ------------------------------------------------------------------------------------ the sender's process


def drain(options: Options) -> None:
    """Serve a backlog and append to it; RESULT when it is drained and all probes are confirmed."""
    draining = Draining(options["facts"])
    with opened(Path(options["file"]), SERVING) as store:
        store.appends.define(definitions()).result()
        asyncio.run(serve_while(options, store, draining.confirmed, partial(_append_live, options, store, draining)))


class Draining:
    """The progress of a drain: what has been confirmed of the backlog, and the probes in both streams."""

    def __init__(self, backlog: int) -> None:
        self.probes = {stream: Probes() for stream in STREAMS}
        self.drained_ns = 0
        self.caught_up_ns = 0
        self._frontier = 0
        self._backlog = backlog
        self._streams = {consumer_of(stream): stream for stream in STREAMS}

    def confirmed(self, consumer: str, frontier: int, now_ns: int) -> None:
        """Called in the writer's thread when a confirmation is durable."""
        stream = self._streams[consumer]
        self.probes[stream].confirmed(frontier, now_ns)
        if stream == STREAM:
            self._frontier = frontier
            if not self.drained_ns and frontier >= self._backlog:
                self.drained_ns = now_ns

    def look(self, end_offset: int, behind_max: int) -> None:
        """Note when the receiver has drained the backlog and is at most the facts of one second behind."""
        if self.drained_ns and not self.caught_up_ns and self._frontier >= end_offset - behind_max:
            self.caught_up_ns = time.monotonic_ns()

    def was_watched(self, seconds: float) -> bool:
        """Whether so much time has passed since it caught up."""
        return bool(self.caught_up_ns) and time.monotonic_ns() >= self.caught_up_ns + int(seconds * 1e9)

    def lags_ns(self, stream: str) -> dict[str, list[int]]:
        """How long the probes of a stream took, by phase."""
        probes = self.probes[stream]
        begun = list(zip(probes.begun_ns, probes.lags_ns, strict=True))
        during = [lag_ns for begun_ns, lag_ns in begun if begun_ns < self.drained_ns]
        return {"during": during, "after": [lag_ns for begun_ns, lag_ns in begun if begun_ns > self.caught_up_ns]}


def _append_live(options: Options, store: FactStore, draining: Draining, stopped: threading.Event) -> None:
    load_facts = options["live_facts_per_s"] * PROBE_INTERVAL_NS // 1_000_000_000
    load = list(runs("A", options["seed"], load_facts * LOAD_RUNS, load_facts))
    single = list(islice(samples("A", options["seed"]), BATCH_FACTS))
    emit("READY")
    while store.consumers.get(CONSUMER) is None and not stopped.wait(0.001):
        pass
    since_ns, due_ns, number = time.process_time_ns(), time.monotonic_ns(), 0
    while not stopped.is_set() and not draining.was_watched(options["seconds"]):
        due_ns += PROBE_INTERVAL_NS
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        store.appends.append_samples(STREAM, load[number % LOAD_RUNS])
        for stream, probes in draining.probes.items():
            probes.append(store, [single[number % BATCH_FACTS]], stream)
        number += 1
        draining.look(store.end_offset(STREAM), options["live_facts_per_s"])
    while not all(probes.all_confirmed(number) for probes in draining.probes.values()) and not stopped.wait(0.01):
        pass
    lags_ns = {stream: draining.lags_ns(stream) for stream in STREAMS}
    facts = options["facts"] + number * load_facts
    used = usage(since_ns, broker_access(options).port)
    emit("RESULT", {"drained_ns": draining.drained_ns, "lags_ns": lags_ns, "facts": facts, **used})
    stopped.wait()
