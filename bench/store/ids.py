"""`ids`: whether appends of messages stay fast when the store has millions of message ids.

A process appends messages with random ids in batches of 1000, a few in flight, to one store, stretch after stretch;
messages are made outside of the timed part. The first million is compared with the last (or the first and last fifth of
a shorter run). Each stretch takes turns with one of the *limit*: the same kind of messages into a store that is new for
each stretch. The ratio shows what the earlier millions cost, independent of other load on the machine.

Then messages of the first and of the last stretches are offered again; each must be answered with its first offset. At
the end the process is killed with -9 and the store is opened, cold and warm.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message
from bench.common.measuring import Report, files_bytes, machine, median, peak_rss_mib, results, rounded
from bench.common.testbed import SERVING, scratch_folder, start_worker
from bench.common.worker_io import Options, emit
from bench.store.append import new_store
from bench.store.growth import opening_times_s

STREAM = "facts.operational"
BATCH_MESSAGES = 1000
STRETCH_BATCHES = 20
IN_FLIGHT = 4
KEPT_STRETCHES = 2  # of the first and of the last, offered again
END_IDS = 1_000_000  # what counts as the start and the end of a long run
FILL_S_MAX = 3600.0
START_MS = 1_700_000_000_000


def run(ids: int, seed: int, below: Path | None) -> Report:
    """Append `ids` messages, offer some again, kill the writer, open the store."""
    with scratch_folder(below) as folder:
        described = machine(folder)
        options = {"store": str(folder / "store"), "ids": ids, "seed": seed}
        with start_worker(folder, "ids", "ids", **options) as worker:
            found = worker.result(FILL_S_MAX)
            worker.kill()
        cold_s, opened_s = opening_times_s(folder / "store" / "facts.db", STREAM, found["ids"])
        size = files_bytes(folder / "store")
    rows: list[list[int]] = found["stretches"]
    ends = max(1, min(len(rows) // 5, END_IDS // (STRETCH_BATCHES * BATCH_MESSAGES)))
    first, last = (_rates(some) for some in (rows[:ends], rows[-ends:]))
    values = {
        "facts_per_s": round(last[0]),
        "limit": {"what": "the same appends to a store begun anew with each stretch", "facts_per_s": round(last[1])},
        "ratio": rounded(last[0] / last[1]),
        "start": {"facts_per_s": round(first[0]), "ratio": rounded(first[0] / first[1])},
        "end_by_start": rounded(last[0] / first[0]),
        "duplicates_per_s": {name: round(rate) for name, rate in found["duplicates_per_s"].items()},
        "bytes_per_fact": rounded(size / found["ids"]),
        "memory_bytes_per_id": rounded(found["grown_mib"] * 2**20 / found["ids"]),
        "peak_rss_mib": found["peak_rss_mib"],
        "open_s": {"cold": rounded(cold_s), "warm": rounded(median(opened_s))},
        "ids": found["ids"],
        "seed": seed,
    }
    again = values["duplicates_per_s"]
    lines = (
        f"ids        {last[0] / 1e3:6.1f} k messages/s at the end of {found['ids']:,}; ratio {values['ratio']}",
        f"limit      {last[1] / 1e3:6.1f} k messages/s into stores begun anew",
        f"start      {first[0] / 1e3:6.1f} k messages/s, ratio {values['start']['ratio']}; end by start {values['end_by_start']}",
        f"again      {again['oldest'] / 1e3:6.1f} k/s of the oldest, {again['newest'] / 1e3:.1f} k/s of the newest, all recognised",
        f"at rest    {values['bytes_per_fact']} bytes a message and its id, all files",
        f"memory     {values['memory_bytes_per_id']} bytes more for each id, {found['peak_rss_mib']} MiB in all",
        f"opening    {1000 * cold_s:6.1f} ms cold, {1000 * median(opened_s):.1f} ms warm, {size / 1e9:.2f} GB, after kill -9",
    )
    return Report("ids", values, lines, described)


def ids(options: Options) -> None:
    """The process that fills the store, then goes on appending until it is killed."""
    folder, wanted = Path(options["store"]), int(options["ids"])
    stretch_messages = STRETCH_BATCHES * BATCH_MESSAGES
    stretches = max(2, wanted // stretch_messages)
    source, other = random.Random(int(options["seed"])), random.Random(-int(options["seed"]) - 1)
    rows, kept, peaks = list[list[int]](), dict[str, list[list[Message]]](), list[float]()
    emit("READY")
    with new_store(folder, has_tags=False) as store:
        for number in range(stretches):
            batches, others = _batches(source), _batches(other)
            took_ns = _append(store, batches, "applied")
            with new_store(folder.with_name("anew"), has_tags=False) as anew:
                rows.append([stretch_messages, took_ns, _append(anew, others, "applied")])
            shutil.rmtree(folder.with_name("anew"))
            peaks.append(peak_rss_mib())
            if number < KEPT_STRETCHES:
                kept.setdefault("oldest", []).extend(batches)
            if number >= stretches - KEPT_STRETCHES:
                kept.setdefault("newest", []).extend(batches)
        rates = {
            name: 1e9 * BATCH_MESSAGES * len(batches) / _append(store, batches, "noop_already_applied")
            for name, batches in kept.items()
        }
        total = stretches * stretch_messages
        assert store.end_offset(STREAM) == total, "an id was stored twice"
        found = {
            "stretches": rows,
            "ids": total,
            "duplicates_per_s": rates,
            "peak_rss_mib": peaks[-1],
            "grown_mib": peaks[-1] - peaks[min(KEPT_STRETCHES, stretches - 1)],  # by then caches and buffers are full
        }
        emit("RESULT", found)
        while True:
            _append(store, _batches(source), "applied")


def _append(store: FactStore, batches: Sequence[list[Message]], expected: str) -> int:
    """Append batches with a few on their way; ns until the last is durable. Every outcome must be the expected one."""
    start_ns = time.perf_counter_ns()
    appending = results((store.appends.append_messages(STREAM, batch) for batch in batches), IN_FLIGHT)
    outcomes = list(chain.from_iterable(appending))
    took_ns = time.perf_counter_ns() - start_ns
    assert all(outcome.outcome == expected for outcome in outcomes), f"not all {expected}"
    return took_ns


def _batches(chance: random.Random) -> list[list[Message]]:
    """Messages of a stretch, with ids as random as a UUID."""
    return [[_message(chance) for _ in range(BATCH_MESSAGES)] for _ in range(STRETCH_BATCHES)]


def _message(chance: random.Random) -> Message:
    message_id = f"{chance.getrandbits(128):032x}"
    content = b'{"amount":%d,"recipe":"R-7"}' % chance.randrange(1000)
    fact = Fact(f"order:line1/{chance.randrange(10_000)}", "order_released", content)
    return Message(Envelope(message_id, SERVING, "*", START_MS), fact)


def _rates(rows: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Median messages per second of some stretches, of the store and of the limit."""
    return median([1e9 * facts / ns for facts, ns, _ in rows]), median([1e9 * facts / ns for facts, _, ns in rows])
