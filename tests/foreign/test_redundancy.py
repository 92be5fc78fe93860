"""Two servers of one plant: the one with the better ServiceLevel is read, and the other takes over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.concurrency import TaskGroup, timeout
from agent.ingest.opcua import source as source_module
from tests.foreign.account import account
from tests.foreign.plant import opcua, storing
from tests.foreign.process import Refused
from tests.foreign.server import ForeignServer, foreign_server
from tests.ingest.plant import Running
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua")]

VALUE = {"name": "value", "type": "Int32", "value": 0}


@asynccontextmanager
async def process_value(*servers: ForeignServer) -> AsyncIterator[None]:
    """The servers share one process value, which changes every 50 ms for the length of a block; a server that is away
    does not see it."""
    over = asyncio.Event()

    async def change() -> None:
        number = 0
        while not over.is_set():
            number += 1
            for server in servers:
                with suppress(Refused, AssertionError):  # it was killed meanwhile
                    await server.set("value", number)
            with suppress(TimeoutError):
                async with timeout(0.05):
                    await over.wait()

    async with TaskGroup() as group:
        group.create_task(change(), name="process value")
        try:
            yield
        finally:
            over.set()


async def more_values(run: Running) -> None:
    """Until more values have come."""
    await run.wait_more("f/value", 20)


async def clients(server: ForeignServer) -> int:
    """How many subscriptions the server has."""
    return len((await server.status())["subscriptions"])


async def test_the_other_server_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The better one is read from the start. When its level falls below 200, the other one is; when that one is gone,
    the first. What either server had and is not in the store lies in a gap, by the record of both."""
    monkeypatch.setattr(source_module, "LEVEL_INTERVAL_S", 0.5)
    async with (
        foreign_server(tmp_path / "first", variables=[VALUE]) as first,
        foreign_server(tmp_path / "second", variables=[VALUE]) as second,
        process_value(first, second),
    ):
        await first.service_level(210)
        source = replace(opcua(first, tmp_path, "value"), urls=(second.url,))
        async with storing(source, tmp_path) as run:
            await more_values(run)
            assert (await clients(first), await clients(second)) == (0, 1)
            await wait_until_async(lambda: run.source("plc").service_level == 255, "the level")
            await second.service_level(100)
            await wait_until_async(lambda: run.source("plc").service_level == 210, "the other server")
            await more_values(run)
            assert (await clients(first), await clients(second)) == (1, 0)
            await second.service_level(220)
            first.kill()
            await wait_until_async(lambda: run.source("plc").service_level == 220, "the other server again", 60)
            await more_values(run)
            first_record = account(first, tmp_path, "value")
        for found in (first_record, account(second, tmp_path, "value")):
            stored = {value.value for value in found.stored if value.quality == 0}
            known = [value for value in found.recorded if min(stored) <= value.value <= max(stored)]
            spans = [(gap.first_ns, gap.last_ns) for gap in found.gaps]
            lost = [value for value in known if value.value not in stored]
            undeclared = [value for value in lost if not any(begin <= value.time_ns <= end for begin, end in spans)]
            assert not undeclared, spans
        assert [gap.reason for gap in found.gaps] == ["source_lost"] * 2
