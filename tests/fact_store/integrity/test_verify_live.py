"""`bsfg store verify` beside a node that appends, receives, confirms and forgets: an undamaged store has no damage,
whatever the node does between two statements of the walk."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.fact_store import FactStore, StoreReader
from agent.fact_store.integrity import verify
from agent.fact_store.integrity.verify import VerifyCounts
from agent.fact_store.read import connections
from agent.fact_store.retention.housekeeping import Housekeeping
from agent.fact_store.sqlite import connect_reader
from agent.query.sql.session import SqlSession
from agent.query.statistics import statistics
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import LIFE, OPERATIONAL, TELEMETRY, Elsewhere, damages, done, message, samples, tag
from tests.sim import scaled
from tests.waiting import wait_until

SETTINGS = StoreSettings(commit_interval_ms=0, ballast_bytes=65_536)
STREAMS = (StreamSettings(TELEMETRY, keep_hours=0), StreamSettings("facts.north", keep_hours=0))
BATCHES = 20  # more than a page of the walk
FACTS = 3


class LiveNode:
    """What a node does to its store."""

    def __init__(self, folder: Path) -> None:
        self.store = FactStore.open(folder / "facts.db", "plant", settings=SETTINGS, streams=STREAMS)
        self.north = Elsewhere("north", "facts.north", LIFE)
        self.tags = self.messages = 0
        self.steps: dict[str, Callable[[], object]] = {
            "append": self.append,
            "define": self.define,
            "message": self.append_message,
            "receive": self.receive,
            "confirm": self.confirm,
            "confirm ahead": self.confirm_ahead,
            "register": self.register,
        }
        self.define()
        for name in ("idmz.a", "idmz.b"):
            done(self.store.consumers.register(name, "idmz", TELEMETRY if name == "idmz.a" else "facts.north"))
        for _ in range(BATCHES):
            self.append()
            self.receive()
        self.append_message()

    def append(self) -> None:
        """Samples that need the newest definition."""
        done(self.store.appends.append_samples(TELEMETRY, samples(FACTS)))

    def define(self) -> None:
        """One more tag."""
        self.tags += 1
        done(self.store.appends.define([tag(self.tags)]))

    def append_message(self) -> None:
        """A message, the first one in a stream of its own."""
        self.messages += 1
        done(self.store.appends.append_message(OPERATIONAL, message(f"id-{self.messages}")))

    def receive(self) -> None:
        """A batch of a peer."""
        self.north.put(self.store, [self.north.seal(FACTS)], len(self.north.sealed))

    def confirm(self) -> None:
        """Each consumer confirms all, which releases it."""
        for consumer in self.store.consumers.all():
            done(self.store.consumers.confirm(consumer.name, self.store.end_offset(consumer.stream)))
        wait_until(self.is_released, "what was confirmed to be released")

    def is_released(self) -> bool:
        """Whether the streams that have consumers hold nothing."""
        kept = (stream for stream in self.store.streams() if stream.name != OPERATIONAL)
        return all(stream.first_offset > stream.end_offset for stream in kept)

    def confirm_ahead(self) -> None:
        """A consumer confirms the newest facts and not those before."""
        self.append()
        self.append()
        end_offset = self.store.end_offset(TELEMETRY)
        done(self.store.consumers.confirm("idmz.a", end_offset, end_offset))

    def register(self) -> None:
        """A consumer that begins at the end and has confirmed what comes next."""
        name = f"idmz.c{self.store.end_offset(TELEMETRY)}"
        done(self.store.consumers.register(name, "idmz", TELEMETRY))
        self.append()
        done(self.store.consumers.confirm(name, self.store.end_offset(TELEMETRY)))


@pytest.fixture(scope="module", autouse=True)
def release_at_once() -> Iterator[None]:
    """Retention looks after every commit, instead of once a second."""
    work = Housekeeping.work

    def work_at_once(self: Housekeeping, *given: Any, is_idle: bool) -> None:
        self._looked_ns = 0
        work(self, *given, is_idle=is_idle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Housekeeping, "work", work_at_once)
        yield


def between_statements(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, step: Callable[[], None]
) -> list[Exception]:
    """Let `step` run before each statement of the connections that `module` opens; returns what went wrong in it,
    which SQLite does not raise."""
    errors = list[Exception]()

    def traced(_statement: str) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 whatever it is, the test must see it
            errors.append(error)

    def opened(path: Path, *rest: object) -> sqlite3.Connection:
        connection = connect_reader(path, *rest)  # type: ignore[arg-type]
        connection.set_trace_callback(traced)
        return connection

    monkeypatch.setattr(module, name, opened)
    return errors


STEPS = ["append", "define", "message", "receive", "confirm", "confirm ahead", "register"]


@settings(max_examples=scaled(60, 3_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(script=st.lists(st.sampled_from([*STEPS, "nothing"]), min_size=1, max_size=12), is_quick=st.booleans())
def test_a_live_store_has_no_damage(memory: Path, script: list[str], is_quick: bool) -> None:
    """Before every statement of the walk the node does something: appends, confirms, releases, receives. Nothing of it
    is damage, and everything that was there and is still kept is checked."""
    with TemporaryDirectory(dir=memory) as folder, pytest.MonkeyPatch.context() as patch:
        node = LiveNode(Path(folder))
        remaining = cycle(script)

        def step() -> None:
            name = next(remaining)
            if name != "nothing":
                node.steps[name]()

        with node.store:
            errors = between_statements(patch, verify, "connect_reader", step)
            counts = VerifyCounts()
            found = damages(node.store.path, counts, is_quick=is_quick)
        assert not errors
        assert not found
        if not {"confirm", "register"} & set(script):
            assert counts.batches >= 2 * BATCHES


@settings(max_examples=scaled(30, 1_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(script=st.lists(st.sampled_from([*STEPS, "nothing"]), min_size=1, max_size=12))
@example(script=["append", "confirm"])
def test_statistics_are_of_one_moment(memory: Path, script: list[str]) -> None:
    """The figures of `bsfg store stats` and of SQL agree with each other whatever the node does between two statements:
    no consumer is ahead of its stream, no fact of a whole store is missing, and offsets, origins and facts add up."""
    with TemporaryDirectory(dir=memory) as folder, pytest.MonkeyPatch.context() as patch:
        node = LiveNode(Path(folder))
        remaining = cycle(script)

        def step() -> None:
            name = next(remaining)
            if name != "nothing":
                node.steps[name]()

        with node.store:
            errors = between_statements(patch, connections, "connect_reader", step)
            with closing(StoreReader(node.store.path)) as reader:
                found = statistics(reader)
                with closing(SqlSession(reader, 0)) as session:
                    behind = [facts for (facts,) in session.ask("SELECT behind_facts FROM consumers").rows]
        assert not errors
        assert all(facts >= 0 for facts in [*behind, *(consumer.unconfirmed_facts for consumer in found.consumers)])
        for stream in found.streams:
            assert stream.facts == stream.end_offset - stream.first_offset + 1
            assert sum(of.facts for of in stream.origins.values()) == stream.facts
            assert not any(of.missing for of in stream.origins.values())
