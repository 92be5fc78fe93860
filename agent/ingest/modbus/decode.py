"""Decodes the 16-bit registers of a device into values.

A value of two, four or eight bytes takes one, two or four registers. Vendors differ in the order of the registers and
of the bytes inside one. An order is written as the letters of the bytes in the order in which they arrive; A is the
most significant byte. ABCD is the order of the standard (Modbus Application Protocol 4.2), CDAB has the words swapped,
BADC the bytes inside each word, DCBA both. Eight bytes have the four orders that follow from these, and EFGHABCD and
CDABGHEF, which swap the halves, or the words inside each half.

A number may be part of a register (`mask`), is scaled, and may be limited to a range (`clamp`). A value outside the
range is stored as the limit, with the status UncertainEngineeringUnitsExceeded and the limit bits (OPC 10000-4,
7.39.1). A number with which the device says that it has none (`no_value`) is no value.

A text has an encoding, with one or two characters a register. Padding around it is left out: NUL, blanks, and 0xFF
bytes. What cannot be decoded is no value, never a part of the text.

Core. Bytes that cannot be decoded raise DecodeError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from agent.ingest import quality
from agent.message import Value

TYPE = re.compile(
    r"(bool|bit(?:1[0-5]|[0-9])|u?int(?:8|16|32|64)|float(?:16|32|64)|bcd(?:16|32)|string[1-9][0-9]{0,2})"
)
STRING_BYTES_MAX = 250  # of one read
EXPONENT_MAX = 10  # SunSpec Information Model, sunssf: -10 to 10
SHARED_MAX = 1_024  # types kept; beyond it a type may be made twice

_FORMATS = {
    "int8": ">b",
    "uint8": ">B",
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

_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}  # by bytes

UTF_8 = "utf-8"
ENCODINGS = {
    UTF_8: UTF_8,
    "latin-1": "latin-1",
    "utf-16": "utf-16-be",
    "low-byte": "latin-1",  # one character a register, in its low byte
    "high-byte": "latin-1",
    "c-string": UTF_8,  # ends at the first NUL; what follows is left over from longer texts
}

# The four orders of four bytes, for values of other sizes.
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
    """These registers cannot be decoded as the type."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type and everything needed to read it. `order` gives the position on the wire of each byte of the value."""

    name: str
    registers: int
    order_name: str
    order: tuple[int, ...]
    scale: int | float = 1
    offset: int | float = 0
    mask: int = 0  # bits that are the value; 0: all
    clamp: tuple[float, float] | None = None  # lowest and highest value after scaling
    no_value: frozenset[bytes] = frozenset()  # bytes in order that are no value; b"" is any NaN
    encoding: str = ""  # of a string
    value_at: int = 0  # registers between the beginning of what is read and the value
    exponent_at: int | None = None  # the same for the register with the power of ten; None: there is none

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.order)

    @property
    def is_numeric(self) -> bool:
        """Whether scale, offset and clamp are possible."""
        return self.name in _FORMATS or self.name.startswith("bcd")

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer before scaling."""
        return "int" in self.name or self.name.startswith("bcd")

    @property
    def may_fail(self) -> bool:
        """Whether its conversion may raise DecodeError."""
        return bool(self.encoding) or self.name.startswith("bcd")

    @property
    def modulus(self) -> int:
        """The number of readings that an integer of this type can have."""
        if self.mask:
            return 1 << (self.mask.bit_length() - (self.mask & -self.mask).bit_length() + 1)
        return int(10 ** (2 * self.size)) if self.name.startswith("bcd") else int(2 ** (8 * self.size))

    @property
    def code(self) -> str:
        """The struct code of the bytes in order. For bits and decimal digits it is that of the unsigned number that
        holds them."""
        if self.encoding:
            return f"{2 * self.registers}s"
        is_number = self.name in _FORMATS and not self.mask
        return _FORMATS[self.name][1:] if is_number else _UNSIGNED[self.size]


@lru_cache(SHARED_MAX, typed=True)  # tags with the same type share one object
def value_type(
    name: str,
    order: str,
    scale: float = 1,
    offset: float = 0,
    mask: int = 0,
    clamp: tuple[float, float] | None = None,
) -> ValueType:
    """The type with this name and byte order. Raises ValueError with the reason.

    `order` is one of the four orders of four bytes, for any type, or an order of the type's own size.
    """
    name = name.lower()
    if not TYPE.fullmatch(name):
        raise ValueError(
            "is not a type; known are bool, bit0 to bit15, (u)int8/16/32/64, float16/32/64, bcd16/32, string<bytes>"
        )
    size = _size(name)
    if mask and "int" not in name:
        raise ValueError(f"is {name}, which has no mask; a mask is for int and uint types")
    if mask >> 8 * size:
        raise ValueError(f"has more bits in its mask than the {8 * size} of {name}")
    if clamp is not None and name.startswith(("string", "bool", "bit")):
        raise ValueError(f"is {name}, which cannot be clamped; leave clamp empty")
    if name.startswith("string"):
        if size > STRING_BYTES_MAX:
            raise ValueError(f"is longer than {STRING_BYTES_MAX} bytes, the most one read carries")
        swapped = _FAMILY[2].get(order, order) == "BA"
        places = tuple(i ^ 1 if swapped else i for i in range(size + size % 2))
        return ValueType(name, len(places) // 2, "BA" if swapped else "AB", places, encoding=UTF_8)
    if size == 1:  # the low byte of a register, or with BA the high one
        swapped = _FAMILY[2].get(order, order) == "BA"
        return ValueType(name, 1, "BA" if swapped else "AB", (0 if swapped else 1,), scale, offset, mask, clamp)
    full = _FAMILY[size].get(order, order)
    if full not in ORDERS[size]:
        raise ValueError(f"is not an order of {size} bytes; known are {', '.join(ORDERS[size])}")
    places = tuple(full.index(letter) for letter in "ABCDEFGH"[:size])
    found = ValueType(name, size // 2, full, places, scale, offset, mask, clamp)
    if (scale, offset) != (1, 0) and not found.is_numeric:
        raise ValueError(f"is {name}, which has no scale or offset; leave both empty")
    return found


@lru_cache(SHARED_MAX)
def with_encoding(kind: ValueType, encoding: str) -> ValueType:
    """A string in this encoding. Raises ValueError with the reason."""
    if not kind.encoding:
        raise ValueError(f"is for strings, and the type is {kind.name}; leave it empty")
    return replace(kind, encoding=encoding)


@lru_cache(SHARED_MAX)
def with_exponent(kind: ValueType, value_at: int, exponent_at: int) -> ValueType:
    """A number whose power of ten is in another register of the same read. Raises ValueError with the reason."""
    if kind.name not in _FORMATS or kind.mask or kind.offset:
        raise ValueError("is for int, uint and float types without a mask or offset")
    return replace(kind, value_at=value_at, exponent_at=exponent_at)


def decode(kind: ValueType, registers: Sequence[int]) -> Value:
    """The value in these registers. Raises DecodeError."""
    assert len(registers) == kind.registers, "as many registers as the type has"
    wire = struct.pack(f">{len(registers)}H", *registers)
    (raw,) = struct.unpack(f">{kind.code}", bytes([wire[place] for place in kind.order]))
    convert = converter(kind)
    value = raw if convert is None else convert(raw)
    return value if kind.clamp is None else limited(value, *kind.clamp)[0]


def converter(kind: ValueType) -> Callable[[Any], Value] | None:
    """The function that converts what `kind.code` has unpacked into the value; None if nothing is to be converted. If
    the type `may_fail`, it may raise DecodeError."""
    if kind.encoding:
        return partial(_text, kind.encoding, int(kind.name[6:]))
    if kind.name == "bool":
        return bool
    if kind.name.startswith("bit"):
        place = int(kind.name[3:])
        return lambda word: bool(word >> place & 1)
    scale = _scaler(kind)
    if kind.name.startswith("bcd"):
        return lambda word: scale(_digits(kind, word))
    if kind.mask:
        mask, shift = kind.mask, (kind.mask & -kind.mask).bit_length() - 1
        if kind.name.startswith("int"):  # the highest bit of the mask is the sign
            sign = 1 << (kind.mask >> shift).bit_length() - 1
            return lambda word: scale((((word & mask) >> shift) ^ sign) - sign)
        return lambda word: scale((word & mask) >> shift)
    return None if (kind.scale, kind.offset) == (1, 0) else scale


def absence(kind: ValueType) -> Callable[[Any], bool]:
    """The function that tells whether what `kind.code` has unpacked is no value."""
    if not kind.name.startswith("float"):
        return frozenset(struct.unpack(f">{kind.code}", pattern)[0] for pattern in kind.no_value).__contains__
    pack, patterns = struct.Struct(f">{kind.code}").pack, kind.no_value  # bits, because -0.0 equals 0.0
    return lambda number: pack(number) in patterns or (b"" in patterns and number != number)  # noqa: PLR0124 NaN


def limited(value: Any, low: float, high: float) -> tuple[Any, int]:
    """A number limited to a range, and its status. NaN is returned unchanged."""
    if value < low:
        return low, quality.UNCERTAIN_BELOW_RANGE
    if value > high:
        return high, quality.UNCERTAIN_ABOVE_RANGE
    return value, quality.GOOD


def by_power_of_ten(value: float, exponent: int) -> int | float:
    """value * 10^exponent. A whole number stays one if the exponent is not negative. Raises DecodeError."""
    if abs(exponent) > EXPONENT_MAX:
        raise DecodeError(f"10^{exponent} is no scale")
    power: int = 10 ** abs(exponent)
    if exponent < 0:
        return value / power
    result = value * power
    is_large = isinstance(result, int) and not -(2**63) <= result < 2**64
    return float(result) if is_large else result


def _digits(kind: ValueType, word: int) -> int:
    digits = f"{word:0{2 * kind.size}x}"
    if not digits.isdigit():
        raise DecodeError(f"{digits} is not binary coded decimal")
    return int(digits)


def _scaler(kind: ValueType) -> Callable[[float], int | float]:
    """`scaled`, without the checks that this type does not need."""
    scale, offset, divisor = kind.scale, kind.offset, _divisor(kind.scale)
    largest = 2 ** (8 * kind.size) * abs(scale) + abs(offset)
    if largest >= 2**63:
        return partial(scaled, kind)
    return (lambda number: number / divisor + offset) if divisor else (lambda number: number * scale + offset)


def scaled(kind: ValueType, number: float) -> int | float:
    """number * scale + offset. An integer stays an integer if scale and offset are integers."""
    if kind.scale == 1 and kind.offset == 0:
        return number
    result = _times(number, kind.scale) + kind.offset
    if isinstance(result, int) and not -(2**63) <= result < 2**64:
        return float(result)  # too large for an integer column; a float keeps 53 bits
    return result


def _times(number: float, scale: float) -> int | float:
    """number * scale. A scale of 0.1 divides by 10, because 174 / 10 is 17.4 and 174 * 0.1 is 17.400000000000002."""
    divisor = _divisor(scale)
    return number / divisor if divisor else number * scale


def _divisor(scale: float) -> int:
    """The integer of which the scale is the reciprocal; 0 if there is none."""
    divisor = round(1 / scale) if abs(scale) < 1 else 0
    return divisor if divisor and 1 / divisor == scale else 0


def _size(name: str) -> int:
    if name.startswith("string"):
        return int(name[6:])
    if name.startswith(("bool", "bit")):
        return 2
    return int(name.lstrip("uintfloabcd")) // 8


def _text(encoding: str, size: int, data: bytes) -> str:
    """A text without its padding. Raises DecodeError."""
    data = data[:size]
    match encoding:
        case "low-byte" | "high-byte":
            first = 1 if encoding == "low-byte" else 0
            if data[1 - first :: 2].strip(b"\0\xff "):
                raise DecodeError(f"{data.hex(' ')} has characters in both bytes of its registers")
            data = data[first::2].strip(b"\0\xff")
        case "utf-16":
            while data[-2:] in (b"\0\0", b"\xff\xff"):
                data = data[:-2]
            while data[:2] in (b"\0\0", b"\xff\xff"):
                data = data[2:]
        case "c-string":
            data = data.split(b"\0", 1)[0].rstrip(b"\xff")
        case _:
            data = data.strip(b"\0\xff")
    try:
        text = data.decode(ENCODINGS[encoding]).rstrip(" ")
    except UnicodeDecodeError as error:
        raise DecodeError(f"{data.hex(' ')} is not {encoding}: {error.reason}") from error
    if "\0" in text:
        raise DecodeError(f"{data.hex(' ')} has a NUL inside; other encodings are {', '.join(ENCODINGS)}")
    return text
