"""A connection without a broker: how it ends, and how it handles packets."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from paho.mqtt.client import DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.exception import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from agent.replication.mqtt import transport
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.tls_client import TlsClient
from agent.replication.mqtt.transport import INCOMING_BYTES_MAX, READS_PER_WAKE_MAX, MqttConnection, Phase
from agent.replication.protocol.errors import (
    BrokerUnreachable,
    ConnectionLost,
    ConnectionRefused,
    MessageTooLarge,
    NotAuthorized,
    OutgoingFull,
    PeerAbsent,
    TransportError,
)
from tests.waiting import LIMIT_S, wait_until_async

ACCESS = Access("b", "idmz", "host", 1, lambda: None)  # type: ignore[arg-type, return-value]
PUBLISH = 0x30
BODY = b"\x00\x01t\x00payload"  # topic "t", no properties
GRANTED = SimpleNamespace(value=0, is_failure=False)


class Played:
    """In the place of paho: its socket is one end of a pair, of which the test holds the other, `broker`. `reads` are
    what `loop_read` does, one call after the other; what is buffered is read on without the socket."""

    def __init__(self) -> None:
        self.opened, self.broker = socket.socketpair()
        self.arrived: list[Incoming] = []
        self.alert = ""
        self.reads = deque[Callable[[], None]]()
        self.published, self.subscribed = list[str](), list[str]()
        self.on_publish: Callable[[], None] = lambda: None
        self.may_connect = threading.Event()
        self.may_connect.set()
        self.connected: dict[str, Any] = {}
        self.kept_alive = 0
        self.writes_left = 0

    def use_tls(self, *_: object) -> None:
        pass

    def connect(self, *_: object, **how: Any) -> None:
        assert self.may_connect.wait(20)
        self.connected = how

    def socket(self) -> socket.socket:
        return self.opened

    def loop_read(self) -> None:
        if self.reads:
            self.reads.popleft()()

    def has_more(self) -> bool:
        return bool(self.reads)

    def loop_misc(self) -> None:
        self.kept_alive += 1

    def want_write(self) -> bool:
        return self.writes_left > 0

    def loop_write(self) -> None:
        self.writes_left -= 1

    def control_packets(self) -> int:
        return 0

    def limit_keepalive(self, _: int) -> None:
        pass

    def subscribe(self, topics: list[tuple[str, object]]) -> tuple[MQTTErrorCode, int]:
        self.subscribed += [topic for topic, _ in topics]
        return MQTTErrorCode.MQTT_ERR_SUCCESS, 1

    def publish(self, topic: str, *_: object, **_how: object) -> SimpleNamespace:
        self.published.append(topic)
        self.on_publish()
        return SimpleNamespace(mid=len(self.published))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    """The client of the connections of a test."""
    client = Played()
    monkeypatch.setattr(MqttConnection, "_make_client", lambda _: client)
    monkeypatch.setattr(transport, "rearm_quickack", lambda _: None)
    with contextlib.closing(client.opened), contextlib.closing(client.broker):
        yield client


def accepts(connection: MqttConnection, **limits: int) -> None:
    """The broker accepts the session, with these limits."""
    connection._on_connect(connection._client, None, None, GRANTED, SimpleNamespace(**limits))  # type: ignore[arg-type]


def connected(on_message: Callable[[Incoming], None] = lambda _: None) -> MqttConnection:
    """A connection over the played client that is up; nothing wakes it but the test."""
    connection = MqttConnection(ACCESS, on_message)
    connection._socket = connection._client.opened  # type: ignore[attr-defined]
    return connection


async def test_all_waiting_callers_fail_when_the_connection_ends(played: Played) -> None:
    """These fail: requests not yet sent, requests not yet acknowledged, and callers that wait for the session. All
    report the first reason, not the errors that follow from it."""
    connection = connected()
    connection._outbox.unacknowledged_max = 2
    waiting = [connection.publish_request(f"t{number}", b"", "r", bytes(16), 1) for number in range(4)]
    assert played.published == ["t0", "t1"]
    for reason in ("gone", "follows from it"):
        connection._end_with(ConnectionLost("b", reason))
    for future in (*waiting, connection._connack):
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ConnectionLost, match="gone"):
                await future


async def test_a_subscription_fails_with_its_connection(played: Played) -> None:
    """Who waits for the acknowledgement of all topics learns at once that the connection has ended, and why; so does
    who subscribes then: nothing was granted."""
    connection = connected()
    subscribing = asyncio.create_task(connection.subscribe(["t", "u"]))
    await asyncio.sleep(0)
    assert played.subscribed == ["t", "u"]
    connection._end_with(ConnectionLost("b", "gone"))
    played.broker.close()
    done, _ = await asyncio.wait([subscribing], timeout=transport.SUBACK_S_MAX / 2)
    assert done
    assert "gone" in str(subscribing.exception())
    with pytest.raises(ConnectionLost, match="gone"):
        await connection.subscribe(["t"])


async def test_a_connection_is_behind_until_all_is_read(played: Played) -> None:
    """What waits in the socket counts, and what was already decrypted; after its end nothing does."""
    connection = connected()
    assert not connection.is_behind()
    played.broker.send(b"x")
    assert connection.is_behind()
    played.opened.recv(1)
    assert not connection.is_behind()
    played.reads.append(lambda: None)
    assert connection.is_behind()
    connection._end_with(ConnectionLost("b", "gone"))
    assert not connection.is_behind()


async def test_a_socket_is_not_watched_after_its_end(played: Played) -> None:
    """Its number may be that of another socket soon, which the loop could not watch then."""
    connection, loop = connected(), asyncio.get_running_loop()
    number = played.opened.fileno()
    played.writes_left = 1_000_000
    loop.add_reader(number, connection._read)
    connection._watch_writable()
    connection._end_with(ConnectionLost("b", "gone"))
    assert not loop.remove_reader(number)
    assert not loop.remove_writer(number)


LEAST = {"MaximumPacketSize": 16_384, "ReceiveMaximum": 1, "MaximumQoS": 1, "WildcardSubscriptionAvailable": 1}


@pytest.mark.parametrize("lacking", [None, *LEAST])
async def test_the_least_that_a_broker_must_accept(played: Played, lacking: str | None) -> None:
    """Packets of 16 KiB, one unacknowledged message, QoS 1 and wildcards are enough; with less of one, nothing could be
    sent or received."""
    connection = connected()
    accepts(connection, **{limit: least - (limit == lacking) for limit, least in LEAST.items()})
    assert connection.closed.done() is (lacking is not None)
    assert played.published == []


@pytest.mark.parametrize(
    "reason, error",
    [("Not authorized", ConnectionRefused), ("Server busy", BrokerUnreachable), ("Quota exceeded", BrokerUnreachable)],
)
async def test_a_broker_that_is_busy_does_not_refuse_our_identity(
    played: Played, reason: str, error: type[TransportError]
) -> None:
    """What passes by itself must neither put a new certificate aside nor call for a person."""
    connection = MqttConnection(ACCESS, lambda _: None)
    connection._on_connect(played, None, None, ReasonCode(PacketTypes.CONNACK, reason), None)  # type: ignore[arg-type]
    assert type(connection.closed.result()) is error


@pytest.mark.parametrize("is_told, says", [(True, "ended: Unspecified error"), (False, "ended without a reason")])
async def test_an_end_without_a_reason_is_not_an_error_of_the_broker(played: Played, is_told: bool, says: str) -> None:
    """A broker that was killed sends no reason; paho makes one up."""
    connection = connected()
    accepts(connection)
    connection._phase = Phase.OPEN
    flags, reason = DisconnectFlags(is_told), ReasonCode(PacketTypes.DISCONNECT, "Unspecified error")
    connection._on_disconnect(played, None, flags, reason, None)  # type: ignore[arg-type]
    assert says in str(connection.closed.result())


async def test_waiting_messages_are_bounded_to_the_byte(played: Played) -> None:
    """Messages wait for a socket that takes nothing, until the next one would not fit."""
    connection = connected()
    played.writes_left = 1_000_000
    size = transport.OUTGOING_BYTES_MAX // 16
    for _ in range(16):
        connection.publish_answer("t", bytes(size - 257), bytes(16))
    assert connection.outgoing_bytes == transport.OUTGOING_BYTES_MAX
    with pytest.raises(OutgoingFull):
        connection.publish_answer("t", b"", bytes(16))
    assert (connection.outgoing_bytes, played.published) == (transport.OUTGOING_BYTES_MAX, [])


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
    client = MqttConnection(ACCESS, lambda _: None)._client
    client.arrived = []
    client._in_packet["command"], client._in_packet["packet"] = command, bytearray(packet)
    assert client._handle_publish() == code
    assert len(client.arrived) == arrives


async def test_a_connection_is_up_with_what_came_with_its_handshake(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is told the largest packet that is accepted, and to keep no session. Its CONNACK counts although TLS
    has read it ahead: the socket never becomes readable."""
    opened = list[MqttConnection]()

    def tick(connection: MqttConnection) -> None:
        opened.append(connection)

    monkeypatch.setattr(MqttConnection, "_tick", tick)
    played.reads.append(lambda: accepts(opened[0]))
    async with asyncio.timeout(LIMIT_S):
        connection = await MqttConnection.open(ACCESS, lambda _: None)
    announced = played.connected["properties"]
    assert announced.MaximumPacketSize == INCOMING_BYTES_MAX
    assert announced.SessionExpiryInterval == 0
    connection._end_with(ConnectionLost("b", "over"))


async def test_an_attempt_that_is_cancelled_leaves_no_socket(played: Played) -> None:
    """The attempt ends at once, although its thread still connects; the socket that the thread gets then is closed."""
    played.may_connect.clear()
    attempt = asyncio.create_task(MqttConnection.open(ACCESS, lambda _: None))
    await asyncio.sleep(0)
    attempt.cancel()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(asyncio.CancelledError):
            await attempt
    played.may_connect.set()
    played.broker.settimeout(10)
    assert await asyncio.to_thread(played.broker.recv, 1) == b""


@pytest.mark.usefixtures("played")
async def test_a_broker_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that accepts TLS and no session, or a session and no subscription."""
    monkeypatch.setattr(transport, "CONNACK_S_MAX", 0.0)
    monkeypatch.setattr(transport, "SUBACK_S_MAX", 0.0)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ConnectionLost, match="no SUBACK"):
            await connected().subscribe(["t"])
        with pytest.raises(BrokerUnreachable, match="no CONNACK"):
            await MqttConnection.open(ACCESS, lambda _: None)


async def test_what_is_buffered_is_read_to_its_end(played: Played) -> None:
    """More messages than are read in one turn of the loop arrive, in order, without the socket becoming readable; other
    tasks have their turn between."""
    arrived = list[bytes]()
    connection = connected(lambda incoming: arrived.append(incoming.payload))
    count = 2 * READS_PER_WAKE_MAX + 1
    for number in range(count):
        message = Incoming("t", bytes([number]), None, None, None, False)
        played.reads.append(lambda message=message: played.arrived.extend([message] * 2))  # type: ignore[misc]
    connection._read()
    assert len(arrived) == 2 * READS_PER_WAKE_MAX
    for _ in range(3):
        await asyncio.sleep(0)
    assert arrived == [bytes([number // 2]) for number in range(2 * count)]


@pytest.mark.parametrize("error", [ValueError, IndexError, struct.error, MQTTException])
async def test_whatever_a_broken_packet_raises_ends_the_connection(played: Played, error: type[Exception]) -> None:
    """paho raises many errors for bytes that are no MQTT; none passes the connection."""

    def broken() -> None:
        raise error("broken")

    connection = connected()
    played.reads.append(broken)
    connection._read()
    assert "invalid MQTT" in str(connection.closed.result())


async def test_requests_are_held_back_as_the_broker_asks(played: Played) -> None:
    """No more are unacknowledged than its receive maximum; the next one leaves with an acknowledgement, but not with
    one that nothing waits for. What was sent takes no room in the queue, what waits does."""
    connection = connected()
    accepts(connection, ReceiveMaximum=2)
    waiting = [connection.publish_request(f"t{number}", b"{}", "r", bytes(16), 1) for number in range(3)]
    assert played.published == ["t0", "t1"]
    connection._on_acknowledged(9, GRANTED)  # type: ignore[arg-type]
    assert connection.outgoing_bytes == len("t2{}") + 256
    played.reads.append(lambda: connection._on_acknowledged(1, GRANTED))  # type: ignore[arg-type]
    connection._read()
    assert played.published == ["t0", "t1", "t2"]
    assert connection.outgoing_bytes == 0
    assert [future.done() for future in waiting] == [True, False, False]


async def test_a_message_fits_the_packet_with_its_topic(played: Played) -> None:
    """The broker would end the connection for a packet that is a byte too long."""
    connection = connected()
    connection.packet_bytes_max = 20_000
    connection.publish_answer("t" * 100, bytes(20_000 - 100 - 256), bytes(16))
    with pytest.raises(MessageTooLarge):
        connection.publish_answer("t" * 101, bytes(20_000 - 100 - 256), bytes(16))
    assert len(played.published) == 1


@pytest.mark.parametrize(
    "reason, error",
    [
        ("Success", None),
        ("No matching subscribers", PeerAbsent),
        ("Not authorized", NotAuthorized),
        ("Quota exceeded", TransportError),
        ("Packet identifier in use", TransportError),
    ],
)
async def test_every_refusal_of_a_request_is_told(
    played: Played, reason: str, error: type[TransportError] | None
) -> None:
    """What the broker did not take is not acknowledged; only a forbidden topic does not pass by itself."""
    connection = connected()
    waiting = connection.publish_request("t", b"{}", "r", bytes(16), 1)
    connection._on_acknowledged(len(played.published), ReasonCode(PacketTypes.PUBACK, reason))
    assert waiting.done()
    told = waiting.exception()
    assert type(told) is (error or type(None))
    if isinstance(told, TransportError):
        assert told.retryable is (error is not NotAuthorized)


async def test_a_request_during_which_the_connection_ends_fails(played: Played) -> None:
    """The socket breaks while paho writes the request: who waits for its acknowledgement is told."""
    connection = connected()
    played.on_publish = lambda: connection._end_with(ConnectionLost("b", "broken pipe"))
    waiting = connection.publish_request("t", b"{}", "r", bytes(16), 1)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(TransportError, match="broken pipe"):
            await waiting


async def test_a_socket_is_watched_while_there_is_something_to_write(played: Played) -> None:
    """What the socket does not take at once is written when it may be; then the loop is not woken for it any more."""
    connection = connected()
    played.writes_left = 3
    connection._flush()
    await wait_until_async(lambda: not played.writes_left, "the rest is written")
    await asyncio.sleep(0)
    assert not asyncio.get_running_loop().remove_writer(played.opened)


async def test_keep_alives_go_on_until_the_end(played: Played) -> None:
    """Each second paho may send a ping or notice that none was answered; after the end nothing is due any more."""
    due = list[Callable[[], None]]()
    connection = connected()
    connection._loop = SimpleNamespace(call_later=lambda _s, call: due.append(call))  # type: ignore[assignment]
    connection._tick()
    for _ in range(2):
        due.pop()()
    assert (played.kept_alive, len(due)) == (3, 1)
    connection._socket = None
    due.pop()()
    assert (played.kept_alive, len(due)) == (3, 0)


def test_what_was_read_ahead_counts_as_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket does not become readable for bytes that are out of TLS already."""
    client = TlsClient(CallbackAPIVersion.VERSION2)
    monkeypatch.setattr(client, "socket", lambda: None)
    for ahead in (b"x", b""):
        client._ahead = ahead
        assert client.has_more() is bool(ahead)
