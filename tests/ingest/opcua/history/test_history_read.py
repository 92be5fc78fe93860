"""Pages of history as bytes: whole values, and the parts of arrays that a tag reads."""

from __future__ import annotations

import struct

import pytest

from agent.ingest.opcua.decode import FILETIME_EPOCH
from agent.ingest.opcua.history import decode_history
from agent.ingest.opcua.history.gap_fill import HistoryValue
from agent.ingest.opcua.values.variant import ValueReader
from agent.ingest.quality import BAD_INDEX_RANGE_NO_DATA
from agent.message import Json, Value

S = 1_000_000_000
ROW = struct.pack("<Bi4i", 0x86, 4, 10, 11, 12, 13)  # an array of Int32
TABLE = struct.pack("<Bi6ii2i", 0xC6, 6, 0, 1, 2, 10, 11, 12, 2, 2, 3)  # two rows of three
TEXTS = struct.pack("<Bii1si2s", 0x8C, 2, 1, b"a", 2, b"bc")


def response(*variants: bytes) -> bytes:
    """One page with these values, a second apart."""
    values = b"".join(
        b"\x05" + variant + struct.pack("<q", at * 10_000_000 + FILETIME_EPOCH)
        for at, variant in enumerate(variants, 1)
    )
    body = struct.pack("<i", len(variants)) + values
    data = struct.pack("<BBHBi", 1, 0, 658, 1, len(body)) + body
    return struct.pack("<iIi", 1, 0, -1) + data + struct.pack("<i", -1)


BAD = BAD_INDEX_RANGE_NO_DATA


@pytest.mark.parametrize(
    "variant, index_range, value, quality",
    [
        (ROW, "", Json.of([10, 11, 12, 13]), 0),
        (ROW, "2", 12, 0),
        (ROW, "1:2", Json.of([11, 12]), 0),
        (ROW, "3:9", Json.of([13]), 0),
        (TABLE, "1,2", 12, 0),
        (TABLE, "0:1,1", Json.of([[1], [11]]), 0),
        (TEXTS, "1", "bc", 0),
        (struct.pack("<Bi3s", 12, 3, b"abc"), "1", "b", 0),
        (struct.pack("<Bd", 11, 1.5), "", 1.5, 0),
        (ROW, "4", None, BAD),
        (ROW, "1,1", None, BAD),
        (TABLE, "2,0", None, BAD),
        (TABLE, "0:1,5", None, BAD),
        (struct.pack("<Bd", 11, 1.5), "0", None, BAD),
    ],
)
def test_the_part_of_an_array(variant: bytes, index_range: str, value: Value, quality: int) -> None:
    """One element in its own type, a range as a list; one that is not there is bad, as the server says it of a
    monitored element. The rest of the page is read on behind it."""
    (page,) = decode_history(response(variant, variant), ValueReader(), [index_range])
    assert list(page.values) == [HistoryValue(S, value, quality), HistoryValue(2 * S, value, quality)]


def test_a_null_array_lacks_no_element() -> None:
    """A server that has a null in place of an array says by its own status what that means."""
    (page,) = decode_history(response(struct.pack("<Bi", 0x80 | 6, -1), ROW), ValueReader(), ["1"])
    assert list(page.values) == [HistoryValue(S, None, 0), HistoryValue(2 * S, 11, 0)]
