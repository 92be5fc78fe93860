import contextlib
import math
import struct
import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any
from uuid import UUID

import pytest
from asyncua import ua
from asyncua.ua.ua_binary import struct_to_binary
from hypothesis import given
from hypothesis import strategies as st

from agent.columns import pack
from agent.ingest import quality
from agent.ingest.opcua.decode import (
    FILETIME_EPOCH,
    FILETIME_MAX,
    FILETIME_MIN,
    FILETIME_YEAR_9999,
    DataChange,
    DecodeError,
    Publication,
    decode_publication,
    decode_read_values,
    filetime_ns,
)
from agent.ingest.opcua.values.variant import ValueReader
from agent.message import Json
from agent.status_codes import CLOCK_UNCERTAIN

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9 + 678_901_000
READER = ValueReader()
KINDS = [
    "Boolean",
    "SByte",
    "Byte",
    "Int16",
    "UInt16",
    "Int32",
    "UInt32",
    "Int64",
    "UInt64",
    "Float",
    "Double",
    "String",
]


def encoded(items: list[tuple[int, ua.DataValue]], sequence: int = 7) -> bytes:
    """A PublishResponse's parameters as asyncua's own encoder writes them."""
    notification = ua.DataChangeNotification(
        MonitoredItems=[ua.MonitoredItemNotification(ClientHandle=handle, Value=value) for handle, value in items]
    )
    message = ua.NotificationMessage(SequenceNumber=sequence, PublishTime=START, NotificationData=[notification])
    return struct_to_binary(
        ua.PublishResult(SubscriptionId=3, AvailableSequenceNumbers=[5, 6, 7], NotificationMessage=message)
    )


def data_value(
    value: Any, kind: str, status: int = 0, source: datetime | None = START, server: datetime | None = START
) -> ua.DataValue:
    """A value as a server would notify it."""
    return ua.DataValue(
        Value=ua.Variant(value, ua.VariantType[kind]),
        StatusCode=ua.StatusCode(status),
        SourceTimestamp=source,
        ServerTimestamp=server,
    )


def decoded(data: bytes) -> Publication:
    """What we make of these bytes."""
    return decode_publication(data, READER)


values = st.one_of(
    st.tuples(st.just("Boolean"), st.booleans()),
    *(
        st.tuples(st.just(name), st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for name, bits in (("SByte", 8), ("Int16", 16), ("Int32", 32), ("Int64", 64))
    ),
    *(
        st.tuples(st.just(name), st.integers(0, 2**bits - 1))
        for name, bits in (("Byte", 8), ("UInt16", 16), ("UInt32", 32), ("UInt64", 64))
    ),
    st.tuples(st.just("Float"), st.floats(width=32)),
    st.tuples(st.just("Double"), st.floats()),
    st.tuples(st.just("String"), st.text(max_size=20)),
)
times = st.one_of(st.none(), st.integers(0, 10**9).map(lambda us: START + timedelta(microseconds=us)))


@given(st.lists(st.tuples(values, st.integers(0, 2**32 - 1), times, times), max_size=40))
def test_agrees_with_the_librarys_encoder(
    rows: list[tuple[tuple[str, Any], int, datetime | None, datetime | None]],
) -> None:
    """Mixed types, statuses and absent times, in any order, come out as they were put in."""
    items = [(n, data_value(v, kind, status, s, t)) for n, ((kind, v), status, s, t) in enumerate(rows)]
    found = list(decoded(encoded(items)).changes)
    assert len(found) == len(rows)
    for n, ((_, value), status, source, server) in enumerate(rows):
        assert found[n].handle == n
        assert found[n].quality == status
        assert found[n].source_time_ns == _ns(source)
        assert found[n].server_time_ns == _ns(server)
        assert type(found[n].value) is type(value)
        assert found[n].value == value or (math.isnan(value) and math.isnan(found[n].value))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_long_runs_of_one_type(kind: str) -> None:
    """The fast way for uniform values gives what the slow way gives, also where a run is broken in the middle."""
    items = [(n, data_value(1, kind)) for n in range(1200)]
    items[700] = (700, data_value("odd", "String"))
    items[701] = (701, data_value(1, kind, source=None))
    found = list(decoded(encoded(items)).changes)
    assert [change.handle for change in found] == list(range(1200))
    assert found[700] == DataChange(700, "odd", 0, START_NS, START_NS)
    assert found[701].source_time_ns == 0
    assert {change.value for change in found if change.handle != 700} == {1}


@pytest.mark.parametrize("length", [1, 5, 20, 100])
def test_items_of_equal_length_and_different_shape_are_no_run(length: int) -> None:
    """One time each, once the source's and once the server's: the same bytes long, and not to be mixed up."""
    ways = [{"source": START, "server": None}, {"source": None, "server": START}]
    items = [(n, data_value(n, "Int32", **ways[n // length % 2])) for n in range(300)]  # type: ignore[arg-type]
    found = list(decoded(encoded(items)).changes)
    assert len(found) == 300
    for change in found:
        expected = (START_NS, 0) if change.handle // length % 2 == 0 else (0, START_NS)
        assert (change.source_time_ns, change.server_time_ns) == expected
        assert change.value == change.handle


@pytest.mark.parametrize("mask", [0x01, 0x03, 0x05, 0x0D, 0x0F, 0x1D, 0x2D, 0x3F])
@pytest.mark.parametrize("kinds", ["d", "ddddi?", "d" * 30 + "i"])
def test_every_mask_is_read_alike_in_runs_and_alone(mask: int, kinds: str) -> None:
    """Servers leave out what is Good, or add picoseconds: each field lands in its column, whatever the order of
    types."""
    tail = [(2, "I", 7), (4, "q", FILETIME_EPOCH + 5), (16, "H", 300), (8, "q", FILETIME_EPOCH + 9), (32, "H", 0)]
    sent = [(letter, value) for bit, letter, value in tail if mask & bit]
    number = {"d": 11, "i": 6, "?": 1}
    form, fields = "".join(letter for letter, _ in sent), [value for _, value in sent]
    body = b"".join(
        struct.pack(f"<IBB{kind}{form}", n, mask, number[kind], n % 2, *fields) for n, kind in enumerate(kinds * 5)
    )
    found = decoded(notification(len(kinds) * 5, body)).changes
    source, server = (500 + (3 if mask & 16 else 0) if mask & 4 else 0), 900 if mask & 8 else 0
    expected = [DataChange(n, n % 2, 7 if mask & 2 else 0, source, server) for n in range(len(kinds) * 5)]
    assert list(found) == expected
    assert [type(value) for value in found.values[: len(kinds)]] == [
        {"d": float, "i": int, "?": bool}[k] for k in kinds
    ]


def test_source_times_keep_a_hundred_nanoseconds() -> None:
    """The last digit of the wire survives, which the library cuts off; picoseconds are added where a server sends
    them."""
    body = struct.pack("<IBBdIqHqH", 9, 0x3F, 11, 1.5, 0, FILETIME_EPOCH + 12_345_671, 2_300, FILETIME_EPOCH + 3, 0)
    found = list(decoded(notification(1, body)).changes)
    assert found == [DataChange(9, 1.5, 0, 1_234_567_100 + 23, 300)]
    assert filetime_ns(0) == 0


def test_a_time_beyond_int64_nanoseconds_is_not_set_in_a_run_either() -> None:
    """One value of many with a time of the year 9999, or of 1601, has no source time and an uncertain status, and the
    others keep theirs. A time that was not sent is none of these."""
    times = [FILETIME_EPOCH + 5, FILETIME_YEAR_9999, 1, FILETIME_MIN, FILETIME_MAX, 0]
    sent = [FILETIME_EPOCH + 7] * 40
    for wrong in times:
        sent[20] = wrong
        body = b"".join(struct.pack("<IBBdq", n, 0x05, 11, 1.5, time) for n, time in enumerate(sent))
        changes = decoded(notification(40, body)).changes
        is_right, is_sent = wrong == times[0], wrong != 0
        assert changes.source_times_ns == [700] * 20 + [500 if is_right else 0] + [700] * 19, wrong
        marked = 0 if is_right or not is_sent else CLOCK_UNCERTAIN
        assert changes.qualities == [0] * 20 + [marked] + [0] * 19, wrong


@pytest.mark.parametrize(
    "value, kind, expected",
    [
        (None, "Null", None),
        ([1.5, -2.0], "Double", Json.of([1.5, -2.0])),
        ([float("nan"), float("inf")], "Double", Json.of(["NaN", "Infinity"])),
        ([], "Int32", Json.of([])),
        ([True, False], "Boolean", Json.of([True, False])),
        (["a", "b"], "String", Json.of(["a", "b"])),
        (b"\x00\xff", "ByteString", b"\x00\xff"),
        (None, "String", None),
        ("", "String", ""),
        (START, "DateTime", "2026-01-02T03:04:05.678901Z"),
        (ua.LocalizedText("warm", "en"), "LocalizedText", Json.of({"locale": "en", "text": "warm"})),
        (ua.LocalizedText("warm"), "LocalizedText", "warm"),
        (ua.LocalizedText(None, None), "LocalizedText", None),
        (ua.NodeId("x", 2), "NodeId", "ns=2;s=x"),
        (ua.StatusCode(0x80050000), "StatusCode", 0x80050000),
        (ua.QualifiedName("q", 1), "QualifiedName", "ns=1;q"),
        (UUID(int=7), "Guid", "00000000-0000-0000-0000-000000000007"),
        (data_value(1, "Byte", 7, None, None), "DataValue", Json.of({"quality": 7, "value": 1})),
        ([2**53 - 1, 2**53, -(2**53)], "Int64", Json.of([2**53 - 1, str(2**53), str(-(2**53))])),
    ],
    ids=lambda value: str(value)[:30],
)
def test_every_other_shape(value: Any, kind: str, expected: Any) -> None:
    """Arrays and structures become JSON, numbers in it that its readers would round texts, and texts stay texts,
    whatever stands before and after them in the message."""
    items = [(1, data_value(1.0, "Double")), (2, data_value(value, kind, 0x40)), (3, data_value(2.0, "Double"))]
    found = list(decoded(encoded(items)).changes)
    assert found[1].value == expected
    assert type(found[1].value) is type(expected)
    assert (found[1].handle, found[1].quality, found[2].value) == (2, 0x40, 2.0)


@pytest.mark.parametrize(
    "sent, kind, value",
    [
        ([1.5], "Double", 1.5),
        ([-0.0], "Double", -0.0),
        ([math.inf], "Double", math.inf),
        (["NaN"], "String", "NaN"),
        ([2**60], "Int64", 2**60),
        ([True], "Boolean", True),
        ([[7]], "Int32", 7),
        ([1, 2], "Int32", Json.of([1, 2])),
        ([START], "DateTime", "2026-01-02T03:04:05.678901Z"),
        ([ua.LocalizedText("ja", "de")], "LocalizedText", Json.of({"locale": "de", "text": "ja"})),
        ("xy", "String", "x"),
        (None, "Null", None),
    ],
)
def test_one_element_is_a_value_in_its_own_type(sent: Any, kind: str, value: Any) -> None:
    """The server cuts an array of one out of the node's; what is more than one stays as it is. Of a text, which is no
    array, a range is a character."""
    items = [(n, data_value(sent, kind)) for n in (1, 2)]
    found = list(decode_publication(encoded(items), READER, {2}).changes)
    assert found[1].value == value
    assert repr(found[1].value) == repr(value)
    if isinstance(sent, list):
        assert isinstance(found[0].value, Json)


@pytest.mark.parametrize("value, kind", [("x" * 70_000, "String"), ([-100] * 30_000, "SByte")])
def test_a_value_too_long_for_a_fact_is_said_so(value: Any, kind: str) -> None:
    """The sample stays, with a status instead of the value: the hole is in the data. Thirty thousand small numbers are
    30 kB on the wire, and more as JSON, as which they are kept."""
    found = list(decoded(encoded([(1, data_value(value, kind)), (2, data_value(1, "Int32"))])).changes)
    assert (found[0].value, found[0].quality) == (None, 0x80080000)
    assert found[1].value == 1


@given(st.lists(values, max_size=6), st.binary(max_size=12), st.lists(values, max_size=3), st.data())
def test_a_malformed_value_costs_none_before_it_and_is_counted(
    before: list[tuple[str, Any]], garbage: bytes, after: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """Any bytes in the place of a value, and an end anywhere: no error, the values before are as they were sent, and
    each of the others is a change or counted as lost."""
    sent = [data_value(value, kind) for kind, value in (*before, *after)]
    items = [struct.pack("<I", n) + struct_to_binary(item) for n, item in enumerate(sent)]
    items.insert(len(before), struct.pack("<IB", 99, 1) + garbage)
    body = b"".join(items)
    body = body[: data.draw(st.integers(0, len(body)))]
    change = struct.pack("<i", len(items)) + body
    raw = struct.pack("<IiBIqi", 3, 0, 0, 1, 0, 1) + struct.pack("<BBHBi", 1, 0, 811, 1, len(change)) + change
    ends = list(accumulate(map(len, items)))
    whole = sum(end <= len(body) for end in ends[: len(before)])
    found = decoded(raw)
    expected = decoded(notification(whole, body)).changes
    assert repr(list(found.changes)[:whole]) == repr(list(expected))  # also where it is no number
    assert len(found.changes) + found.values_lost == len(items)


@pytest.mark.parametrize(
    "other",
    [
        struct.pack("<BHI5sBi3s", 3, 2, 5, b"trend", 1, 3, b"abc"),
        struct.pack("<BH16sBi3s", 4, 2, bytes(16), 1, 3, b"abc"),
        struct.pack("<BHI2sBi", 5, 2, 2, b"ab", 1, 0),
        struct.pack("<BHIBi6s", 2, 2, 77, 2, 6, b"<xml/>"),
        struct.pack("<BBB", 0, 0, 0),
    ],
    ids=["string", "guid", "bytes", "XML", "none"],
)
def test_a_notification_of_an_unknown_kind_is_stepped_over(other: bytes) -> None:
    """A vendor's own, by any form of node id and body: the values of the publication are read, before and behind it."""
    change = struct.pack("<iIBBdi", 1, 1, 1, 11, 1.5, 0)
    known = struct.pack("<BBHBi", 1, 0, 811, 1, len(change)) + change
    raw = struct.pack("<IiBIqi", 3, 0, 0, 1, 0, 3) + known + other + known
    assert list(decoded(raw).changes) == [DataChange(1, 1.5, 0, 0, 0)] * 2


def nested(levels: int) -> bytes:
    """Variants in Variants, each an array of one; the innermost holds nothing."""
    return struct.pack("<Bi", 0x80 | 24, 1) * (levels - 1) + b"\0"


def test_values_are_nested_a_hundred_deep_and_no_deeper() -> None:
    """What the specification asks of a decoder is read; a message made to exhaust the stack is one bad sample."""
    expected: list[Any] = []
    for _ in range(98):
        expected = [expected] if expected else [None]
    assert READER(nested(99), 0)[0] == Json.of(expected)
    READER(nested(100), 0)
    for levels in (101, 100_000):
        with pytest.raises(DecodeError):
            READER(nested(levels), 0)


def test_nested_values_of_an_array_are_as_deep_as_one() -> None:
    """A long array of values that go one level down each is no deep value. Each part of such a value is read."""
    inner = struct.pack("<BiiiiiI", 0x3F, 1, 2, 3, 4, -1, quality.BAD_TIMEOUT)
    diagnostics = struct.pack("<Bi", 0x80 | 25, 150) + (b"\x40" + inner) * 150
    parts = {"SymbolicId": 1, "NamespaceUri": 2, "Locale": 3, "LocalizedText": 4, "AdditionalInfo": None}
    whole = {"InnerDiagnosticInfo": parts | {"InnerStatusCode": quality.BAD_TIMEOUT}}
    assert READER(diagnostics, 0) == (Json.of([whole] * 150), len(diagnostics))


def test_sizes_that_do_not_fit_an_array_are_ignored() -> None:
    """Its elements are kept in their order."""
    five = struct.pack("<Bi5i", 0xC0 | 6, 5, 1, 2, 3, 4, 5)
    for sizes, value in (((2, 3), [1, 2, 3, 4, 5]), ((5, 1), [[1], [2], [3], [4], [5]])):
        assert READER(five + struct.pack("<iii", 2, *sizes), 0)[0] == Json.of(value)


def test_a_huge_array_of_small_things_is_not_kept() -> None:
    """A million nulls of a byte each would be many megabytes of objects; the value is too long in any case, and the one
    behind it is found."""
    nulls = struct.pack("<IBBi", 1, 1, 0x80 | 24, 1_000_000) + b"\0" * 1_000_000
    raw = notification(2, nulls + struct.pack("<IBBd", 2, 1, 11, 1.0))
    tracemalloc.start()
    try:
        found = list(decoded(raw).changes)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(raw)
    finally:
        tracemalloc.stop()
    assert [(change.value, change.quality) for change in found] == [(None, 0x80080000), (1.0, 0)]


@given(st.binary(max_size=200), st.sampled_from([0x16, 0x96, 0xD6, 0x17, 0x18, 0x98, 0x99, 0x19, 0x8C, 0x91, 0x15]))
def test_any_bytes_are_a_value_or_one_error(raw: bytes, kind: int) -> None:
    """Whatever stands behind the type of a Variant: a value that a fact can hold, or a DecodeError."""
    with contextlib.suppress(DecodeError):
        value, position = READER(bytes([kind]) + raw, 0)
        pack(([1], [0], [value], [0]), 1)
        assert 1 <= position <= len(raw) + 1


@given(st.data())
def test_damaged_bytes_raise_one_error(data: st.DataObject) -> None:
    """Cut short or with any byte changed: a publication or a DecodeError, nothing else, and no endless work."""
    items = [(n, data_value(v, k)) for n, (v, k) in enumerate([(1.5, "Double"), ("text", "String"), (3, "Int16")] * 3)]
    raw = bytearray(encoded(items))
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DecodeError):
        decoded(bytes(raw))


@pytest.mark.parametrize("length", [-1, 1, 100, 2**31 - 1])
def test_a_notification_that_is_longer_than_its_message_is_refused(length: int) -> None:
    """Its values may look right: what the length covers beyond them was lost on the way."""
    raw = bytearray(encoded([(1, data_value(1.5, "Double"))]))
    at = raw.index(struct.pack("<HB", 811, 1)) + 3
    (right,) = struct.unpack_from("<i", raw, at)
    struct.pack_into("<i", raw, at, length if length < 0 else min(right + length, 2**31 - 1))
    if length == 1:
        raw = raw[: at + 4 + right]  # where the message ends with the values
    with pytest.raises(DecodeError, match="extension object of"):
        decoded(bytes(raw))


def notification(count: int, body: bytes) -> bytes:
    """PublishResult bytes around hand-made items."""
    change = struct.pack("<i", count) + body + struct.pack("<i", 0)
    return struct.pack("<IiBIqi", 3, 0, 0, 1, 0, 1) + struct.pack("<BBHBi", 1, 0, 811, 1, len(change)) + change


def _ns(moment: datetime | None) -> int:
    if moment is None:
        return 0
    return ((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)) * 1000


def test_the_values_of_a_read() -> None:
    """As a publication's, without handles: they count from 0. A bad value has its status, an element its own type;
    short bytes are refused."""
    array = data_value([2**60], "Int64")
    results = data_value(1.5, "Double"), ua.DataValue(StatusCode=ua.StatusCode(0x8034_0000)), array, array
    data = struct.pack("<i", 4) + b"".join(struct_to_binary(value) for value in results) + struct.pack("<i", 0)
    found = decode_read_values(data, READER, {3})
    assert found[:2] == [DataChange(0, 1.5, 0, START_NS, START_NS), DataChange(1, None, 0x8034_0000, 0, 0)]
    assert [change.value for change in found[2:]] == [Json.of([str(2**60)]), 2**60]
    with pytest.raises(DecodeError, match="answer to a Read"):
        decode_read_values(data[:20], READER)
