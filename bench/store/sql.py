"""`sql`: a query for one hour of one tag out of 500 over sealed batches, compared with the same query on a flat SQLite
table.

A store is filled with data set A in batches of 1000. The question (count, mean, minimum and maximum of one tag in the
last hour, or in all data where that is shorter) goes in turns to the virtual table of `bsfg sql` and to a flat file of
the last facts, made by the product's export. The limit is the flat table scanned without an index; `indexed` is the
same with its index on (subject, source_time_ns). Both must give the same answer.

Then the question is timed as a command in a process of its own, with a cold page cache and warm, and at the end a
search for the latest value of every tag.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from agent.fact_store import StoreReader
from agent.query.export import export
from agent.query.latest import find_latest
from agent.query.scan import Bounds, Scanner
from agent.query.sql import SqlSession
from bench.common.data_sets import SCAN_NS, START_NS, TAGS, definitions, runs
from bench.common.measuring import Latency, Report, files_bytes, machine, median, results, rounded
from bench.common.testbed import scratch_folder
from bench.store.append import BATCH_FACTS, IN_FLIGHT, STREAM, new_store
from bench.store.growth import drop_page_cache

TAG = definitions()[16].subject
HOUR_NS = 3600 * SCAN_NS
FLAT_FACTS_MAX = 2_000_000  # a little more than the hour; a flat row has about 300 bytes
QUESTION = (
    "select count(*), avg(value), min(value), max(value) from facts "
    "where {plus}subject = '{tag}' and {plus}source_time_ns >= {since_ns} and {plus}source_time_ns < {until_ns}"
)


def run(facts: int, repeats: int, seed: int, below: Path | None) -> Report:
    """Fill a store with `facts` samples, then ask `repeats` times."""
    with scratch_folder(below) as folder:
        described = machine(folder)
        _fill(folder / "store", facts, seed)
        file, flat = folder / "store" / "facts.db", folder / "flat.db"
        until_ns = START_NS + facts // TAGS * SCAN_NS
        since_ns = max(START_NS, until_ns - HOUR_NS)
        span_facts = (until_ns - since_ns) // SCAN_NS * TAGS
        cold_s, *warm_s = (_command_s(file, since_ns, until_ns, is_cold=n == 0) for n in range(1 + repeats))
        with closing(StoreReader(file)) as reader:
            exported = export(Scanner(reader), Bounds(offset_min=facts - FLAT_FACTS_MAX + 1), flat, "sqlite")
            turns = _in_turns(reader, flat, since_ns, until_ns, repeats)
            latest_ns = [_latest_ns(reader) for _ in range(repeats)]
        sizes = files_bytes(folder / "store") / facts, flat.stat().st_size / exported.facts
    asked, bare, indexed = (Latency.of(durations) for durations in turns[:3])
    counters = turns[3]
    latest_spread = Latency.of(latest_ns)
    values = {
        **asked.to_dict(),
        "limit": {
            "what": f"the same question to a flat SQLite table of the last {exported.facts:,} facts, without an index",
            **bare.to_dict(),
        },
        "ratio": rounded(asked.p50_ms / bare.p50_ms),
        "indexed": indexed.to_dict(),
        "span_facts": span_facts,
        "span_facts_per_s": round(1000 * span_facts / asked.p50_ms),
        "batches": {"looked_at": counters[0], "opened": counters[1]},
        "command_s": {"cold": rounded(cold_s), "warm": rounded(median(warm_s))},
        "latest": latest_spread.to_dict(),
        "bytes_per_fact": rounded(sizes[0]),
        "bytes_per_fact_flat": rounded(sizes[1]),
        "facts": facts,
        "batch_facts": BATCH_FACTS,
        "seed": seed,
    }
    lines = (
        f"sql        {asked}; one tag of {TAGS}, {span_facts:,} facts long, out of {facts:,}",
        f"limit      {bare}; ratio {values['ratio']}; a flat table of {exported.facts:,} facts without an index",
        f"indexed    {indexed}; the flat table with its index",
        f"command    {cold_s:6.2f} s cold, {median(warm_s):.2f} s warm, as a process of its own",
        f"batches    {counters[0]:,} looked at, {counters[1]:,} opened",
        f"latest     {latest_spread}; {TAGS} tags",
        f"at rest    {sizes[0]:6.2f} bytes a fact; flat {sizes[1]:.0f}",
    )
    return Report("sql", values, lines, described)


def _fill(folder: Path, facts: int, seed: int) -> None:
    with new_store(folder) as store:
        batches = runs("A", seed, facts, BATCH_FACTS)
        for _ in results((store.appends.append_samples(STREAM, batch) for batch in batches), IN_FLIGHT):
            pass


def _in_turns(
    reader: StoreReader, flat: Path, since_ns: int, until_ns: int, repeats: int
) -> tuple[list[int], list[int], list[int], tuple[int, int]]:
    """Durations of the question to batches, to the flat table without its index, and with it; heads and batches
    opened."""
    named: dict[str, Any] = {"tag": TAG, "since_ns": since_ns, "until_ns": until_ns}
    plain, without_index = QUESTION.format(plus="", **named), QUESTION.format(plus="+", **named)
    durations: tuple[list[int], list[int], list[int]] = ([], [], [])
    counters = 0, 0
    with closing(sqlite3.connect(flat)) as connection:
        for _ in range(repeats):
            start_ns = time.perf_counter_ns()
            with closing(SqlSession(reader, 0)) as session:
                (found,) = session.ask(plain).rows
            durations[0].append(time.perf_counter_ns() - start_ns)
            counters = session.scanner.counters.summaries, session.scanner.counters.batches_opened
            for statement, into in ((without_index, durations[1]), (plain, durations[2])):
                start_ns = time.perf_counter_ns()
                (expected,) = connection.execute(statement).fetchall()
                into.append(time.perf_counter_ns() - start_ns)
                assert _equal(found, expected), f"batches say {found}, the flat table {expected}"
    return *durations, counters


def _equal(row: tuple[Any, ...], other_row: tuple[Any, ...]) -> bool:
    """Equal up to the last digits, in which sums of doubles in another order differ."""
    return row[0] == other_row[0] and all(
        abs(a - b) < 1e-9 * max(1.0, abs(b)) for a, b in zip(row, other_row, strict=True)
    )


def _command_s(file: Path, since_ns: int, until_ns: int, *, is_cold: bool) -> float:
    if is_cold:
        drop_page_cache(file)
    question = QUESTION.format(plus="", tag=TAG, since_ns=since_ns, until_ns=until_ns)
    start_ns = time.perf_counter_ns()
    command = [sys.executable, "-m", "agent.cli", "sql", "--json", "--file", str(file), question]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    duration_s = (time.perf_counter_ns() - start_ns) / 1e9
    assert json.loads(answer)["count(*)"] == (until_ns - since_ns) // SCAN_NS, answer
    return duration_s


def _latest_ns(reader: StoreReader) -> int:
    start_ns = time.perf_counter_ns()
    found = find_latest(Scanner(reader), START_NS)
    assert len(found) == TAGS
    assert all(row.latest for row in found)
    return time.perf_counter_ns() - start_ns
