"""Test everything between this node and one peer, step by step; each step reports its result and what to do.

Name, TCP, TLS, identity at the broker, the broker's limits, the right to send requests, the answer, protocol and store
of the peer, round trip, clocks, streams. The first failed step ends the test, because the later ones depend on it. The
test runs alongside a running node: its client id and response topic are random, and its requests (ListStreams) change
nothing at the peer.

Whether our own answers are delivered cannot be tested without the peer, because no node may both publish and receive on
one topic. The peer's answer proves the way back; if the peer is not connected, the test says that the way back was not
tested.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from agent.replication import pki
from agent.replication.broker.check_session import WAIT_S, BrokerTarget, MqttSession, connection_steps, reason_text
from agent.replication.broker.config import PACKET_BYTES_MAX
from agent.replication.broker.diagnosis import (
    USE_GENERATED,
    Diagnostic,
    Figures,
    RoundTrip,
    add_link,
    bad,
    good,
    judge_answer,
    judge_round_trips,
    judge_streams,
    judge_timeout,
    note,
)
from agent.replication.protocol.codec import encode_request
from agent.replication.protocol.errors import NotAuthorized, PeerAbsent
from agent.replication.protocol.messages import ListStreams
from agent.replication.protocol.topics import request_topic, response_topic, subscription_to

ROUND_TRIPS = 9
"""Enough for a median that one slow answer does not change; ten milliseconds inside a plant."""
_REACH_STEPS = ("name", "tcp", "tls", "identity")


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer to test, from this node's configuration: whether it sends us requests, what we pull, whether we send it
    requests."""

    node: str
    asks_us: bool
    pulls: Collection[str]
    is_asked: bool


def check_peer(access: BrokerTarget, peer: Peer) -> Iterator[Diagnostic]:
    """Run the steps and yield each result. Ends with the first bad one before the peer has answered."""
    step = _own_identity(access)
    yield step
    if step.is_bad:
        return
    for name, diagnostic in zip(_REACH_STEPS, connection_steps(access), strict=False):
        yield replace(diagnostic, step=name)
        if diagnostic.is_bad:
            return
    session = MqttSession(access)
    try:
        for diagnostic in session.connect():
            yield replace(diagnostic, step="session")
            return
        yield _limits(session)
        if peer.asks_us:
            step = _may_answer(session, access.node, peer.node)
            yield step
            if step.is_bad:
                return  # the broker may have refused by closing the connection
        if peer.is_asked:
            yield from _ask(session, access.node, peer)
        else:
            what = f"this node pulls nothing from {peer.node}, so no request was sent; {peer.node} sends requests to us"
            yield note(what, f"test the other direction at {peer.node}: bsfg peer test {access.node}", step="answer")
    finally:
        session.close()


def _own_identity(access: BrokerTarget) -> Diagnostic:
    problems = pki.check_identity(access.cert_file, access.key_file, access.ca_file, access.node)
    if problems:
        listed = "; ".join(problem.what for problem in problems)
        return bad(f"our identity cannot be used: {listed}", problems[0].hint, step="configuration")
    facts = pki.describe(pki.load_certificates(access.cert_file)[0], datetime.now(UTC))
    what = f"node {access.node}, certificate {facts.serial} valid for {facts.days_left} days"
    figures: Figures = {"serial": facts.serial, "days_left": facts.days_left}
    if facts.days_left < pki.WARN_DAYS:
        return note(
            what, f"renew it, at the authority: bsfg pki sign {access.node}", step="configuration", figures=figures
        )
    return good(what, step="configuration", figures=figures)


def _limits(session: MqttSession) -> Diagnostic:
    """The limits that the broker announced in CONNACK."""
    packet_bytes = getattr(session.connack, "MaximumPacketSize", None)
    retains = getattr(session.connack, "RetainAvailable", 1) != 0
    figures: Figures = {"packet_bytes_max": packet_bytes}
    if packet_bytes is not None and packet_bytes < PACKET_BYTES_MAX:
        what = f"packets are limited to {packet_bytes:,} bytes; a page needs up to {PACKET_BYTES_MAX:,}"
        return note(what, f"set max_packet_size {PACKET_BYTES_MAX}", step="session", figures=figures)
    if retains:
        return note("the broker keeps retained messages", USE_GENERATED, step="session", figures=figures)
    limit = "any size" if packet_bytes is None else f"up to {packet_bytes:,} bytes"
    return good(f"accepted; packets of {limit}, no retained messages", step="session", figures=figures)


def _may_answer(session: MqttSession, own_node: str, node: str) -> Diagnostic:
    """Send an unsolicited answer to an instance that does not exist: only the broker's acknowledgement matters."""
    refused = session.publish(response_topic(own_node, node, _instance()), b"", None, b"")
    if refused is None or isinstance(refused, PeerAbsent):
        return good(f"may answer {node}", step="rights")
    return bad(f"may not answer {node}: {reason_text(refused)}", add_link(own_node, node), step="rights")


def _ask(session: MqttSession, own_node: str, peer: Peer) -> Iterator[Diagnostic]:
    """Send one request and evaluate its answer, then measure round trips."""
    responses = response_topic(peer.node, own_node, _instance())
    if not session.subscribe(subscription_to(responses)):
        yield bad(f"may not receive answers of {peer.node}", add_link(peer.node, own_node), step="rights")
        return
    correlation = secrets.token_bytes(16)
    request, payload = request_topic(peer.node, own_node), encode_request(ListStreams())
    refused = session.publish(request, payload, responses, correlation)
    if isinstance(refused, PeerAbsent):
        what = f"may send requests to {peer.node}, but no node of {peer.node} is connected to this broker"
        hint = "is it running, and is this broker in its node.toml (bsfg status there)? "
        hint += f"the way back to {own_node} was not tested"
        yield bad(what, hint, step="rights")
        return
    if refused is not None:
        hint = add_link(peer.node, own_node) if isinstance(refused, NotAuthorized) else "see the broker's log"
        yield bad(f"may not send requests to {peer.node}: {reason_text(refused)}", hint, step="rights")
        return
    yield good(f"may send requests to {peer.node}", step="rights")
    arrived = session.take_message(responses, correlation, WAIT_S)
    if arrived is None:
        yield judge_timeout(peer.node, own_node, WAIT_S)
        return
    yield good(f"{peer.node} answered, and the broker delivered the answer", step="answer")
    step, answer = judge_answer(peer.node, arrived.payload)
    yield step
    if answer is None:
        return
    trips = [
        trip for _ in range(ROUND_TRIPS) if (trip := _round_trip(session, peer.node, request, responses)) is not None
    ]
    if trips:
        yield from judge_round_trips(trips)
    else:
        yield judge_timeout(peer.node, own_node, WAIT_S)
    yield judge_streams(peer.node, answer, peer.pulls)


def _round_trip(session: MqttSession, node: str, request: str, responses: str) -> RoundTrip | None:
    correlation = secrets.token_bytes(16)
    payload = encode_request(ListStreams())
    sent_s, sent_unix_ms = time.monotonic(), time.time() * 1000
    session.publish(request, payload, responses, correlation)
    arrived = session.take_message(responses, correlation, WAIT_S)
    if arrived is None:
        return None
    took_ms = 1000 * (arrived.at_s - sent_s)
    _, answer = judge_answer(node, arrived.payload)
    return RoundTrip(took_ms, sent_unix_ms + took_ms / 2, None if answer is None else answer.unix_ms)


def _instance() -> str:
    return f"test-{secrets.token_hex(8)}"
