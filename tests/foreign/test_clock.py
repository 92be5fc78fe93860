"""A foreign server whose clock jumps ahead and back: what is newest, and how a time in the future is shown."""

import time
from pathlib import Path

import pytest

from tests.foreign.account import account
from tests.foreign.plant import opcua, storing
from tests.foreign.server import ForeignServer
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

HOUR_MS = 3_600_000


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
