"""A power of ten in another register, and numbers longer than a device's longest read."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.decode import by_power_of_ten
from agent.ingest.modbus.line import Line, ReadRefused
from agent.ingest.modbus.read_plan import Limits, plan_reads, read_of
from agent.ingest.quality import BAD_NO_DATA_AVAILABLE, GOOD, UNCERTAIN_ABOVE_RANGE
from agent.ingest.tags.sheet import CellError
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.devices import decoded, register_of_row

SETTINGS = ModbusSourceSettings("m", Path("t.csv"), 0, host="h")


def register(settings: ModbusSourceSettings = SETTINGS, **cells: str) -> Register:
    """The register of a row, by default one word at address 10."""
    return register_of_row(settings, **{"register": "10", "type": "uint16", **cells})


@pytest.mark.parametrize(
    "cells, words, value",
    [
        ({"scale_register": "12"}, [2315, 0, 0xFFFF], 231.5),
        ({"scale_register": "12"}, [2315, 0, 0], 2315),
        ({"scale_register": "11"}, [12, 2], 1200),
        ({"scale_register": "9"}, [0xFFFE, 2315], 23.15),
        ({"scale_register": "12", "type": "int32"}, [0xFFFF, 0xFFF6, 1], -100),
        ({"scale_register": "12", "type": "uint32", "byte_order": "CDAB"}, [1, 2, 0], 0x20001),
        ({"scale_register": "11", "byte_order": "BADC"}, [0x0B09, 0xFFFF], 231.5),
        ({"scale_register": "11", "scale": "0.001"}, [2315, 2], 231.5),
        ({"scale_register": "12", "type": "float32"}, [0x4120, 0, 1], 100.0),
    ],
)
def test_a_value_is_scaled_by_another_register(cells: dict[str, str], words: list[int], value: object) -> None:
    """Before it or after it, in the same request, in the byte order of the value; whole numbers stay whole."""
    (found,) = decoded(words, register(**cells))
    assert found == (value, GOOD)
    assert type(found[0]) is type(value)


@pytest.mark.parametrize("exponent", [0x8000, 11, 0xFFF5])
def test_a_power_that_is_none_gives_no_value(exponent: int) -> None:
    """SunSpec's "not implemented", or a register that is no scale factor."""
    assert decoded([2315, exponent], register(scale_register="11")) == [(None, BAD_NO_DATA_AVAILABLE)]


def test_no_value_and_clamp_apply_to_what_they_say() -> None:
    """The number in the register is judged before the power, the range after it."""
    scaled = register(scale_register="11", no_value="0xFFFF", clamp="0..100")
    assert decoded([0xFFFF, 1], scaled) == [(None, BAD_NO_DATA_AVAILABLE)]
    assert decoded([50, 1], scaled) == [(100, UNCERTAIN_ABOVE_RANGE)]


def test_several_values_share_a_power_and_a_read() -> None:
    """As the phases of SunSpec's inverter models do. The plan has one read, as for the registers themselves."""
    phases = [register(register=str(10 + phase), scale_register="14") for phase in range(3)]
    (read,) = plan_reads([*phases, register(register="14", type="int16")], Limits(125, 0))
    assert (read.address, read.count) == (10, 5)
    assert decoded([1, 2, 3, 0, 0xFFFF], *phases) == [(0.1, GOOD), (0.2, GOOD), (0.3, GOOD)]


@given(st.integers(-(2**31), 2**31), st.integers(-10, 10))
def test_powers_are_exact(value: int, exponent: int) -> None:
    """A decimal comes out as it would be typed."""
    assert by_power_of_ten(value, exponent) == float(f"{value}e{exponent}")


@pytest.mark.parametrize(
    "cells, why",
    [
        ({"scale_register": "200"}, "too far"),
        ({"scale_register": "x"}, "whole number"),
        ({"scale_register": "11", "offset": "1"}, "without a mask or offset"),
        ({"scale_register": "11", "mask": "0x00FF"}, "without a mask or offset"),
        ({"scale_register": "11", "type": "string2"}, "is for int, uint and float"),
        ({"scale_register": "11", "counter": "device"}, "counter"),
    ],
)
def test_what_cannot_be_scaled_is_told(cells: dict[str, str], why: str) -> None:
    """With the column."""
    with pytest.raises(CellError, match=why) as refused:
        register(**cells)
    assert refused.value.column == "scale_register"


def test_the_register_counts_as_the_value_does() -> None:
    """In the notation with the table as first digit, and only in the same table."""
    settings = ModbusSourceSettings("m", Path("t.csv"), 40_001, host="h")
    found = register(settings, register="40011", table="", scale_register="40013")
    assert (found.address, found.count) == (10, 3)
    with pytest.raises(CellError, match="is in table input"):
        register(settings, register="40011", table="", scale_register="30013")


# --- numbers longer than a read ---------------------------------------------------------------------------------------

SINGLE = ModbusSourceSettings("m", Path("t.csv"), 0, host="h", registers_per_read_max=1)


class Counting(Line):
    """A line to a 32-bit number that is read in parts; it is incremented before each of these reads."""

    def __init__(self, number: int, *increments: int, order: str = "ABCD") -> None:
        super().__init__(SINGLE)
        self.number, self.increments, self.order = number, list(increments), order
        self.asked: list[int] = []

    async def _repeated(self, read: Any) -> bytes:
        self.number += self.increments.pop(0) if self.increments else 0
        self.asked.append(read.address)
        assert read.count == 1
        words = [self.number >> 16, self.number & 0xFFFF]
        return struct.pack(">H", (words if self.order == "ABCD" else words[::-1])[read.address - 10])


async def test_a_number_is_read_in_parts() -> None:
    """One register a request, and the highest digits before and after the others."""
    (read,) = plan_reads([register(SINGLE, type="uint32")], Limits(1, 16))
    line = Counting(0x0001_0002)
    assert await line.read_bytes(read) == b"\0\1\0\2"
    assert line.asked == [10, 11, 10]


async def test_numbers_that_overlap_are_read_in_parts_together() -> None:
    """As a search reads them: all registers, not only those of the first number."""
    read = read_of([register(SINGLE, type="uint16"), register(SINGLE, type="uint32")])
    assert await Counting(0x0001_0002).read_bytes(read) == b"\0\1\0\2"


@pytest.mark.parametrize("order", ["ABCD", "CDAB"])
async def test_parts_that_do_not_belong_together_are_read_again(order: str) -> None:
    """Between both requests 0x0001FFFF becomes 0x00020000: 0x00010000 and 0x0002FFFF never were the value."""
    (read,) = plan_reads([register(SINGLE, type="uint32", byte_order=order)], Limits(1, 16))
    line = Counting(0x0001_FFFF, 0, 1, order=order)
    data = await line.read_bytes(read)
    assert BlockDecoder(read, [1]).decode(data, 0).values == [0x0002_0000]
    with pytest.raises(ReadRefused, match="busy"):
        await Counting(0, *[0x10000] * 20, order=order).read_bytes(read)
