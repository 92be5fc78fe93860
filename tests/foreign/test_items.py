"""Items and subscriptions at node-opcua: limits, a subscription ended, elements of arrays, filters, polling."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from agent.ingest import recorder
from agent.ingest.opcua.subscriptions import subscription
from agent.status_codes import status_name
from tests.foreign.account import account
from tests.foreign.conftest import COUNT
from tests.foreign.plant import opcua, storing
from tests.foreign.proxy import network
from tests.foreign.server import ForeignServer, foreign_server
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]


async def test_items_are_spread_within_the_servers_limits(tmp_path: Path) -> None:
    """Fifty items at a server that takes ten in a subscription and seven in a call: each gives values; no subscription
    holds more than ten."""
    limits = {"items_per_subscription": 10, "items_per_call": 7}
    many = {"name": "many", "type": "Int32", "period_ms": 100, "count": 50}
    async with foreign_server(tmp_path / "server", variables=[many], limits=limits) as server:
        names = [f"many_{n:04}" for n in range(50)]
        async with ingesting(opcua(server, tmp_path, *names)) as run:
            for name in names:
                await run.wait_good(f"f/{name}", 3)
            assert run.source("plc").tags_bad == 0
            found = (await server.status())["subscriptions"]
            assert len(found) == 6  # nine each, and the server's clock
            assert all(len(group["queue_sizes"]) <= 10 for group in found)


async def test_a_subscription_that_the_server_ends_is_replaced(
    either_server: ForeignServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same session, with values again, and every value that was lost lies in a gap: each gap is a fact of its
    own here, so that none covers the end of the one before it."""
    monkeypatch.setattr(subscription, "ENDED_EARLY_S", 0.0)
    monkeypatch.setattr(recorder, "GAP_INTERVAL_S", 0.0)
    async with storing(opcua(either_server, tmp_path, "count"), tmp_path) as run:
        await run.wait_good("f/count", 20)
        for round_number in range(6):
            before = len(run.store.good("f/count"))
            assert await either_server.kill_subscriptions() == 1
            await run.wait_good("f/count", before + 20)
            await wait_until_async(lambda n=round_number: len(run.store.messages) > n, "a gap fact of its own")
        assert run.source("plc").connects_total == 1
    found = account(either_server, tmp_path, "count")
    assert not found.undeclared
    assert not found.twice
    assert {gap.reason for gap in found.gaps} == {"not_delivered"}


@pytest.mark.parametrize("requests", [1, 8])
async def test_a_long_line_needs_several_requests(requests: int, server: ForeignServer, tmp_path: Path) -> None:
    """Half a second each way, and queues of 0.6 s at the server: with one Publish at a time they run over, with several
    on their way no value is lost."""
    name = f"line_{requests}"
    await server.add({"name": name, "type": "Int32", "period_ms": 20})
    async with network(server.port) as net:
        settings = {"publish_requests": requests, "publishing_interval_ms": 250, "queue_size": 30}
        source = replace(opcua(server, tmp_path, name, **settings), url=f"opc.tcp://127.0.0.1:{net.port}")
        async with storing(source, tmp_path) as run:
            await run.wait_good(f"f/{name}", 3)
            await net.command("slow 0.5")
            await run.wait_more(f"f/{name}", 150)
        found = account(server, tmp_path, name)
        assert not found.undeclared
        assert bool(found.lost) == (requests == 1), len(found.lost)


async def test_elements_and_filters(server: ForeignServer, tmp_path: Path) -> None:
    """One element of an array is a plain value, several are an array, one that does not exist is bad. A server-side
    deadband keeps small moves away, and the timestamp as trigger shows a value that was written again."""
    await server.add(
        {"name": "list", "type": "Int32", "value": [10, 11, 12]},
        {"name": "level", "type": "Double", "value": 1.0},
        {"name": "again", "type": "Int32", "value": 5},
    )
    rows = [(f"list{part}", "list", part, "", "") for part in ("2", "0:1", "9")]
    rows += [("level", "level", "", "0.5", ""), ("again", "again", "", "", "status_value_timestamp")]
    tags = "tag,address,index_range,server_deadband,trigger\n"
    tags += "".join(f"f/{name},{server.address(node)},{','.join(more)}\n" for name, node, *more in rows)
    async with ingesting(opcua(server, tmp_path, tags=tags)) as run:
        await run.wait_good("f/list2")
        await run.wait_good("f/list0:1")
        assert run.store.good("f/list2")[0].value == 12
        assert repr(run.store.good("f/list0:1")[0].value) == "Json(b'[10,11]')"
        await wait_until_async(lambda: run.store.of("f/list9"), "the element that is not there")
        assert run.store.of("f/list9")[-1].quality >> 31
        for name, value in (("level", 1.2), ("level", 2.0), ("again", 5)):
            await server.set(name, value)
        await run.wait_good("f/again", 1)
        await run.wait_good("f/level", 1)
        assert [sample.value for sample in run.store.good("f/level")] == [1.0, 2.0]
        assert {sample.value for sample in run.store.good("f/again")} == {5}


async def test_a_server_is_polled(server: ForeignServer, tmp_path: Path) -> None:
    """Without any subscription: values that are the server's own, each once, and a node that vanishes and returns."""
    await server.add({"name": "polled", "type": "Int32", "period_ms": 200})
    async with storing(opcua(server, tmp_path, "polled", mode="poll", poll_interval_ms=50), tmp_path) as run:
        await run.wait_good("f/polled", 10)
        assert not (await server.status())["subscriptions"]
        await server.delete("polled")
        await wait_until_async(lambda: run.source("plc").tags_bad == 1, "the bad tag")
        await server.recreate("polled")
        await wait_until_async(lambda: run.source("plc").tags_bad == 0, "the good tag")
        await run.wait_more("f/polled", 3)
    found = account(server, tmp_path, "polled")
    assert not found.twice
    assert not found.invented


async def test_what_a_role_may_not_read_comes_back_when_it_may(
    server: ForeignServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that does not let our user read two of three tags: they are bad with its word, once, the log names them,
    and the third has values. When the user may read them, both come back over the same connection: the one that the
    server samples, and the one that stands still, of which it says nothing by itself."""
    standing, sampled = "role_standing", "role_sampled"
    await server.add({"name": standing, "type": "Int32", "value": 5})
    await server.add({"name": sampled, "type": "Int32", "value": 6, "sampling_ms": 100})
    for name in (standing, sampled):
        await server.permit(name, on=False)
    async with ingesting(opcua(server, tmp_path, "count", standing, sampled)) as run:
        await run.wait_good("f/count", 20)
        await wait_until_async(lambda: run.source("plc").tags_bad == 2, "bad tags")
        parked = [record for record in caplog.records if getattr(record, "action", "") == "tags_parked"]
        named = sorted(name for record in parked for name in re.findall(r"(\S+) \(row", getattr(record, "tags", "")))
        assert named == [f"f/{sampled}", f"f/{standing}"]
        assert {getattr(record, "status", "") for record in parked} == {"BadUserAccessDenied"}
        for name in (standing, sampled):
            await server.permit(name, on=True)
        for name, value in ((standing, 5), (sampled, 6)):
            await run.wait_good(f"f/{name}")
            found = [(status_name(sample.quality), sample.value) for sample in run.store.of(f"f/{name}")]
            assert found == [("BadUserAccessDenied", None), ("Good", value)]
        assert (run.source("plc").tags_bad, run.source("plc").connects_total) == (0, 1)


ITEMS = 150
NAMES = [f"many_{n:04}" for n in range(ITEMS)]
MANY = {"name": "many", "type": "String", "value": "x" * 1000, "count": ITEMS}


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
