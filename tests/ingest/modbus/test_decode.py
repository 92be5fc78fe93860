import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.decode import ORDERS, decode, value_type
from tests.ingest.modbus.devices import FORMATS, words_on_the_wire


@given(st.data())
def test_every_number_comes_back_in_every_order(data: st.DataObject) -> None:
    """Whatever bytes a device holds, in whatever order it sends them, the value is the one it means, bit for bit."""
    name = data.draw(st.sampled_from(sorted(FORMATS)))
    size = struct.calcsize(FORMATS[name])
    raw = data.draw(st.binary(min_size=size, max_size=size))
    order = data.draw(st.sampled_from(ORDERS[size]))
    (expected,) = struct.unpack(FORMATS[name], raw)
    found = decode(value_type(name, order), words_on_the_wire(raw, order))
    assert type(found) is type(expected)
    assert found == expected or (math.isnan(expected) and math.isnan(found))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, order, words, value",
    [
        # 123456.0 as float32 is 47 F1 20 00: the four orders as vendors' sheets show them
        ("float32", "ABCD", [0x47F1, 0x2000], 123456.0),
        ("float32", "CDAB", [0x2000, 0x47F1], 123456.0),
        ("float32", "BADC", [0xF147, 0x0020], 123456.0),
        ("float32", "DCBA", [0x0020, 0xF147], 123456.0),
        # the names of four bytes mean the like for two and eight
        ("uint16", "BADC", [0x3412], 0x1234),
        ("uint16", "CDAB", [0x1234], 0x1234),
        ("uint64", "CDAB", [0x0708, 0x0506, 0x0304, 0x0102], 0x0102030405060708),
        ("uint64", "DCBA", [0x0807, 0x0605, 0x0403, 0x0201], 0x0102030405060708),
        ("bool", "ABCD", [0x0100], True),
        ("bool", "ABCD", [0], False),
        ("bit0", "ABCD", [0x0001], True),
        ("bit15", "ABCD", [0x8000], True),
        ("bit15", "BADC", [0x0080], True),
        ("bcd16", "ABCD", [0x1234], 1234),
        ("bcd32", "CDAB", [0x5678, 0x1234], 12345678),
        ("string5", "ABCD", [0x4142, 0x4344, 0x4500], "ABCDE"),
        ("string6", "BADC", [0x4241, 0x4443, 0x0045], "ABCDE"),
        ("string4", "ABCD", [0x4120, 0x2020], "A"),
        ("string4", "ABCD", [0x2041, 0x2020], " A"),  # only padding is left out
    ],
)
def test_known_values(name: str, order: str, words: list[int], value: object) -> None:
    """Values as a device's manual would print them, for every type and for every order with a name."""
    found = decode(value_type(name, order), words)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "scale, offset, raw, value",
    [
        (0.1, 0, 174, 17.4),  # not 17.400000000000002
        (0.01, 0, 2300, 23.0),
        (10, 0, 7, 70),
        (10.0, 0, 7, 70.0),  # a type of its own, although 10 equals 10.0
        (1, -40, 65, 25),
        (0.5, 100, 3, 101.5),
        (2.5, 0, 3, 7.5),
        (-0.1, 0, 174, -17.4),
        (-1, 0, 65, -65),
        (-2, 0, 3, -6),
        (10**18, 0, 65535, 65535e18),
    ],
)
def test_scale_and_offset(scale: float, offset: float, raw: int, value: float) -> None:
    """Whole numbers stay whole, tenths come out as an engineer reads them, and nothing leaves the range of a column."""
    found = decode(value_type("uint16", "ABCD", scale, offset), [raw])
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "name, order, scale, what",
    [
        ("float", "ABCD", 1, "is not a type"),
        ("bit16", "ABCD", 1, "is not a type"),
        ("string0", "ABCD", 1, "is not a type"),
        ("string251", "ABCD", 1, "longer than 250"),
        ("uint32", "ACBD", 1, "is not an order of 4 bytes"),
        ("uint32", "ABCDEFGH", 1, "is not an order of 4 bytes"),
        ("string4", "ABCD", 2, None),
        ("bool", "ABCD", 2, "no scale or offset"),
    ],
)
def test_types_that_do_not_exist(name: str, order: str, scale: float, what: str | None) -> None:
    """A wrong type, order or scale is told in words before anything is read."""
    if what is None:
        value_type(name, order, scale)
        return
    with pytest.raises(ValueError, match=what):
        value_type(name, order, scale)
