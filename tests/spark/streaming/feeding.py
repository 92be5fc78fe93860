"""Program: an enterprise store with its local socket in a process of its own, which records facts until it is killed.

`python feeding.py FOLDER TOTAL PACE` appends PACE samples each 50 ms until the stream has TOTAL
facts, then serves on. Fact n has the value n, so what must be landed is known; every thousandth is a declared gap
instead. `keep_hours` is 0: what a consumer confirms is released at once, so a confirmation that comes too early loses
facts for good. A killed process is started again on the same folder and goes on.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from agent import local_socket
from agent.fact_store import FactStore, StreamSettings
from agent.message import Envelope, Fact, Message, Sample, TagDefinition
from tests.spark.making import NOON_NS, SECOND_NS, TELEMETRY

GAP_EVERY = 1000
CONSUMER = "local.lake"
STEP_S = 0.05


def gap(number: int) -> Message:
    """A loss that a source has declared."""
    envelope = Envelope(f"gap-{number}", "enterprise", "*", NOON_NS // 1_000_000 + number)
    return Message(envelope, Fact("source:enterprise/press", "samples_lost", b'{"count":%d}' % number))


def append(store: FactStore, first: int, last: int) -> None:
    """Facts `first` to `last`, both included."""
    pending: list[Sample] = []
    for number in range(first, last + 1):
        if number % GAP_EVERY:
            pending.append(Sample(1, NOON_NS + number * SECOND_NS, float(number)))
            continue
        if pending:
            store.appends.append_samples(TELEMETRY, pending).result()
            pending = []
        store.appends.append_messages(TELEMETRY, [gap(number)]).result()
    if pending:
        store.appends.append_samples(TELEMETRY, pending).result()


async def main(folder: Path, total: int, pace: int) -> None:
    """Serve, and append in between."""
    streams = [StreamSettings(TELEMETRY, keep_hours=0)]
    with FactStore.open(folder / "facts.db", "enterprise", streams=streams) as store:
        store.appends.define([TagDefinition("tag:line-1/pressure", unit="bar")]).result()
        store.consumers.register(CONSUMER, "enterprise", TELEMETRY).result()  # without one, facts are released at once
        async with asyncio.TaskGroup() as group:
            group.create_task(local_socket.serve(local_socket.RequestHandler(store), folder))
            while (end := store.end_offset(TELEMETRY)) < total:
                await asyncio.to_thread(append, store, end + 1, min(end + pace, total))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STEP_S):
                        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
