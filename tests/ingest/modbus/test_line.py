"""What the answers of pymodbus mean."""

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pymodbus.exceptions import ConnectionException, ModbusIOException

from agent.ingest.errors import SourceLost
from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.line import Line, ReadRefused, UnitSilent, frame_pause_ms
from agent.ingest.modbus.plan import Read
from agent.ingest.modbus.refusal import is_about_address
from agent.settings.sources import ModbusSourceSettings

READ = Read(1, Table.HOLDING, 10, 2, (Register(1, Table.HOLDING, 10, 2, value_type("int32", "ABCD")),))


class Answering(Line):
    """A line that is connected to nothing and answers so."""

    def __init__(self, answer: object, *, is_open: bool = True) -> None:
        super().__init__(ModbusSourceSettings("meter", Path("t.csv"), 0, host="meter", timeout_ms=100))
        self.answer, self.stands = answer, is_open

    @property
    def is_open(self) -> bool:
        return self.stands

    async def _ask(self, read: Read) -> object:  # type: ignore[override]  # noqa: ARG002
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def values(*registers: int, function_code: int = 3) -> object:
    """An answer with these registers."""
    data = struct.pack(f">B{len(registers)}H", 2 * len(registers), *registers)
    return SimpleNamespace(isError=lambda: False, data=data, function_code=function_code)


def exception(code: int) -> object:
    """An answer that refuses."""
    return SimpleNamespace(isError=lambda: True, exception_code=code)


async def test_an_answer_is_as_long_as_asked() -> None:
    """Fewer or more registers than asked for, those of another table, or bytes that a count of the right size only
    announces or that have another count, are no answer, and never values."""
    assert list(await Answering(values(1, 2)).read(READ)) == [1, 2]
    cut = SimpleNamespace(isError=lambda: False, data=struct.pack(">BH", 4, 1), function_code=3)
    other_count = SimpleNamespace(isError=lambda: False, data=struct.pack(">BHH", 2, 1, 2), function_code=3)
    for found in (values(1), values(1, 2, 3), values(1, 2, function_code=4), cut, other_count):
        with pytest.raises(UnitSilent):
            await Answering(found).read(READ)


async def test_refusals_are_distinguished() -> None:
    """Those about addresses are learned from, those about the moment are not, and a gateway's say that a unit is
    silent."""
    for code in (1, 2, 3, 4, 5, 6):
        with pytest.raises(ReadRefused) as refused:
            await Answering(exception(code)).read(READ)
        assert (refused.value.code, is_about_address(code)) == (code, code <= 3)
    for code in (10, 11):
        with pytest.raises(UnitSilent):
            await Answering(exception(code)).read(READ)


def test_frames_on_a_serial_line_have_their_pause() -> None:
    """Three and a half characters, 4 ms at 9,600 baud; a constant at high speeds; nothing over TCP."""
    serial = ModbusSourceSettings("m", Path("t.csv"), 0, transport="rtu", serial_port="/dev/ttyS1", baud_rate=9_600)
    assert 4 < frame_pause_ms(serial) < 4.1
    assert frame_pause_ms(replace(serial, baud_rate=115_200)) == 1.75
    assert frame_pause_ms(replace(serial, transport="rtu_over_tcp", host="h", serial_port="")) == 0


async def test_the_longer_of_two_pauses_is_kept() -> None:
    """The silence between two frames is kept without a configured pause, and a longer configured one as well."""
    serial = ModbusSourceSettings("m", Path("t.csv"), 0, transport="rtu", serial_port="/dev/ttyS1", baud_rate=9_600)
    assert Line(serial)._pause_ms == frame_pause_ms(serial)
    assert Line(replace(serial, request_pause_ms=50))._pause_ms == 50


async def test_no_answer_on_a_standing_connection_is_a_silent_unit() -> None:
    """On one that broke, the device is lost."""
    with pytest.raises(UnitSilent):
        await Answering(ModbusIOException("no response")).read(READ)
    with pytest.raises(SourceLost):
        await Answering(ModbusIOException("no response"), is_open=False).read(READ)
    with pytest.raises(SourceLost):
        await Answering(ConnectionException("gone")).read(READ)


async def test_requests_on_a_line_take_turns() -> None:
    """Polls and probes of silent units share it. A second request before the first answer would take that for its own,
    or garble it."""
    steps = list[str]()

    class Slow(Answering):
        async def _ask(self, read: Read) -> object:  # type: ignore[override]
            steps.append("asked")
            await asyncio.sleep(0)
            steps.append("answered")
            return await super()._ask(read)

    line = Slow(values(1, 2))
    await asyncio.gather(line.read(READ), line.read(READ))
    assert steps == ["asked", "answered"] * 2
