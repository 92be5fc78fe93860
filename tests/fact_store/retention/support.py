"""What tests of retention start from."""

import os
import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from agent.errors import StoreFull
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.writer import writer as writer_module
from agent.message import Fact, Sample
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.durability.promises import say
from tests.fact_store.making import AT_ONCE, LIMIT_S, TELEMETRY, done, messages_in, samples, tag

HOUR_NS = 3_600_000_000_000
CONSUMER = "idmz.facts.telemetry"
SETTINGS = StoreSettings(commit_interval_ms=0, disk_free_bytes_min=0, ballast_bytes=0)
STREAMS = (StreamSettings(TELEMETRY, keep_hours=0),)
RUN = 5


class Clock:
    """A monotonic clock moved by the test; the writer's waits use the real one."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return self.real() + self.ahead_ns

    real = staticmethod(writer_module.time.monotonic_ns)


@contextmanager
def store_of(folder: Path, settings: StoreSettings = AT_ONCE, **stream: object) -> Iterator[FactStore]:
    """A store whose telemetry has these settings."""
    streams = [StreamSettings(TELEMETRY, **stream)]  # type: ignore[arg-type]
    with FactStore.open(folder / "facts.db", "plant", settings=settings, streams=streams) as store:
        done(store.appends.define([tag(1)]))
        yield store


def first_offset(store: FactStore) -> int:
    """The oldest offset that is still here."""
    return next((stream.first_offset for stream in store.streams() if stream.name == TELEMETRY), 1)


def fill(store: FactStore, batches: int, facts: int = 10) -> int:
    """So many batches; the end offset."""
    for _ in range(batches):
        done(store.appends.append_samples(TELEMETRY, samples(facts)))
    return store.end_offset(TELEMETRY)


def notices(store: FactStore | StoreReader) -> list[Fact]:
    """The operational facts in the stream."""
    return [message.fact for message in messages_in(store, TELEMETRY)]


def rows(folder: Path) -> int:
    """Batches in the closed store's table, served or not."""
    with closing(sqlite3.connect(folder / "facts.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM batch").fetchone()[0])


def noise(count: int, size: int) -> list[Sample]:
    """Samples whose values do not compress."""
    return [Sample(1, number, os.urandom(size)) for number in range(count)]


def fill_up(store: FactStore, rows: list[Sample]) -> StoreFull:
    """Append until the stream is full; its refusal."""
    while (error := store.appends.append_samples(TELEMETRY, rows).exception(LIMIT_S)) is None:
        pass
    assert isinstance(error, StoreFull)
    return error


def run_of(first: int) -> list[Sample]:
    """Samples whose values begin with their offsets, large enough that pages are freed and reused."""
    noise = random.Random(first).randbytes(600).hex()
    return [Sample(1, offset * 1_000_000, f"{offset} {noise}", 0) for offset in range(first, first + RUN)]


def main() -> None:
    """A process made to be killed while it forgets: appends, confirms, and keeps nothing that is confirmed. It says
    `S <offset>` for each acknowledged append and `C <offset>` before it confirms: what lies beyond may not go."""
    store, rng = FactStore.open(Path(sys.argv[1]), "plant", settings=SETTINGS, streams=STREAMS), random.Random()
    done(store.appends.define([tag(1)]))
    done(store.consumers.register(CONSUMER, "idmz", TELEMETRY))
    while True:
        for _ in range(rng.randint(1, 60)):
            say("S", done(store.appends.append_samples(TELEMETRY, run_of(store.end_offset(TELEMETRY) + 1)))[1])
        known = store.consumers.get(CONSUMER)
        assert known is not None
        until = rng.randint(known.frontier, store.end_offset(TELEMETRY))
        say("C", until)
        done(store.consumers.confirm(CONSUMER, until))


if __name__ == "__main__":
    main()
