"""A connection without a broker: how it ends, and how it handles packets."""

import asyncio

import pytest
from paho.mqtt.enums import MQTTErrorCode

from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.transport import Connection
from agent.replication.protocol.errors import ConnectionLost

ACCESS = Access("b", "idmz", "host", 1, lambda: None)  # type: ignore[arg-type, return-value]
PUBLISH = 0x30
BODY = b"\x00\x01t\x00payload"  # topic "t", no properties


async def test_the_first_reason_counts() -> None:
    """The first reason for the end of a connection is reported, not the errors that follow from it."""
    connection = Connection(ACCESS, lambda _: None)
    connection._end(ConnectionLost("b", "first"))
    connection._end(ConnectionLost("b", "second"))
    assert "first" in str(connection.closed.result())


async def test_all_waiting_callers_fail_when_the_connection_ends() -> None:
    """These fail: requests not yet sent, requests not yet acknowledged, and callers that wait for the session."""
    connection = Connection(ACCESS, lambda _: None)
    connection._socket = object()  # type: ignore[assignment]
    connection._flush = lambda: None  # type: ignore[method-assign]
    waiting = connection.publish_request("t", b"", "r", bytes(16), 1)
    connection._socket = None
    connection._end(ConnectionLost("b", "gone"))
    for future in (waiting, connection._connack):
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionLost, match="gone"):
                await future


@pytest.mark.parametrize(
    "command, packet, code, arrives",
    [
        (PUBLISH, BODY, MQTTErrorCode.MQTT_ERR_SUCCESS, 1),
        (PUBLISH | 0x02, b"\x00\x01t\x00\x01\x00payload", MQTTErrorCode.MQTT_ERR_PROTOCOL, 0),  # QoS 1
        (PUBLISH | 0x04, b"\x00\x01t\x00\x01\x00payload", MQTTErrorCode.MQTT_ERR_PROTOCOL, 0),  # QoS 2
        (PUBLISH, b"\x00\x09t", MQTTErrorCode.MQTT_ERR_PROTOCOL, 0),  # a topic beyond its end
    ],
)
async def test_unexpected_packets_end_the_connection(
    command: int, packet: bytes, code: MQTTErrorCode, arrives: int
) -> None:
    """A packet with a QoS that was never requested, or a malformed one, ends the connection."""
    client = Connection(ACCESS, lambda _: None)._client
    client.arrived = []
    client._in_packet["command"], client._in_packet["packet"] = command, bytearray(packet)
    assert client._handle_publish() == code
    assert len(client.arrived) == arrives
