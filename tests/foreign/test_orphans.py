"""Subscriptions at foreign servers whose numbers this side never learnt."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.foreign.account import account
from tests.foreign.plant import opcua, storing
from tests.foreign.process import Stack
from tests.foreign.proxy import network
from tests.foreign.server import NODE_OPCUA, OPEN62541, foreign_server
from tests.foreign.test_security import losses
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

COUNT = {"name": "count", "type": "Int32", "period_ms": 50}
SUBSCRIPTION_CREATED = 790  # the type of an answer


@pytest.mark.parametrize(
    "stack", [pytest.param(one, marks=pytest.mark.foreign(one.name), id=one.name) for one in (NODE_OPCUA, OPEN62541)]
)
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
                await run.wait_good("f/count", len(run.store.good("f/count")) + 20)
                status = await server.status()
                assert (status["sessions"], len(status["subscriptions"]), status["orphans"]) == (1, 1, 0)
        assert not account(server, tmp_path, "count").undeclared
    assert not [why for why in losses(caplog) if "BadTooManySubscriptions" in why]
