"""`producers`: a thousand tasks of one event loop, each awaiting its own durable append of one message with a unique
id.

A node does this for the applications of its zone: the messages of one turn of the loop are handed over together, and
the group commit takes what queued up. Making and checking messages, ids, sealing, index, commit and waking are all
timed.

The *limit* has as many tasks, each awaiting its own future: one thread appends the bytes of all waiting tasks to a
file, syncs it once and wakes them. It shows what asyncio, a thread and the disk cost. Both take turns. Single fsyncs of
a page show how many commits the disk allows.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from agent.concurrency import TaskGroup
from agent.fact_store import FactStore, Producers
from agent.message import Envelope, Fact, Message
from bench.common.measuring import Latency, Report, files_bytes, fsync_ns, machine, median, open_file, rounded
from bench.common.testbed import SERVING, scratch_folder
from bench.store.append import SETTINGS

STREAM = "facts.operational"
TURNS = 5
FSYNCS = 200  # of each turn
START_MS = 1_700_000_000_000

Append = Callable[[Message], Awaitable[object]]


@dataclass(slots=True)
class _Turns:
    """What one way did in its turns."""

    per_s: list[float] = field(default_factory=list)
    waits_ns: list[int] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


class _Bare:
    """The limit: futures answered after their bytes are in a file that was synced once for all of them."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._asked: list[tuple[bytes, asyncio.Future[None]]] = []
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="bare")
        self._thread.start()

    async def append(self, message: Message) -> None:
        """Done when the bytes are durable."""
        answered = self._loop.create_future()
        with self._changed:
            self._asked.append((message.fact.object_json, answered))
            self._changed.notify()
        await answered

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._asked and not self._is_closing:
                    self._changed.wait()
                asked, self._asked = self._asked, []
            if not asked:
                return
            os.write(self._file, b"".join(one for one, _ in asked))
            os.fdatasync(self._file)
            self._loop.call_soon_threadsafe(_wake, [answered for _, answered in asked])


def run(producers: int, seconds: float, below: Path | None) -> Report:
    """`producers` tasks append for `seconds`, in turns with the limit."""
    with scratch_folder(below) as folder:
        described = machine(folder)
        (folder / "store").mkdir()
        product, bare, fsyncs_ns, commits = _Turns(), _Turns(), list[int](), list[float]()
        with (
            open_file(folder / "bare") as file,
            closing(FactStore.open(folder / "store" / "facts.db", SERVING, settings=SETTINGS)) as store,
        ):
            for turn in range(TURNS):
                before = store.statistics().commits
                asyncio.run(_product(store, product, producers, seconds / TURNS, turn))
                commits.append((store.statistics().commits - before) * TURNS / seconds)
                asyncio.run(_bare(file, bare, producers, seconds / TURNS, turn))
                fsyncs_ns += [fsync_ns(file, 0) for _ in range(FSYNCS)]
            appended = store.end_offset(STREAM)
        assert appended == len(product.waits_ns), "every append was answered, every message stored once"
        at_rest = files_bytes(folder / "store") / appended
    waits, one_fsync = Latency.of(product.waits_ns), Latency.of(fsyncs_ns)
    per_s, bare_per_s, commits_per_s = median(product.per_s), median(bare.per_s), median(commits)
    fsyncs_per_s = 1e9 / median(fsyncs_ns)
    values = {
        "facts_per_s": round(per_s),
        "limit": {
            "what": "as many tasks, whose bytes one thread appends to a file with one fdatasync for all that wait",
            "facts_per_s": round(bare_per_s),
            "latency": Latency.of(bare.waits_ns).to_dict(),
            "one_fsync": one_fsync.to_dict(),
        },
        "ratio": rounded(per_s / bare_per_s),
        "latency": waits.to_dict(),
        "commits_per_s": rounded(commits_per_s),
        "commits_by_fsyncs": rounded(commits_per_s / fsyncs_per_s),
        "facts_per_commit": rounded(per_s / commits_per_s),
        "cpu_us_per_fact": rounded(median(product.cpu_us)),
        "bytes_per_fact": rounded(at_rest),
        "producers": producers,
        "seconds": seconds,
    }
    lines = (
        f"producers  {per_s / 1e3:6.1f} k messages/s of {producers:,} that await each; {values['cpu_us_per_fact']} us of CPU each",
        f"limit      {bare_per_s / 1e3:6.1f} k/s of as many bare futures, one fdatasync for all that wait; ratio {values['ratio']}",
        f"wait       {waits}",
        f"commits    {commits_per_s:6.0f} /s of {values['facts_per_commit']} messages; the disk allows {fsyncs_per_s:.0f} fsyncs/s",
        f"at rest    {values['bytes_per_fact']} bytes a message and its id",
    )
    return Report("producers", values, lines, described)


async def _product(store: FactStore, turns: _Turns, producers: int, seconds: float, turn: int) -> None:
    appends = Producers(store.appends)
    await _turn(turns, producers, seconds, turn, lambda message: appends.append_message(STREAM, message))


async def _bare(file: int, turns: _Turns, producers: int, seconds: float, turn: int) -> None:
    with closing(_Bare(file)) as bare:
        await _turn(turns, producers, seconds, turn, bare.append)


async def _turn(turns: _Turns, producers: int, seconds: float, turn: int, append: Append) -> None:
    """Every producer appends one message after the other until the time is over."""
    before = len(turns.waits_ns)
    start_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    end_ns = start_ns + int(seconds * 1e9)

    async def produce(producer: int) -> None:
        number = 0
        while (asked_ns := time.perf_counter_ns()) < end_ns:
            await append(_message(f"{turn}-{producer}-{number}", producer, number))
            turns.waits_ns.append(time.perf_counter_ns() - asked_ns)
            number += 1

    async with TaskGroup() as group:
        for producer in range(producers):
            group.create_task(produce(producer), name=f"producer {producer}")
    count, took_ns = len(turns.waits_ns) - before, time.perf_counter_ns() - start_ns
    turns.per_s.append(1e9 * count / took_ns)
    turns.cpu_us.append((time.process_time_ns() - cpu_ns) / count / 1000)


def _message(message_id: str, producer: int, number: int) -> Message:
    fact = Fact(f"order:line1/{producer}", "step_completed", b'{"amount":%d,"recipe":"R-7"}' % number)
    return Message(Envelope(message_id, SERVING, "*", START_MS), fact)


def _wake(answered: list[asyncio.Future[None]]) -> None:
    for one in answered:
        one.set_result(None)
