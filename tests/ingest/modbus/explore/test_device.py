"""What a device is asked for while it is explored, with a line that answers as it likes."""

from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest

from agent.ingest.modbus.address import Table
from agent.ingest.modbus.explore.device import SILENT_AT_FIRST_MAX, read_registers, scan_registers
from agent.ingest.modbus.explore.register_scan import RegisterScan
from agent.ingest.modbus.line import Line, ReadRefused, UnitSilent
from agent.ingest.modbus.read_plan import Read
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.devices import register

SETTINGS = ModbusSourceSettings("plc", Path("tags.csv"), 0, hole_max=0)


class Answers:
    """A line on which some units are silent from an address on, and some addresses are refused. `reads` are the unit
    and the first address of each read."""

    def __init__(self, silent: Collection[int] = (), refused: Collection[int] = (), silent_from: int = 0) -> None:
        self._silent, self._refused, self._silent_from = silent, refused, silent_from
        self.reads: list[tuple[int, int]] = []

    async def read_bytes(self, read: Read) -> bytes:
        self.reads.append((read.unit_id, read.address))
        if read.unit_id in self._silent and read.end > self._silent_from:
            raise UnitSilent(f"unit {read.unit_id} does not answer")
        if not set(range(read.address, read.end)).isdisjoint(self._refused):
            raise ReadRefused(read, 2)
        return bytes(2 * read.count)

    read = read_bytes

    @property
    def line(self) -> Line:
        return cast(Line, self)


async def test_a_silent_unit_is_asked_once() -> None:
    """Each value of a unit that did not answer has the reason, and only its first read has waited; the other unit is
    read."""
    device = Answers(silent=[1])
    wanted = [register(0), register(500), register(900), register(0, unit_id=2)]
    answers = await read_registers(device.line, SETTINGS, wanted)
    assert device.reads == [(1, 0), (2, 0)]
    assert {answer.register: "does not answer" in answer.why for answer in answers} == {
        value: value.unit_id == 1 for value in wanted
    }


async def test_a_refused_value_costs_its_neighbours_nothing() -> None:
    """A read of four values is halved until the refused one is alone; each value comes once."""
    device = Answers(refused=[2])
    answers = await read_registers(device.line, SETTINGS, [register(place) for place in range(4)])
    assert [(answer.register.address, "refuses" in answer.why) for answer in answers] == [
        (0, False),
        (1, False),
        (2, True),
        (3, False),
    ]


async def test_a_scan_of_an_absent_unit_ends_early() -> None:
    """Three reads without an answer are an absent unit. A unit that has answered once is scanned to the end, because
    some devices are silent at addresses that they do not have."""
    absent = Answers(silent=[1])
    with pytest.raises(UnitSilent):
        await scan_registers(absent.line, 1, Table.HOLDING, RegisterScan(0, 64, 4, 100), lambda _what, _left: None)
    assert len(absent.reads) == SILENT_AT_FIRST_MAX
    small = Answers(silent=[1], silent_from=4)
    scan = RegisterScan(0, 64, 4, 1_000)
    await scan_registers(small.line, 1, Table.HOLDING, scan, lambda _what, _left: None)
    assert scan.addresses_left == 0
