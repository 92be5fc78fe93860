"""Stores that forget: filled, and what is left of them."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from agent import batch
from agent.errors import StoreFull
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.writer import writer as writer_module
from agent.message import Fact, Sample
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    LIMIT_S,
    TELEMETRY,
    done,
    samples,
    tag,
)

HOUR_NS = 3_600_000_000_000


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
    page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
    parsed = [batch.parse(stored.sealed) for stored in page.batches]
    return [
        message.fact
        for part in parsed
        if part.header.kind is batch.Kind.MESSAGES
        for message in batch.open_messages(part)
    ]


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
