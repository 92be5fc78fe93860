"""Our PUBLISH packets compared with paho's, in both directions, and invalid bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.replication.mqtt.carrier import Incoming
from agent.replication.mqtt.publish_packet import PROPERTIES_BYTES_MAX, BadPacket, PackedProperties, parse_publish
from agent.replication.mqtt.tls_client import TlsClient

topics = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=150)
correlations = st.binary(max_size=200)


def packet(topic: str, properties: bytes, payload: bytes, identifier: bytes = b"") -> bytes:
    """The bytes after the length of a PUBLISH."""
    encoded = topic.encode()
    return len(encoded).to_bytes(2) + encoded + identifier + properties + payload


@given(correlations, st.integers(0, 2**32 - 1), st.none() | topics)
def test_paho_reads_our_properties(correlation: bytes, expiry_s: int, answer_to: str | None) -> None:
    """paho decodes the properties that we encode."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.unpack(PackedProperties(correlation, expiry_s, answer_to).pack())
    assert properties.CorrelationData == correlation
    assert properties.MessageExpiryInterval == expiry_s
    assert getattr(properties, "ResponseTopic", None) == answer_to


@given(topics, correlations, topics, st.binary(max_size=300), st.integers(0, 1), st.integers(0, 1))
def test_we_read_pahos_packets(
    topic: str, correlation: bytes, answer_to: str, payload: bytes, retained: int, qos: int
) -> None:
    """We decode paho's packets, unused properties included."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.PayloadFormatIndicator = 1
    properties.UserProperty = [("a", "b"), ("c", "")]
    properties.ContentType = "application/json"
    properties.CorrelationData = correlation
    properties.ResponseTopic = answer_to
    properties.MessageExpiryInterval = 77
    properties.SubscriptionIdentifier = 300
    sent = packet(topic, properties.pack(), payload, b"\x12\x34" if qos else b"")
    incoming, got_qos = parse_publish(0x30 | qos << 1 | retained, sent)
    assert incoming == (topic, payload, answer_to, correlation, 77, bool(retained))
    assert got_qos == qos


@given(st.integers(0x30, 0x3F), st.binary(max_size=80))
def test_any_bytes_are_a_packet_or_raise_bad_packet(command: int, data: bytes) -> None:
    """Any bytes are a packet or raise BadPacket."""
    try:
        parse_publish(command, data)
    except BadPacket:
        return


@pytest.mark.parametrize(
    "name", ["_ssl_wrap_socket", "_sock_recv", "_handle_publish", "_packet_queue", "_do_on_publish"]
)
def test_the_overridden_methods_of_paho_exist(name: str) -> None:
    """The private methods of paho that this project replaces or uses are still there."""
    assert callable(getattr(Client, name))
    assert hasattr(TlsClient, name)


def test_properties_that_end_beyond_the_packet_are_refused() -> None:
    """This also holds if the present ones are valid: the missing part was lost, and the payload with it."""
    expiry = b"\x02\x00\x00\x00\x0a"
    good = b"\x00\x01t" + bytes([len(expiry)]) + expiry
    assert parse_publish(0x30, good)[0].expiry_s == 10
    for length in (len(expiry) + 1, 100):
        with pytest.raises(BadPacket):
            parse_publish(0x30, b"\x00\x01t" + bytes([length]) + expiry)


def test_a_topic_alias_is_refused() -> None:
    """We offer the broker no topic aliases, so a PUBLISH with one is malformed (MQTT 5.0, 3.3.2.3.4)."""
    with pytest.raises(BadPacket, match="0x23 is not allowed"):
        parse_publish(0x30, b"\x00\x00\x03\x23\x00\x01payload")


@pytest.mark.parametrize("properties", [b"\x01\x01", b"\x02\x02\x00"])
def test_a_property_within_the_properties(properties: bytes) -> None:
    """One whose value would begin or end behind them is malformed: what follows is the payload."""
    with pytest.raises(BadPacket):
        parse_publish(0x30, packet("t", properties, b"payload"))


def test_a_megabyte_of_properties_is_not_read() -> None:
    """User properties are allowed, and a sender may add 200,000 of them to a message. They are not parsed, and such a
    message has no response topic; a few are skipped as before, up to the
    limit."""
    ours = PackedProperties(b"12345678", 9, "bsfg/1/a/b/rsp/0/i").pack()[1:]

    def parsed(properties: bytes) -> Incoming:
        length = bytes([len(properties) % 128 | 128, len(properties) // 128 % 128 | 128, len(properties) // 128**2])
        return parse_publish(0x30, packet("t", length + properties, b"{}"))[0]

    long = parsed(b"\x26\0\0\0\0" * 200_000 + ours)
    assert (long.payload, long.response_topic, long.correlation) == (b"{}", None, None)
    assert parsed(b"\x26\0\x01a\0\x01b" * 500 + ours).response_topic == "bsfg/1/a/b/rsp/0/i"
    room = PROPERTIES_BYTES_MAX - len(ours) - 5
    most = b"\x26\0\0" + room.to_bytes(2) + bytes(room) + ours
    assert len(most) == PROPERTIES_BYTES_MAX
    assert parsed(most).response_topic == "bsfg/1/a/b/rsp/0/i"
    assert parsed(b"\x01\0" + most).response_topic is None
    with pytest.raises(BadPacket):
        parse_publish(0x30, packet("t", b"\xff\xff\x3f", b"{}"))
