"""Nodes and their values at node-opcua: deleted and made again, bad, missing, more than their queues hold."""

from pathlib import Path

import pytest

from tests.foreign.account import account
from tests.foreign.plant import opcua, storing
from tests.foreign.server import ForeignServer
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

BAD_SENSOR_FAILURE = 0x808C_0000
BAD_NODE_ID_UNKNOWN = 0x8034_0000


@pytest.mark.parametrize("pause", ["noticed", "at once"])
async def test_a_node_that_was_deleted_and_made_again_comes_back(
    pause: str, server: ForeignServer, tmp_path: Path
) -> None:
    """A node is deleted in a running session and made again, after our source has seen it go or before: its values come
    in again over the same connection, what was lost lies in a gap, its neighbour's values never stopped, and the count
    of bad tags goes up and down."""
    name, other = f"deleted_{pause[:2]}", f"stays_{pause[:2]}"
    await server.add(*({"name": variable, "type": "Int32", "period_ms": 50} for variable in (name, other)))
    async with storing(opcua(server, tmp_path, name, other), tmp_path) as run:
        await run.wait_good(f"f/{name}", 3)
        assert run.source("plc").tags_bad == 0
        await server.delete(name)
        if pause == "noticed":
            await wait_until_async(lambda: run.store.of(f"f/{name}")[-1].quality >> 31, "the node's end")
            await wait_until_async(lambda: run.source("plc").tags_bad == 1, "a bad tag")
        await server.recreate(name)
        made_again = server.record(name)[-1].time_ns
        await wait_until_async(
            lambda: run.store.good(f"f/{name}")[-1].source_time_ns >= made_again, "values of the new node"
        )
        await run.wait_more(f"f/{name}", 5)
        assert run.source("plc").tags_bad == 0
        assert run.source("plc").connects_total == 1
    found = account(server, tmp_path, name)
    assert not found.undeclared
    assert {gap.reason for gap in found.gaps} == {"item_gone"}
    assert not account(server, tmp_path, other).lost


async def test_an_overflow_is_declared(server: ForeignServer, tmp_path: Path) -> None:
    """The server's queue overflows at each publication of a variable that changes fifty times a second: what is missing
    by the server's record lies in gaps, whose count is not known."""
    await server.add({"name": "fast", "type": "Int32", "period_ms": 20})
    async with storing(opcua(server, tmp_path, "fast", publishing_interval_ms=1_000, queue_size=5), tmp_path) as run:
        await run.wait_good("f/fast", 20)
    found = account(server, tmp_path, "fast")
    assert len(found.lost) > 50, "the queue did not overflow"
    assert not found.undeclared
    assert {(gap.reason, gap.count, gap.count_exact) for gap in found.gaps} == {("server_queue_overflow", 0, False)}
