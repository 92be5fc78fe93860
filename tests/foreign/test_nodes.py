"""Nodes and their values at node-opcua: deleted and made again, bad, missing, more than their queues hold."""

import asyncio
import logging
from pathlib import Path

import pytest

from agent.settings.sources import OpcuaSourceSettings
from tests.foreign.account import account
from tests.foreign.plant import bsfg_command, opcua, storing
from tests.foreign.server import ForeignServer
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

BAD_SENSOR_FAILURE = 0x808C_0000
BAD_NODE_ID_UNKNOWN = 0x8034_0000
STALL_MS = 10_000  # what a default queue has room for


@pytest.mark.parametrize("pause", ["noticed", "at once"])
async def test_a_node_that_was_deleted_and_made_again_comes_back(
    pause: str, server: ForeignServer, tmp_path: Path
) -> None:
    """A node is deleted in a running session and made again, after our source has seen it go or before: its values come
    in again over the same connection, what was lost lies in a gap, its neighbour's values never stopped, and the count
    of bad tags goes up and down."""
    name, other = f"deleted_{pause[:2]}", f"stays_{pause[:2]}"
    await server.add(*({"name": one, "type": "Int32", "period_ms": 50} for one in (name, other)))
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
        await run.wait_good(f"f/{name}", len(run.store.good(f"f/{name}")) + 5)
        assert run.source("plc").tags_bad == 0
        assert run.source("plc").connects_total == 1
    found = account(server, tmp_path, name)
    assert not found.undeclared
    assert {gap.reason for gap in found.gaps} == {"item_refused"}
    assert not account(server, tmp_path, other).lost


async def test_a_tag_whose_last_sample_is_bad_is_counted(server: ForeignServer, tmp_path: Path) -> None:
    """A sensor that fails at a server that is well: the sample says so, the status counts the tag, until it is good."""
    await server.add({"name": "sensor", "value": 20.5}, {"name": "sensor_2", "value": 1.5})
    async with ingesting(opcua(server, tmp_path, "sensor", "sensor_2")) as run:
        await run.wait_good("f/sensor")
        await run.wait_good("f/sensor_2")
        await server.set("sensor", 0, status="BadSensorFailure")
        await run.wait_bad("f/sensor", BAD_SENSOR_FAILURE)
        await wait_until_async(lambda: run.source("plc").tags_bad == 1, "a bad tag")
        await server.set("sensor", 21.5)
        await run.wait_good("f/sensor", 1)
        await wait_until_async(lambda: run.source("plc").tags_bad == 0, "no bad tag")


async def test_parked_tags_are_named(server: ForeignServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the first twenty tags that a server refuses and counts the rest, with the status by its name; so do
    the commands that people read."""
    caplog.set_level(logging.WARNING, "agent.ingest")
    await server.add({"name": "there", "value": 1})
    ghosts = [f"ghost_{i:02}" for i in range(25)]
    async with storing(opcua(server, tmp_path, "there", *ghosts, parked_retry_ms=60_000), tmp_path) as run:
        await run.wait_good("f/there")
        await run.wait_bad("f/ghost_24", BAD_NODE_ID_UNKNOWN)
        assert run.source("plc").tags_bad == 25
    (parked,) = [record.__dict__ for record in caplog.records if getattr(record, "action", "") == "tags_parked"]
    text = repr(parked)
    assert parked["count"] == 25
    assert "BadNodeIdUnknown" in text
    assert "80340000" not in text.upper()
    assert [name for name in ghosts if name in text] == ghosts[:20]
    output = await printed("latest", "--file", tmp_path / "facts.db", "*ghost_00")
    assert "BadNodeIdUnknown" in output


async def printed(*arguments: object) -> str:
    """What `bsfg` prints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*bsfg_command(*arguments), stdout=pipe)
    output, _ = await process.communicate()
    return output.decode()


async def test_an_overflow_is_counted_in_values(server: ForeignServer, tmp_path: Path) -> None:
    """The server's queue overflows at each publication of a variable that changes fifty times a second. The gap facts
    tell no more values than are missing, by the server's record, and not a few percent of them: the values come on a
    grid of time, by which they can be counted. Each count is a lower bound, and marked as one."""
    await server.add({"name": "fast", "type": "Int32", "period_ms": 20})
    async with storing(opcua(server, tmp_path, "fast", publishing_interval_ms=1_000, queue_size=5), tmp_path) as run:
        await run.wait_good("f/fast", 20)
    found = account(server, tmp_path, "fast")
    overflows = [gap for gap in found.gaps if gap.reason == "server_queue_overflow"]
    told, missing = sum(gap.count for gap in overflows), len(found.lost)
    assert missing > 50, "the queue did not overflow"
    assert not found.undeclared
    assert told <= missing
    assert told >= missing // 2
    assert not any(gap.count_exact for gap in overflows)


async def test_the_default_queue_has_room_for_a_stall(server: ForeignServer, tmp_path: Path) -> None:
    """With default settings, the server's queue of an item holds what is sampled in ten seconds."""
    await server.add({"name": "usual", "value": 1, "sampling_ms": 100})
    file = tmp_path / "plc.csv"
    file.write_text(server.tags("usual"))
    plain = {"security_policy": "None", "security_mode": "None", "insecure": True}
    source = OpcuaSourceSettings("plc", server.url, file, **plain)  # type: ignore[arg-type]
    async with ingesting(source) as run:
        await run.wait_good("f/usual")
        (subscription,) = (await server.status())["subscriptions"]
        assert max(subscription["queue_sizes"]) >= STALL_MS / source.sampling_interval_ms
