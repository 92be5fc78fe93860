"""What node-opcua queued while the network was away is fetched from the old subscriptions, without any history."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.lifecycle import State
from tests.foreign.account import account
from tests.foreign.plant import opcua, storing
from tests.foreign.proxy import network
from tests.foreign.server import ForeignServer, foreign_server
from tests.ingest.plant import Running
from tests.sim import scaled
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

NAMES = [f"plain_{i}" for i in range(3)]
VARIABLES = [
    *({"name": name, "type": "Int32", "period_ms": 50} for name in NAMES),
    {"name": "still", "type": "Int32", "value": 7},
]
QUEUE = {"queue_size": 1_000}  # 50 s of these variables


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignServer]:
    """A server with these variables."""
    with closing(ForeignServer(tmp_path_factory.mktemp("server"), variables=VARIABLES)) as server:
        yield server


def fills(run: Running) -> list[dict[str, Any]]:
    """What the facts of filled gaps say."""
    kept = [message.fact for message in run.store.messages.values()]
    return [json.loads(fact.object_json) for fact in kept if fact.predicate == "history_backfilled"]


async def lasting(server: ForeignServer, seconds: float) -> None:
    """Until the server has had values for so long, by its own account."""
    until = time.time_ns() + int(seconds * 1e9)
    await wait_until_async(lambda: server.record(NAMES[0])[-1].time_ns > until, "values at the server", 60 + seconds)


async def has_one_subscription(server: ForeignServer) -> bool:
    """Whether the server has one subscription, with an item for each variable and one for its clock."""
    return [one["items"] for one in (await server.status())["subscriptions"]] == [len(VARIABLES) + 1]


@pytest.mark.parametrize("trouble, times", [("cut", scaled(1, 2)), ("stall", scaled(1, 2))])
async def test_a_network_that_was_away_costs_no_value(
    trouble: str, times: int, server: ForeignServer, tmp_path: Path
) -> None:
    """The network is away for five seconds, once or twice, and comes back. Every value of the server's record is in the
    store once, though the server keeps no history; the gap stays declared, and a fact says that nothing is missing in
    it."""
    async with network(server.port) as net:
        source = replace(opcua(server, tmp_path, *NAMES, "still", **QUEUE), url=f"opc.tcp://127.0.0.1:{net.port}")
        async with storing(source, tmp_path) as run:
            for outage in range(1, times + 1):
                await run.wait_good("f/plain_0", len(run.store.good("f/plain_0")) + 20)
                await net.command(trouble)
                await run.wait_state("plc", State.WAITING)
                await lasting(server, 5)
                await net.command("flow")
                await wait_until_async(lambda outage=outage: len(fills(run)) >= outage, "what became of it", 60)
                said = fills(run)[-1]
                assert (said["tags_rescued"], said["tags_without_history"], said["tags"]) == (4, 0, []), said
                assert said["values_rescued"] > 3 * 20 * 4
                assert len(said["outages"]) == 1
            await run.wait_good("f/plain_0", len(run.store.good("f/plain_0")) + 20)
            assert run.source("plc").gaps_open == 0
            await wait_until_async(lambda: has_one_subscription(server), "the end of the old subscriptions")
        for name in (*NAMES, "still"):
            found = account(server, tmp_path, name)
            assert found.lost == [], f"{name}: {len(found.lost)} of {len(found.recorded)}"
            assert found.twice == [], name
            assert found.invented == [], name


async def subscriptions_are(server: ForeignServer, count: int) -> bool:
    """Whether the server has so many, all of them in the one session that is left."""
    status = await server.status()
    return (len(status["subscriptions"]), status["orphans"], status["sessions"]) == (count, 0, bool(count))


def secured(server: ForeignServer, folder: Path) -> dict[str, Any]:
    """Settings with encryption and a user."""
    (folder / "password").write_text("secret")
    (folder / "password").chmod(0o600)
    return {
        "security_policy": "Basic256Sha256",
        "security_mode": "SignAndEncrypt",
        "insecure": False,
        "certificate_file": folder / "own.der",
        "private_key_file": folder / "own.key",
        "server_certificate_file": server.certificate,
        "user_name": "ann",
        "password_file": folder / "password",
    }


async def test_nothing_is_left_at_the_server(tmp_path: Path) -> None:
    """After connections that broke and sessions that were closed there are two subscriptions, one for values and one
    for events; after a stop there is none. With encryption and a user: a server hands subscriptions to their user
    alone."""
    options: dict[str, Any] = {"policies": ["Basic256Sha256"], "accept_unknown": True, "users": {"ann": "secret"}}
    async with foreign_server(tmp_path / "server", variables=VARIABLES, **options) as server:
        settings = {"events": ("Server",), **QUEUE, **secured(server, tmp_path)}
        async with storing(opcua(server, tmp_path, *NAMES, **settings), tmp_path) as run:
            for life in (1, 2, 3):
                await run.wait_good("f/plain_0", len(run.store.good("f/plain_0")) + 20)
                await wait_until_async(lambda life=life: len(fills(run)) == life - 1, "what became of it", 60)
                await wait_until_async(lambda: subscriptions_are(server, 2), "two subscriptions")
                if life == 1:
                    await server.cut()
                elif life == 2:
                    await server.kill_sessions(with_subscriptions=False)
            assert [one["tags_rescued"] for one in fills(run)] == [3, 3]
        await wait_until_async(lambda: subscriptions_are(server, 0), "none")
        assert account(server, tmp_path, NAMES[0]).lost == []
