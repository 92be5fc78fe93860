"""`append`: durable appends of data set A in batches of 1000 samples, encoding included, beside raw file appends.

Product and limit take turns, a stretch each, on the same disk: the store appends batch after batch, each awaited before the
next is handed over, so each has an fsync of its own; then the very bytes it sealed are appended to a plain file, with one
fdatasync a batch. What the store gains when appends queue up behind a commit is measured too, and told apart (`queued`).
Then single awaited facts take turns with single fsyncs of one page inside a preallocated file, which is the least that any
durable write can cost. At the end the closed stores are weighed, every file of them, for both data sets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from agent.fact_store.settings import StoreSettings
from agent.fact_store.store import FactStore
from bench.data import DataSet, definitions, runs, samples
from bench.figures import Latency, Report, files_bytes, machine, median, rounded
from bench.stage import SERVING, workplace

STREAM = "facts.telemetry"
BATCH_FACTS = 1000
STRETCH_BATCHES = 100  # a turn: long enough to time, short enough that a noisy second hits both alike
TURN_SINGLES = 25
PAGE_BYTES = 4096
PREALLOCATED_PAGES = 256
SETTINGS = StoreSettings(batch_facts_target=BATCH_FACTS)


@dataclass(slots=True)
class _Stretches:
    """Durations of equal stretches, in ns, and what they held."""

    facts: list[int] = field(default_factory=list)
    awaited_ns: list[int] = field(default_factory=list)
    awaited_cpu_ns: list[int] = field(default_factory=list)
    queued_ns: list[int] = field(default_factory=list)
    raw_ns: list[int] = field(default_factory=list)
    sealed_bytes: int = 0


def run(facts: int, seconds: float, seed: int, below: Path | None) -> Report:
    """Append `facts` samples, then single ones for `seconds`."""
    with workplace(below) as folder:
        described = machine(folder)
        stretches = _append_in_turns(folder / "a", facts, seed)
        appended = 2 * sum(stretches.facts)
        at_rest_a = files_bytes(folder / "a") / appended
        one_fact, one_fsync = _single_in_turns(folder, seconds, seed)
        at_rest_b = _fill(folder / "b", "B", appended, seed)
    awaited, queued, raw = (
        median([1e9 * count / ns for count, ns in zip(stretches.facts, durations_ns, strict=True)])
        for durations_ns in (stretches.awaited_ns, stretches.queued_ns, stretches.raw_ns)
    )
    cpu_us = sum(stretches.awaited_cpu_ns) / sum(stretches.facts) / 1000
    values = {
        "facts_per_s": round(awaited),
        "limit": {
            "what": "raw append of the same bytes to a file, one fdatasync a batch; for one fact, one fsync of a page",
            "facts_per_s": round(raw),
            "one_fsync": one_fsync.to_dict(),
        },
        "ratio": rounded(awaited / raw),
        "cpu_us_per_fact": rounded(cpu_us),
        "queued": {"facts_per_s": round(queued), "ratio": rounded(queued / raw)},
        "one_fact": one_fact.to_dict(),
        "one_fact_ratio": rounded(one_fact.p50_ms / one_fsync.p50_ms),
        "bytes_per_fact": rounded(at_rest_a),
        "bytes_per_fact_set_b": rounded(at_rest_b),
        "bytes_per_fact_sealed": rounded(stretches.sealed_bytes / sum(stretches.facts)),
        "facts": appended,
        "batch_facts": BATCH_FACTS,
        "seed": seed,
    }
    lines = (
        f"append     {awaited / 1e6:6.2f} M facts/s in batches of {BATCH_FACTS}, each awaited; {cpu_us:.2f} us CPU a fact",
        f"limit      {raw / 1e6:6.2f} M facts/s as raw file appends with fdatasync; ratio {values['ratio']}",
        f"queued     {queued / 1e6:6.2f} M facts/s when appends queue up behind a commit; ratio {rounded(queued / raw)}",
        f"one fact   {one_fact}; one fsync {one_fsync}; ratio {values['one_fact_ratio']}",
        f"at rest    {at_rest_a:6.2f} bytes a fact of set A, {at_rest_b:.2f} of set B, all files",
    )
    return Report("append", values, lines, described)


def _append_in_turns(folder: Path, facts: int, seed: int) -> _Stretches:
    """Half of the stretches awaited batch by batch, half queued; after each awaited one, the same bytes raw."""
    found = _Stretches()
    source = runs("A", seed, max(facts // BATCH_FACTS, 2) * BATCH_FACTS, BATCH_FACTS)
    stretch_batches = max(1, min(STRETCH_BATCHES, facts // BATCH_FACTS // 2))
    with _store(folder) as store, _file(folder.with_suffix(".raw")) as file:
        while len(awaited := list(islice(source, stretch_batches))) == stretch_batches:
            queued = list(islice(source, stretch_batches))
            if len(queued) < stretch_batches:
                break
            after_offset = store.end_offset(STREAM)
            cpu_ns, start_ns = time.process_time_ns(), time.perf_counter_ns()
            for batch in awaited:
                store.append_samples(STREAM, batch, awaited=True).result()
            found.awaited_ns.append(time.perf_counter_ns() - start_ns)
            found.awaited_cpu_ns.append(time.process_time_ns() - cpu_ns)
            sealed = _sealed(store, after_offset)
            assert len(sealed) == stretch_batches
            found.raw_ns.append(_append_raw(file, sealed))
            start_ns = time.perf_counter_ns()
            for future in [store.append_samples(STREAM, batch, awaited=True) for batch in queued]:
                future.result()
            found.queued_ns.append(time.perf_counter_ns() - start_ns)
            found.facts.append(stretch_batches * BATCH_FACTS)
            found.sealed_bytes += sum(map(len, sealed))
    return found


def _append_raw(file: int, blobs: Sequence[bytes]) -> int:
    start_ns = time.perf_counter_ns()
    for blob in blobs:
        os.write(file, blob)
        os.fdatasync(file)
    return time.perf_counter_ns() - start_ns


def _single_in_turns(folder: Path, seconds: float, seed: int) -> tuple[Latency, Latency]:
    """Single awaited facts into a store of their own, and single fsyncs, in turns."""
    source = samples("A", seed)
    facts_ns: list[int] = []
    fsyncs_ns: list[int] = []
    with _store(folder / "single") as store, _file(folder / "page") as file:
        os.pwrite(file, bytes(PREALLOCATED_PAGES * PAGE_BYTES), 0)
        os.fsync(file)
        end_ns = time.perf_counter_ns() + int(seconds * 1e9)
        while time.perf_counter_ns() < end_ns:
            for sample in islice(source, TURN_SINGLES):
                start_ns = time.perf_counter_ns()
                store.append_samples(STREAM, [sample], awaited=True).result()
                facts_ns.append(time.perf_counter_ns() - start_ns)
            for _ in range(TURN_SINGLES):
                page = os.urandom(PAGE_BYTES)
                start_ns = time.perf_counter_ns()
                os.pwrite(file, page, len(fsyncs_ns) % PREALLOCATED_PAGES * PAGE_BYTES)
                os.fsync(file)
                fsyncs_ns.append(time.perf_counter_ns() - start_ns)
    return Latency.of(facts_ns), Latency.of(fsyncs_ns)


def _fill(folder: Path, data_set: DataSet, facts: int, seed: int) -> float:
    """Bytes a fact of a closed store with so many facts, in batches of 1000."""
    count = 0
    with _store(folder) as store:
        for batch in runs(data_set, seed, facts, BATCH_FACTS):
            store.append_samples(STREAM, batch, awaited=True).result()
            count += len(batch)
    return files_bytes(folder) / count


@contextmanager
def _store(folder: Path) -> Iterator[FactStore]:
    """A new store with the 500 tags defined."""
    folder.mkdir()
    with closing(FactStore.open(folder / "facts.db", SERVING, settings=SETTINGS)) as store:
        store.define(definitions()).result()
        yield store


@contextmanager
def _file(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        yield file
    finally:
        os.close(file)


def _sealed(store: FactStore, after_offset: int) -> list[bytes]:
    """The batches beyond an offset, as they were sealed."""
    page = store.read(STREAM, after_offset, facts_max=2**40, bytes_max=2**40)
    return [batch.sealed for batch in page.batches]
