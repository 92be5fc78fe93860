"""The line against a device with the faults that engineers report, over sockets and a serial line."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from agent.ingest.errors import SourceLost
from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line import Endpoints, Line, UnitSilent
from agent.ingest.modbus.line import line as line_module
from agent.ingest.modbus.read_plan import Read
from tests.ingest.modbus.field import field_device, line_to, settings
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system  # the device answers or is late by the real clock
UNITS = (1, 2, 3, 4, 5, 10, 17, 131)  # most of them are also numbers of functions


@pytest.mark.parametrize("kind", ["rtu", "serial"])
@pytest.mark.parametrize("fault", ["lead", "ff", "echo", "echo_bytes", "foreign", "echo,lead,foreign"])
async def test_the_answer_is_found_in_what_arrives(kind: str, fault: str) -> None:
    """For units whose numbers are also functions, and for others; over the time of several requests."""
    async with line_to(f"{kind},{fault}", timeout_ms=2_000) as line:
        for unit_id, count in itertools.product(UNITS, (1, 20)):
            read = Read(unit_id, Table.HOLDING, 3 * unit_id, count, ())
            assert list(await line.read(read)) == list(range(read.address, read.end))


async def test_late_answers_are_said_to_be_late() -> None:
    """Not that the device is silent: a longer time-out would help."""
    read = Read(1, Table.HOLDING, 0, 2, ())
    async with line_to("tcp,late=0.9:3", timeout_ms=600) as line:
        for _ in range(2):
            assert list(await line.read(read)) == [0, 1]
        with pytest.raises(UnitSilent, match=r"does not answer within 600 ms$"):
            await line.read(read)
        assert list(await line.read(read)) == [0, 1]
        with pytest.raises(UnitSilent, match="timeout_ms is too short"):
            await line.read(read)
        assert "answers come late" in line.late_text


@pytest.mark.parametrize("mode", ["tcp,once", "rtu,once"])
async def test_a_device_that_closes_after_each_answer_is_read(mode: str) -> None:
    """Each read has its own connection."""
    async with line_to(mode, timeout_ms=2_000) as line:
        for number in range(10):
            assert list(await line.read(Read(1, Table.HOLDING, number, 2, ()))) == [number, number + 1]


async def test_a_second_connection_that_is_closed_at_once_is_told_as_that() -> None:
    """Not as a device that does not answer in time."""
    with field_device("tcp,first") as port:
        made = settings("tcp", port=port, timeout_ms=5_000)
        async with Line(made) as line:
            await line.read(Read(1, Table.HOLDING, 0, 2, ()))
            with pytest.raises(SourceLost, match="closed by the device"):
                async with Line(made) as second:
                    await second.read(Read(1, Table.HOLDING, 0, 2, ()))


async def test_a_connection_that_was_closed_while_idle_is_opened_again() -> None:
    """No read fails, and it is said after the second time."""
    async with line_to("tcp,idle=0.1", timeout_ms=2_000) as line:
        read = Read(1, Table.HOLDING, 0, 2, ())
        for _ in range(3):
            for _ in range(2):
                assert list(await line.read(read)) == [0, 1]
            await wait_until_async(lambda: not line._endpoint.connection.is_open, "the end")  # type: ignore[union-attr]
        assert list(await line.read(read)) == [0, 1]
        assert "ends idle connections" in line.remarks


async def test_a_connection_that_was_forgotten_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall drops what it does not know any more. The read costs one time-out and has its value; from then on the
    connection is ended after each poll."""
    monkeypatch.setattr(line_module, "FORGOTTEN_S", 0.3)
    async with line_to("tcp,forgets=0.3", timeout_ms=300) as line:
        read = Read(1, Table.HOLDING, 0, 2, ())
        assert list(await line.read(read)) == [0, 1]
        answered_s = line._endpoint.connection.answered_s  # type: ignore[union-attr]
        await wait_until_async(lambda: asyncio.get_running_loop().time() > answered_s + 0.4, "forgetting")
        assert list(await line.read(read)) == [0, 1]
        assert "forgets idle connections" in line.remarks
        await line.end_poll()
        assert line._endpoint.connection is None
        assert list(await line.read(read)) == [0, 1]


async def test_it_is_learned_which_unit_holds_the_line() -> None:
    """A gateway waits for a unit that does not answer, and the requests to others queue: none of them is lost, and the
    next request finds the line free."""
    async with line_to("tcp,dead=3:0.5", timeout_ms=200) as line:
        for unit_id in (1, 3, 2, 4):
            read = Read(unit_id, Table.HOLDING, 10 * unit_id, 2, ())
            if unit_id == 3:
                with pytest.raises(UnitSilent):
                    await line.read(read)
            else:
                assert list(await line.read(read)) == [10 * unit_id, 10 * unit_id + 1]
        assert list(line.hold_ms) == [3]
        assert 400 < line.hold_ms[3] < 5_000
        assert "unit 3 does not answer and holds the line" in line.remarks


async def test_sources_with_one_endpoint_share_its_line() -> None:
    """A device that takes one connection gives values to both, each with its own unit; the connection lives as long as
    one of them."""
    with field_device("tcp,first") as port:
        endpoints = Endpoints()
        first, second = (settings("tcp", port=port, timeout_ms=5_000, unit_id=unit_id) for unit_id in (1, 2))
        lines = [Line(made, endpoints.of(made)) for made in (first, second)]
        async with lines[1]:
            async with lines[0]:
                found = await asyncio.gather(
                    *(line.read(Read(unit, Table.HOLDING, unit, 1, ())) for unit, line in enumerate(lines, 1))
                )
                assert [list(values) for values in found] == [[1], [2]]
                assert lines[0].is_shared
            assert list(await lines[1].read(Read(2, Table.HOLDING, 7, 1, ()))) == [7]
        assert endpoints.of(first).connection is None
        assert endpoints.of(settings("tcp", port=port + 1)) is not endpoints.of(first)
