"""The steps of a reconnect (OPC 10000-4, 6.7) at foreign servers: what they queued meanwhile arrives, without any
history."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from agent.ingest.lifecycle import State
from tests.foreign.account import account
from tests.foreign.conftest import COUNT
from tests.foreign.plant import opcua, storing
from tests.foreign.process import Stack
from tests.foreign.proxy import network
from tests.foreign.server import NODE_OPCUA, OPEN62541, foreign_server
from tests.foreign.test_security import losses
from tests.ingest.fakes import running
from tests.ingest.plant import Running, ingesting
from tests.ingest.plant import opcua as plant_source
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

NAMES = [f"plain_{i}" for i in range(3)]
VARIABLES = [
    *({"name": name, "type": "Int32", "period_ms": 50} for name in NAMES),
    {"name": "still", "type": "Int32", "value": 7},
]
SUBSCRIPTION_CREATED = 790  # the type of an answer
QUEUE = {"queue_size": 1_000}  # 50 s of these variables
STACKS = [
    pytest.param(stack, marks=pytest.mark.foreign(stack.name), id=stack.name) for stack in (NODE_OPCUA, OPEN62541)
]


def steps(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The steps with which the lives of the source began, after the first."""
    found = [record for record in caplog.records if getattr(record, "action", "") == "session_opened"]
    return [record.step for record in found][1:]  # type: ignore[attr-defined]


def gaps(run: Running) -> list[str]:
    """Why values are missing, by the gap facts."""
    return [gap["reason"] for gap in run.store.told() if "reason" in gap]


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("trouble", ["cut", "stall"])
async def test_a_network_that_was_away_costs_no_value(
    stack: Stack, trouble: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The network is away for five seconds. The session is activated again, every value of the server's record is in
    the store once, and no gap is declared; a value that stands is good again."""
    caplog.set_level(logging.INFO)
    async with foreign_server(tmp_path / "server", stack, variables=VARIABLES) as server, network(server.port) as net:
        source = replace(opcua(server, tmp_path, *NAMES, "still", **QUEUE), url=f"opc.tcp://127.0.0.1:{net.port}")
        async with storing(source, tmp_path) as run:
            await run.wait_good("f/plain_0", 20)
            await net.command(trouble)
            await run.wait_state("plc", State.WAITING)
            await server.wait_record(NAMES[0], 100)
            await net.command("flow")
            await run.wait_more("f/plain_0", 120)
            await wait_until_async(lambda: run.store.of("f/still")[-1].quality == 0, "the value that stands")
            assert (steps(caplog)[-1], gaps(run)) == ("reactivate", [])
        for name in (*NAMES, "still"):
            found = account(server, tmp_path, name)
            assert (found.lost, found.twice, found.invented) == ([], [], []), name


@pytest.mark.parametrize("stack", STACKS)
async def test_a_connection_that_breaks_in_place_of_an_answer_shuts_nothing(
    stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server with room for one subscription makes it, and the connection breaks ahead of the answer: in the first
    life, and in one after the server has ended the session. The next life activates that session and finds the
    subscription. What was lost lies in gaps."""
    caplog.set_level(logging.INFO)
    options = {"limits": {"subscriptions": 1}, **({"limits_untold": True} if stack is NODE_OPCUA else {})}
    async with foreign_server(tmp_path / "server", stack, variables=[COUNT], **options) as server:
        async with network(server.port) as net:
            await net.command(f"lose {SUBSCRIPTION_CREATED} 1")
            source = replace(opcua(server, tmp_path, "count"), url=f"opc.tcp://127.0.0.1:{net.port}")
            async with storing(source, tmp_path) as run:
                await run.wait_good("f/count", 20)
                assert run.source("plc").errors_total >= 1
                await net.command(f"lose {SUBSCRIPTION_CREATED} 1")
                await server.kill_sessions()
                await wait_until_async(lambda: run.source("plc").errors_total >= 3, "another loss")
                await run.wait_more("f/count", 20)
                status = await server.status()
                assert (status["sessions"], len(status["subscriptions"]), status["orphans"]) == (1, 1, 0)
        assert not account(server, tmp_path, "count").undeclared
    assert not [why for why in losses(caplog) if "BadTooManySubscriptions" in why]


async def test_the_session_of_an_asyncua_server_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It does not mark what its queues lose, and it forgets what it was asked for again; it keeps the session."""
    caplog.set_level(logging.INFO)
    with running("opcua_server") as program:
        async with network(program.port) as net:
            source = replace(plant_source(program.port, tmp_path), url=f"opc.tcp://127.0.0.1:{net.port}")
            async with ingesting(source) as run:
                tag = run.ingest.tag_maps()["plc"].tags[0].name
                await run.wait_good(tag, 5)
                await net.command("cut")
                await run.wait_state("plc", State.WAITING)
                await net.command("flow")
                await run.wait_state("plc", State.CONNECTED)
                await run.wait_more(tag, 10)
                assert (steps(caplog), gaps(run), run.source("plc").tags_bad) == (["reactivate"], [], 0)
