"""One connection to a broker: MQTT 5 over mutual TLS 1.3, driven by the event loop, discarded when it ends.

paho implements MQTT, asyncio the waiting: the socket is registered with the loop, and paho is called when it is
readable or writable. A `MqttConnection` is used once. After a loss `link` makes a new one, because a paho client that
reconnects sends its unfinished messages again, forever if the broker refuses one of them.

Guarantees: every message fits the packet size that the broker announced; the outgoing queue is bounded; requests use
QoS 1, so that an absent peer and a forbidden topic are reported at once; answers use QoS 0 and are requested again when
lost; no message is retained, and each one expires. Nagle's algorithm and, where the kernel allows it, delayed
acknowledgements are off: together they made 0.4 ms into 88.

Not here: reconnecting and routing (`link`), the meaning of payloads (`protocol`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, cast

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from agent.concurrency import in_own_thread, timeout
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.publish_packet import PackedProperties
from agent.replication.mqtt.tls_client import TlsClient, rearm_quickack
from agent.replication.mqtt.transport_errors import (
    connect_error,
    ended,
    publish_error,
    refused_before_connack,
    session_refused,
    unusable_limits,
)
from agent.replication.protocol.errors import (
    BrokerUnreachable,
    ConnectionLost,
    MessageTooLarge,
    OutgoingFull,
    TransportError,
)

KEEPALIVE_S = 15
"""In seconds. A dead broker is detected after at most twice this."""
CONNECT_S_MAX = 5.0
"""For TCP, and again for the TLS handshake."""
CONNACK_S_MAX = 5.0
SUBACK_S_MAX = 5.0
PACKET_BYTES_MAX = 1024 * 1024
"""Largest packet for a broker that announces no limit."""
PACKET_BYTES_MIN = 16 * 1024
"""Smallest limit of a broker that is accepted: a request and the smallest page fit."""
INCOMING_BYTES_MAX = 2 * 1024 * 1024
"""Largest packet that is accepted, announced to the broker. A page and its header fit twice."""
CONTROL_PACKETS_MAX = 64
"""Packets that paho has queued by itself, such as answers to pings. A broker that demands more and reads none is
disconnected."""
OUTGOING_BYTES_MAX = 8 * 1024 * 1024
"""Outgoing queue for a slow socket: a few pages for each of a few peers."""
ANSWER_EXPIRY_S = 30
REQUESTS_UNACKNOWLEDGED_MAX = 16
"""QoS 1 messages in flight, unless the broker allows fewer."""
READS_PER_WAKE_MAX = 16
"""Calls of paho, each for a packet or 100 TLS records, before the event loop runs other tasks."""

_log = logging.getLogger(__name__)


class _Outgoing(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    properties: PackedProperties
    acknowledged: asyncio.Future[None] | None

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.topic) + 256  # properties and header stay below 256


class Phase(Enum):
    """Where a connection is handled."""

    CONNECTING = "in the thread that connects"
    OPEN = "in the event loop"
    ABANDONED = "the thread that connects is not waited for"


class Outbox:
    """Messages that wait to be sent, bounded in bytes, and those that wait for the broker's acknowledgement, of which
    there may be `unacknowledged_max`."""

    def __init__(self) -> None:
        self.bytes = 0
        self.unacknowledged_max = REQUESTS_UNACKNOWLEDGED_MAX
        self._waiting: deque[_Outgoing] = deque()  # tidy: bounded in bytes by add
        self._sent: dict[int, _Outgoing] = {}

    def add(self, message: _Outgoing) -> bool:
        """Whether there is room for it."""
        if self.bytes + message.size > OUTGOING_BYTES_MAX:
            return False
        self._waiting.append(message)
        self.bytes += message.size
        return True

    def take_message(self) -> _Outgoing | None:
        """The next message that may be sent."""
        if not self._waiting or len(self._sent) >= self.unacknowledged_max:
            return None
        message = self._waiting.popleft()
        self.bytes -= message.size
        return message

    def sent(self, identifier: int, message: _Outgoing) -> None:
        if message.acknowledged is not None:
            self._sent[identifier] = message

    def acknowledged(self, identifier: int) -> _Outgoing | None:
        """The message that the broker acknowledges; None if nothing waits for that."""
        message = self._sent.pop(identifier, None)
        return None if message is None or message.acknowledged is None or message.acknowledged.done() else message

    def clear(self) -> list[asyncio.Future[None]]:
        """Drop all messages. Returns what waits for their acknowledgements."""
        messages = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        return [message.acknowledged for message in messages if message.acknowledged is not None]


class MqttConnection:
    """One connection, created by `open`. It has ended when `closed` has a result, the reason."""

    def __init__(self, access: Access, on_message: Callable[[Incoming], None]) -> None:
        self._access = access
        self._on_message_callback = on_message
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[TransportError] = self._loop.create_future()
        self.packet_bytes_max = PACKET_BYTES_MAX
        self._connack: asyncio.Future[Properties | None] = self._loop.create_future()
        self._suback: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self._outbox = Outbox()
        self._socket: socket.socket | None = None
        self._is_writing = False
        self._phase = Phase.CONNECTING
        self._client = self._make_client()

    @classmethod
    async def open(cls, access: Access, on_message: Callable[[Incoming], None]) -> MqttConnection:
        """Connect and wait for CONNACK. Raises TransportError."""
        connection = cls(access, on_message)
        try:
            await connection._connect()
        except BaseException:  # tidy: raised again; no socket may outlive the attempt
            connection._phase = Phase.ABANDONED
            connection._end_with(ConnectionLost(str(access), "abandoned while connecting"))
            raise
        return connection

    # ------------------------------------------------------------------------------------------------------- publishing

    def publish_answer(self, topic: str, payload: bytes, correlation: bytes) -> None:
        """Send at QoS 0. Raises TransportError if it cannot be queued."""
        self._offer(_Outgoing(topic, payload, 0, PackedProperties(correlation, ANSWER_EXPIRY_S), None))

    def publish_request(
        self, topic: str, payload: bytes, response_topic: str | None, correlation: bytes, expiry_s: int
    ) -> asyncio.Future[None]:
        """Send at QoS 1. The future completes with the broker's acknowledgement, or fails, with PeerAbsent if no peer
        subscribes."""
        properties = PackedProperties(correlation, expiry_s, response_topic)
        acknowledged: asyncio.Future[None] = self._loop.create_future()
        self._offer(_Outgoing(topic, payload, 1, properties, acknowledged))
        return acknowledged

    @property
    def connack(self) -> Properties | None:
        """What the broker announced when it accepted the session."""
        return self._connack.result()

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that wait to be sent, behind the message that is being written."""
        return self._outbox.bytes

    def is_behind(self) -> bool:
        """Whether something has arrived that was not read yet."""
        if self._socket is None:
            return False
        unread = select.poll()
        unread.register(self._socket, select.POLLIN)
        return self._client.has_more() or bool(unread.poll(0))

    async def subscribe(self, topics: Sequence[str]) -> list[str]:
        """Subscribe and wait for the acknowledgement. Returns the topics that the broker has refused; some brokers
        grant forbidden topics too, and deliver nothing."""
        if not topics:
            return []
        if self._socket is None:
            raise self.closed.result()
        options = [
            (topic, SubscribeOptions(qos=0, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)) for topic in topics
        ]
        code, identifier = self._client.subscribe(options)
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS or identifier is None:
            raise ConnectionLost(str(self._access), f"subscribing failed: {code.name}")
        answered = self._suback[identifier] = self._loop.create_future()
        self._flush()
        try:
            async with timeout(SUBACK_S_MAX):
                reasons = await answered
        except TimeoutError as error:
            raise ConnectionLost(str(self._access), f"no SUBACK in {SUBACK_S_MAX:g} s") from error
        finally:
            self._suback.pop(identifier, None)
        return [topic for topic, reason in zip(topics, reasons, strict=False) if reason.is_failure]

    async def close(self) -> None:
        """Send DISCONNECT and end the connection."""
        if self._socket is not None:
            self._client.disconnect()
            self._flush()
        self._end_with(ConnectionLost(str(self._access), "closed by this node"))

    def _offer(self, message: _Outgoing) -> None:
        if message.size > self.packet_bytes_max:
            raise MessageTooLarge(
                str(self._access),
                f"message of {message.size} bytes, the broker accepts {self.packet_bytes_max}",
                "Raise max_packet_size of the broker.",
            )
        if self._socket is None:
            raise ConnectionLost(str(self._access), "the connection has ended")
        if not self._outbox.add(message):
            raise OutgoingFull(str(self._access), f"{self._outbox.bytes} bytes are already waiting to be sent")
        self._flush()

    def _flush(self) -> None:
        """Pass messages to paho one at a time as it can write them, because paho's own queue is unbounded."""
        client = self._client
        while self._socket is not None:
            if client.want_write():
                client.loop_write()
                if client.want_write():
                    break
            if (message := self._outbox.take_message()) is None:
                break
            properties = cast("Properties", message.properties)  # paho calls only `pack`
            sent = client.publish(message.topic, message.payload, message.qos, properties=properties)
            self._outbox.sent(sent.mid, message)
            if self.closed.done():
                self._fail_pending()  # the connection ended while sending this message
        self._watch_writable()

    def _watch_writable(self) -> None:
        wants = self._socket is not None and self._client.want_write()
        if wants and not self._is_writing:
            assert self._socket is not None
            self._loop.add_writer(self._socket.fileno(), self._flush)
        elif self._is_writing and not wants and self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
        self._is_writing = wants

    # ------------------------------------------------------------------------------------------------------- connecting

    def _make_client(self) -> TlsClient:
        access = self._access
        client = TlsClient(
            CallbackAPIVersion.VERSION2,
            client_id=f"{access.node}-{secrets.token_hex(16)}",  # random: a client with this id could take the session
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_S_MAX  # for TCP; the handshake has its own limit
        client.max_inflight_messages_set(REQUESTS_UNACKNOWLEDGED_MAX)
        client.on_socket_close = self._on_socket_close
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_acknowledged = self._on_acknowledged
        return client

    async def _connect(self) -> None:
        access = self._access
        self._client.use_tls(access.make_context(), access.host, CONNECT_S_MAX, INCOMING_BYTES_MAX)
        # A thread of its own: a few brokers that accept and stay silent would fill the threads that all parts share.
        try:
            await in_own_thread(self._connect_blocking, name="bsfg-connect")
        except OSError as error:
            raise connect_error(str(access), error) from error
        self._phase = Phase.OPEN
        opened = self._client.socket()
        if opened is None:
            raise refused_before_connack(str(access), self._client.alert)
        assert isinstance(opened, socket.socket)
        self._socket = opened
        self._loop.add_reader(opened.fileno(), self._read)
        self._loop.call_soon(self._read)  # TLS may have read ahead during the handshake
        self._tick()
        try:
            async with timeout(CONNACK_S_MAX):
                await self._connack
        except TimeoutError as error:
            raise BrokerUnreachable(str(access), f"no CONNACK in {CONNACK_S_MAX:g} s", "See its log.") from error

    def _connect_blocking(self) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0
        properties.MaximumPacketSize = INCOMING_BYTES_MAX
        self._client.connect(self._access.host, self._access.port, KEEPALIVE_S, clean_start=True, properties=properties)
        if self._phase is Phase.ABANDONED:
            with contextlib.suppress(OSError):
                opened = self._client.socket()
                if opened is not None:
                    opened.close()

    def _on_connect(self, _client: Client, _data: Any, _flags: Any, reason: Any, properties: Properties | None) -> None:
        if reason.is_failure:
            self._end_with(session_refused(str(self._access), reason))
            return
        packet_bytes_max = getattr(properties, "MaximumPacketSize", PACKET_BYTES_MAX)
        receive_max = getattr(properties, "ReceiveMaximum", REQUESTS_UNACKNOWLEDGED_MAX)
        qos_max = getattr(properties, "MaximumQoS", 2)
        has_wildcards = getattr(properties, "WildcardSubscriptionAvailable", 1)
        if packet_bytes_max < PACKET_BYTES_MIN or receive_max < 1 or qos_max < 1 or not has_wildcards:
            # Without these no request could ever be sent or received.
            limits = f"packets of {packet_bytes_max} bytes, {receive_max} unacknowledged, QoS {qos_max}"
            limits += "" if has_wildcards else ", no wildcards"
            self._end_with(unusable_limits(str(self._access), limits, PACKET_BYTES_MIN))
            return
        self.packet_bytes_max = packet_bytes_max
        self._outbox.unacknowledged_max = min(receive_max, REQUESTS_UNACKNOWLEDGED_MAX)
        # paho takes the broker's ServerKeepAlive as it is; 0 or 18 hours would keep a dead connection.
        self._client.limit_keepalive(KEEPALIVE_S)
        if not self._connack.done():
            self._connack.set_result(properties)

    # ---------------------------------------------------------------------------------------------------------- reading

    def _read(self) -> None:
        """Read all available data. Data that TLS has already decrypted does not wake the loop, so it is read here to
        its end."""
        for _ in range(READS_PER_WAKE_MAX):
            if self._socket is None:
                return
            try:
                self._client.loop_read()
            except (ValueError, LookupError, struct.error, MQTTException) as error:  # a malformed packet
                self._end_with(ConnectionLost(str(self._access), f"the broker sent invalid MQTT: {error!r}"))
                return
            if self._client.control_packets() > CONTROL_PACKETS_MAX:
                self._end_with(ConnectionLost(str(self._access), "the broker demands answers and does not read them"))
                return
            arrived, self._client.arrived = self._client.arrived, []
            for incoming in arrived:
                self._on_message_callback(incoming)
            if not self._client.has_more():
                break
        else:
            self._loop.call_soon(self._read)
        if self._socket is not None:
            rearm_quickack(self._socket)
            self._flush()

    def _tick(self) -> None:
        """Once a second: send keep-alives, and detect a silent broker."""
        if self._socket is not None and not self.closed.done():
            self._client.loop_misc()
            self._flush()
            self._loop.call_later(1.0, self._tick)

    def _on_subscribe(
        self, _client: Client, _data: Any, identifier: int, reasons: list[ReasonCode], _properties: Any
    ) -> None:
        answered = self._suback.get(identifier)
        if answered is not None and not answered.done():
            answered.set_result(reasons)

    def _on_acknowledged(self, identifier: int, reason: ReasonCode) -> None:
        message = self._outbox.acknowledged(identifier)
        if message is None or message.acknowledged is None:
            return
        error = publish_error(message.topic, reason)
        if error is None:
            message.acknowledged.set_result(None)
        else:
            message.acknowledged.set_exception(error)

    # ----------------------------------------------------------------------------------------------------------- ending

    def _on_socket_close(self, _client: Client, _data: Any, closing: Any) -> None:
        if self._socket is not None:
            self._loop.remove_reader(closing.fileno())
            self._loop.remove_writer(closing.fileno())
            self._socket = None
            self._is_writing = False

    def _on_disconnect(self, _client: Client, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        if self._phase is not Phase.OPEN:
            return  # still in the connecting thread; `_connect` sees the closed socket
        if self._connack.done():
            self._end_with(ended(str(self._access), reason, is_told=flags.is_disconnect_packet_from_server))
        elif reason.getName() == "Protocol error" and not self._client.alert:
            self._end_with(BrokerUnreachable(str(self._access), "it sent invalid MQTT", "Is it an MQTT 5 broker?"))
        else:
            self._end_with(refused_before_connack(str(self._access), self._client.alert))

    def _end_with(self, error: TransportError) -> None:
        """End the connection, once; the first reason is kept."""
        opened = self._socket
        if opened is not None:
            self._on_socket_close(self._client, None, opened)
            opened.close()
        if not self.closed.done():
            self.closed.set_result(error)
        self._fail_pending()
        _log.debug("connection_ended", extra={"broker": self._access.name, "reason": str(error)})

    def _fail_pending(self) -> None:
        """Fail all pending futures with the reason."""
        error = self.closed.result()
        waiting: list[asyncio.Future[Any]] = [self._connack, *self._suback.values(), *self._outbox.clear()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark as retrieved: the future may have no waiter
