"""What a device is asked for while it is explored, with a line that the test plays."""

from pathlib import Path
from typing import cast

import pytest

from agent.ingest.modbus.address import Table
from agent.ingest.modbus.explore.device import SILENT_AT_FIRST_MAX, read_registers, scan_registers
from agent.ingest.modbus.explore.register_scan import RegisterScan
from agent.ingest.modbus.line import Line, UnitSilent
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.devices import PlayedLine, register

SETTINGS = ModbusSourceSettings("plc", Path("tags.csv"), 0, hole_max=0)


async def test_a_silent_unit_is_asked_once() -> None:
    """Each value of a unit that did not answer has the reason, and only its first read has waited; the other unit is
    read."""
    device = PlayedLine(silent=lambda read: read.unit_id == 1)
    wanted = [register(0), register(500), register(900), register(0, unit_id=2)]
    answers = await read_registers(cast(Line, device), SETTINGS, wanted)
    assert [(read.unit_id, read.address) for read in device.asked] == [(1, 0), (2, 0)]
    assert {answer.register: "no answer" in answer.why for answer in answers} == {
        value: value.unit_id == 1 for value in wanted
    }


async def test_a_refused_value_costs_its_neighbours_nothing() -> None:
    """A read of four values is halved until the refused one is alone; each value comes once."""
    device = PlayedLine({2: 2})
    answers = await read_registers(cast(Line, device), SETTINGS, [register(place) for place in range(4)])
    assert [(answer.register.address, "refuses" in answer.why) for answer in answers] == [
        (0, False),
        (1, False),
        (2, True),
        (3, False),
    ]


async def test_a_scan_of_an_absent_unit_ends_early() -> None:
    """Three reads without an answer are an absent unit. A unit that has answered once is scanned to the end, because
    some devices are silent at addresses that they do not have."""
    absent = PlayedLine(silent=lambda _: True)
    with pytest.raises(UnitSilent):
        await scan_registers(
            cast(Line, absent), 1, Table.HOLDING, RegisterScan(0, 64, 4, 100), lambda _what, _left: None
        )
    assert len(absent.asked) == SILENT_AT_FIRST_MAX
    small = PlayedLine(silent=lambda read: read.end > 4)
    scan = RegisterScan(0, 64, 4, 1_000)
    await scan_registers(cast(Line, small), 1, Table.HOLDING, scan, lambda _what, _left: None)
    assert scan.addresses_left == 0
