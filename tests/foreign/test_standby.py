"""Two gateways at node-opcua and open62541: one stands by with publishing disabled, and takes over without a loss."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.ingest.lifecycle import State
from agent.ingest.opcua.history import backfill
from agent.node.stored_samples import StoredSamples
from tests.foreign.account import account, declared
from tests.foreign.plant import TappedStore, opcua, real_store
from tests.foreign.server import ForeignServer, foreign_server
from tests.foreign.test_life import live_on
from tests.ingest.plant import Running, ingesting
from tests.sim import scaled
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

KEPT = {"name": "kept", "type": "Int32", "period_ms": 50, "history": True}


@asynccontextmanager
async def gateway(
    server: ForeignServer, folder: Path, store: TappedStore, *names: str, is_recording: bool = False, **settings: object
) -> AsyncIterator[Running]:
    """One of the gateways of a zone. What the other one records is in its store, as after its pull."""
    stored = StoredSamples(store.reader)
    source = opcua(server, folder, *names, **settings)
    async with ingesting(source, store=store, stored=stored, is_recording=is_recording) as run:
        yield run


async def test_a_long_standby(either_server: ForeignServer, tmp_path: Path) -> None:
    """Keep-alives prove life while publishing is disabled: there is one connection all the while. What the queues of
    the server lost by then is no loss of this gateway. `make sim`: longer than a session lives without a request."""
    with real_store(tmp_path) as store:
        async with gateway(either_server, tmp_path, store, "count") as run:
            await run.wait_state("plc", State.STANDBY)
            await live_on(run, scaled(15, 40))
            assert (run.source("plc").connects_total, run.source("plc").errors_total) == (1, 0)
            assert (store.samples, store.messages) == ([], {})
            run.ingest.begin_recording(None)
            await run.wait_good("f/count")
            await run.wait_state("plc", State.CONNECTED)
            await live_on(run, 1)
            assert run.source("plc").connects_total == 1
    assert declared(tmp_path) == []
    assert account(either_server, tmp_path, "count").lost == []


async def test_a_subscription_that_ends_in_standby(server: ForeignServer, tmp_path: Path) -> None:
    """The source connects again, and nothing is recorded."""
    with real_store(tmp_path) as store:
        async with gateway(server, tmp_path, store, "count") as run:
            await run.wait_state("plc", State.STANDBY)
            await server.kill_subscriptions()
            await wait_until_async(lambda: run.source("plc").connects_total == 2, "another connection")
            await run.wait_state("plc", State.STANDBY)
            assert (store.samples, store.messages) == ([], {})


@pytest.mark.parametrize("queue_size", [200, 5])
async def test_a_handover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_size: int) -> None:
    """One gateway ends, and the other begins later. By the server's own record, nothing is lost and nothing is there
    twice: what changed in between comes from the queues that filled at the server, and what these did not hold from its
    history."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 2.0)
    (tmp_path / "server").mkdir()
    async with foreign_server(tmp_path / "server", variables=[KEPT]) as server:
        with real_store(tmp_path) as store:
            async with (
                gateway(server, tmp_path, store, "kept", is_recording=True) as first,
                gateway(server, tmp_path, store, "kept", queue_size=queue_size) as second,
            ):
                await second.wait_state("plc", State.STANDBY)
                await first.wait_good("f/kept", 20)
                assert second.source("plc").values_total == 0
                since_ns = time.time_ns()
                await first.ingest.end_recording()
                ended = len(server.record("kept"))
                await wait_until_async(lambda: len(server.record("kept")) > ended + 20, "values at the server")
                second.ingest.begin_recording(since_ns)
                await second.wait_good("f/kept", len(store.good("f/kept")) + 20)
                await second.wait_state("plc", State.CONNECTED)
                await wait_until_async(lambda: second.source("plc").gaps_open == 0, "the gap is filled", 60)
                assert bool(second.source("plc").backfilled_total) == (queue_size == 5)
                assert first.source("plc").state is State.STANDBY
    found = account(server, tmp_path, "kept")
    stored = {value.time_ns for value in found.stored}  # the first may have the status bit for an overflow
    assert [value for value in found.lost if value.time_ns not in stored] == []
    assert (found.twice, found.invented) == ([], [])
    assert [gap.reason for gap in found.gaps] == ["leader_changed"]


async def test_events_in_standby(server: ForeignServer, tmp_path: Path) -> None:
    """None is recorded. Then those since the other gateway ended are declared, and the next ones are recorded."""
    with real_store(tmp_path) as store:
        async with gateway(server, tmp_path, store, "count", events=("Server",)) as run:
            await run.wait_state("plc", State.STANDBY)
            await server.raise_event("too early")
            await live_on(run, 1)
            assert (store.samples, store.messages, store.events) == ([], {}, {})
            run.ingest.begin_recording(time.time_ns())
            await run.wait_state("plc", State.CONNECTED)
            await wait_until_async(lambda: len(store.messages) == 2, "the gap of the values, and of the events")
            await server.raise_event("in time")
            await wait_until_async(lambda: store.events, "the event")
            assert {message.fact.predicate for message in store.messages.values()} == {"samples_lost", "events_lost"}
            assert {gap["reason"] for gap in store.told()} == {"leader_changed"}
    assert "too early" not in str(store.events)
