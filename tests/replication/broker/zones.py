"""The zones of the test broker: what each may publish and receive, and plain paho connections for them."""

import contextlib
import os
import pwd
import queue
import socket
import ssl
import struct
from datetime import UTC, datetime
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.replication import pki
from agent.replication.broker.check_session import BrokerTarget
from agent.replication.broker.config import PeerLink
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import LIMIT_S, wait_until

BROKER = "private"  # the name under which the helper has its broker issued
SUCCESS, NOBODY_LISTENS, NOT_AUTHORIZED = 0x00, 0x10, 0x87
RETAIN_NOT_SUPPORTED, PACKET_TOO_LARGE, UNSPECIFIED = 0x9A, 0x95, 0x80
NOW = datetime.now(UTC)

LINKS = (PeerLink("plant-a", "idmz"), PeerLink("plant-b", "idmz"), PeerLink("idmz", "enterprise"))
ZONES = ("plant-a", "plant-b", "idmz", "enterprise")

# Written by hand, so that the product is compared with the intention and not with itself.
MAY_WRITE = {
    "plant-a": {"bsfg/1/plant-a/idmz/rsp/0/x"},
    "plant-b": {"bsfg/1/plant-b/idmz/rsp/0/x"},
    "idmz": {"bsfg/1/plant-a/idmz/req", "bsfg/1/plant-b/idmz/req", "bsfg/1/idmz/enterprise/rsp/0/x"},
    "enterprise": {"bsfg/1/idmz/enterprise/req"},
}
MAY_READ = {
    "plant-a": {"bsfg/1/plant-a/idmz/req"},
    "plant-b": {"bsfg/1/plant-b/idmz/req"},
    "idmz": {"bsfg/1/plant-a/idmz/rsp/0/x", "bsfg/1/plant-b/idmz/rsp/0/x", "bsfg/1/idmz/enterprise/req"},
    "enterprise": {"bsfg/1/idmz/enterprise/rsp/0/x"},
}
MAY_SUBSCRIBE = {
    "plant-a": {"bsfg/1/plant-a/+/req"},
    "plant-b": {"bsfg/1/plant-b/+/req"},
    "idmz": {"bsfg/1/idmz/+/req", *(f"bsfg/1/+/idmz/rsp/{slot}/+" for slot in "0123456789abcdef")},
    "enterprise": {f"bsfg/1/+/enterprise/rsp/{slot}/+" for slot in "0123456789abcdef"},
}
EVERY_TOPIC = [
    topic
    for serving in ZONES
    for asking in ZONES
    for topic in (f"bsfg/1/{serving}/{asking}/req", f"bsfg/1/{serving}/{asking}/rsp/0/x")
] + [
    "bsfg/1/plant-a/idmz/rsp/0/x/y",
    "bsfg/1/plant-a/idmz/rsp",
    "bsfg/2/plant-a/idmz/rsp/0/x",
    "elsewhere",
    "$SYS/broker/uptime",
    "$CONTROL/dynamic-security/v1",
]
# For each zone, who can send it something it may read, and where.
FENCE = {
    "plant-a": ("idmz", "bsfg/1/plant-a/idmz/req"),
    "plant-b": ("idmz", "bsfg/1/plant-b/idmz/req"),
    "idmz": ("plant-a", "bsfg/1/plant-a/idmz/rsp/0/fence"),
    "enterprise": ("idmz", "bsfg/1/idmz/enterprise/rsp/0/fence"),
}


# Clean start, keep-alive 60 s, no properties, a client identifier from the broker (MQTT 5, 3.1).
CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"


def context_of(broker: Mosquitto, zone: str = "idmz") -> ssl.SSLContext:
    """TLS with the identity of a zone."""
    mine = broker.identity(zone)
    return pki.client_context(mine.ca_file, mine.cert_file, mine.key_file)


def target_of(broker: Mosquitto, zone: str = "idmz") -> BrokerTarget:
    """The broker and a zone's identity, for a check."""
    mine = broker.identity(zone)
    return BrokerTarget(HOST, broker.port, zone, mine.ca_file, mine.cert_file, mine.key_file)


def own_user() -> str:
    """The user that runs the tests, and so the broker."""
    return pwd.getpwuid(os.geteuid()).pw_name


class Caller:
    """One zone's plain paho connection, for one request at a time."""

    def __init__(
        self,
        broker: Mosquitto,
        zone: str,
        *,
        client_id: str = "",
        session_expiry_s: int = 0,
        keepalive_s: int = 60,
        will: tuple[str, bool] | None = None,
    ) -> None:
        self.zone = zone
        self.received: list[tuple[str, bytes]] = []
        self.connack: Any = None
        self.session_present = False
        self._events: queue.Queue[tuple[str, int, int]] = queue.Queue(maxsize=1000)
        identity = broker.identity(zone)
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        client.tls_set_context(pki.client_context(identity.ca_file, identity.cert_file, identity.key_file))
        client.on_connect = self._on_connect
        client.on_disconnect = lambda _c, _u, _f, reason, _p: self._events.put(("disconnect", 0, reason.value))
        client.on_publish = lambda _c, _u, mid, reason, _p: self._events.put(("puback", mid, reason.value))
        client.on_subscribe = lambda _c, _u, mid, reasons, _p: self._events.put(("suback", mid, reasons[0].value))
        client.on_message = lambda _c, _u, message: self.received.append((message.topic, message.payload))
        if will is not None:
            client.will_set(will[0], b"will", qos=1, retain=will[1])
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = session_expiry_s
        client.connect(HOST, broker.port, keepalive_s, clean_start=session_expiry_s == 0, properties=properties)
        self.client = client
        client.loop_start()
        self.connect_reason = self._next("connect", 0)

    def publish(self, topic: str, payload: bytes = b"forbidden", **more: Any) -> int:
        """The broker's reason code, or the reason for which it disconnected instead."""
        properties = Properties(PacketTypes.PUBLISH)
        properties.MessageExpiryInterval = 60
        information = self.client.publish(topic, payload, qos=1, properties=properties, **more)
        return self._next("puback", information.mid)

    def listen(self) -> None:
        """Subscribe to what the zone may receive, at QoS 1."""
        for topic in sorted(MAY_SUBSCRIBE[self.zone]):
            assert self.subscribe(topic) <= 1, topic

    def subscribe(self, topic: str, qos: int = 1) -> int:
        """The broker's reason code."""
        _, mid = self.client.subscribe(topic, qos)
        assert mid is not None
        return self._next("suback", mid)

    def drop(self) -> None:
        """End the connection as a lost machine does, without DISCONNECT, so that a will is sent."""
        sock = self.client.socket()
        assert sock is not None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        client = self.client
        client.disconnect()
        client.loop_stop()
        client.on_connect = client.on_disconnect = client.on_publish = client.on_subscribe = client.on_message = None

    def _next(self, kind: str, mid: int) -> int:
        while True:
            event = self._events.get(timeout=LIMIT_S)
            if event[0] == "disconnect" or event[:2] == (kind, mid):
                return event[2]

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        self.session_present = flags.session_present
        self.connack = properties
        self._events.put(("connect", 0, reason.value))


class Zones:
    """The connections of one test, opened on demand."""

    def __init__(self, broker: Mosquitto, stack: contextlib.ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._callers: dict[str, Caller] = {}

    def __getitem__(self, zone: str) -> Caller:
        if zone not in self._callers:
            self._callers[zone] = self.connection(zone)
        return self._callers[zone]

    def connection(self, zone: str, **more: Any) -> Caller:
        """Another connection of `zone`."""
        caller = Caller(self.broker, zone, **more)
        self._stack.callback(caller.close)
        return caller

    def fence(self, zone: str) -> list[tuple[str, bytes]]:
        """All messages that have arrived at `zone` once everything published before is delivered."""
        writer, topic = FENCE[zone]
        reader = self[zone]
        payload = f"fence {len(reader.received)}".encode()
        reader.listen()
        assert self[writer].publish(topic, payload) == SUCCESS
        wait_until(lambda: (topic, payload) in reader.received, f"the fence reaches {zone}")
        return [message for message in reader.received if not message[1].startswith(b"fence")]
