"""A process made to be killed: writes a store from several threads at once and says on standard output what was
acknowledged.

    python -m tests.fact_store.durability.killed STORE

It goes on where the store is, tells each acknowledgement as promises.py has it, and runs until it is killed.
"""

import random
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

from agent.fact_store import FactStore
from agent.positions import Position
from agent.settings.store import StoreSettings
from tests.fact_store.durability.promises import NORTH, RUN, STREAMS, origin_of_north, say
from tests.fact_store.making import LIFE, OPERATIONAL, TELEMETRY, message, parsed, samples, tag
from tests.support.received import put_page

CONSUMERS = ("idmz.facts.telemetry", "enterprise.facts.telemetry")


def append(store: FactStore) -> None:
    """Samples, three appends at a time; the group commit decides which share one."""
    for first in count(store.end_offset(TELEMETRY) + 1, 3 * RUN):
        futures = [store.appends.append_samples(TELEMETRY, samples(RUN, first + n * RUN)) for n in range(3)]
        for n, future in enumerate(futures):
            future.result()
            say("S", first + (n + 1) * RUN - 1)


def append_messages(store: FactStore) -> None:
    """Messages, one after the other."""
    for number in count(store.end_offset(OPERATIONAL) + 1):
        store.appends.append_message(OPERATIONAL, message(f"id-{number}")).result()
        say("M", number)


def put(store: FactStore) -> None:
    """Pages of another origin: two batches each, the first of them a repeat."""
    origin = origin_of_north()
    position = store.inbound.peer_position("north", NORTH)
    for _ in range(position.offset if position else 0):
        origin.seal(RUN)
    for number in count(len(origin.sealed) + 1):
        page = [*origin.sealed[-1:], origin.seal(RUN)]
        put_page(store, "north", NORTH, parsed(page), origin.received(), Position(LIFE, number)).result()
        say("P", number)


def confirm(store: FactStore, name: str) -> None:
    """Confirm ranges in no order, and now and then everything, which closes the holes. Some are deferred to other
    commits."""
    rng = random.Random(name)
    store.consumers.register(name, name.partition(".")[0], TELEMETRY).result()
    say("R", name)
    while True:
        known, end_offset = store.consumers.get(name), store.end_offset(TELEMETRY)
        if known is None or end_offset == 0:
            continue
        first = rng.randint(min(known.frontier + 1, end_offset), end_offset) if rng.random() < 0.9 else 1
        last = min(first + 30, end_offset) if first > 1 else end_offset
        confirming = store.consumers.confirm(name, last, first, is_awaited=rng.random() < 0.5)
        say("C", name, first, last, confirming.result())


def define(store: FactStore) -> None:
    """Define tags, one after the other; slowly, because they are never released."""
    for number in count(store.reader.own_definitions().count + 1):
        store.appends.append_message("facts.definitions", message(f"before-{number}")).result()
        store.appends.define([tag(number)]).result()
        say("D", number)


def main() -> None:
    """Write until killed."""
    settings = StoreSettings(commit_interval_ms=5, batch_facts_target=50)
    store = FactStore.open(Path(sys.argv[1]), "plant", settings=settings, streams=STREAMS, unattended=True)
    store.appends.define([tag(1)]).result()
    say("D", 1)
    jobs: list[Callable[[FactStore], None]] = [append, append_messages, put, define]
    jobs += [lambda store, name=name: confirm(store, name) for name in CONSUMERS]  # type: ignore[misc]
    threads = [threading.Thread(target=job, args=(store,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:  # a program whose main thread has ended takes no page any more
        thread.join()


if __name__ == "__main__":
    main()
