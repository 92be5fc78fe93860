"""The numbers with which devices say "no value": 0x8000, 0xFFFF, 0x7FFFFFFF, NaN, by maker and type.

`no_value` names them as they stand in the registers, before mask and scale. In a row they apply to its type. In a
section or device profile each applies to the types that it fits: a hexadecimal number to the types of as many bits as
its digits have, `int16:0x8000` to that type, `nan` to floats, and `sunspec` stands for the convention of SunSpec, which
SMA and others share: the lowest number of signed types, all ones of unsigned types, NaN of floats. Core.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from agent.ingest.modbus.decode import ValueType

SUNSPEC, NAN, NONE = "sunspec", "nan", "none"
_NUMBER = re.compile(r"(0x[0-9a-f]{1,16}|[+-]?[0-9]+(?:\.[0-9]+)?)")


def with_no_value(kind: ValueType, cell: str, defaults: Iterable[str]) -> ValueType:
    """The type with the "no value" numbers of a row, or without any in it, those of the section that fit. Raises
    ValueError with the reason."""
    texts = [text for text in cell.lower().replace("|", " ").split() if text]
    if texts == [NONE] or not (texts or kind.is_numeric):
        return kind
    if not kind.is_numeric:
        raise ValueError(f"is for numbers, and {kind.name} has none; leave it empty")
    patterns = frozenset((_pattern(kind, text) for text in texts) if texts else _fitting(kind, defaults))
    return _with(kind, patterns) if patterns else kind


def _fitting(kind: ValueType, defaults: Iterable[str]) -> Iterable[bytes]:
    for text in defaults:
        name, _, number = text.lower().rpartition(":")
        is_float = kind.name.startswith("float")
        if name:
            fits = name == kind.name
        elif number == NAN:
            fits = is_float
        else:
            fits = number == SUNSPEC or (len(number) - 2 == 2 * kind.size and kind.size > 1)
        if fits and (number != SUNSPEC or not kind.name.startswith("bcd")):
            yield _pattern(kind, number)


def _pattern(kind: ValueType, text: str) -> bytes:
    """The bytes of a "no value" number, most significant first. b"" is any NaN."""
    size, is_float = kind.size, kind.name.startswith("float")
    if text == SUNSPEC:
        if is_float:
            return b""
        return b"\x80" + bytes(size - 1) if kind.name.startswith("int") else b"\xff" * size
    if text == NAN:
        if not is_float:
            raise ValueError(f"names NaN, which {kind.name} does not have")
        return b""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f'{text!r} is no number; write such as 0xFFFF, -32768, nan, sunspec or none, several with "|"')
    try:
        if text.startswith("0x"):
            found = int(text, 16).to_bytes(size, "big")
        elif is_float:
            found = struct.pack(f">{kind.code}", float(text))
        elif kind.name.startswith("bcd"):
            found = int(text, 16).to_bytes(size, "big")
        else:
            found = int(text).to_bytes(size, "big", signed=kind.name.startswith("int"))
    except (OverflowError, ValueError, struct.error) as error:
        raise ValueError(f"{text!r} is no number that {kind.name} can be") from error
    (number,) = struct.unpack(f">{kind.code}", found)
    return b"" if number != number else found  # noqa: PLR0124 only NaN differs from itself


@lru_cache(1_024)  # tags with the same type share one object
def _with(kind: ValueType, patterns: frozenset[bytes]) -> ValueType:
    return replace(kind, no_value=patterns)
