"""A foreign server whose clock jumps ahead and back: what is newest, and how a time in the future is shown."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.lifecycle import State
from tests.foreign.account import account
from tests.foreign.plant import bsfg_command, opcua, storing
from tests.foreign.server import ForeignServer
from tests.ingest.plant import Running
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

HOUR_MS = 3_600_000


async def latest(folder: Path, tag: str) -> dict[str, Any]:
    """The row of `bsfg latest --json` for a tag."""
    command = bsfg_command("latest", "--json", "--file", folder / "facts.db", tag)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    (line,) = output.splitlines()
    return dict(json.loads(line))


async def wait_value(run: Running, tag: str, value: int) -> None:
    """Until a tag's last sample has this value."""
    await wait_until_async(lambda: [s.value for s in run.store.of(tag)][-1:] == [value], f"{tag} = {value}")


async def test_the_newest_value_after_a_clock_jump(server: ForeignServer, tmp_path: Path) -> None:
    """A server's clock is set an hour ahead and back, with a value at each time. The latest value is the one that came
    last, although one before it bears a later time; and a time in the future is not shown as if it were nothing."""
    await server.add({"name": "mode", "type": "Int32", "value": 1})
    async with storing(opcua(server, tmp_path, "mode"), tmp_path) as run:
        await wait_value(run, "f/mode", 1)
        await server.shift_clock(HOUR_MS)
        await server.set("mode", 2)
        await wait_value(run, "f/mode", 2)
    ahead = await latest(tmp_path, "f/mode")
    async with storing(opcua(server, tmp_path, "mode"), tmp_path) as run:
        await run.wait_state("plc", State.CONNECTED)  # the value that stands is in the store already
        await server.shift_clock(0)
        await server.set("mode", 3)
        await wait_value(run, "f/mode", 3)
    back = await latest(tmp_path, "f/mode")
    assert ahead["value"] == 2
    assert ahead["ahead_ms"] > HOUR_MS - 600_000, "the row says how far its time is in the future"
    assert back["value"] == 3
    assert not back["ahead_ms"]


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
            await run.wait_good("f/count", len(run.store.good("f/count")) + 10)
        assert run.source("plc").connects_total == 1
    found = account(either_server, tmp_path, "count")
    assert not found.lost
    assert not found.twice
    assert not found.gaps
