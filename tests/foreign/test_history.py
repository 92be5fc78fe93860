"""Gaps are filled from the history of node-opcua: nothing is missing, and nothing is there twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.lifecycle import State
from agent.ingest.opcua.history import backfill
from tests.foreign.account import account, stored
from tests.foreign.plant import facts, opcua, running_node, storing
from tests.foreign.server import ForeignServer
from tests.ingest.plant import Running
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

KEPT = [f"kept_{i}" for i in range(3)]
STILL = "still"
HOUR_MS = 3_600_000


VARIABLES = [
    *({"name": name, "type": "Int32", "period_ms": 50, "history": True} for name in KEPT),
    {"name": STILL, "type": "Int32", "value": 7, "history": True},
    {"name": "plain", "type": "Int32", "period_ms": 50},
    {"name": "endless", "type": "Int32", "period_ms": 50, "history": "endless"},
    {"name": "array", "type": "Int32", "period_ms": 50, "length": 4, "history": True},
]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignServer]:
    """A server with three variables that change and one that stands still, all with history, and one without."""
    with closing(ForeignServer(tmp_path_factory.mktemp("server"), variables=VARIABLES)) as server:
        yield server


def fills(run: Running) -> list[dict[str, Any]]:
    """What the facts of filled gaps say."""
    kept = [message.fact for message in run.store.messages.values()]
    return [json.loads(fact.object_json) for fact in kept if fact.predicate == "history_backfilled"]


async def wait_filled(run: Running, count: int) -> dict[str, Any]:
    """The last of so many filled gaps."""
    await wait_until_async(lambda: len(fills(run)) >= count, f"{count} gaps filled", 60)
    return fills(run)[-1]


async def away(server: ForeignServer, run: Running, values: int) -> None:
    """The server is not to be had for some time, and ends the sessions; it goes on and keeps its history."""
    await server.listen(on=False)
    await server.kill_sessions()
    await run.wait_state("plc", State.WAITING)
    await server.wait_record(KEPT[0], values)
    await server.listen(on=True)


def check_complete(server: ForeignServer, folder: Path, *names: str) -> None:
    """By the server's own record, every value between the first and the last one stored is there, and once."""
    for name in names:
        found = account(server, folder, name)
        assert len(found.recorded) > 20 or name == STILL
        assert found.lost == [], name
        assert found.twice == [], name
        assert found.invented == [], name


def test_an_outage_is_filled(server: ForeignServer, tmp_path: Path) -> None:
    """The server is away twice. What changed meanwhile is read from history and stands in the store once, marked as
    acquired from history; a variable without history keeps its gap fact, and the fact of the filling names it."""

    async def story() -> None:
        async with storing(opcua(server, tmp_path, *KEPT, STILL, "plain"), tmp_path) as run:
            for outage in (1, 2):
                await run.wait_more("f/plain", 20)
                await away(server, run, 40)
                said = await wait_filled(run, outage)
                assert (said["cause"], said["tags_without_history"], said["tags"]) == ("gap", 1, ["tag:f/plain"])
                assert said["values"] > 100
                await wait_until_async(lambda: run.source("plc").gaps_open == 0, "no gap open")
            await run.wait_more("f/plain", 20)
        check_complete(server, tmp_path, *KEPT, STILL)
        assert account(server, tmp_path, "plain").lost
        assert account(server, tmp_path, "plain").undeclared == []

    asyncio.run(story())
    marked = [fact["object"] for fact in facts(tmp_path, "facts.telemetry") if "acquisition" in fact["object"]]
    assert {sample["acquisition"] for sample in marked} == {"history"}


def test_a_history_without_end_is_given_up(
    server: ForeignServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A variable whose history always ends with a continuation point is named and parked: the others are filled beside
    it and in the next gap, in which it is not read. What its one page holds is stored once."""

    async def story() -> None:
        async with storing(
            opcua(server, tmp_path, *KEPT, "endless", history_values_per_s_max=100_000), tmp_path
        ) as run:
            await run.wait_good("f/endless", 20)
            for outage in (1, 2):
                await away(server, run, 40)
                said = await wait_filled(run, outage)
                assert (said["tags_failed"], said["tags"]) == (1, ["tag:f/endless"])
                assert said["tags_filled"] == len(KEPT)
        check_complete(server, tmp_path, *KEPT)
        assert not account(server, tmp_path, "endless").twice

    asyncio.run(story())
    (named,) = [record for record in caplog.records if getattr(record, "action", "") == "history_endless"]
    assert "f/endless" in vars(named)["tags"]


def is_shifted(run: Running, ahead_ms: int) -> bool:
    """Whether a value with a time so far ahead has come."""
    return run.store.good("f/plain")[-1].source_time_ns > time.time_ns() + ahead_ms * 1_000_000 - 2_000_000_000


@pytest.mark.parametrize("ahead_ms, page", [(5_000, 7), (HOUR_MS, backfill.VALUES_PER_READ_MAX)])
def test_a_clock_set_back_during_an_outage_hides_nothing(
    server: ForeignServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, page: int
) -> None:
    """The server's clock is ahead, and is set right while the server is away: the times of the outage come twice. By
    the server's own record, what it has no history of is declared in both times, and all the rest is filled, also from
    pages that are not in the order of time."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 2.0)
    monkeypatch.setattr(backfill, "VALUES_PER_READ_MAX", page)

    async def story() -> None:
        async with storing(opcua(server, tmp_path, *KEPT, "plain"), tmp_path) as run:
            await run.wait_good("f/plain", 10)
            await server.shift_clock(ahead_ms)
            await wait_until_async(lambda: is_shifted(run, ahead_ms), "the shifted time")
            await run.wait_more("f/plain", 40)
            await server.listen(on=False)
            await server.kill_sessions()
            await run.wait_state("plc", State.WAITING)
            await server.wait_record(KEPT[0], 20)
            await server.shift_clock(0)
            await server.wait_record(KEPT[0], 20)
            await server.listen(on=True)
            await run.wait_more("f/plain", 20)
            await wait_until_async(lambda: run.source("plc").gaps_open == 0, "no gap open", 60)
        check_complete(server, tmp_path, *KEPT)
        plain = account(server, tmp_path, "plain")
        assert len(plain.lost) > 30
        assert plain.undeclared == []

    asyncio.run(story())


def test_a_stop_of_the_node_is_filled(server: ForeignServer, tmp_path: Path) -> None:
    """Ingest ends and begins again later on the same store: what changed meanwhile comes from history, a value that
    stood still is not recorded again, and the time of the stop is declared for what has no history."""

    async def story() -> None:
        source = opcua(server, tmp_path, *KEPT, STILL, "plain")
        for turn in range(3):
            async with storing(source, tmp_path) as run:
                await run.wait_good("f/kept_0", 20)
                if turn:
                    await wait_filled(run, 1)
            await server.wait_record(KEPT[0], 40)
        check_complete(server, tmp_path, *KEPT, STILL)
        assert account(server, tmp_path, "plain").undeclared == []

    asyncio.run(story())


async def test_a_time_is_filled_by_hand(server: ForeignServer, tmp_path: Path) -> None:
    """`bsfg opcua backfill` has the running node read the time before it was first started. A source without history to
    read and an unknown one are named, with what there is."""
    ten_seconds_ns = 10_000_000_000  # are left to live values
    began_ns = server.record(KEPT[0])[0].time_ns
    await wait_until_async(lambda: server.record(KEPT[0])[-1].time_ns > began_ns + ten_seconds_ns, "ten seconds", 60)
    async with running_node(server, tmp_path, *KEPT) as node:
        await wait_until_async(lambda: node.events("source_connected"), "the source")
        status, output = await node.bsfg("opcua", "backfill", "plc", "--from", "1h", "--json")
        assert status == 0, output
        await wait_until_async(lambda: node.events("history_backfilled"), "the end of the filling", 60)
        status, output = await node.bsfg("opcua", "backfill", "plx", "--from", "1h")
        assert (status, "the sources of this node: plc" in output) == (1, True), output
        status, output = await node.bsfg("opcua", "backfill", "plc", "--from", "1h", "--to", "2h")
        assert (status, "is not before" in output) == (2, True), output
    (said,) = [event for event in node.events("history_backfilled") if event["cause"] == "request"]
    assert said["tags_filled"] == len(KEPT)
    recorded = server.record(KEPT[0])
    in_store = [sample.time_ns for sample in stored(tmp_path / "state", KEPT[0])]
    assert len(in_store) == len(set(in_store))
    assert recorded[0].time_ns in in_store
    assert said["values"] >= 3 * 20
