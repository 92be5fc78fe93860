"""Registers to values: what the 16-bit words of a device mean.

A value of two, four or eight bytes is spread over one, two or four registers, and vendors agree neither on the order of
the registers nor on the order of the bytes inside one. An order is written as the letters of the value's bytes, A being
the most significant, as they come on the wire: ABCD is the standard's order (Modbus Application Protocol 4.2), CDAB has
the words swapped, BADC the bytes inside each word, DCBA both. Eight bytes have the four that follow from these and two
more, EFGHABCD and CDABGHEF, that keep order within halves or swap within them.

Core: tables and struct formats. It will not repair: bytes that are no value raise DecodeError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from agent.message import Value

TYPE = re.compile(r"(bool|bit(?:1[0-5]|[0-9])|u?int(?:16|32|64)|float(?:16|32|64)|bcd(?:16|32)|string[1-9][0-9]{0,2})")
STRING_BYTES_MAX = 250  # what one read can carry

_FORMATS = {
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "uint64": ">Q",
    "float16": ">e",
    "float32": ">f",
    "float64": ">d",
}

# What the four names of four bytes mean for values of other sizes.
_FAMILY: dict[int, dict[str, str]] = {
    2: {"ABCD": "AB", "CDAB": "AB", "BADC": "BA", "DCBA": "BA"},
    4: {order: order for order in ("ABCD", "CDAB", "BADC", "DCBA")},
    8: {"ABCD": "ABCDEFGH", "CDAB": "GHEFCDAB", "BADC": "BADCFEHG", "DCBA": "HGFEDCBA"},
}
ORDERS: dict[int, tuple[str, ...]] = {
    2: ("AB", "BA"),
    4: ("ABCD", "CDAB", "BADC", "DCBA"),
    8: ("ABCDEFGH", "GHEFCDAB", "BADCFEHG", "HGFEDCBA", "EFGHABCD", "CDABGHEF"),
}


class DecodeError(ValueError):
    """These registers hold no value of the type."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type and everything needed to read it. `order` gives, for each byte of the value, its place on the wire."""

    name: str
    registers: int
    order_name: str
    order: tuple[int, ...]
    scale: int | float = 1
    offset: int | float = 0

    @property
    def is_numeric(self) -> bool:
        """Whether scale and offset make sense."""
        return self.name in _FORMATS or self.name.startswith("bcd")


def value_type(name: str, order: str, scale: float = 1, offset: float = 0) -> ValueType:
    """The type of this name and byte order. Raises ValueError that says what is wrong with either.

    `order` may be one of the four names of four bytes for any type, or a full order of the type's own size.
    """
    name = name.lower()
    if not TYPE.fullmatch(name):
        raise ValueError(
            "is not a type; known are bool, bit0 to bit15, (u)int16/32/64, float16/32/64, bcd16/32, string<bytes>"
        )
    size = _size(name)
    if name.startswith("string"):
        if size > STRING_BYTES_MAX:
            raise ValueError(f"is longer than {STRING_BYTES_MAX} bytes, the most one read carries")
        swapped = _FAMILY[2].get(order, order) == "BA"
        places = tuple(i ^ 1 if swapped else i for i in range(size + size % 2))
        return ValueType(name, len(places) // 2, "BA" if swapped else "AB", places)
    full = _FAMILY[size].get(order, order)
    if full not in ORDERS[size]:
        raise ValueError(f"is not an order of {size} bytes; known are {', '.join(ORDERS[size])}")
    places = tuple(full.index(letter) for letter in "ABCDEFGH"[:size])
    found = ValueType(name, size // 2, full, places, scale, offset)
    if (scale, offset) != (1, 0) and not found.is_numeric:
        raise ValueError(f"is {name}, which has no scale or offset; leave both empty")
    return found


def decode(kind: ValueType, registers: Sequence[int]) -> Value:
    """The value in these registers."""
    assert len(registers) == kind.registers, "the plan hands out what the type asked for"
    wire = struct.pack(f">{len(registers)}H", *registers)
    data = bytes([wire[place] for place in kind.order])
    if kind.name in _FORMATS:
        (number,) = struct.unpack(_FORMATS[kind.name], data)
        return scaled(kind, number)
    if kind.name.startswith("string"):
        return _text(data[: int(kind.name[6:])])
    word = int.from_bytes(data, "big")
    if kind.name == "bool":
        return word != 0
    if kind.name.startswith("bit"):
        return bool(word >> int(kind.name[3:]) & 1)
    assert kind.name.startswith("bcd"), kind.name
    digits = data.hex()
    if not digits.isdigit():
        raise DecodeError(f"{digits} is not binary coded decimal")
    return scaled(kind, int(digits))


def scaled(kind: ValueType, number: float) -> int | float:
    """Value * scale + offset; integers stay integers as long as both are whole."""
    if kind.scale == 1 and kind.offset == 0:
        return number
    result = _times(number, kind.scale) + kind.offset
    if isinstance(result, int) and not -(2**63) <= result < 2**64:
        return float(result)  # beyond what an integer column holds; a float says it with 53 bits
    return result


def _times(number: float, scale: float) -> int | float:
    """number * scale; by a tenth as a division by ten, for 174 / 10 is 17.4 and 174 * 0.1 is 17.400000000000002."""
    divisor = round(1 / scale) if abs(scale) < 1 else 0
    return number / divisor if divisor and 1 / divisor == scale else number * scale


def _size(name: str) -> int:
    if name.startswith("string"):
        return int(name[6:])
    if name.startswith(("bool", "bit")):
        return 2
    return int(name.lstrip("uintfloabcd")) // 8


def _text(data: bytes) -> Value:
    """A string as devices store it: padded with NUL or blanks. What is not UTF-8 is kept as bytes, not mangled."""
    data = data.split(b"\0", 1)[0].rstrip(b" ")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
