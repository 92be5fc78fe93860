"""Limits of node-opcua that it does not tell: of messages and of subscriptions."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from agent.ingest.opcua.session import OpenedSubscription, Session
from tests.foreign.account import account, stored
from tests.foreign.plant import opcua, running_node, storing
from tests.foreign.server import foreign_server
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

ITEMS = 150
NAMES = [f"many_{n:04}" for n in range(ITEMS)]
MANY = {"name": "many", "type": "String", "value": "x" * 1000, "count": ITEMS}
COUNT = {"name": "count", "type": "Int32", "period_ms": 50}


async def test_small_messages_and_one_subscription(tmp_path: Path) -> None:
    """A server that takes two chunks of 8 KiB in a request, sends chunks of 64 KiB, has one subscription without saying
    so, and calls itself by a name that exists nowhere: it has all items in that subscription, created by calls that
    fit."""
    transport = {"receiveBufferSize": 8192, "sendBufferSize": 65_535, "maxMessageSize": 16_384, "maxChunkCount": 2}
    options = {
        "limits": {"subscriptions": 1},
        "limits_untold": True,
        "transport": transport,
        "advertised": "plc.invalid",
    }
    async with foreign_server(tmp_path / "server", variables=[MANY, COUNT], **options) as server:
        source = opcua(server, tmp_path, "count", *NAMES, items_per_subscription_max=100)
        async with ingesting(source) as run:
            for name in ("count", *NAMES):
                await run.wait_good(f"f/{name}")
            (subscription,) = (await server.status())["subscriptions"]
            assert subscription["items"] == ITEMS + 2  # the server's clock
            assert run.source("plc").tags_bad == 0
            assert run.source("plc").errors_total == 0


async def test_no_room_for_items_after_a_kill_is_no_good_status(tmp_path: Path) -> None:
    """A server with room for the items of a node, and not for those of the killed one beside them: as soon as the node
    is connected again, what the server refuses counts as bad in every place."""
    limits, state = {"items": ITEMS + 20}, tmp_path / "state"
    async with foreign_server(tmp_path / "server", variables=[MANY, COUNT], limits=limits) as server:
        async with running_node(server, tmp_path, "count", *NAMES) as node:
            await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
            await wait_until_async(lambda: all(stored(state, name) for name in NAMES), "a value of each", 60)
            assert (await node.bsfg("status"))[0] == 0
            node.ends_by = signal.SIGKILL
        async with running_node(server, tmp_path, "count", *NAMES) as node:
            await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
            code, status = await node.bsfg("status", "--json")
            _, rows = await node.bsfg("latest", "--json")
    told = json.loads(status)
    bad = [row for row in map(json.loads, filter(None, rows.splitlines())) if row["quality"] >> 31]
    assert bad
    assert (code, told["verdict"], told["reasons"][0]["problem"]) == (3, "degraded", "tags_bad")
    assert told["sources"][0]["tags_bad"] == len(bad)


async def test_one_subscription_and_a_connection_that_breaks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with room for one subscription: the connection breaks, and again before anything stands in the new
    subscription. None is forgotten: there are values again long before the lifetime of a subscription, two minutes, is
    over, and what is lost lies in a gap."""
    options = {"limits": {"subscriptions": 1}, "limits_untold": True}
    created, create = asyncio.Event(), Session.create_subscription

    async def create_and_say(session: Session) -> OpenedSubscription:
        found = await create(session)
        created.set()
        return found

    monkeypatch.setattr(Session, "create_subscription", create_and_say)
    async with foreign_server(tmp_path / "server", variables=[COUNT], **options) as server:
        async with storing(opcua(server, tmp_path, "count"), tmp_path) as run:
            for _ in range(3):
                await run.wait_good("f/count", len(run.store.good("f/count")) + 20)
                created.clear()
                await server.cut()
                await wait_until_async(created.is_set, "another subscription")
                await server.cut()
            await run.wait_good("f/count", len(run.store.good("f/count")) + 20)
        assert not account(server, tmp_path, "count").undeclared
