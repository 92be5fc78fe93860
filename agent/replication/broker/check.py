"""Check a running broker from outside: what it must allow and what it must refuse.

Some brokers grant every subscription, forbidden ones too, and drop messages without a reply. After a reload with a
damaged file a broker may refuse all clients, or accept revoked certificates. So everything is tried with one node's
identity: the handshake, the limits announced in CONNACK, refusal of clients without a certificate or with an older TLS,
each right that the node's links need, and refusal of rights it must not have. If the peer's node is connected, one
request is sent and its answer awaited.

The check leaves nothing behind: no retained message, no session, no registered consumer. The rights of *other* nodes
need a check with their identity.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterable, Iterator
from itertools import chain

from paho.mqtt.properties import Properties

from agent.replication import pki
from agent.replication.broker.check_session import (
    WAIT_S,
    BrokerTarget,
    MqttSession,
    Unacknowledged,
    accepts_client,
    connection_steps,
    reason_text,
)
from agent.replication.broker.config import PACKET_BYTES_MAX, PeerLink
from agent.replication.broker.diagnosis import (
    USE_GENERATED,
    Diagnostic,
    add_link,
    bad,
    bad_files,
    good,
    judge_timeout,
    note,
)
from agent.replication.protocol.codec import encode_request
from agent.replication.protocol.errors import PeerAbsent, TransportError
from agent.replication.protocol.messages import ListStreams
from agent.replication.protocol.topics import request_topic, response_topic, subscription_to
from agent.settings.host import host_and_port

UNLINKED_NODE = "bsfg-check"
"""A node that no site has: requests to it or in its name must be forbidden."""

DELIVERED_S = 1.0
"""After its acknowledgement a message is delivered in milliseconds; MQTT does not say which of the two comes first."""


def check_broker(access: BrokerTarget, links: Iterable[PeerLink]) -> Iterator[Diagnostic]:
    """Run all checks and yield each result as it is made. Ends early if the rest cannot be tried."""
    problems = pki.check_identity(access.cert_file, access.key_file, access.ca_file, access.node)
    if problems:
        yield from bad_files(problems)
        return
    session = MqttSession(access)
    try:
        for diagnostic in chain(connection_steps(access), session.connect()):  # connects only if no step before failed
            if diagnostic.is_bad:
                yield diagnostic
                return
        yield good(f"connected to {host_and_port(access.host, access.port)} as {access.node} with TLS 1.3")
        yield from _check_limits(session.connack)
        yield from _check_unauthenticated(access)
        mine = sorted({link for link in links if access.node in (link.serving, link.asking)})
        for link in mine:
            yield from _check_link(access, link)
        yield from _check_forbidden(access, mine)
    finally:
        session.close()


def _check_limits(connack: Properties | None) -> Iterator[Diagnostic]:
    """The limits that the broker announces in CONNACK."""
    packet_bytes = getattr(connack, "MaximumPacketSize", None)
    if packet_bytes is None:
        yield bad("the broker accepts packets of any size", USE_GENERATED)
    elif packet_bytes < PACKET_BYTES_MAX:
        what = f"packets are limited to {packet_bytes} bytes; a page needs up to {PACKET_BYTES_MAX}"
        yield bad(what, f"set max_packet_size {PACKET_BYTES_MAX}")
    else:
        yield good(f"packets are limited to {packet_bytes} bytes")
    if getattr(connack, "RetainAvailable", 1) != 0:
        yield bad("the broker keeps retained messages", "set retain_available false")
    else:
        yield good("the broker keeps no retained messages")


def _check_unauthenticated(access: BrokerTarget) -> Iterator[Diagnostic]:
    """Clients that must be refused: without TLS, without a certificate, with an older TLS."""
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.load_verify_locations(access.ca_file)
    older = pki.client_context(access.ca_file, access.cert_file, access.key_file)
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    hint = f"{USE_GENERATED}, and start the broker with that file alone"
    for how, context in (("without TLS", None), ("without a certificate", anonymous), ("with TLS 1.2", older)):
        if accepts_client(access, context):
            yield bad(f"the broker accepts clients {how}", hint)
        else:
            yield good(f"the broker refuses clients {how}")


def _check_link(access: BrokerTarget, link: PeerLink) -> Iterator[Diagnostic]:
    """The rights of one link, and one request to the peer, on a connection of its own: a broker may refuse by ending it
    (MQTT 5, 4.13.2; RabbitMQ does)."""
    session = MqttSession(access)
    try:
        failed = list(session.connect())
        yield from failed or (_may_serve if access.node == link.serving else _may_ask)(session, link)
    finally:
        session.close()


def _may_serve(session: MqttSession, link: PeerLink) -> Iterator[Diagnostic]:
    node = link.serving
    if not session.subscribe(subscription_to(request_topic(node, link.asking))):
        yield bad(f"{node} may not receive requests", add_link(node, link.asking))
    # An unsolicited answer to an instance that does not exist: only the broker's acknowledgement matters.
    refused = session.publish(response_topic(node, link.asking, _instance()), b"", None, b"")
    yield _right(f"{node} may answer {link.asking}", refused, link)


def _may_ask(session: MqttSession, link: PeerLink) -> Iterator[Diagnostic]:
    node, responses = link.asking, response_topic(link.serving, link.asking, _instance())
    request, payload = request_topic(link.serving, node), encode_request(ListStreams())
    correlation = secrets.token_bytes(16)
    if not session.subscribe(subscription_to(responses)):
        yield bad(f"{node} may not receive answers", add_link(link.serving, node))
        return
    refused = session.publish(request, payload, responses, correlation)
    yield _right(f"{node} may send requests to {link.serving}", refused, link)
    if isinstance(refused, PeerAbsent):
        yield note(f"no node of {link.serving} is connected, so no request was tried")
    elif refused is not None:
        return
    elif session.take_message(responses, correlation, WAIT_S):
        yield good(f"{link.serving} answered a request")
    else:
        yield judge_timeout(link.serving, node, WAIT_S)
    # Send it again while subscribed to the request topic itself: with the right to read it, the request is delivered.
    if session.subscribe(request):
        session.publish(request, payload, responses, correlation)
        if session.take_message(request, correlation, DELIVERED_S):
            yield bad(f"{node} may read requests made to {link.serving}", USE_GENERATED)
            return
    yield good(f"{node} may not read requests made to {link.serving}")


def _instance() -> str:
    return f"check-{secrets.token_hex(8)}"


def _check_forbidden(access: BrokerTarget, links: list[PeerLink]) -> Iterator[Diagnostic]:
    """Rights that no generated configuration grants: another node's name, a node without a link, $SYS. Each is tried on
    a connection of its own, as in `_check_link`. Any reason to refuse is good."""
    hint = USE_GENERATED
    node = access.node
    peers = sorted({link.serving for link in links if link.asking == node}) or [UNLINKED_NODE]
    for topic, what in (
        (request_topic(peers[0], UNLINKED_NODE), "send requests in another node's name"),
        (request_topic(UNLINKED_NODE, node), "send requests to a node without a link"),
        (response_topic(UNLINKED_NODE, node, "check"), "send answers in another node's name"),
        ("$SYS/broker/bsfg", "publish below $SYS"),
    ):
        session = MqttSession(access)
        try:
            failed = list(session.connect())
            refused = None if failed else session.publish(topic, b"", None, b"")
        finally:
            session.close()
        if failed:
            yield from failed
        elif refused is None or isinstance(refused, PeerAbsent | Unacknowledged):
            may = "may perhaps" if isinstance(refused, Unacknowledged) else "may"
            yield bad(f"{node} {may} {what} ({reason_text(refused)})", hint)
        else:
            yield good(f"{node} may not {what}")


def _right(what: str, refused: TransportError | None, link: PeerLink) -> Diagnostic:
    if refused is None or isinstance(refused, PeerAbsent):
        return good(what)
    return bad(f"{what}: failed, {reason_text(refused)}", add_link(link.serving, link.asking))
