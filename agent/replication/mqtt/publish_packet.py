"""The PUBLISH packet of MQTT 5, as far as this protocol uses it: encodes properties, parses packets.

Core. paho's own handling of properties takes longer than the rest of this package for a small message, and copies a
large one six times. Only the fields that this protocol sends and the one kind of packet that it receives are supported
(MQTT 5.0, 3.3). A test compares both directions with paho.
"""

from __future__ import annotations

import struct

from agent.replication.mqtt.carrier import Incoming

EXPIRY, RESPONSE_TOPIC, CORRELATION = 0x02, 0x08, 0x09
_RETAIN_FLAG, _QOS_MASK = 0x01, 0x06
_ONE, _FOUR, _DATA, _PAIR, _VARINT = range(5)
# MQTT 5.0, 2.2.2.2: properties allowed in a PUBLISH, and their types. Not the topic alias: we offer the broker none.
_KINDS = {
    0x01: _ONE, EXPIRY: _FOUR, 0x03: _DATA, RESPONSE_TOPIC: _DATA, CORRELATION: _DATA, 0x0B: _VARINT, 0x26: _PAIR
}  # fmt: skip
_FIXED_BYTES = {_ONE: 1, _FOUR: 4}
_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
VARINT_BYTES_MAX = 4
PROPERTIES_BYTES_MAX = 4096
"""Of one message. Ours need 300; the rest is for user properties that others add. A megabyte of them is 200,000, which
take a fifth of a second to parse, in the thread that all nodes share."""


class BadPacket(ValueError):
    """Bytes that are not a valid PUBLISH."""


class PackedProperties:
    """Encoded properties with the method `pack`, the only one that paho calls."""

    __slots__ = ("_packed",)

    def __init__(self, correlation: bytes, expiry_s: int, response_topic: str | None = None) -> None:
        parts = [bytes([EXPIRY]), _U32.pack(expiry_s), bytes([CORRELATION]), _U16.pack(len(correlation)), correlation]
        if response_topic is not None:
            topic = response_topic.encode()
            parts += [bytes([RESPONSE_TOPIC]), _U16.pack(len(topic)), topic]
        body = b"".join(parts)
        self._packed = _varint(len(body)) + body

    def pack(self) -> bytes:
        return self._packed


def parse_publish(command: int, packet: bytes | bytearray) -> tuple[Incoming, int]:
    """Message and QoS of a PUBLISH. `command` is its first byte, `packet` follows its length. More than
    PROPERTIES_BYTES_MAX of properties are ignored, so such a message belongs to no request and demands no answer.
    Raises BadPacket."""
    view = memoryview(packet)
    try:
        topic, at = _data(view, 0)
        qos = (command & _QOS_MASK) >> 1
        if qos:
            at += 2  # the packet identifier
        length, at = _read_varint(view, at)
        end = at + length
        found = _properties(view[:end], at) if length <= PROPERTIES_BYTES_MAX else {}
        expiry = found.get(EXPIRY)
        answer_to = found.get(RESPONSE_TOPIC)
        correlation = found.get(CORRELATION)
        incoming = Incoming(
            str(topic, "utf-8"),
            bytes(view[end:]),
            None if answer_to is None else str(answer_to, "utf-8"),
            None if correlation is None else bytes(correlation),
            None if expiry is None else _U32.unpack(expiry)[0],
            bool(command & _RETAIN_FLAG),
        )
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise BadPacket(f"malformed PUBLISH: {error}") from error
    if end > len(packet):
        raise BadPacket("malformed PUBLISH: properties beyond its end")
    return incoming, qos


def _properties(view: memoryview, at: int) -> dict[int, memoryview]:
    """The properties from `at` to the end of `view`; of several of one kind, the last counts."""
    found = {}
    while at < len(view):
        identifier = view[at]
        kind = _KINDS.get(identifier)
        at += 1
        if kind is None:
            raise BadPacket(f"malformed PUBLISH: property {identifier:#x} is not allowed in a PUBLISH")
        if kind == _VARINT:
            _, at = _read_varint(view, at)
        elif kind == _PAIR:
            _, at = _data(view, at)
            _, at = _data(view, at)
        elif kind == _DATA:
            found[identifier], at = _data(view, at)
        else:
            size = _FIXED_BYTES[kind]
            found[identifier] = view[at : at + size]
            at += size
    if at > len(view):
        raise BadPacket("malformed PUBLISH: a property beyond the end")
    return found


def _data(view: memoryview, at: int) -> tuple[memoryview, int]:
    (length,) = _U16.unpack_from(view, at)
    end = at + 2 + length
    if end > len(view):
        raise BadPacket("malformed PUBLISH: a field beyond its end")
    return view[at + 2 : end], end


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for position in range(VARINT_BYTES_MAX):
        byte = view[at + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, at + position + 1
    raise BadPacket("malformed PUBLISH: a length of more than four bytes")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        encoded.append(low | (0x80 if value else 0))
        if not value:
            return bytes(encoded)
