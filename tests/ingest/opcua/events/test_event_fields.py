import struct
from datetime import UTC, datetime

import pytest
from asyncua import ua

from agent.ingest.opcua.decode import FILETIME_EPOCH, DecodeError
from agent.ingest.opcua.events.event_fields import ALL_FIELDS, BASE_FIELDS, Text, decode_events
from agent.ingest.opcua.values.variant import ValueReader
from tests.ingest.opcua.events.events import notification, publication

READER = ValueReader(["http://opcfoundation.org/UA/", "urn:x"])
TYPES = ua.VariantType
BASE = [
    ua.Variant(b"\x01\x02", TYPES.ByteString),
    ua.Variant(ua.NodeId(2041)),  # type: ignore[arg-type]
    ua.Variant(ua.NodeId("Tank", 1)),  # type: ignore[arg-type]
    ua.Variant("Tank", TYPES.String),
    ua.Variant(datetime(2026, 1, 2, tzinfo=UTC), TYPES.DateTime),
    ua.Variant(datetime(2026, 1, 2, tzinfo=UTC), TYPES.DateTime),
    ua.Variant(ua.LocalizedText("warm", "de"), TYPES.LocalizedText),
    ua.Variant(700, TYPES.UInt16),
]


def test_an_event_is_read_by_its_select_clauses() -> None:
    """Each field comes under its name, node ids with the URI of their namespace; null fields are left out; events of
    two handles with different fields lie in one notification."""
    nulls = [ua.Variant()] * (len(ALL_FIELDS) - len(BASE))
    data = publication(notification(1, [*BASE, *nulls]), notification(2, BASE[:4]), more=True)
    found = decode_events(data, {1: ALL_FIELDS, 2: BASE_FIELDS}, READER)
    assert found.status_change is None
    first, second = found.events
    assert first.fields == {
        "event_id": b"\x01\x02",
        "event_type": "i=2041",
        "source_node": "nsu=urn:x;s=Tank",
        "source_name": Text("Tank"),
        "message": Text("warm", "de"),
        "severity": 700,
    }
    assert not first.is_condition
    assert (second.handle, second.time_ns, len(second.fields)) == (2, 0, 4)
    assert decode_events(data, {2: BASE_FIELDS}, READER).events == [second], "the other handle was not asked for"


def test_times_keep_100_ns() -> None:
    """The library's own decoder would cut them to microseconds."""
    time_ns = 1_767_312_000_123_456_700
    fields = [*BASE[:4], ua.Variant()]
    data = publication(notification(1, fields))
    assert data[-1] == 0  # the null variant in the place of the time
    data = data[:-1] + b"\x0d" + struct.pack("<q", time_ns // 100 + FILETIME_EPOCH)
    # Two lengths count the bytes of the list: that of the extension object, before the list, is eight more now.
    at = data.index(struct.pack("<BBHB", 1, 0, 916, 1)) + 5
    (length,) = struct.unpack_from("<i", data, at)
    data = data[:at] + struct.pack("<i", length + 8) + data[at + 4 :]
    (event,) = decode_events(data, {1: ALL_FIELDS}, READER).events
    assert event.time_ns == time_ns


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("severity", ua.Variant(ua.StatusCode(0x8034_0000), TYPES.StatusCode)),  # type: ignore[arg-type]
        ("severity", ua.Variant("high", TYPES.String)),
        ("event_type", ua.Variant("i=2041", TYPES.String)),
        ("event_type", ua.Variant(ua.NodeId())),
        ("message", ua.Variant(5, TYPES.Int32)),
        ("event_id", ua.Variant("id", TYPES.String)),
        ("time", ua.Variant(5, TYPES.Int64)),
    ],
)
def test_a_value_of_another_kind_is_no_value(name: str, wrong: ua.Variant) -> None:
    """A status in the place of a field says why the server has none; a value of a wrong type is not taken for one."""
    fields = [wrong if field.name == name else value for field, value in zip(BASE_FIELDS, BASE, strict=True)]
    (event,) = decode_events(publication(notification(1, fields)), {1: BASE_FIELDS}, READER).events
    assert name not in event.fields
    assert len(event.fields) == 6 - (name != "time")
    assert (event.time_ns == 0) == (name == "time")
    assert event.receive_time_ns > 0


def test_one_malformed_event_costs_those_behind_it() -> None:
    """They have no known beginning; they are counted, and what came before is kept. The session goes on."""
    data = publication(
        notification(1, BASE), notification(1, [ua.Variant("x" * 10, TYPES.String)]), notification(1, BASE)
    )
    at = data.index(b"x" * 10) - 4
    broken = data[:at] + struct.pack("<i", 2**30) + data[at + 4 :]
    found = decode_events(broken, {1: BASE_FIELDS}, READER)
    assert len(found.events) == 1
    assert found.unreadable == 2


def test_a_message_that_is_cut_short_is_an_error() -> None:
    """Then nothing in it can be trusted."""
    with pytest.raises(DecodeError):
        decode_events(publication(notification(1, BASE))[:30], {1: BASE_FIELDS}, READER)


def test_the_end_of_the_subscription_is_reported() -> None:
    """A StatusChangeNotification comes in the same answers."""
    body = struct.pack("<I", 0x800A_0000) + b"\0"
    data = publication()[:-4] + struct.pack("<iBBHBi", 1, 1, 0, 820, 1, len(body)) + body
    assert decode_events(data, {}, READER).status_change == 0x800A_0000
