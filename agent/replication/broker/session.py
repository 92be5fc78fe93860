"""One short connection to a broker for checks, step by step, so that the step that fails is named.

`connection_steps` resolves the name, connects and performs the handshake, with a result for each; `Session` then uses
MQTT with one zone's identity, one request at a time. Client ids are random and no session is kept, so a running node is
not disturbed. What is sent, and what the results mean, is decided in `check` and `peer_test`.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.replication import pki
from agent.replication.broker.diagnosis import Diagnostic, bad, good, note
from agent.replication.mqtt import REFUSED_HINT, explain_alert, explain_unreachable, explain_untrusted

WAIT_S = 5.0
"""For each answer; a broker in the same plant answers within milliseconds."""

MESSAGES_MAX = 64
"""Answers kept while one is awaited; the oldest is dropped first."""

ADDRESSES_SHOWN_MAX = 4

SUCCESS = 0x00
NO_MATCHING_SUBSCRIBERS = 0x10
NOT_AUTHORIZED = 0x87
_CONNACK = 0x20
# MQTT 5 CONNECT: clean start, keep-alive 60 s, no properties, client identifier to be assigned (MQTT 5, 3.1).
_CONNECT_PACKET = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """Address of the broker to check, and the identity to connect with."""

    host: str
    port: int
    zone: str
    ca_file: Path
    cert_file: Path
    key_file: Path


class Received(NamedTuple):
    """A message and its arrival on our monotonic clock, in seconds."""

    topic: str
    correlation: bytes
    payload: bytes
    at_s: float


def connection_steps(access: BrokerTarget) -> Iterator[Diagnostic]:
    """Name resolution, TCP, TLS, and acceptance of our certificate. Ends with the first step that fails."""
    try:
        found = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)
    except OSError as error:
        hint = "correct the host in node.toml, or this machine's name resolution (resolvectl query, /etc/hosts)"
        yield bad(f"{access.host} cannot be reached: its name cannot be resolved ({error.strerror})", hint)
        return
    addresses = sorted({str(address[0]) for *_, address in found})
    yield good(f"{access.host} is {', '.join(addresses[:ADDRESSES_SHOWN_MAX])}")
    where = f"{access.host}:{access.port}"
    context = pki.client_context(access.ca_file, access.cert_file, access.key_file)
    try:
        started_s = time.monotonic()
        with socket.create_connection((access.host, access.port), timeout=WAIT_S) as plain:
            took_ms = 1000 * (time.monotonic() - started_s)
            yield good(f"{where} accepts TCP connections ({took_ms:.1f} ms)")
            with context.wrap_socket(plain, server_hostname=access.host) as channel:
                yield _handshake_done(channel)
                yield _certificate_accepted(access, channel)
    except ssl.SSLCertVerificationError as error:
        hint = f"issue the broker's certificate with --host {access.host}, by the authority in {access.ca_file}; "
        hint += "is our clock right?"
        yield bad(f"{where} is not trusted: {explain_untrusted(error)}", hint)
    except ssl.SSLError as error:
        hint = "is this the TLS port, and can the broker read its certificate? see its log"
        yield bad(f"{where}: no TLS 1.3 ({error.reason or error})", hint)
    except OSError as error:
        why, hint = explain_unreachable(error)
        yield bad(f"{where} cannot be reached: {why}", hint)


def _handshake_done(channel: ssl.SSLSocket) -> Diagnostic:
    """The broker's certificate, after verification."""
    shown = channel.getpeercert(binary_form=True)
    assert shown is not None
    facts = pki.describe(x509.load_der_x509_certificate(shown), datetime.now(UTC))
    what = f"{channel.version()}, {facts.subject} by {facts.issuer}, {facts.days_left} days left"
    if facts.days_left < 30:
        return note(what, "renew the broker's certificate: bsfg pki renew --broker NAME")
    return good(what)


def _certificate_accepted(access: BrokerTarget, channel: ssl.SSLSocket) -> Diagnostic:
    """Send CONNECT: in TLS 1.3 a server refuses a client certificate after the handshake, with an alert."""
    where = f"{access.host}:{access.port}"
    alert, answer = "", b""
    with contextlib.suppress(OSError):  # the broker may have closed already; its alert can still be read
        channel.sendall(_CONNECT_PACKET)
    try:
        answer = channel.recv(4)
    except ssl.SSLError as error:
        alert = error.reason or ""
    except OSError as error:
        alert = str(error)
    if answer[:1] == bytes([_CONNACK]):
        return good(f"the broker accepts our certificate as {access.zone}")
    why, hint = explain_alert(alert) or ("it gives no reason", REFUSED_HINT)
    return bad(f"{where} closed the connection: it refuses our certificate: {why}", hint)


def accepts_client(access: BrokerTarget, context: ssl.SSLContext | None) -> bool:
    """Whether the broker accepts a client with this TLS context, or without TLS for None."""
    try:
        with socket.create_connection((access.host, access.port), timeout=WAIT_S) as plain:
            plain.settimeout(WAIT_S)
            channel = context.wrap_socket(plain, server_hostname=access.host) if context else plain
            with channel:
                channel.sendall(_CONNECT_PACKET)
                answer = channel.recv(4)
    except OSError:  # any TLS alert, reset or time-out; the session before proved that the broker is reachable
        return False
    return len(answer) == 4 and answer[0] == _CONNACK and answer[3] == SUCCESS


def reason_text(reason: int | None) -> str:
    """The name of a broker's reason code."""
    names = {
        SUCCESS: "accepted",
        NO_MATCHING_SUBSCRIBERS: "accepted, no subscriber",
        NOT_AUTHORIZED: "not authorized",
    }
    return "no acknowledgement" if reason is None else names.get(reason, f"reason 0x{reason:02x}")


class Session:
    """One MQTT session that carries out one request at a time; answers arrive in paho's thread and wait in bounded
    queues."""

    def __init__(self, access: BrokerTarget) -> None:
        self._access = access
        self.connack: Properties | None = None
        self._connected: queue.Queue[int | None] = queue.Queue(maxsize=4)
        self._acknowledged: queue.Queue[tuple[int, int]] = queue.Queue(maxsize=MESSAGES_MAX)
        self._subscribed = threading.Semaphore(0)
        self._arrived = threading.Condition()
        self._messages: deque[Received] = deque(maxlen=MESSAGES_MAX)
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"{access.zone}-{secrets.token_hex(16)}",
            protocol=mqtt.MQTTv5,
            reconnect_on_failure=False,
        )
        self._client.connect_timeout = WAIT_S
        self._client.on_socket_open = _send_at_once
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: _offer(self._connected, None)
        self._client.on_publish = lambda *of: _offer(self._acknowledged, (of[2], of[3].value))  # identifier, reason
        self._client.on_subscribe = lambda *_: self._subscribed.release()
        self._client.on_message = self._on_message

    def connect(self) -> Iterator[Diagnostic]:
        """Open the session, after `connection_steps`. Yields a diagnostic only if it fails."""
        access = self._access
        where = f"{access.host}:{access.port}"
        try:
            self._client.tls_set_context(pki.client_context(access.ca_file, access.cert_file, access.key_file))
            self._client.connect(access.host, access.port, keepalive=60, clean_start=True)
        except OSError as error:
            hint = "it was reachable a moment ago; see the broker's log"
            yield bad(f"{where} cannot be reached: {error.strerror or error}", hint)
            return
        self._client.loop_start()
        try:
            reason = self._connected.get(timeout=WAIT_S)
        except queue.Empty:
            yield bad(f"{where} did not answer within {WAIT_S:g} s", "see the broker's log")
            return
        if reason is None:
            yield bad(f"{where} closed the connection before it was accepted", REFUSED_HINT)
        elif reason != SUCCESS:
            hint = "see the broker's log"
            yield bad(f"{where} refused the session: {reason_text(reason)}", hint)

    def publish(self, topic: str, payload: bytes, answer_to: str | None, correlation: bytes) -> int | None:
        """Publish at QoS 1. Returns the broker's reason code, None without an acknowledgement."""
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
        """Subscribe and wait for the acknowledgement, which every broker sends, for forbidden topics too."""
        self._client.subscribe(topic, qos=0)
        self._subscribed.acquire(timeout=WAIT_S)

    def take(self, topic: str, correlation: bytes, wait_s: float) -> Received | None:
        """The message with this topic and correlation, if it arrives within `wait_s` seconds."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._find(topic, correlation), wait_s)
            return self._find(topic, correlation)

    def _find(self, topic: str, correlation: bytes) -> Received | None:
        return next((each for each in self._messages if each[:2] == (topic, correlation)), None)

    def close(self) -> None:
        client = self._client
        client.disconnect()
        client.loop_stop()
        # paho closes its inner sockets when it is freed; without this a reference cycle would delay that.
        client.on_connect = client.on_disconnect = client.on_publish = client.on_subscribe = client.on_message = None
        client.on_socket_open = None

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, reason: Any, properties: Properties | None) -> None:
        self.connack = properties
        _offer(self._connected, reason.value)

    def _on_message(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        at_s = time.monotonic()
        correlation = getattr(message.properties, "CorrelationData", b"")
        with self._arrived:
            self._messages.append(Received(message.topic, correlation, bytes(message.payload), at_s))
            self._arrived.notify_all()


def _offer(waiting: queue.Queue[Any], item: object) -> None:
    """Put `item` if there is room. A full queue must not block paho's thread; only one request is open at a time."""
    try:
        waiting.put_nowait(item)
    except queue.Full:
        return


def _send_at_once(_client: Any, _data: Any, opened: Any) -> None:
    """Disable Nagle's algorithm, because round trips are measured."""
    with contextlib.suppress(OSError, AttributeError):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
