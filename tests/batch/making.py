"""Facts of every kind for hypothesis, comparison bit by bit, and a forger that writes batches the product never would.

The forger packs bytes itself, by docs/developers/batch-format.md, so it can forge every field.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import zstandard
from hypothesis import strategies as st

from agent import batch
from agent.message import Json, Value

ORIGIN = batch.Origin("plant-7", bytes(range(16)))
LINK = batch.Link("facts.telemetry", ORIGIN)
DEFINITIONS = batch.Definitions().extended(b'{"subject":"tag:a/1"}').extended(b'{"subject":"tag:a/2"}')
MANY_DEFINITIONS = batch.Definitions(2**32 - 1, b"\x01" * 16)

INT64 = st.integers(-(2**63), 2**63 - 1)
EDGE_TIMES = st.sampled_from([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1])
PLAUSIBLE_TIMES = st.integers(1_700_000_000_000_000, 1_700_000_000_999_999).map(lambda us: us * 1000)
TIMES = st.one_of(INT64, EDGE_TIMES, PLAUSIBLE_TIMES)
EDGE_INTEGERS = st.sampled_from([-(2**63), -(2**53) - 1, -1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
ANY_BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
NAN_BITS = [0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000000, 0xFFFFFFFFFFFFFFFF, 0x7FF4DEADBEEF0001]
EDGE_FLOATS = st.sampled_from(
    [0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 1.0]
    + [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in NAN_BITS]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON_SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXTS
JSON_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSONS = st.recursive(
    JSON_SCALARS | JSON_FLOATS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    EDGE_INTEGERS,
    ANY_BITS,
    EDGE_FLOATS,
    TEXTS,
    st.binary(max_size=40),
    JSONS.map(Json.of),
)
# Columns where values repeat and look alike, for that is where collapsing could confuse them.
ALIKE = st.sampled_from([0, 0.0, -0.0, False, 1, 1.0, True, None, "", b"", math.nan, Json(b"0")])
TAGS = st.integers(1, 3) | st.integers(1, 2**32 - 1)
QUALITIES = st.sampled_from([0, 0x80000000, 2**32 - 1]) | st.integers(0, 2**32 - 1)
ROW = st.tuples(TAGS, TIMES, VALUES, QUALITIES)
ALIKE_ROW = st.tuples(st.just(1), st.sampled_from([5, 6]), ALIKE, st.just(0))
ROWS = st.lists(ROW, min_size=1, max_size=30) | st.lists(ALIKE_ROW, min_size=1, max_size=6)


def bits(value: object) -> tuple[str, object]:
    """The value so that == means the same type and, for a float, the same 64 bits."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    return type(value).__name__, value.data if isinstance(value, Json) else value


def row_bits(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows for comparison, bit by bit."""
    return [(tag, time, bits(value), quality) for tag, time, value, quality in rows]


def packed(**changes: Any) -> list[Any]:
    """Content of three valid facts (tags 1 to 3, times 10 to 30, three floats), except for the columns named."""
    columns: dict[str, Any] = {
        "tags": [1, 1, 0, b""], "times": [10, 10, 1, b"\x00\x01\x02"], "kinds": b"\x00",
        "floats": struct.pack("<3d", 1.5, 2.5, 3.5), "ints": [0, 0, b""], "bools": b"", "others": [],
        "qualities": [0, 0, b""],
    }  # fmt: skip
    assert changes.keys() <= columns.keys()
    return list({**columns, **changes}.values())


def others(*values: Any, kinds: bytes = b"\x03") -> list[Any]:
    """The same three facts with these values."""
    return packed(kinds=kinds, floats=b"", others=list(values))


def sealed_again(data: bytes) -> bytes:
    """The bytes with a valid digest, as anyone who has the format can make it."""
    return data[:-16] + hashlib.blake2b(data[:-16], digest_size=16).digest()


def forged(content: Any, *, compress: bool = False, **changes: Any) -> bytes:
    """A batch of samples with a right digest around any content (bytes, or what MessagePack can encode) and any
    header."""
    content = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    body = zstandard.ZstdCompressor(level=1).compress(content) if compress else content
    fields: dict[str, Any] = {
        "magic": b"BSFB", "version": 1, "kind": 1, "codec": int(compress), "flags": 0, "life": bytes(16),
        "first_sequence": 1, "count": 3, "time_min_ns": 10, "time_max_ns": 30, "previous_digest": bytes(16),
        "definition_count": 5, "definitions_digest": b"\x05" * 16, "content_bytes": len(content),
        "body_bytes": None, "zone_bytes": None, "stream_bytes": None, "zone": b"plant", "stream": b"facts", "body": body,
        "record": b"",
    }  # fmt: skip
    assert changes.keys() <= fields.keys()
    fields.update(changes)
    for length, part in (("body_bytes", "body"), ("zone_bytes", "zone"), ("stream_bytes", "stream")):
        if fields[length] is None:
            fields[length] = len(fields[part])
    zone, stream, body, record = (fields.pop(name) for name in ("zone", "stream", "body", "record"))
    fixed = struct.pack("<4sBBBB16sQIqq16sI16sIIBB", *fields.values())
    return sealed_again(fixed + zone + stream + body + record + bytes(16))
