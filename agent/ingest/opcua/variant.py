"""Values of shapes too rare for `decode`, read by asyncua and written as JSON: structures, node ids, arrays of texts.

The third module that knows asyncua. Whatever the library raises at bytes it does not understand becomes a DecodeError;
a single structure that cannot be read keeps its bytes, so that one odd node never costs the values beside it.
"""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from typing import Any

from asyncua import ua
from asyncua.common.utils import Buffer
from asyncua.ua import ua_binary
from asyncua.ua.uaerrors import UaError

from agent.ingest.opcua.decode import DecodeError
from agent.message import Json, MessageError, Value

_UNREADABLE = (  # what the library's decoder raises at bytes it does not understand
    *(UaError, MessageError, struct.error, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError),
    RecursionError,
)
EXTENSION_OBJECT = 22  # the variant type of one structure


def decode_other(data: bytes, position: int) -> tuple[Value, int]:
    """A Variant of a shape that `decode` leaves to the library."""
    buffer = Buffer(data, position)
    try:
        plain = _plain(ua_binary.variant_from_binary(buffer).Value)
        return (plain if isinstance(plain, str) else Json.of(plain)), buffer.cur_pos
    except _UNREADABLE as error:
        if data[position] == EXTENSION_OBJECT:
            return _raw_structure(data, position + 1)
        raise DecodeError(f"a value of variant type {data[position] & 0x3F} cannot be read: {error}") from error


def _raw_structure(data: bytes, position: int) -> tuple[Value, int]:
    """A structure whose inside the library cannot read. Its length is known: keep its bytes, and the values beside
    it."""
    buffer = Buffer(data, position)
    try:
        kind = ua_binary.nodeid_from_binary(buffer)
        form, length = buffer.read(1), ua_binary.Primitives.Int32.unpack(buffer)
        if form == b"\0" or length < 0:
            raise DecodeError("a structure without a length cannot be read")
        return Json.of({"TypeId": kind.to_string(), "Body": buffer.read(length).hex()}), buffer.cur_pos
    except _UNREADABLE as error:
        raise DecodeError(f"a structure cannot be read: {error}") from error


def _plain(value: Any) -> Any:
    """A library value in JSON terms: structures as objects, ids and times as text, bytes as hexadecimal text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, ua.NodeId):
        return value.to_string()
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.name != "Encoding"}
    return str(value)
