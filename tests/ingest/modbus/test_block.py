"""All values of a read at once, against one value at a time."""

import math
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.decode import ORDERS, DecodeError, ValueType, decode, limited, scaled, value_type
from agent.ingest.modbus.read_plan import Read, read_of
from agent.ingest.quality import BAD_DECODING_ERROR, UNCERTAIN_ABOVE_RANGE, UNCERTAIN_BELOW_RANGE

SIZES = {"int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float32": 4, "float64": 8}
scales = st.sampled_from([1, 0.1, 0.01, -0.1, 10, 2.5, 10**9, 0.3])
offsets = st.sampled_from([0, 0, -40, 100.5])


@st.composite
def kinds(draw: st.DrawFn) -> ValueType:
    """Any type that a row can have."""
    name = draw(st.sampled_from([*SIZES, "bool", "bit0", "bit15", "bcd16", "bcd32", "string5", "float16"]))
    if name.startswith(("bool", "bit", "string")):
        return value_type(name, draw(st.sampled_from(ORDERS[2])))
    size = SIZES.get(name) or {"bcd16": 2, "bcd32": 4, "float16": 2}[name]
    mask = draw(st.integers(0, 2 ** (8 * size) - 1)) if "int" in name and draw(st.booleans()) else 0
    clamp = draw(st.sampled_from([None, None, (0.0, 100.0), (-5, 5)]))
    return value_type(name, draw(st.sampled_from(ORDERS[size])), draw(scales), draw(offsets), mask, clamp)


def same(left: object, right: object) -> bool:
    """Equality of value and type; NaN equals NaN."""
    is_nan = isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
    return type(left) is type(right) and (left == right or is_nan)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 20), kinds()), min_size=1, max_size=12), st.data())
def test_a_block_has_the_values_of_its_registers(places: list[tuple[int, ValueType]], data: st.DataObject) -> None:
    """Whatever types lie where, overlapping or with holes, the block gives for each what `decode` gives for its words,
    and a bad sample where that finds no value."""
    registers = [Register(1, Table.HOLDING, place, kind.registers, kind) for place, kind in places]
    registers.sort(key=lambda r: (r.address, r.count))
    read = read_of(registers)
    raw = data.draw(st.binary(min_size=2 * read.count, max_size=2 * read.count))
    words = struct.unpack(f">{read.count}H", raw)
    tags, times, values, qualities = BlockDecoder(read, range(len(registers))).decode(raw, 7)
    assert (tags, times) == (list(range(len(registers))), [7] * len(registers))
    for register, value, quality in zip(registers, values, qualities, strict=True):
        start = register.address - read.address
        try:
            expected = decode(register.kind, words[start : start + register.count])
        except DecodeError:
            assert (value, quality) == (None, BAD_DECODING_ERROR)
        else:
            assert same(value, expected)
            assert quality in (0, UNCERTAIN_BELOW_RANGE, UNCERTAIN_ABOVE_RANGE)


@given(st.sampled_from(sorted(SIZES)), scales, offsets, st.data())
def test_the_quick_scaling_is_the_exact_one(name: str, scale: float, offset: float, data: st.DataObject) -> None:
    """What a compiled conversion makes of a number is what `scaled` makes of it, type and last bit."""
    kind = value_type(name, ORDERS[SIZES[name]][0], scale, offset)
    raw = data.draw(st.binary(min_size=SIZES[name], max_size=SIZES[name]))
    (number,) = struct.unpack(f">{kind.code}", raw)
    words = struct.unpack(f">{kind.registers}H", raw)
    assert same(decode(kind, words), scaled(kind, number))


@given(st.sets(st.integers(0, 40), min_size=1), st.binary(min_size=6, max_size=6))
def test_bits_come_from_their_places(places: set[int], data: bytes) -> None:
    """The first coil is the lowest bit of the first byte (Modbus Application Protocol, 6.1), and holes shift none."""
    bit = value_type("bool", "AB")
    first = min(places)
    registers = tuple(Register(1, Table.COIL, place, 1, bit) for place in sorted(places))
    read = Read(1, Table.COIL, first, max(places) - first + 1, registers)
    values = BlockDecoder(read, range(len(places))).decode(data[: (read.count + 7) // 8], 0).values
    number = int.from_bytes(data, "little")
    assert values == [bool(number >> place - first & 1) for place in sorted(places)]


def test_a_value_outside_its_clamp_is_the_limit_and_uncertain() -> None:
    """NaN lies nowhere and stays; the limits themselves are inside."""
    assert limited(-0.1, 0, 100) == (0, UNCERTAIN_BELOW_RANGE)
    assert limited(100.5, 0, 100) == (100, UNCERTAIN_ABOVE_RANGE)
    assert (limited(0, 0, 100), limited(100, 0, 100)) == ((0, 0), (100, 0))
    assert math.isnan(limited(math.nan, 0, 100)[0])
