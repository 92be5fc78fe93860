"""`retention`: appends while retention deletes as many facts, compared with a store that keeps everything.

Two stores take turns with the same batches of data set A. In the *keeping* store nothing is released. In the
*forgetting* store a consumer confirms each stretch as soon as it is durable, and nothing is kept for local readers, so
the commits that append also release and delete. It is filled and emptied once before it is measured, so that its free
pages are reused. `released_share` says how much was deleted meanwhile.

Then single messages are appended to both, while a backlog is deleted from the forgetting store. Their p99 and
maximum show what checkpoints and deletions cost a commit.
"""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from agent.fact_store import FactStore
from agent.settings.store import StreamSettings
from bench.common.data_sets import runs
from bench.common.measuring import Latency, Report, files_bytes, machine, rounded
from bench.common.testbed import scratch_folder
from bench.store.append import BATCH_FACTS, STREAM, Stretches, append_one_ns, append_sustained, new_store

CONSUMER = "idmz.facts.telemetry"
STRETCH_BATCHES = 25
WARM_STRETCHES = 8
TURN_SINGLES = 25
FORGETTING = StreamSettings(STREAM, keep_hours=0)


def run(facts: int, seconds: float, seed: int, below: Path | None) -> Report:
    """Append `facts` samples to each of two stores in turns, then single messages for `seconds`."""
    with scratch_folder(below) as folder:
        described = machine(folder)
        source = runs("A", seed, 2**60, BATCH_FACTS)
        with new_store(folder / "keeping") as keeping, new_store(folder / "forgetting", FORGETTING) as forgetting:
            forgetting.consumers.register(CONSUMER, "idmz", STREAM).result()
            for _ in range(WARM_STRETCHES):
                append_sustained(forgetting, list(islice(source, STRETCH_BATCHES)), Stretches())
                _confirm(forgetting)
            kept, forgot = Stretches(), Stretches()
            held_before = _first_offset(forgetting)
            for _ in range(max(1, facts // BATCH_FACTS // STRETCH_BATCHES)):
                batches = list(islice(source, STRETCH_BATCHES))
                for found, store in ((kept, keeping), (forgot, forgetting)):
                    found.facts.append(sum(map(len, batches)))
                    append_sustained(store, batches, found)
                _confirm(forgetting)
            released = _first_offset(forgetting) - held_before
            backlog = list(islice(source, 4 * STRETCH_BATCHES))
            append_sustained(forgetting, backlog, Stretches())
            single_kept, single_forgot = _singles(keeping, forgetting, seconds)
        at_rest = files_bytes(folder / "keeping") / (keeping.end_offset(STREAM))
        forgetting_bytes = files_bytes(folder / "forgetting")
    rates = kept.facts_per_s(kept.sustained_ns), forgot.facts_per_s(forgot.sustained_ns)
    values = {
        "facts_per_s": round(rates[1]),
        "limit": {
            "what": "the same appends into a store that keeps everything",
            "facts_per_s": round(rates[0]),
            "one_fact": single_kept.to_dict(),
        },
        "ratio": rounded(rates[1] / rates[0]),
        "released_share": rounded(released / sum(forgot.facts)),
        "one_fact": single_forgot.to_dict(),
        "bytes_per_fact": rounded(at_rest),
        "store_bytes": forgetting_bytes,
        "facts": sum(forgot.facts),
        "batch_facts": BATCH_FACTS,
        "seed": seed,
    }
    share = f"{100 * released / sum(forgot.facts):.0f} % as many"
    lines = (
        f"retention  {rates[1] / 1e6:6.2f} M facts/s while {share} are deleted; ratio {values['ratio']}",
        f"limit      {rates[0] / 1e6:6.2f} M facts/s into a store that keeps everything",
        f"one fact   {single_forgot} while a backlog is deleted; {single_kept} when nothing is",
        f"files      {forgetting_bytes / 1e6:6.2f} MB of the store that deletes; {at_rest:.2f} bytes a fact where it is kept",
    )
    return Report("retention", values, lines, described)


def _confirm(store: FactStore) -> None:
    store.consumers.confirm(CONSUMER, store.end_offset(STREAM)).result()


def _first_offset(store: FactStore) -> int:
    return next(stream.first_offset for stream in store.streams() if stream.name == STREAM)


def _singles(keeping: FactStore, forgetting: FactStore, seconds: float) -> tuple[Latency, Latency]:
    """Single messages into both stores in turns; the backlog of the forgetting one is released at the start."""
    _confirm(forgetting)
    durations = list[int](), list[int]()
    end_ns = time.perf_counter_ns() + int(seconds * 1e9)
    while time.perf_counter_ns() < end_ns:
        for store, found in zip((keeping, forgetting), durations, strict=True):
            for _ in range(TURN_SINGLES):
                found.append(append_one_ns(store, len(found)))
    return Latency.of(durations[0]), Latency.of(durations[1])
