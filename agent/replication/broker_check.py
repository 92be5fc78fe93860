"""Prove a running broker: what it must let through, and what it must not.

A broker grants every subscription, forbidden ones too, and says nothing when it drops; after a reload with a damaged
file it may run on and refuse everybody, or let revoked certificates in.  So nothing is believed that was not tried, with
one zone's own identity: the handshake, the limits told in CONNACK, that nobody enters without a certificate or with an
older TLS, each right this zone's links need, and that rights it must not have are refused.  Where the peer's node is
attached, a request goes there and back.  Nothing is left behind: no retained message, no session, no registered
consumer.  Whether the *other* zones can do their part is for a check with their identity.
"""

from __future__ import annotations

import queue
import secrets
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.replication import broker, pki
from agent.replication.finding import Finding, Outcome
from agent.replication.protocol import ListStreams, encode_request
from agent.replication.topics import request_topic, response_topic

WAIT_S = 5.0
"""For each single answer; a broker in the same plant answers within milliseconds."""

MESSAGES_MAX = 64
"""Answers kept while one is awaited, the oldest dropped first; a check asks one question at a time."""

STRANGER = "bsfg-check"
"""A zone nobody has: asking in its name, or asking it, must be forbidden."""

_SUCCESS = 0x00
_NO_MATCHING_SUBSCRIBERS = 0x10
_NOT_AUTHORIZED = 0x87
_CONNACK = 0x20
# MQTT 5 CONNECT: clean start, keep-alive 60 s, no properties, client identifier to be assigned (MQTT 5, 3.1).
_CONNECT_PACKET = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Access:
    """Where the broker is, and with which identity it is tried."""

    host: str
    port: int
    zone: str
    ca_file: Path
    cert_file: Path
    key_file: Path


def check_broker(access: Access, links: Iterable[broker.PeerLink]) -> Iterator[Finding]:
    """Try everything, telling each finding as it is made; ends early where the rest could not be tried."""
    problems = pki.check_identity(access.cert_file, access.key_file, access.ca_file, access.zone)
    if problems:
        yield from (Finding(Outcome.BAD, f"{each.file}: {each.why}", each.hint) for each in problems)
        return
    session = _Session(access)
    try:
        refusal = session.connect()
        if refusal is not None:
            yield refusal
            return
        yield Finding(Outcome.GOOD, f"connected to {access.host}:{access.port} as {access.zone} with TLS 1.3")
        yield from _check_limits(session.connack)
        yield from _check_doors(access)
        mine = sorted({link for link in links if access.zone in (link.serving, link.asking)})
        for link in mine:
            yield from _check_link(session, access.zone, link)
        yield from _check_forbidden(session, access.zone, mine)
    finally:
        session.close()


def _check_limits(connack: Properties | None) -> Iterator[Finding]:
    """What CONNACK says about the broker's settings."""
    packet_bytes = getattr(connack, "MaximumPacketSize", None)
    if packet_bytes is None:
        yield Finding(Outcome.BAD, "packets of any size are accepted", "use the configuration of bsfg broker config")
    elif packet_bytes < broker.PACKET_BYTES_MAX:
        what = f"packets are limited to {packet_bytes} bytes, and a page may have {broker.PACKET_BYTES_MAX}"
        yield Finding(Outcome.BAD, what, f"set max_packet_size {broker.PACKET_BYTES_MAX}")
    else:
        yield Finding(Outcome.GOOD, f"packets are limited to {packet_bytes} bytes")
    if getattr(connack, "RetainAvailable", 1) != 0:
        yield Finding(Outcome.BAD, "the broker keeps retained messages", "set retain_available false")
    else:
        yield Finding(Outcome.GOOD, "nothing is retained")


def _check_doors(access: Access) -> Iterator[Finding]:
    """Ways in that must be shut: no TLS, no certificate, an older TLS."""
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.load_verify_locations(access.ca_file)
    older = pki.client_context(access.ca_file, access.cert_file, access.key_file)
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    hint = "use the configuration of bsfg broker config, and start the broker with that file alone"
    for way, context in (("without TLS", None), ("without a certificate", anonymous), ("with TLS 1.2", older)):
        if _enters(access, context):
            yield Finding(Outcome.BAD, f"the broker lets clients in {way}", hint)
        else:
            yield Finding(Outcome.GOOD, f"refused {way}")


def _check_link(session: _Session, zone: str, link: broker.PeerLink) -> Iterator[Finding]:
    """The rights of one link, and the way there and back where the peer is attached."""
    instance = f"check-{secrets.token_hex(8)}"
    responses = response_topic(link.serving, link.asking, instance)
    hint = "add the link to bsfg broker config, install what it writes, and reload the broker"
    if zone == link.serving:
        # An answer nobody asked for, to an instance nobody has: only the broker's acknowledgement is of interest.
        reason = session.publish(responses, b"", None, b"")
        allowed = reason in (_SUCCESS, _NO_MATCHING_SUBSCRIBERS)
        yield _right(allowed, f"may answer {link.asking}", reason, hint)
        return
    request, question = request_topic(link.serving, link.asking), encode_request(ListStreams())
    correlation = secrets.token_bytes(16)
    session.subscribe(responses)
    reason = session.publish(request, question, responses, correlation)
    yield _right(reason in (_SUCCESS, _NO_MATCHING_SUBSCRIBERS), f"may ask {link.serving}", reason, hint)
    if reason == _NO_MATCHING_SUBSCRIBERS:
        yield Finding(Outcome.NOTE, f"no node of {link.serving} is attached, so no round trip was made")
    elif reason == _SUCCESS:
        if session.wait_message(responses, correlation, WAIT_S):
            yield Finding(Outcome.GOOD, f"{link.serving} answered")
        else:
            what = f"a node of {link.serving} is attached and did not answer within {WAIT_S:g} s"
            yield Finding(
                Outcome.BAD, what, f"is {zone} among the peers of {link.serving}? its log tells what it refused"
            )
    # Asked again while subscribed to the request itself: had we the right to read it, the broker would hand it back
    # before it acknowledges it, because both come over this one connection, in order.
    session.subscribe(request)
    session.publish(request, question, responses, correlation)
    if session.wait_message(request, correlation, 0):
        yield Finding(Outcome.BAD, f"{zone} may read requests made to {link.serving}", hint)
    else:
        yield Finding(Outcome.GOOD, f"{zone} may not read requests made to {link.serving}")


def _check_forbidden(session: _Session, zone: str, links: list[broker.PeerLink]) -> Iterator[Finding]:
    """Rights that no generated access list gives: another's name, an unlinked zone, $SYS."""
    hint = "install the access list of bsfg broker config, and reload the broker"
    peers = sorted({link.serving for link in links if link.asking == zone}) or [STRANGER]
    for topic, what in (
        (request_topic(peers[0], STRANGER), "ask in another zone's name"),
        (request_topic(STRANGER, zone), "ask a zone it has no link to"),
        (response_topic(STRANGER, zone, "check"), "answer in another zone's name"),
        ("$SYS/broker/bsfg", "write below $SYS"),
    ):
        reason = session.publish(topic, b"", None, b"")
        if reason == _NOT_AUTHORIZED:
            yield Finding(Outcome.GOOD, f"{zone} may not {what}")
        else:
            yield Finding(Outcome.BAD, f"{zone} may {what} ({_reason_text(reason)})", hint)


def _right(allowed: bool, what: str, reason: int | None, hint: str) -> Finding:  # noqa: FBT001 the sentence it heads
    if allowed:
        return Finding(Outcome.GOOD, what)
    return Finding(Outcome.BAD, f"{what}: no, {_reason_text(reason)}", hint)


def _reason_text(reason: int | None) -> str:
    names = {
        _SUCCESS: "accepted",
        _NO_MATCHING_SUBSCRIBERS: "accepted, nobody listens",
        _NOT_AUTHORIZED: "not authorized",
    }
    return "no acknowledgement" if reason is None else names.get(reason, f"reason 0x{reason:02x}")


def _enters(access: Access, context: ssl.SSLContext | None) -> bool:
    """Whether the broker opens a session for whoever comes this way."""
    try:
        with socket.create_connection((access.host, access.port), timeout=WAIT_S) as plain:
            plain.settimeout(WAIT_S)
            channel = context.wrap_socket(plain, server_hostname=access.host) if context else plain
            with channel:
                channel.sendall(_CONNECT_PACKET)
                # A refused client certificate shows only here: in TLS 1.3 the handshake is over before it is judged.
                answer = channel.recv(4)
    except OSError:  # every TLS alert, reset and time-out; the session before has proven that the broker is there
        return False
    return len(answer) == 4 and answer[0] == _CONNACK and answer[3] == _SUCCESS


class _Session:
    """One connection, asked one thing at a time; the answers arrive in paho's thread and wait in bounded queues."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.connack: Properties | None = None
        self._connected: queue.Queue[int | None] = queue.Queue(maxsize=4)
        self._acknowledged: queue.Queue[tuple[int, int]] = queue.Queue(maxsize=MESSAGES_MAX)
        self._subscribed = threading.Semaphore(0)
        self._arrived = threading.Condition()
        self._messages: deque[tuple[str, bytes]] = deque(maxlen=MESSAGES_MAX)
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"{access.zone}-{secrets.token_hex(16)}",
            protocol=mqtt.MQTTv5,
            reconnect_on_failure=False,
        )
        self._client.connect_timeout = WAIT_S
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def connect(self) -> Finding | None:
        """None when the session stands; otherwise why not."""
        access = self._access
        where = f"{access.host}:{access.port}"
        context = pki.client_context(access.ca_file, access.cert_file, access.key_file)
        try:
            # A handshake of our own first: where it fails, paho would leave its socket open.
            with socket.create_connection((access.host, access.port), timeout=WAIT_S) as plain:
                context.wrap_socket(plain, server_hostname=access.host).close()
            self._client.tls_set_context(context)
            self._client.connect(access.host, access.port, keepalive=60, clean_start=True)
        except ssl.SSLCertVerificationError as error:
            hint = f"issue the broker's certificate with --host {access.host}, by the authority in {access.ca_file}"
            return Finding(Outcome.BAD, f"{where} is not the broker we trust: {error.verify_message}", hint)
        except ssl.SSLError as error:
            hint = "is this the TLS port, and can the broker read its own certificate? its log says"
            return Finding(Outcome.BAD, f"{where}: no TLS 1.3 ({error.reason or error})", hint)
        except OSError as error:
            hint = "is the broker running, and does a firewall let this machine through?"
            return Finding(Outcome.BAD, f"{where} cannot be reached: {error.strerror or error}", hint)
        self._client.loop_start()
        try:
            reason = self._connected.get(timeout=WAIT_S)
        except queue.Empty:
            return Finding(Outcome.BAD, f"{where} did not answer within {WAIT_S:g} s", "look into the broker's log")
        if reason is None:
            hint = "revoked, expired, or of another authority than the broker's? its log says"
            return Finding(Outcome.BAD, f"{where} closed the connection: it refuses our certificate", hint)
        if reason != _SUCCESS:
            hint = "look into the broker's log"
            return Finding(Outcome.BAD, f"{where} refused the session: {_reason_text(reason)}", hint)
        return None

    def publish(self, topic: str, payload: bytes, answer_to: str | None, correlation: bytes) -> int | None:
        """The broker's reason code; None when it did not acknowledge."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.MessageExpiryInterval = int(WAIT_S)
        properties.CorrelationData = correlation
        if answer_to is not None:
            properties.ResponseTopic = answer_to
        information = self._client.publish(topic, payload, qos=1, properties=properties)
        try:
            while True:
                identifier, reason = self._acknowledged.get(timeout=WAIT_S)
                if identifier == information.mid:
                    return reason
        except queue.Empty:
            return None

    def subscribe(self, topic: str) -> None:
        """Subscribe and wait until it counts; that it is granted means nothing."""
        self._client.subscribe(topic, qos=0)
        self._subscribed.acquire(timeout=WAIT_S)

    def wait_message(self, topic: str, correlation: bytes, wait_s: float) -> bool:
        """Whether the message has arrived, or does within `wait_s`."""
        with self._arrived:
            return self._arrived.wait_for(lambda: (topic, correlation) in self._messages, wait_s)

    def close(self) -> None:
        client = self._client
        client.disconnect()
        client.loop_stop()
        # paho closes its inner sockets when it is freed, and would wait for the garbage collector in a circle with us.
        client.on_connect = client.on_disconnect = client.on_publish = client.on_subscribe = client.on_message = None

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, reason: Any, properties: Properties | None) -> None:
        self.connack = properties
        _offer(self._connected, reason.value)

    def _on_disconnect(self, *_arguments: Any) -> None:
        _offer(self._connected, None)

    def _on_publish(self, _client: Any, _data: Any, identifier: int, reason: Any, _properties: Any) -> None:
        _offer(self._acknowledged, (identifier, reason.value))

    def _on_subscribe(self, *_arguments: Any) -> None:
        self._subscribed.release()

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        correlation = getattr(message.properties, "CorrelationData", b"")
        with self._arrived:
            self._messages.append((message.topic, correlation))
            self._arrived.notify_all()


def _offer(waiting: queue.Queue[Any], item: object) -> None:
    """Keep what fits: one question is open at a time, and a flood of foreign messages must not block paho's thread."""
    try:
        waiting.put_nowait(item)
    except queue.Full:
        return
