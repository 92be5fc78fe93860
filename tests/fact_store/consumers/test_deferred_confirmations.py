"""Confirmations that no caller awaits go with the next commit: none is answered before it is durable, none is lost, and
none waits where a caller does."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore, StoreReader
from agent.fact_store.append.group_commit import CommitPace
from agent.fact_store.retention import housekeeping
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import NEVER, OPERATIONAL, TELEMETRY, done, message, samples, tag, writer_sleeps
from tests.sim import first_seed, scaled
from tests.waiting import wait_until

NAME = "idmz.facts.telemetry"
EVENTS = "facts.events"
FACTS = 30
ALL = StreamSettings(OPERATIONAL, acks="all", acks_timeout_ms=60_000)
SEEDS = scaled(3, 100)


@contextmanager
def plant(folder: Path, settings: StoreSettings = NEVER) -> Iterator[FactStore]:
    """A store with facts, a consumer, and commits that only urgent work brings."""
    with FactStore.open(folder / "facts.db", "plant", settings=settings, streams=[ALL]) as store:
        done(store.appends.define([tag(1)]))
        if not store.end_offset(TELEMETRY):
            appending = store.appends.append_samples(TELEMETRY, samples(FACTS))
            done(store.consumers.register(NAME, "idmz", TELEMETRY))
            store.consumers.commit_deferred()  # nothing is deferred: it commits nothing
            done(store.appends.append_samples(TELEMETRY, samples(settings.batch_facts_target, FACTS + 1)))
            done(appending)
        yield store


def ride(store: FactStore, last_offset: int) -> Future[int]:
    """A confirmation that is not awaited."""
    return store.consumers.confirm(NAME, last_offset, is_awaited=False)


def frontier_in(file: Path) -> int:
    """The frontier as another process reads it."""
    with closing(StoreReader(file)) as reader:
        return _frontier(reader)


def _frontier(reader: StoreReader) -> int:
    (found,) = [consumer.frontier for consumer in reader.consumers() if consumer.name == NAME]
    return found


SMALL = replace(NEVER, batch_facts_target=20)


def test_it_makes_no_commit_of_its_own(tmp_path: Path) -> None:
    """Any number of them wait together. The commit of a message takes all along, and then they are durable."""
    with plant(tmp_path, SMALL) as store:
        commits = store.statistics().commits
        riding = [ride(store, offset) for offset in (10, 30, 20)]
        assert frontier_in(store.path) == 0
        assert not any(future.done() for future in riding)
        done(store.appends.append_message(EVENTS, message("a")))
        assert [done(future) for future in riding] == [10, 30, 30]
        assert store.statistics().commits == commits + 1
        assert frontier_in(store.path) == 30


def test_it_has_a_commit_where_none_comes(tmp_path: Path) -> None:
    """On a quiet store it is committed without facts."""
    with plant(tmp_path, replace(SMALL, commit_interval_ms=5)) as store:
        began_ns = time.monotonic_ns()
        assert done(ride(store, 10)) == 10
        assert time.monotonic_ns() - began_ns >= CommitPace(5_000_000, 20).deferred_ns


def test_a_call_that_waits_has_it_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that begins to wait causes the commit."""
    monkeypatch.setattr(housekeeping, "LOOK_EVERY_NS", 60_000_000_000)  # so that no timer wakes the writer
    with plant(tmp_path, SMALL) as store:
        riding = ride(store, 10)
        writer_sleeps(store)
        store.consumers.commit_deferred()
        assert done(riding) == 10


def test_an_awaited_one_does_not_wait(tmp_path: Path) -> None:
    """ConfirmReceipt is answered at once, and deferred confirmations go with its commit."""
    with plant(tmp_path, SMALL) as store:
        riding = ride(store, 10)
        assert done(store.consumers.confirm(NAME, 20)) == 20
        assert riding.done()


def test_an_append_that_waits_for_consumers_has_them_committed(tmp_path: Path) -> None:
    """With acks = all a producer waits for the confirmation, so it is committed at once."""
    with plant(tmp_path, SMALL) as store:
        name = "idmz.ops"
        done(store.consumers.register(name, "idmz", OPERATIONAL))
        store.consumers.seen(name, is_at_end=True)
        appending = store.appends.append_message(OPERATIONAL, message("a"))
        wait_until(lambda: store.end_offset(OPERATIONAL) == 1, "durable here")
        wait_until(lambda: store._writer.acks.has_any, "waits for the consumer")
        store.consumers.confirm(name, 1, is_awaited=False)
        assert done(appending).outcome == "applied"


Asked = list[tuple[str, int, Future[Any]]]


def test_whatever_was_answered_is_durable(tmp_path: Path) -> None:
    """Samples, messages and confirmations come in any order, awaited or not, with times between them. Whatever is
    answered is in the file for every other process, wherever batches and commits were cut. At the end everything is
    answered."""
    first = first_seed()
    for seed in range(first, first + SEEDS):
        rng, asked, folder = random.Random(seed), Asked(), tmp_path / str(seed)
        folder.mkdir()
        settings = StoreSettings(
            commit_interval_ms=rng.choice([0, 2, 20]), batch_facts_target=rng.choice([3, 20]), ballast_bytes=65_536
        )
        with plant(folder, settings) as store:
            for step in range(60):
                for _ in range(rng.randint(1, 3)):
                    _ask(store, rng, step, asked)
                _compare(store.path, asked, f"seed {seed}, step {step}")
        assert all(future.done() for _, _, future in asked)
        _compare(folder / "facts.db", asked, f"seed {seed}, closed")


def _ask(store: FactStore, rng: random.Random, step: int, asked: Asked) -> None:
    """Append or confirm one thing, awaited or not."""
    match rng.choice(["samples", "message", "confirm", "ride", "ride", "commit", "wait"]):
        case "samples":
            rows = samples(rng.randint(1, 9), 1000 * step)
            asked.append(("samples", 0, store.appends.append_samples(TELEMETRY, rows)))
        case "message":
            asked.append(("message", 0, store.appends.append_message(EVENTS, message(f"{rng.random()}"))))
        case "confirm" | "ride" as how:
            last = rng.randint(1, store.end_offset(TELEMETRY))
            confirming = store.consumers.confirm(NAME, last, is_awaited=how == "confirm")
            asked.append(("confirm", last, confirming))
        case "commit":
            store.consumers.commit_deferred()
        case _:
            for _, _, future in asked[-2:]:
                done(future)


def _compare(file: Path, asked: Asked, where: str) -> None:
    """Fail unless everything answered by now is what another process reads now."""
    answered = [(kind, last, future.result()) for kind, last, future in asked if future.done()]
    with closing(StoreReader(file)) as reader:
        ends = {stream.name: stream.end_offset for stream in reader.streams()}
        frontier = _frontier(reader)
    for kind, last, result in answered:
        match kind:
            case "samples":
                assert ends[TELEMETRY] >= result.last_offset, where
            case "message":
                assert ends[EVENTS] >= result.offset, where
            case _:
                assert frontier >= max(last, result), where
