"""Corrupted messages from an attacker who knows their structure: wrong lengths, duplicate keys, depth, numbers of any
size, invalid text, decompression bombs.

Each function takes a random source and a valid input and returns bytes; digests and outer lengths are mostly corrected
afterwards, so that the change reaches the inner checks. Tests draw the randomness from hypothesis, the fuzzer passes a
seed (`harness`).
"""

import functools
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zstandard
from msgspec.msgpack import Ext

from tests.batch.making import sealed_again

Mutate = Callable[[random.Random, bytes], bytes]

_LENGTH = struct.Struct("<I")
_FIXED = struct.Struct("<4sBBBB16sQIqq16sI16sIIBB")
_FIELD_BITS = {
    1: 8,
    2: 8,
    3: 8,
    4: 8,
    6: 64,
    7: 32,
    8: -64,
    9: -64,
    11: 32,
    13: 32,
    14: 32,
    15: 8,
    16: 8,
}  # numbers of a header
_CONTENT_BYTES, _BODY_BYTES = 13, 14
_CODEC, _COUNT = 3, 7

LOOKED_INTO_MAX = (
    128 * 1024
)  # bytes of content: what is larger is changed as bytes, or the spoiler would be the one who bursts
REPEATED_MAX = 1_000  # entries of a list that is made many times as long

EDGES = (
    0,
    1,
    -1,
    2,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
)


_FILLINGS = (b"\x00", b"\x90", b"\x80", b"\xc0", b"\x91", b"\xa1a")
_STARTS = (b"", b"\x98", b"\x9c", b"\x98\x94\x01\x00\x01\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff")


class Verbatim(bytes):
    """Text written as it is, valid JSON or not."""

    __slots__ = ()


def some_bytes(chance: random.Random, good: bytes) -> bytes:
    """A few bytes changed, cut off, doubled or added, anywhere."""
    data = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.choice(b'\x00\xff\x80\x7f"\\{}[],:0-.e \xc0\xed\xf5')
            case 2:
                del data[at:]
            case 3:
                del data[at : at + chance.randint(1, 8)]
            case _:
                data[at:at] = bytes(data[max(0, at - chance.randint(1, 40)) : at]) or b"\x00"
    return bytes(data)


# ----------------------------------------------------------------------------------------------------------------- JSON


def hostile_json(chance: random.Random) -> Verbatim:
    """A value that a careless reader fails on."""
    size = chance.choice((1, 10, 300, 6_000, 30_000))
    return Verbatim(
        chance.choice(
            (
                lambda: b"[" * size + b"]" * size,
                lambda: b'{"a":' * size + b"1" + b"}" * size,
                lambda: b"[" * size,
                lambda: b"[" + b"[]," * size + b"{}]",
                lambda: b"[" + b'{"":0},' * size + b"0]",
                lambda: b"{" + b",".join(b'"%d":%d' % (n, n) for n in range(min(size, 6_000))) + b"}",
                lambda: b"-" * chance.randrange(2) + b"9" * size,
                lambda: b"0." + b"0" * size + b"1",
                lambda: b"1e" + b"9" * min(size, 400),
                lambda: str(chance.choice(EDGES)).encode(),
                lambda: str(chance.choice(EDGES) * chance.choice((1, -1)) / 3).encode(),
                lambda: b'"' + b"x" * size + b'"',
                lambda: b'"' + b"\\u0000" * min(size, 6_000) + b'"',
                lambda: b'"\\ud800"',
                lambda: b'"\\udc00\\ud800"',
                lambda: b'"\\ud83d\\ude00"',
                lambda: b'"\xff\xfe"',
                lambda: b'"\xed\xa0\x80"',
                lambda: b'"\xc0\xaf"',
                lambda: b'"\n"',
                lambda: b"NaN",
                lambda: b"-Infinity",
                lambda: b"-0",
                lambda: b"01",
                lambda: b"true",
                lambda: b"null",
                lambda: b'""',
                lambda: b"[]",
                lambda: b"{}",
                lambda: b"",
            )
        )()
    )


def written(value: Any) -> bytes:
    """JSON text of a value in which Verbatim stands for itself, invalid text and all."""
    match value:
        case Verbatim():
            return bytes(value)
        case dict():
            return b"{" + b",".join(_key(key) + b":" + written(entry) for key, entry in value.items()) + b"}"
        case list():
            return b"[" + b",".join(map(written, value)) + b"]"
    return json.dumps(value, separators=(",", ":")).encode()


def _key(key: Any) -> bytes:
    return bytes(key) if isinstance(key, Verbatim) else json.dumps(key).encode()


def json_text(chance: random.Random, good: bytes) -> bytes:
    """Valid JSON with one to three faults."""
    if len(good) > LOOKED_INTO_MAX:
        return some_bytes(chance, good)
    try:
        value = json.loads(good)
    except (ValueError, RecursionError):
        return some_bytes(chance, good)
    for _ in range(chance.randint(1, 3)):
        value = _changed(chance, value)
    text = written(value)
    return some_bytes(chance, text) if chance.random() < 0.15 else text


def _changed(chance: random.Random, value: Any) -> Any:
    """The value with a part replaced, missing, added or doubled, at a random depth."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return hostile_json(chance) if chance.random() < 0.8 else value
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    match chance.randrange(6):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, dict):
            copy[Verbatim(_key(key) + b" ")] = hostile_json(chance)  # the same key again: the blank is not part of it
        case 1 if len(copy) < REPEATED_MAX:
            copy = copy * chance.choice((2, 5))
        case 2 if isinstance(copy, dict):
            copy[chance.choice(("x", "", "operation", "status", "life", "\u0000", "batches"))] = hostile_json(chance)
        case 3 if isinstance(value[key], int):
            copy[key] = value[key] + chance.choice((1, -1, 2**31, 2**63))
        case _:
            copy[key] = _changed(chance, value[key])
    return copy


def proven(chance: random.Random, mark: bytes, message: bytes, certificates: Sequence[bytes]) -> bytes:
    """A message behind a proof that proves nothing, whole or cut short, with a certificate or what is none."""
    certificate = chance.choice((b"", chance.randbytes(300), bytes(4096), *certificates))
    length = chance.choice((len(certificate), len(certificate), 0xFFFF, 4097, len(certificate) // 2))
    proof = mark + length.to_bytes(2, "little") + certificate + chance.randbytes(64)
    return (proof + message)[: None if chance.random() < 0.8 else chance.randrange(len(proof))]


def answer(chance: random.Random, good: bytes) -> bytes:
    """Length, header and attachment that contradict each other."""
    if len(good) < _LENGTH.size:
        return some_bytes(chance, good)
    at = _LENGTH.size + _LENGTH.unpack_from(good)[0]
    header, attachment = good[_LENGTH.size : at], good[at:]
    match chance.randrange(4):
        case 0:
            attachment = some_bytes(chance, attachment)
        case 1:
            return _LENGTH.pack(chance.choice(EDGES) % 2**32) + good[_LENGTH.size :]
        case _:
            header = json_text(chance, header)
    return _LENGTH.pack(len(header)) + header + attachment


# -------------------------------------------------------------------------------------------------------------- batches


def content(chance: random.Random, good: bytes) -> bytes:
    """Packed columns, of samples or messages, with an inconsistent column."""
    if chance.random() < 0.2 or len(good) > LOOKED_INTO_MAX:
        return some_bytes(chance, good)
    try:
        columns = msgspec.msgpack.decode(good)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return some_bytes(chance, good)
    for _ in range(chance.randint(1, 2)):
        columns = _lying(chance, columns)
    try:
        return msgspec.msgpack.encode(columns)
    except (OverflowError, ValueError, RecursionError):
        return some_bytes(chance, good)


def _lying(chance: random.Random, value: Any) -> Any:
    """A column, or a part of one, that contradicts the others."""
    match value:
        case list() if value and chance.random() < 0.9:
            at, copy = chance.randrange(len(value)), list(value)
            match chance.randrange(6):
                case 0:
                    del copy[at]
                case 1 if len(copy) < REPEATED_MAX:
                    copy = copy * chance.choice((2, 10))
                case _:
                    copy[at] = _lying(chance, value[at])
            return copy
        case bytes() if chance.random() < 0.7:
            return chance.choice((some_bytes(chance, value), value * 2, bytes(chance.choice((1, 8, 4_096, 100_000)))))
        case int() if chance.random() < 0.7:
            return max(-(2**63), min(2**64 - 1, value + chance.choice((1, -1, 2**31, -(2**63), chance.choice(EDGES)))))
    return chance.choice(
        (
            None, True, 1.5, "", "x" * 70_000, b"", bytes(70_000), [], [[]] * 20_000, {}, {"a": "b"}, Ext(1, b"[" * 3_000),
            Ext(1, b"9" * 5_000), Ext(1, b"[" + b"{}," * 20_000 + b"0]"), Ext(2, b"x"), Ext(3, b""), 2**63, -1, 0,
        )
    )  # fmt: skip


def sealed(chance: random.Random, good: bytes) -> bytes:
    """A batch with another header, body or content; its lengths and digest are corrected, mostly."""
    if len(good) < _FIXED.size + 16 or chance.random() < 0.1:
        return some_bytes(chance, good)
    fields = list(_FIXED.unpack_from(good))
    body_at = _FIXED.size + fields[-2] + fields[-1]
    names, body = good[_FIXED.size : body_at], good[body_at:-16]
    match chance.randrange(6):
        case 0 | 1:
            at = chance.choice(list(_FIELD_BITS))
            fields[at] = _fitting(chance.choice((*EDGES, fields[at] + 1, fields[at] - 1)), _FIELD_BITS[at])
        case 2:
            body, fields[_CONTENT_BYTES] = _bomb(chance)
            fields[_CODEC] = 1
        case 3:
            body = some_bytes(chance, body)
        case _:
            inner = content(chance, _opened(fields, body))
            body = zstandard.ZstdCompressor(level=1).compress(inner) if chance.random() < 0.5 else inner
            fields[_CODEC], fields[_CONTENT_BYTES] = int(body is not inner), len(inner) % 2**32
    if fields[_BODY_BYTES] == len(good) - 16 - body_at:
        fields[_BODY_BYTES] = len(body) % 2**32
    data = _FIXED.pack(*fields) + names + body + bytes(16)
    return data if chance.random() < 0.03 else sealed_again(data)


def resealed(good: bytes) -> bytes:
    """The bytes with corrected body length and digest, as far as they have any, so that the change is examined."""
    if len(good) < _FIXED.size + 16:
        return good
    fields = list(_FIXED.unpack_from(good))
    body_bytes = len(good) - _FIXED.size - fields[-2] - fields[-1] - 16
    if body_bytes < 0:
        return good
    if fields[_CODEC] == 0:
        fields[_CONTENT_BYTES] = body_bytes
    fields[_BODY_BYTES] = body_bytes
    return sealed_again(_FIXED.pack(*fields) + good[_FIXED.size :])


def _fitting(number: int, bits: int) -> int:
    """The number as a field of so many bits (negative: with a sign) can hold it."""
    wrapped = number % 2 ** abs(bits)
    return wrapped - 2**64 if bits < 0 and wrapped >= 2**63 else wrapped


def _opened(fields: list[Any], body: bytes) -> bytes:
    """The content of an honest batch; what cannot be opened stays as it is."""
    if fields[_CODEC] != 1:
        return body
    try:
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=2**21)
    except (zstandard.ZstdError, MemoryError):
        return body


def _bomb(chance: random.Random) -> tuple[bytes, int]:
    """A small frame that holds much, or says so; and what the header says it holds."""
    size = chance.choice((2**16, 2**21 - 64, 2**21, 2**21 + 1, 2**23))
    frame = _frame(size, chance.choice(_FILLINGS), chance.choice(_STARTS), is_sized=chance.random() < 0.9)
    match chance.randrange(4):
        case 0:
            frame = (
                b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", chance.choice((size, 2**32, 2**40, 2**63))) + b"\x01\0\0"
            )
        case 1:
            frame += chance.choice((b"\0", frame[:50], b"\x50\x2a\x4d\x18\x04\0\0\0abcd"))
    return frame, chance.choice((size, size - 1, 2**21, 2**32 - 1, 0))


@functools.cache
def _frame(size: int, filling: bytes, start: bytes, *, is_sized: bool) -> bytes:
    """One zstd frame of so many bytes; there are few different ones, and each takes long to make. Copied: the
    compressor's own bytes keep the room they were made in."""
    made = zstandard.ZstdCompressor(level=1, write_content_size=is_sized).compress((start + filling * size)[:size])
    return bytes(memoryview(made))


# ----------------------------------------------------------------------------------------------------------------- MQTT


def publish(chance: random.Random, good: bytes) -> bytes:
    """A command byte and a PUBLISH, with lengths, properties and text that are wrong."""
    data = bytearray(some_bytes(chance, good) if chance.random() < 0.5 else good)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        data[at : at + chance.randrange(4)] = chance.choice(
            (
                struct.pack(">H", chance.choice((0, 1, 127, 128, 65535, len(data)))),
                struct.pack(">I", chance.choice((0, 1, 2**32 - 1))),
                b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x01", bytes([chance.randrange(256)]),
                b"\x26\x00\x00\x00\x00" * 30, b"\x08\x00\x01#", b"\x09\xff\xff", b"\x02\x00", b"\x0b\xff", b"\xc3\x28",
            )
        )  # fmt: skip
    return bytes(data)
