"""Pages of history as bytes: whole values, and the parts of arrays that a tag reads."""

from __future__ import annotations

import struct

import pytest

from agent.ingest.opcua.decode import FILETIME_EPOCH
from agent.ingest.opcua.history import decode_history
from agent.ingest.opcua.history.gap_fill import HistoryValue
from agent.ingest.opcua.values.variant import ValueReader
from agent.ingest.quality import BAD_INDEX_RANGE_NO_DATA
from agent.message import Json

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


@pytest.mark.parametrize(
    "variant, index_range, value",
    [
        (ROW, "", Json.of([10, 11, 12, 13])),
        (ROW, "2", 12),
        (ROW, "1:2", Json.of([11, 12])),
        (ROW, "3:9", Json.of([13])),
        (TABLE, "1,2", 12),
        (TABLE, "0:1,1", Json.of([[1], [11]])),
        (TEXTS, "1", "bc"),
        (struct.pack("<Bi3s", 12, 3, b"abc"), "1", "b"),
        (struct.pack("<Bd", 11, 1.5), "", 1.5),
    ],
)
def test_the_part_of_an_array(variant: bytes, index_range: str, value: object) -> None:
    """One element in its own type, a range as a list; the rest of the page is read on behind it."""
    (page,) = decode_history(response(variant, variant), ValueReader(), [index_range])
    assert list(page.values) == [HistoryValue(S, value, 0), HistoryValue(2 * S, value, 0)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "variant, index_range",
    [(ROW, "4"), (ROW, "1,1"), (TABLE, "2,0"), (TABLE, "0:1,5"), (struct.pack("<Bd", 11, 1.5), "0")],
)
def test_an_element_that_is_not_there_is_bad(variant: bytes, index_range: str) -> None:
    """As the server says it of a monitored element."""
    (page,) = decode_history(response(variant, ROW), ValueReader(), [index_range])
    assert page.values[0] == HistoryValue(S, None, BAD_INDEX_RANGE_NO_DATA)
    assert len(page.values) == 2


def test_a_null_array_lacks_no_element() -> None:
    """A server that has a null in place of an array says by its own status what that means."""
    (page,) = decode_history(response(struct.pack("<Bi", 0x80 | 6, -1), ROW), ValueReader(), ["1"])
    assert list(page.values) == [HistoryValue(S, None, 0), HistoryValue(2 * S, 11, 0)]
