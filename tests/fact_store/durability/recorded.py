"""A process made to be recorded by strace: two lives of a store, everything it can be asked, each answer told when it
is durable.

    python -m tests.fact_store.durability.recorded STORE SEED TURNS [normal]

What is asked, and in which order, depends on SEED alone. Several things are asked at once, so that commits are mixed;
then each answer is awaited and told (promises.py). `normal` is the test of the test: the connection gets
synchronous=NORMAL after the store has set FULL and read it back.

Checkpoints come every hundred pages instead of every thousand, so that a short recording holds many of them.
"""

import random
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from agent.errors import StoreError
from agent.fact_store import FactStore
from agent.positions import Position
from tests.fact_store.durability.faults import connect_with
from tests.fact_store.durability.promises import NORTH, RUN, STREAMS, origin_of_north, say
from tests.fact_store.making import AT_ONCE, LIFE, OPERATIONAL, TELEMETRY, done, message, parsed, samples, tag
from tests.support.received import put_page

CONSUMERS = ("idmz.facts.telemetry", "enterprise.facts.telemetry")
CHECKPOINT_PAGES = 100


class Recorded:
    """One store and the numbers it has reached."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.north = origin_of_north()
        self.definitions = self.samples = self.messages = self.batches = 0
        self.has_put = False
        self.asked: list[tuple[Future[Any], Callable[[Any], None]]] = []

    def ask(self, future: Future[Any], kind: str, *words: object) -> None:
        """Remember to report its answer."""
        self.asked.append((future, lambda _: say(kind, *words)))

    def turn(self, store: FactStore) -> None:
        """Up to four things at once, then their answers."""
        self.has_put = False
        kinds = (self.append, self.append, self.append_message, self.put, self.confirm, self.define)
        try:  # a store that has failed refuses what is asked of it at once
            for _ in range(self.rng.randint(1, 4)):
                self.rng.choice(kinds)(store)
            for future, tell in self.asked:
                tell(done(future))
        except StoreError as error:
            say("E", type(error).__name__)
            raise SystemExit from error
        self.asked.clear()

    def append(self, store: FactStore) -> None:
        rows = samples(RUN, self.samples + 1)
        if self.rng.random() < 0.1:  # more than a page of the database holds
            rows = samples(100 * RUN, self.samples + 1)
        self.samples += len(rows)
        self.ask(store.appends.append_samples(TELEMETRY, rows), "S", self.samples)

    def append_message(self, store: FactStore) -> None:
        self.messages += 1
        self.ask(store.appends.append_message(OPERATIONAL, message(f"id-{self.messages}")), "M", self.messages)

    def put(self, store: FactStore) -> None:
        """A page: up to three new batches after one that is held already. One page in a turn, so that none follows a
        refused one."""
        if self.has_put:
            return
        self.has_put = True
        page = self.north.sealed[-1:]
        for _ in range(self.rng.randint(1, 3)):
            page.append(self.north.seal(RUN))
        self.batches = len(self.north.sealed)
        position = Position(LIFE, self.batches)
        self.ask(put_page(store, "north", NORTH, parsed(page), self.north.received(), position), "P", self.batches)

    def confirm(self, store: FactStore) -> None:
        name = self.rng.choice(CONSUMERS)
        if store.consumers.get(name) is None:
            self.ask(store.consumers.register(name, name.partition(".")[0], TELEMETRY), "R", name)
            return
        end = store.end_offset(TELEMETRY)
        if end:
            known = store.consumers.get(name)
            low = max(1, known.frontier - 3) if known else 1
            first = self.rng.randint(low, end) if self.rng.random() < 0.5 else low
            last = min(end, first + self.rng.randint(0, 40))
            future = store.consumers.confirm(name, last, first, is_awaited=self.rng.random() < 0.5)
            self.asked.append((future, partial(say, "C", name, first, last)))

    def define(self, store: FactStore) -> None:
        self.definitions += 1
        self.ask(store.appends.define([tag(self.definitions)]), "D", self.definitions)


def main() -> None:
    """Two lives, so that the log also holds a closing, which folds it into the database, and an opening."""
    path, seed, turns, *normal = sys.argv[1:]
    recorded = Recorded(random.Random(int(seed)))
    pragmas: dict[str, str | int] = {"wal_autocheckpoint": CHECKPOINT_PAGES}
    if normal:
        pragmas["synchronous"] = 1
    for _ in range(2):
        try:
            store = FactStore.open(
                Path(path),
                "plant",
                settings=AT_ONCE,
                streams=STREAMS,
                connect_to=connect_with(pragmas),
                unattended=True,
            )
        except StoreError as error:
            say("E", type(error).__name__)
            return
        if not recorded.definitions:
            recorded.define(store)
        for _ in range(int(turns) // 2):
            recorded.turn(store)
        store.close()


if __name__ == "__main__":
    main()
