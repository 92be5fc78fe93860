"""Prove a running broker: what it must let through, and what it must not.

A broker grants every subscription, forbidden ones too, and says nothing when it drops; after a reload with a damaged
file it may run on and refuse everybody, or let revoked certificates in.  So nothing is believed that was not tried, with
one zone's own identity: the handshake, the limits told in CONNACK, that nobody accepts_client without a certificate or with an
older TLS, each right this zone's links need, and that rights it must not have are refused.  Where the peer's node is
attached, a request goes there and back.  Nothing is left behind: no retained message, no session, no registered
consumer.  Whether the *other* zones can do their part is for a check with their identity.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Iterable, Iterator
from itertools import chain

from paho.mqtt.properties import Properties

from agent.replication import pki
from agent.replication.broker.config import PACKET_BYTES_MAX, PeerLink
from agent.replication.broker.diagnosis import Diagnostic, Outcome
from agent.replication.broker.session import (
    NO_MATCHING_SUBSCRIBERS,
    NOT_AUTHORIZED,
    SUCCESS,
    WAIT_S,
    BrokerTarget,
    Session,
    accepts_client,
    connection_steps,
    reason_text,
)
from agent.replication.protocol.codec import encode_request
from agent.replication.protocol.messages import ListStreams
from agent.replication.protocol.topics import request_topic, response_topic

UNLINKED_ZONE = "bsfg-check"
"""A zone nobody has: asking in its name, or asking it, must be forbidden."""


def check_broker(access: BrokerTarget, links: Iterable[PeerLink]) -> Iterator[Diagnostic]:
    """Try everything, telling each diagnostic as it is made; ends early where the rest could not be tried."""
    problems = pki.check_identity(access.cert_file, access.key_file, access.ca_file, access.zone)
    if problems:
        yield from (Diagnostic(Outcome.BAD, f"{each.file}: {each.why}", each.hint) for each in problems)
        return
    session = Session(access)
    try:
        for diagnostic in chain(
            connection_steps(access), session.connect()
        ):  # the second only where the first found nothing bad
            if diagnostic.outcome is Outcome.BAD:
                yield diagnostic
                return
        yield Diagnostic(Outcome.GOOD, f"connected to {access.host}:{access.port} as {access.zone} with TLS 1.3")
        yield from _check_limits(session.connack)
        yield from _check_unauthenticated(access)
        mine = sorted({link for link in links if access.zone in (link.serving, link.asking)})
        for link in mine:
            yield from _check_link(session, access.zone, link)
        yield from _check_forbidden(session, access.zone, mine)
    finally:
        session.close()


def _check_limits(connack: Properties | None) -> Iterator[Diagnostic]:
    """What CONNACK says about the broker's settings."""
    packet_bytes = getattr(connack, "MaximumPacketSize", None)
    if packet_bytes is None:
        yield Diagnostic(Outcome.BAD, "packets of any size are accepted", "use the configuration of bsfg broker config")
    elif packet_bytes < PACKET_BYTES_MAX:
        what = f"packets are limited to {packet_bytes} bytes, and a page may have {PACKET_BYTES_MAX}"
        yield Diagnostic(Outcome.BAD, what, f"set max_packet_size {PACKET_BYTES_MAX}")
    else:
        yield Diagnostic(Outcome.GOOD, f"packets are limited to {packet_bytes} bytes")
    if getattr(connack, "RetainAvailable", 1) != 0:
        yield Diagnostic(Outcome.BAD, "the broker keeps retained messages", "set retain_available false")
    else:
        yield Diagnostic(Outcome.GOOD, "nothing is retained")


def _check_unauthenticated(access: BrokerTarget) -> Iterator[Diagnostic]:
    """Ways in that must be shut: no TLS, no certificate, an older TLS."""
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.load_verify_locations(access.ca_file)
    older = pki.client_context(access.ca_file, access.cert_file, access.key_file)
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    hint = "use the configuration of bsfg broker config, and start the broker with that file alone"
    for way, context in (("without TLS", None), ("without a certificate", anonymous), ("with TLS 1.2", older)):
        if accepts_client(access, context):
            yield Diagnostic(Outcome.BAD, f"the broker lets clients in {way}", hint)
        else:
            yield Diagnostic(Outcome.GOOD, f"refused {way}")


def _check_link(session: Session, zone: str, link: PeerLink) -> Iterator[Diagnostic]:
    """The rights of one link, and the way there and back where the peer is attached."""
    instance = f"check-{secrets.token_hex(8)}"
    responses = response_topic(link.serving, link.asking, instance)
    hint = "add the link to bsfg broker config, install what it writes, and reload the broker"
    if zone == link.serving:
        # An answer nobody asked for, to an instance nobody has: only the broker's acknowledgement is of interest.
        reason = session.publish(responses, b"", None, b"")
        allowed = reason in (SUCCESS, NO_MATCHING_SUBSCRIBERS)
        yield _right(allowed, f"may answer {link.asking}", reason, hint)
        return
    request, question = request_topic(link.serving, link.asking), encode_request(ListStreams())
    correlation = secrets.token_bytes(16)
    session.subscribe(responses)
    reason = session.publish(request, question, responses, correlation)
    yield _right(reason in (SUCCESS, NO_MATCHING_SUBSCRIBERS), f"may ask {link.serving}", reason, hint)
    if reason == NO_MATCHING_SUBSCRIBERS:
        yield Diagnostic(Outcome.NOTE, f"no node of {link.serving} is attached, so no round trip was made")
    elif reason == SUCCESS:
        if session.take(responses, correlation, WAIT_S):
            yield Diagnostic(Outcome.GOOD, f"{link.serving} answered")
        else:
            what = f"a node of {link.serving} is attached and did not answer within {WAIT_S:g} s"
            yield Diagnostic(
                Outcome.BAD, what, f"is {zone} among the peers of {link.serving}? its log tells what it refused"
            )
    # Asked again while subscribed to the request itself: had we the right to read it, the broker would hand it back
    # before it acknowledges it, because both come over this one connection, in order.
    session.subscribe(request)
    session.publish(request, question, responses, correlation)
    if session.take(request, correlation, 0):
        yield Diagnostic(Outcome.BAD, f"{zone} may read requests made to {link.serving}", hint)
    else:
        yield Diagnostic(Outcome.GOOD, f"{zone} may not read requests made to {link.serving}")


def _check_forbidden(session: Session, zone: str, links: list[PeerLink]) -> Iterator[Diagnostic]:
    """Rights that no generated access list gives: another's name, an unlinked zone, $SYS."""
    hint = "install the access list of bsfg broker config, and reload the broker"
    peers = sorted({link.serving for link in links if link.asking == zone}) or [UNLINKED_ZONE]
    for topic, what in (
        (request_topic(peers[0], UNLINKED_ZONE), "ask in another zone's name"),
        (request_topic(UNLINKED_ZONE, zone), "ask a zone it has no link to"),
        (response_topic(UNLINKED_ZONE, zone, "check"), "answer in another zone's name"),
        ("$SYS/broker/bsfg", "write below $SYS"),
    ):
        reason = session.publish(topic, b"", None, b"")
        if reason == NOT_AUTHORIZED:
            yield Diagnostic(Outcome.GOOD, f"{zone} may not {what}")
        else:
            yield Diagnostic(Outcome.BAD, f"{zone} may {what} ({reason_text(reason)})", hint)


def _right(allowed: bool, what: str, reason: int | None, hint: str) -> Diagnostic:  # noqa: FBT001 the sentence it heads
    if allowed:
        return Diagnostic(Outcome.GOOD, what)
    return Diagnostic(Outcome.BAD, f"{what}: no, {reason_text(reason)}", hint)
