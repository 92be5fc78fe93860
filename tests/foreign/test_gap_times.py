"""Every lost value lies in the time of its gap fact: over a slow line, with subscriptions and items that are created
one after the other, or anew, and while the server's clock is set."""

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.lifecycle import State
from agent.ingest.opcua.history import backfill
from agent.ingest.opcua.subscriptions import audit
from tests.foreign.account import account, stored, time_ns
from tests.foreign.plant import opcua, running_node, storing
from tests.foreign.proxy import network
from tests.foreign.server import OPEN62541, ForeignServer, foreign_server
from tests.foreign.test_torture import judge_events
from tests.ingest.plant import Running
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

HOUR_MS = 3_600_000
NAMES = [f"one_{n}" for n in range(3)]


@pytest.mark.foreign("open62541")
async def test_a_stop_begins_before_what_no_subscription_had_brought(tmp_path: Path) -> None:
    """Three subscriptions, each with one item, publish once a second at different times; the node stops twice. Of each
    variable every value that is missing lies in a gap."""
    variables = [{"name": name, "type": "Int32", "period_ms": 50} for name in NAMES]
    async with (
        foreign_server(tmp_path / "server", OPEN62541, variables=variables) as server,
        network(server.port) as net,
    ):
        await net.command("slow 0.1")  # they are created half a second apart
        settings = {"items_per_subscription_max": 1, "publishing_interval_ms": 1_000}
        source = replace(opcua(server, tmp_path, *NAMES, **settings), url=f"opc.tcp://127.0.0.1:{net.port}")
        for _ in range(3):
            async with storing(source, tmp_path) as run:
                for name in NAMES:
                    await run.wait_good(f"f/{name}", 30)
            await server.wait_record(NAMES[0], 10)
        for name in NAMES:
            found = account(server, tmp_path, name)
            assert found.lost
            assert not found.undeclared, name


def gaps_of(run: Running, reason: str) -> list[dict[str, Any]]:
    """What the gap facts of this reason say."""
    return [gap for gap in run.store.told() if gap.get("reason") == reason]


async def test_a_polled_server_is_lost_since_its_last_answer_was_made(server: ForeignServer, tmp_path: Path) -> None:
    """The line takes half a second each way, so an answer is old when it arrives. The server is lost: the first value
    after the last one received lies in the gap."""
    await server.add({"name": "polled", "type": "Int32", "period_ms": 50})
    async with network(server.port) as net:
        settings = {"mode": "poll", "poll_interval_ms": 2_000}
        source = replace(opcua(server, tmp_path, "polled", **settings), url=f"opc.tcp://127.0.0.1:{net.port}")
        async with storing(source, tmp_path) as run:
            await run.wait_good("f/polled", 1)
            await net.command("slow 0.5")
            await run.wait_more("f/polled", 2)
            await net.command("cut")
            await run.wait_state("plc", State.WAITING)
            last_ns = run.store.good("f/polled")[-1].source_time_ns
            await net.command("flow")
            await wait_until_async(lambda: gaps_of(run, "source_lost"), "the gap")
            first_ns = time_ns(gaps_of(run, "source_lost")[0]["first_time"])
            later = [value.time_ns for value in server.record("polled") if value.time_ns > last_ns]
    assert first_ns <= later[0], f"{(first_ns - later[0]) / 1e9} s late"


async def test_events_are_lost_until_the_last_item_is_created(tmp_path: Path) -> None:
    """Two nodes are asked for their events over a line of half a second. The server ends the session: the events that
    it raised until the second item was there are in the gap."""
    async with (
        foreign_server(tmp_path / "server", variables=[], event_period_ms=50) as server,
        network(server.port) as net,
    ):
        await server.add({"name": "count", "type": "Int32", "period_ms": 50})
        events = (f"nsu={server.namespace};s=plant", "Server")
        settings = {"events": events, "request_timeout_ms": 10_000, "liveness_timeout_ms": 6_000}
        source = replace(opcua(server, tmp_path, "count", **settings), url=f"opc.tcp://127.0.0.1:{net.port}")
        async with storing(source, tmp_path) as run:
            await wait_events(run, 20)
            await net.command("slow 0.5")
            await wait_events(run, 20)
            await server.kill_sessions()
            await run.wait_state("plc", State.WAITING)
            await wait_events(run, 40)
        judge_events(server, tmp_path)


async def wait_events(run: Running, more: int) -> None:
    """Until so many more events have come."""

    def total() -> int:
        found = run.source("plc").events
        return found.events_total if found else 0

    wanted = total() + more
    await wait_until_async(lambda: total() >= wanted, "events")


async def test_an_overflow_while_the_clock_is_set_back(server: ForeignServer, tmp_path: Path) -> None:
    """A queue of five values overflows while Publish is held and the server's clock is put right, an hour back: what is
    lost lies in a gap, in the times of either clock."""
    async with storing(opcua(server, tmp_path, "count", queue_size=5), tmp_path) as run:
        await run.wait_good("f/count", 20)
        await server.shift_clock(HOUR_MS)
        await run.wait_more("f/count", 40)
        await server.publish("hold")
        await server.wait_record("count", 12)
        await server.shift_clock(0)
        await server.wait_record("count", 12)
        await server.publish("flow")
        await run.wait_more("f/count", 40)
        assert run.source("plc").connects_total == 1
    found = account(server, tmp_path, "count")
    assert found.lost
    assert not found.undeclared, [(gap.first_ns, gap.last_ns, gap.reason) for gap in found.gaps]


@pytest.mark.parametrize("history", [False, True])
async def test_an_item_that_stops_publishing(
    server: ForeignServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, history: bool
) -> None:
    """The server goes on with everything but one item, whose variable changes on. A Read finds it: what it did not
    publish lies in a gap that begins with its last value, and comes from the history if there is one."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 0.5)
    monkeypatch.setattr(audit, "ARRIVES_S", 0.5)
    name = f"muted_{history}"
    await server.add({"name": name, "type": "Int32", "period_ms": 50, "history": history})
    async with storing(opcua(server, tmp_path, "count", name), tmp_path) as run:
        await run.wait_good(f"f/{name}", 20)
        assert await server.mute(name) == 1
        await server.wait_record(name, 10)
        before = run.store.good(f"f/{name}")
        await run.wait_good(f"f/{name}", len(before) + 10)
        await wait_until_async(lambda: run.source("plc").gaps_open == 0, "the gap filled")
        assert run.source("plc").connects_total == 1
    found = account(server, tmp_path, name)
    assert {(gap.reason, gap.first_ns) for gap in found.gaps} == {("item_gone", before[-1].source_time_ns)}
    assert not found.undeclared
    assert not found.twice
    assert bool(found.lost) != history


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_is_one_gap(server: ForeignServer, tmp_path: Path, ends_by: signal.Signals) -> None:
    """The node ends and starts again and again, each time as soon as its store has a new value: one gap fact for each
    restart, or for several if it was killed between its first value and the fact. No value is outside them when the
    last process has stopped in order."""
    name, state = f"restarted_{ends_by.value}", tmp_path / "state"
    await server.add({"name": name, "type": "Int32", "period_ms": 20})
    for number in range(4):
        began_ns = server.record(name)[-1].time_ns
        async with running_node(server, tmp_path, name) as node:
            if not number:  # there is no store yet
                await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
            await wait_until_async(
                lambda at=began_ns: any(sample.time_ns > at for sample in stored(state, name)), "a value", 60
            )
            node.ends_by = ends_by if number < 3 else signal.SIGTERM
    found = account(server, state, name)
    assert found.lost
    assert not found.undeclared
    assert {gap.reason for gap in found.gaps} == {"agent_stopped"}
    assert len(found.gaps) == 3 if ends_by is signal.SIGTERM else len(found.gaps) <= 3


@pytest.mark.parametrize("edit, history", [("queue_size", False), ("unit", True)])
async def test_an_item_that_is_created_again_by_an_edit(
    server: ForeignServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str, *, history: bool
) -> None:
    """Over a slow line, so that the server has no item of it for a while: what its variable does in that time lies in a
    gap, and comes from the history if there is one, each value once. Its neighbour loses nothing."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 0.5)
    name = f"edited_{edit[0]}_{history}"
    await server.add({"name": name, "type": "Int32", "period_ms": 50, "history": history})
    async with network(server.port) as net:
        source = replace(opcua(server, tmp_path, "count", name), url=f"opc.tcp://127.0.0.1:{net.port}")
        async with storing(source, tmp_path) as run:
            await run.wait_good(f"f/{name}", 20)
            await net.command("slow 0.2")
            await run.wait_more(f"f/{name}", 10)
            rows = f"f/count,{server.address('count')},\nf/{name},{server.address(name)},"
            source.tags_file.write_text(f"tag,address,{edit}\n{rows}{300 if edit != 'unit' else 'bar'}\n")
            await wait_until_async(lambda: gaps_of(run, "item_gone"), "the gap")
            await run.wait_more(f"f/{name}", 10)
            await wait_until_async(lambda: run.source("plc").gaps_open == 0, "the gap filled")
    found = account(server, tmp_path, name)
    assert not found.undeclared
    assert not found.twice
    assert bool(found.lost) != history
    assert not account(server, tmp_path, "count").lost


async def test_nothing_is_lost_by_a_clock_jump(either_server: ForeignServer, tmp_path: Path) -> None:
    """While the clock of a server jumps ahead and back its values flow on over one connection, and each is stored with
    the time it had there."""
    async with storing(opcua(either_server, tmp_path, "count"), tmp_path) as run:
        await run.wait_good("f/count", 10)
        for shift_ms in (HOUR_MS, 0):
            await either_server.shift_clock(shift_ms)
            expected_ns = time.time_ns() + shift_ms * 1_000_000
            await wait_until_async(
                lambda at=expected_ns: abs(run.store.good("f/count")[-1].source_time_ns - at) < 60_000_000_000,
                "the shifted time",
            )
            await run.wait_more("f/count", 10)
        await run.wait_more("f/count", 100)  # a stop at once would declare the seconds
        assert run.source("plc").connects_total == 1
    found = account(either_server, tmp_path, "count")
    assert not found.lost
    assert not found.twice
    assert not found.gaps
