"""`append`: durable appends of data set A in batches of 1000 samples, encoding included, compared with raw file
appends.

The store is called as a node's sources call it (`FactStore.appends`): samples wait in the queue until there are enough
for a batch, and the group commit takes everything that has queued up while the last fsync ran. Here each append fills a
batch, so the wait for `commit_interval_ms` is not measured.

Three ways take turns on the same disk. *Sustained*: a source hands over the next batch without waiting for the one
before, with a few in flight; each counts when its future is done, which means that it is durable. *Awaited*: the source
waits for each batch before it hands over the next, so each batch has an fsync of its own. The *limit*: the bytes that
the store sealed, appended to a plain file with one fdatasync a batch. `batches_per_commit` says how many batches shared
a commit.

A store that signs what it records takes the same sustained stretches; the two go first in turns. `signed` compares
them: rate, CPU, and the bytes of its records. Awaited batches go to a third store, because the store that had just
taken them would be faster than the other.

Then single messages, which a node commits at once, take turns with single fsyncs of one page inside a preallocated
file, the least that any durable write can cost. At the end the files of the closed stores are measured, for both data
sets.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from agent.batch import RECORD_BYTES
from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message, Sample
from agent.settings.store import StoreSettings, StreamSettings
from agent.signing.keys import SigningKey, ZoneSigner
from agent.signing.records import RecordSigner
from bench.common.data_sets import DataSet, definitions, runs
from bench.common.measuring import (
    Latency,
    Report,
    files_bytes,
    fsync_ns,
    machine,
    median,
    open_file,
    preallocated_file,
    results,
    rounded,
)
from bench.common.testbed import SERVING, scratch_folder

STREAM = "facts.telemetry"
BATCH_FACTS = 1000
STRETCH_BATCHES = 25  # of each way in a turn; their durations are added up before medians are taken
IN_FLIGHT = 8  # when sustained: a scan of eight sources with a thousand tags each
TURN_SINGLES = 25
# Each append fills a batch; an empty file is no fact.
SETTINGS = StoreSettings(batch_facts_target=BATCH_FACTS, ballast_bytes=0)


@dataclass(slots=True)
class Stretches:
    """Durations of equal stretches, in ns, and what they held."""

    facts: list[int] = field(default_factory=list)
    sustained_ns: list[int] = field(default_factory=list)
    sustained_cpu_ns: list[int] = field(default_factory=list)
    awaited_ns: list[int] = field(default_factory=list)
    awaited_cpu_ns: list[int] = field(default_factory=list)
    raw_ns: list[int] = field(default_factory=list)
    signed_ns: list[int] = field(default_factory=list)
    signed_cpu_ns: list[int] = field(default_factory=list)
    sealed_bytes: int = 0
    sustained_commits: int = 0

    def facts_per_s(self, durations_ns: list[int]) -> float:
        """Median rate."""
        return median([1e9 * count / ns for count, ns in zip(self.facts, durations_ns, strict=True)])

    def us_per_fact(self, durations_ns: list[int]) -> float:
        return rounded(sum(durations_ns) / sum(self.facts) / 1000)


def run(facts: int, seconds: float, seed: int, below: Path | None) -> Report:
    """Append `facts` samples, half of them awaited, then single messages for `seconds`."""
    with scratch_folder(below) as folder:
        described = machine(folder)
        found = _append_in_turns(folder / "a", facts, seed)
        appended = sum(found.facts)
        at_rest_a = files_bytes(folder / "a") / appended
        record_bytes = _record_bytes(folder / "signed" / "facts.db") / sum(found.facts)
        one_fact, signed_fact, one_fsync = _single_in_turns(folder, seconds)
        at_rest_b = _fill(folder / "b", "B", appended, seed)
    ways = (found.sustained_ns, found.awaited_ns, found.raw_ns)
    sustained, awaited, raw = (found.facts_per_s(durations_ns) for durations_ns in ways)
    grouped = sum(found.facts) / BATCH_FACTS / found.sustained_commits
    signed_rate = found.facts_per_s(found.signed_ns)
    signed = {
        "facts_per_s": round(signed_rate),
        "ratio": rounded(signed_rate / sustained),
        "cpu_us_per_fact": found.us_per_fact(found.signed_cpu_ns),
        "one_fact": signed_fact.to_dict(),
        "record_bytes_per_fact": rounded(record_bytes),
    }
    values = {
        "facts_per_s": round(sustained),
        "limit": {
            "what": "raw append of the same bytes to a file, one fdatasync a batch; for one fact, one fsync of a page",
            "facts_per_s": round(raw),
            "one_fsync": one_fsync.to_dict(),
        },
        "ratio": rounded(sustained / raw),
        "batches_per_commit": rounded(grouped),
        "cpu_us_per_fact": found.us_per_fact(found.sustained_cpu_ns),
        "awaited": {
            "facts_per_s": round(awaited),
            "ratio": rounded(awaited / raw),
            "cpu_us_per_fact": found.us_per_fact(found.awaited_cpu_ns),
        },
        "signed": signed,
        "one_fact": one_fact.to_dict(),
        "one_fact_ratio": rounded(one_fact.p50_ms / one_fsync.p50_ms),
        "bytes_per_fact": rounded(at_rest_a),
        "bytes_per_fact_set_b": rounded(at_rest_b),
        "bytes_per_fact_sealed": rounded(found.sealed_bytes / sum(found.facts)),
        "facts": 2 * appended,
        "batch_facts": BATCH_FACTS,
        "in_flight": IN_FLIGHT,
        "seed": seed,
    }
    lines = (
        f"append     {sustained / 1e6:6.2f} M facts/s in batches of {BATCH_FACTS}, {grouped:.1f} a commit",
        f"limit      {raw / 1e6:6.2f} M facts/s as raw file appends, a fdatasync a batch; ratio {values['ratio']}",
        f"awaited    {awaited / 1e6:6.2f} M facts/s when each batch waits for the one before; ratio {rounded(awaited / raw)}",
        f"CPU        {values['cpu_us_per_fact']} us a fact; awaited {found.us_per_fact(found.awaited_cpu_ns)}",
        f"signed     {signed_rate / 1e6:6.2f} M facts/s, {signed['ratio']} of the unsigned; CPU {signed['cpu_us_per_fact']} us",
        f"records    {signed['record_bytes_per_fact']:6.3f} bytes a fact; one signed fact {signed_fact}",
        f"one fact   {one_fact}; one fsync {one_fsync}; ratio {values['one_fact_ratio']}",
        f"at rest    {at_rest_a:6.2f} bytes a fact of set A, {at_rest_b:.2f} of set B, all files",
    )
    return Report("append", values, lines, described)


def _append_in_turns(folder: Path, facts: int, seed: int) -> Stretches:
    """For each stretch: awaited batches, each in turn with the same bytes raw; then as many sustained."""
    found = Stretches()
    stretch_batches = max(1, min(STRETCH_BATCHES, facts // BATCH_FACTS // 2))
    stretches = max(1, facts // BATCH_FACTS // stretch_batches // 2)
    source = runs("A", seed, 2 * stretches * stretch_batches * BATCH_FACTS, BATCH_FACTS)
    signer = new_signer()
    with (
        new_store(folder) as store,
        new_store(folder.with_name("signed"), signer=signer) as signing,
        new_store(folder.with_name("awaited")) as awaiting,
        open_file(folder.with_suffix(".raw")) as file,
    ):
        for number in range(stretches):
            append_awaited(awaiting, islice(source, stretch_batches), file, found)
            batches, beside = list(islice(source, stretch_batches)), Stretches()
            for store_now in (signing, store) if number % 2 else (store, signing):
                append_sustained(store_now, batches, found if store_now is store else beside)
            found.signed_ns += beside.sustained_ns
            found.signed_cpu_ns += beside.sustained_cpu_ns
            found.facts.append(stretch_batches * BATCH_FACTS)
        assert store.end_offset(STREAM) == signing.end_offset(STREAM) == sum(found.facts)
    return found


def append_sustained(store: FactStore, batches: list[list[Sample]], found: Stretches) -> None:
    """Append batches with a few in flight, until the last is durable."""
    commits = store.statistics().commits
    cpu_ns, start_ns = time.process_time_ns(), time.perf_counter_ns()
    for _ in results((store.appends.append_samples(STREAM, batch) for batch in batches), IN_FLIGHT):
        pass
    found.sustained_ns.append(time.perf_counter_ns() - start_ns)
    found.sustained_cpu_ns.append(time.process_time_ns() - cpu_ns)
    found.sustained_commits += store.statistics().commits - commits


def append_awaited(store: FactStore, batches: Iterator[list[Sample]], file: int, found: Stretches) -> None:
    """Append batches one after the other, each made just before, then its sealed bytes to `file`."""
    awaited_ns = awaited_cpu_ns = raw_ns = 0
    for batch in batches:
        cpu_ns, start_ns = time.process_time_ns(), time.perf_counter_ns()
        appended = store.appends.append_samples(STREAM, batch).result()
        awaited_ns += time.perf_counter_ns() - start_ns
        awaited_cpu_ns += time.process_time_ns() - cpu_ns
        (stored,) = store.read(STREAM, appended.first_offset - 1, facts_max=2**40, bytes_max=2**40).batches
        start_ns = time.perf_counter_ns()
        os.write(file, stored.sealed)
        os.fdatasync(file)
        raw_ns += time.perf_counter_ns() - start_ns
        found.sealed_bytes += len(stored.sealed)
    found.awaited_ns.append(awaited_ns)
    found.awaited_cpu_ns.append(awaited_cpu_ns)
    found.raw_ns.append(raw_ns)


def _single_in_turns(folder: Path, seconds: float) -> tuple[Latency, Latency, Latency]:
    """Single messages into stores of their own, one of which signs, each durable before the next, and single fsyncs, in
    turns."""
    facts_ns: list[int] = []
    signed_ns: list[int] = []
    fsyncs_ns: list[int] = []
    with (
        new_store(folder / "single") as store,
        new_store(folder / "single_signed", signer=new_signer()) as signing,
        preallocated_file(folder / "page") as file,
    ):
        end_ns = time.perf_counter_ns() + int(seconds * 1e9)
        while time.perf_counter_ns() < end_ns:
            for _ in range(TURN_SINGLES):
                facts_ns.append(append_one_ns(store, len(facts_ns)))
            for _ in range(TURN_SINGLES):
                signed_ns.append(append_one_ns(signing, len(signed_ns)))
            for _ in range(TURN_SINGLES):
                fsyncs_ns.append(fsync_ns(file, len(fsyncs_ns)))
    return Latency.of(facts_ns), Latency.of(signed_ns), Latency.of(fsyncs_ns)


def one_message(number: int) -> Message:
    """A message of an application."""
    fact = Fact("order:line1/77", "step_completed", b'{"amount":%d,"recipe":"R-7"}' % number)
    return Message(Envelope(f"single-{number}", SERVING, "*", 1_767_268_800_000 + number), fact)


def append_one_ns(store: FactStore, number: int) -> int:
    """How long the append of one message takes until it is durable."""
    message = one_message(number)
    start_ns = time.perf_counter_ns()
    store.appends.append_message(STREAM, message).result()
    return time.perf_counter_ns() - start_ns


def _fill(folder: Path, data_set: DataSet, facts: int, seed: int) -> float:
    """Bytes a fact of a closed store with so many facts, in batches of 1000."""
    count = 0
    with new_store(folder) as store:
        for batch in runs(data_set, seed, facts, BATCH_FACTS):
            store.appends.append_samples(STREAM, batch).result()
            count += len(batch)
    return files_bytes(folder) / count


def new_signer() -> RecordSigner:
    """A key without a certificate, which nothing here verifies."""
    return ZoneSigner(SigningKey.generate(), b"")


def _record_bytes(path: Path) -> int:
    """The bytes of the records in a closed store's file, where each batch is signed."""
    with closing(sqlite3.connect(path)) as connection:
        count: int = connection.execute("SELECT count(*) FROM batch").fetchone()[0]
    return count * RECORD_BYTES


@contextmanager
def new_store(
    folder: Path, *streams: StreamSettings, has_tags: bool = True, signer: RecordSigner | None = None
) -> Iterator[FactStore]:
    """A new store, with the 500 tags defined unless it is for messages alone."""
    folder.mkdir()
    path = folder / "facts.db"
    with closing(FactStore.open(path, SERVING, settings=SETTINGS, streams=streams, signer=signer)) as store:
        if has_tags:
            store.appends.define(definitions()).result()
        yield store
