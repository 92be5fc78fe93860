"""`growth`: whether the last million facts are appended as fast as the first, and how long a store of that size takes
to open.

A process fills one store with data set A in batches of 1000, a few in flight, stretch after stretch; samples are made
outside of the timed part. With each stretch, some of its bytes are appended to a plain file with one fdatasync a batch,
which shows whether the disk became slower. The first tenth of the stretches is compared with the last.

Then the process is killed with -9 during an append and the store is opened: once with a cold page cache, then warm.
`--gigabytes` first fills the store to that size with values that cannot be compressed. `--lives` measures something
else: what years of restarts cost (lives.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from agent.fact_store import FactStore
from agent.message import Sample
from bench.common.data_sets import runs
from bench.common.measuring import Report, files_bytes, machine, median, open_file, peak_rss_mib, rounded
from bench.common.testbed import SERVING, scratch_folder, start_worker
from bench.common.worker_io import Options, emit
from bench.store import lives as store_lives
from bench.store.append import (
    BATCH_FACTS,
    SETTINGS,
    STREAM,
    Stretches,
    append_awaited,
    append_sustained,
    new_store,
    one_message,
)

STRETCH_BATCHES = 100
RAW_BATCHES = 10  # of each stretch, also appended raw
OPENINGS = 5
PAD_VALUE_BYTES = 60_000
PAD_VALUES = 64
PADS_IN_FLIGHT = 8  # of 4 MB: less than a store's queue holds
FILL_S_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class _Part:
    """Some stretches of the growth: median rates of the store and of the raw file."""

    facts_per_s: float
    raw_facts_per_s: float

    @property
    def ratio(self) -> float:
        return self.facts_per_s / self.raw_facts_per_s


def run(facts: int, gigabytes: float, lives: int, seed: int, below: Path | None) -> Report:
    """Grow a store to `facts` facts (and `gigabytes`), kill its writer, open it again; or measure one with `lives`."""
    if lives:
        return store_lives.run(lives, below)
    with scratch_folder(below) as folder:
        described = machine(folder)
        file_path = folder / "store" / "facts.db"
        options = {"store": str(folder / "store"), "facts": facts, "gigabytes": gigabytes, "seed": seed}
        with start_worker(folder, "grow", "grow", **options) as grower:
            found = grower.result(FILL_S_MAX)
            grower.kill()
        cold_s, opened_s = opening_times_s(file_path, STREAM, found["end_offset"])
        size = files_bytes(folder / "store")
    rows: list[list[int]] = found["stretches"]
    tenth = max(1, len(rows) // 10)
    first, last = _median_of(rows[:tenth]), _median_of(rows[-tenth:])
    values = {
        "facts_per_s": round(last.facts_per_s),
        "limit": {"what": "the rate of the same run's first tenth", "facts_per_s": round(first.facts_per_s)},
        "ratio": rounded(last.facts_per_s / first.facts_per_s),
        "raw_ratio": {"first": rounded(first.ratio), "last": rounded(last.ratio)},
        "bytes_per_fact": found["bytes_per_fact"],
        "peak_rss_mib": found["peak_rss_mib"],
        "store_bytes": size,
        "open_s": {"cold": rounded(cold_s), "warm": rounded(median(opened_s))},
        "facts": found["facts"],
        "batch_facts": BATCH_FACTS,
        "seed": seed,
    }
    end = f"{last.facts_per_s / 1e6:6.2f} M facts/s at the end of {found['facts']:,} facts"
    begin = f"{first.facts_per_s / 1e6:6.2f} M facts/s at the start"
    lines = (
        f"growth     {end}, {rounded(last.ratio)} of raw appends; ratio {values['ratio']}",
        f"limit      {begin}, {rounded(first.ratio)} of raw appends",
        f"at rest    {found['bytes_per_fact']:6.2f} bytes a fact; the writer held {found['peak_rss_mib']} MiB at most",
        f"opening    {1000 * cold_s:6.1f} ms cold, {1000 * median(opened_s):.1f} ms warm, {size / 1e9:.2f} GB, after kill -9",
    )
    return Report("growth", values, lines, described)


def grow(options: Options) -> None:
    """The process that fills the store, then goes on appending until it is killed."""
    folder, facts = Path(options["store"]), int(options["facts"])
    source = runs("A", options["seed"], facts, BATCH_FACTS)
    emit("READY")
    with new_store(folder) as store, open_file(folder.with_suffix(".raw")) as raw:
        found = Stretches()
        rows = list[list[int]]()
        while batches := list(islice(source, STRETCH_BATCHES)):
            rows.append(_stretch(store, batches, raw, found))
        at_rest = files_bytes(folder) / store.end_offset(STREAM)
        _pad(store, folder, float(options["gigabytes"]))
        emit(
            "RESULT",
            {
                "stretches": rows,
                "facts": facts,
                "end_offset": store.end_offset(STREAM),
                "bytes_per_fact": rounded(at_rest),
                "peak_rss_mib": peak_rss_mib(),
            },
        )
        for number in count():
            store.appends.append_message(STREAM, one_message(number)).result()


def _stretch(store: FactStore, batches: list[list[Sample]], raw: int, found: Stretches) -> list[int]:
    """(facts, ns) of a stretch in the store, (facts, ns) of the part of it that was also appended raw."""
    apart, together = batches[:RAW_BATCHES], batches[RAW_BATCHES:]
    append_awaited(store, iter(apart), raw, found)
    os.ftruncate(raw, 0)
    os.lseek(raw, 0, os.SEEK_SET)
    if not together:
        together = apart
    append_sustained(store, together, found)
    return [_facts(together), found.sustained_ns[-1], _facts(apart), found.raw_ns[-1]]


def _facts(batches: Sequence[Sequence[Sample]]) -> int:
    return sum(map(len, batches))


def _pad(store: FactStore, folder: Path, gigabytes: float) -> None:
    """Fill the store with values that cannot be compressed, up to that size."""
    while files_bytes(folder) < gigabytes * 1e9:
        noise = [Sample(1, number, os.urandom(PAD_VALUE_BYTES)) for number in range(PAD_VALUES)]
        for future in [store.appends.append_samples(STREAM, noise) for _ in range(PADS_IN_FLIGHT)]:
            future.result()


def _median_of(rows: Sequence[Sequence[int]]) -> _Part:
    return _Part(
        median([1e9 * facts / ns for facts, ns, _, _ in rows]), median([1e9 * facts / ns for _, _, facts, ns in rows])
    )


def opening_times_s(path: Path, stream: str, end_offset: int) -> tuple[float, list[float]]:
    """Seconds to open the store of a killed writer: cold once, and warm. Every acknowledged fact must be in it."""
    durations = list(_opening_s(path, stream, end_offset))
    return durations[0], durations[1:]


def _opening_s(path: Path, stream: str, end_offset: int) -> Iterator[float]:
    drop_page_cache(path)
    for _ in range(1 + OPENINGS):
        start_ns = time.perf_counter_ns()
        with closing(FactStore.open(path, SERVING, settings=SETTINGS)) as store:
            yield (time.perf_counter_ns() - start_ns) / 1e9
            assert store.end_offset(stream) >= end_offset, "acknowledged facts are missing"


def drop_page_cache(path: Path) -> None:
    """Ask the kernel to drop the store's pages from its cache. No connection is open here, so no lock can be
    dropped."""
    for file in sorted(path.parent.glob(f"{path.name}*")):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
