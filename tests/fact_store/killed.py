"""A process made to be killed: writes a store from several threads at once and says on standard output what was acknowledged.

    python -m tests.fact_store.killed STORE NEXT_SAMPLE NEXT_MESSAGE NEXT_BATCH

One line for each acknowledgement, in one `os.write`, so that none is half written: S last sample, M message, P batches put, C
frontier. It runs until it is killed.
"""

import os
import sys
import threading
from itertools import count
from pathlib import Path

from agent.fact_store import FactStore, StoreSettings
from agent.fact_store.records import PeerPosition
from tests.fact_store.making import EPOCH, OPERATIONAL, TELEMETRY, Elsewhere, message, samples, tag

CONSUMER = "idmz.facts.telemetry"
RUN = 5  # samples of one append, facts of one batch


def say(kind: str, number: int) -> None:
    """One acknowledgement."""
    os.write(1, f"{kind} {number}\n".encode())


def append(store: FactStore, next_sample: int) -> None:
    """Samples: some waited for, the others left to the group commit."""
    for first in count(next_sample, 3 * RUN):
        futures = [store.append_samples(TELEMETRY, samples(RUN, first + n * RUN), awaited=n == 2) for n in range(3)]
        for n, future in enumerate(futures):
            future.result()
            say("S", first + (n + 1) * RUN - 1)


def append_messages(store: FactStore, next_message: int) -> None:
    """Messages, one after the other."""
    for number in count(next_message):
        store.append_message(OPERATIONAL, message(f"id-{number}")).result()
        say("M", number)


def put(store: FactStore, next_batch: int) -> None:
    """Pages of another origin: two batches each, the first of them a repeat."""
    origin = Elsewhere("north", stream="facts.north")
    for number in count(1):
        sealed = origin.seal(RUN)
        if number >= next_batch:
            page = [*origin.sealed[-2:-1], sealed]
            position = PeerPosition(EPOCH, number)
            store.put_batches("north", "facts.north", page, origin.received(), position).result()
            say("P", number)


def confirm(store: FactStore) -> None:
    """Confirm what there is, with a hole that the next confirmation closes."""
    while True:
        end_offset = store.end_offset(TELEMETRY)
        if end_offset > 2:
            store.confirm(CONSUMER, end_offset, end_offset).result()
            say("C", store.confirm(CONSUMER, end_offset - 1).result())


def main() -> None:
    """Write until killed."""
    path, next_sample, next_message, next_batch = Path(sys.argv[1]), *map(int, sys.argv[2:])
    settings = StoreSettings(commit_interval_ms=5, batch_facts_target=50)
    store = FactStore.open(path, "plant", settings=settings)
    store.define([tag(1)]).result()
    store.register_consumer(CONSUMER, "idmz", TELEMETRY).result()
    say("O", 0)
    for target, *arguments in (
        (append, next_sample),
        (append_messages, next_message),
        (put, next_batch),
        (confirm,),
    ):
        threading.Thread(target=target, args=(store, *arguments)).start()


if __name__ == "__main__":
    main()
