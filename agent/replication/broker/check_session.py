"""One short connection to a broker for checks, step by step, so that the step that fails is named.

`connection_steps` resolves the name, connects and performs the handshake, with a result for each; `MqttSession` then
uses MQTT with one node's identity, one request at a time. Client ids are random and no session is kept, so a running
node is not disturbed. `check` and `peer_test` decide what is sent and what the results mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from paho.mqtt.properties import Properties

from agent.concurrency import timeout
from agent.replication import pki
from agent.replication.broker.diagnosis import Diagnostic, bad, good, note
from agent.replication.mqtt import (
    REFUSED_HINT,
    Access,
    Incoming,
    MqttConnection,
    explain_alert,
    explain_unreachable,
    explain_untrusted,
)
from agent.replication.protocol.errors import ConnectionLost, NotAuthorized, PeerAbsent, TransportError
from agent.settings.host import host_and_port

WAIT_S = 5.0
"""For each answer; a broker in the same plant answers within milliseconds."""

MESSAGES_MAX = 64
"""Answers kept while one is awaited; the oldest is dropped first."""

ADDRESSES_SHOWN_MAX = 4

_CONNACK = 0x20
# MQTT 5 CONNECT: clean start, keep-alive 60 s, no properties, client identifier to be assigned (MQTT 5, 3.1).
_CONNECT_PACKET = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """Address of the broker to check, and the identity to connect with."""

    host: str
    port: int
    node: str
    ca_file: Path
    cert_file: Path
    key_file: Path


class Unacknowledged(TransportError):
    """The broker has neither accepted a message nor refused it."""


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
    except (OSError, UnicodeError) as error:  # the latter for a name that no look-up takes
        hint = "correct the host in node.toml, or this machine's name resolution (resolvectl query, /etc/hosts)"
        why = getattr(error, "strerror", None) or error
        yield bad(f"{access.host} cannot be reached: its name cannot be resolved ({why})", hint)
        return
    addresses = sorted({str(address[0]) for *_, address in found})
    yield good(f"{access.host} is {', '.join(addresses[:ADDRESSES_SHOWN_MAX])}")
    where = host_and_port(access.host, access.port)
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
        hint = "is this the TLS port of a broker with TLS 1.3, and can it read its certificate? see its log"
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
    if facts.days_left < pki.WARN_DAYS:
        return note(what, "renew the broker's certificate: bsfg pki sign --broker NAME")
    return good(what)


def _certificate_accepted(access: BrokerTarget, channel: ssl.SSLSocket) -> Diagnostic:
    """Send CONNECT: in TLS 1.3 a server refuses a client certificate after the handshake, with an alert."""
    where = host_and_port(access.host, access.port)
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
        return good(f"the broker accepts our certificate as {access.node}")
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
    return len(answer) == 4 and answer[0] == _CONNACK and answer[3] == 0


def reason_text(refused: TransportError | None) -> str:
    """The broker's response to a published message, for an operator."""
    match refused:
        case None:
            return "accepted"
        case PeerAbsent():
            return "accepted, no subscriber"
        case NotAuthorized():
            return "not authorized"
    return refused.why


class MqttSession:
    """One MQTT session that carries out one request at a time, on an event loop that runs only meanwhile."""

    def __init__(self, access: BrokerTarget) -> None:
        self._access = access
        self._runner = asyncio.Runner()
        self._connection: MqttConnection | None = None
        self._messages: deque[Received] = deque(maxlen=MESSAGES_MAX)
        self._arrived = asyncio.Event()

    def connect(self) -> Iterator[Diagnostic]:
        """Open the session, after `connection_steps`. Yields a diagnostic only if it fails."""
        at = self._access
        make_context = partial(pki.client_context, at.ca_file, at.cert_file, at.key_file)
        access = Access("broker", at.node, at.host, at.port, make_context)
        try:
            self._connection = self._runner.run(MqttConnection.open(access, self._on_message))
        except TransportError as error:
            yield bad(f"{host_and_port(at.host, at.port)}: {error.why}", error.hint)

    @property
    def connack(self) -> Properties | None:
        """What the broker announced when it accepted the session."""
        return self._open().connack

    def publish(self, topic: str, payload: bytes, answer_to: str | None, correlation: bytes) -> TransportError | None:
        """Publish at QoS 1. Returns None once the broker has acknowledged it, or why it was not accepted; PeerAbsent
        where it was accepted and has no subscriber."""
        try:
            self._runner.run(self._publish(topic, payload, answer_to, correlation))
        except TransportError as error:
            return error
        return None

    def subscribe(self, topic: str) -> bool:
        """Subscribe and wait for the acknowledgement. Returns whether it was granted; some brokers grant forbidden
        topics too."""
        try:
            return not self._runner.run(self._open().subscribe([topic]))
        except ConnectionLost:
            return False

    def take_message(self, topic: str, correlation: bytes, wait_s: float) -> Received | None:
        """The message with this topic and correlation, if it arrives within `wait_s` seconds."""
        return self._runner.run(self._take_message(topic, correlation, wait_s))

    def close(self) -> None:
        if self._connection is not None:
            self._runner.run(self._connection.close())
        self._runner.close()

    def _open(self) -> MqttConnection:
        assert self._connection is not None, "connect() has succeeded"
        return self._connection

    async def _publish(self, topic: str, payload: bytes, answer_to: str | None, correlation: bytes) -> None:
        sending = self._open().publish_request(topic, payload, answer_to, correlation, int(WAIT_S))
        try:
            async with timeout(WAIT_S):
                await sending
        except TimeoutError:
            raise Unacknowledged(topic, "no acknowledgement") from None

    async def _take_message(self, topic: str, correlation: bytes, wait_s: float) -> Received | None:
        with contextlib.suppress(TimeoutError):
            async with timeout(wait_s):
                while (found := self._find(topic, correlation)) is None:
                    self._arrived.clear()
                    await self._arrived.wait()
                return found
        return self._find(topic, correlation)

    def _find(self, topic: str, correlation: bytes) -> Received | None:
        return next((message for message in self._messages if message[:2] == (topic, correlation)), None)

    def _on_message(self, incoming: Incoming) -> None:
        self._messages.append(Received(incoming.topic, incoming.correlation or b"", incoming.payload, time.monotonic()))
        self._arrived.set()
