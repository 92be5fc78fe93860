"""Everything between this node and one peer, tried step by step: each names what it found, and what to do.

Name, TCP, TLS, our own identity at the broker, the broker's limits, the right to ask, the way back, the peer's protocol and store, round
trip, clocks, streams.  The first step that fails ends it, as the later ones could not be tried.  It works beside a running node: a
random client id, a response topic of its own, and only questions that change nothing there (ListStreams).

That our own answers are let through cannot be proven without the peer: no zone may both write and read one topic.  So the way back is
proven by the peer's answer, and where the peer is not connected that is said, not guessed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.replication import pki
from agent.replication.broker.config import PACKET_BYTES_MAX
from agent.replication.broker.diagnosis import (
    Diagnostic,
    Figures,
    Outcome,
    RoundTrip,
    Step,
    judge_answer,
    judge_round_trips,
    judge_streams,
    judge_timeout,
)
from agent.replication.broker.session import (
    NO_MATCHING_SUBSCRIBERS,
    NOT_AUTHORIZED,
    SUCCESS,
    WAIT_S,
    BrokerTarget,
    Session,
    connection_steps,
    reason_text,
)
from agent.replication.protocol.codec import encode_request
from agent.replication.protocol.messages import ListStreams
from agent.replication.protocol.topics import request_topic, response_topic

ROUND_TRIPS = 9
"""Enough for a median that one hiccup does not move, and a hundredth of a second in a plant."""
OWN_DAYS_WARN = 30
_REACH_STEPS = ("name", "tcp", "tls", "identity")
_ACL_HINT = "add the link to bsfg broker config, install what it writes, and bsfg broker reload"


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer to test, as our own configuration has it: whether it asks us, what we pull from it, and whether we ask it anything."""

    zone: str
    asks_us: bool
    pulls: Collection[str]
    is_asked: bool


def check_peer(access: BrokerTarget, peer: Peer) -> Iterator[Step]:
    """Try every step, telling each as it is made; the first bad one before the peer answers is the last."""
    step = _own_identity(access)
    yield step
    if step.diagnostic.outcome is Outcome.BAD:
        return
    for name, diagnostic in zip(_REACH_STEPS, connection_steps(access), strict=False):
        yield Step(name, diagnostic)
        if diagnostic.outcome is Outcome.BAD:
            return
    session = Session(access)
    try:
        for diagnostic in session.connect():
            yield Step("session", diagnostic)
            return
        yield _limits(session)
        if peer.asks_us:
            yield _may_answer(session, access.zone, peer.zone)
        if peer.is_asked:
            yield from _ask(session, access.zone, peer)
        else:
            what = f"nothing is pulled from {peer.zone}, so it was not asked; it asks us"
            yield Step(
                "answer", Diagnostic(Outcome.NOTE, what, f"try the other direction there: bsfg peer test {access.zone}")
            )
    finally:
        session.close()


def _own_identity(access: BrokerTarget) -> Step:
    problems = pki.check_identity(access.cert_file, access.key_file, access.ca_file, access.zone)
    if problems:
        listed = "; ".join(f"{problem.file}: {problem.why}" for problem in problems)
        return Step(
            "configuration", Diagnostic(Outcome.BAD, f"our identity cannot be used: {listed}", problems[0].hint)
        )
    facts = pki.describe(pki.load_certificates(access.cert_file)[0], datetime.now(UTC))
    what = f"zone {access.zone}, certificate {facts.serial} good for {facts.days_left} days"
    figures: Figures = {"serial": facts.serial, "days_left": facts.days_left}
    if facts.days_left < OWN_DAYS_WARN:
        return Step("configuration", Diagnostic(Outcome.NOTE, what, f"renew it: bsfg pki renew {access.zone}"), figures)
    return Step("configuration", Diagnostic(Outcome.GOOD, what), figures)


def _limits(session: Session) -> Step:
    """What the broker announced when it accepted us."""
    packet_bytes = getattr(session.connack, "MaximumPacketSize", None)
    retains = getattr(session.connack, "RetainAvailable", 1) != 0
    figures: Figures = {"packet_bytes_max": packet_bytes}
    hint = "use the configuration of bsfg broker config"
    if packet_bytes is not None and packet_bytes < PACKET_BYTES_MAX:
        what = f"packets are limited to {packet_bytes:,} bytes, and a page may have {PACKET_BYTES_MAX:,}"
        return Step("session", Diagnostic(Outcome.NOTE, what, f"set max_packet_size {PACKET_BYTES_MAX}"), figures)
    if retains:
        return Step("session", Diagnostic(Outcome.NOTE, "the broker keeps retained messages", hint), figures)
    limit = "any size" if packet_bytes is None else f"up to {packet_bytes:,} bytes"
    return Step("session", Diagnostic(Outcome.GOOD, f"accepted; packets of {limit}, nothing retained"), figures)


def _may_answer(session: Session, own_zone: str, zone: str) -> Step:
    """An answer nobody asked for, to an instance nobody has: only the broker's acknowledgement is of interest."""
    reason = session.publish(response_topic(own_zone, zone, _instance()), b"", None, b"")
    if reason in (SUCCESS, NO_MATCHING_SUBSCRIBERS):
        return Step("rights", Diagnostic(Outcome.GOOD, f"may answer {zone}"))
    return Step("rights", Diagnostic(Outcome.BAD, f"may answer {zone}: no, {reason_text(reason)}", _ACL_HINT))


def _ask(session: Session, own_zone: str, peer: Peer) -> Iterator[Step]:
    """The question there and the answer back, once to understand it, and then to measure."""
    responses = response_topic(peer.zone, own_zone, _instance())
    session.subscribe(responses)
    correlation = secrets.token_bytes(16)
    request, question = request_topic(peer.zone, own_zone), encode_request(ListStreams())
    reason = session.publish(request, question, responses, correlation)
    if reason == NO_MATCHING_SUBSCRIBERS:
        what = f"may ask {peer.zone}, but no node of {peer.zone} is connected to this broker"
        hint = f"is it running, and is this broker in its node.toml? bsfg status there; what {own_zone} may read was not tried"
        yield Step("rights", Diagnostic(Outcome.BAD, what, hint))
        return
    if reason != SUCCESS:
        hint = _ACL_HINT if reason == NOT_AUTHORIZED else "look into the broker's log"
        yield Step("rights", Diagnostic(Outcome.BAD, f"may ask {peer.zone}: no, {reason_text(reason)}", hint))
        return
    yield Step("rights", Diagnostic(Outcome.GOOD, f"may ask {peer.zone}, and somebody there listens"))
    arrived = session.take(responses, correlation, WAIT_S)
    if arrived is None:
        yield judge_timeout(peer.zone, own_zone, WAIT_S)
        return
    yield Step("answer", Diagnostic(Outcome.GOOD, f"{peer.zone} answered, and we may read it"))
    step, answer = judge_answer(peer.zone, arrived.payload)
    yield step
    if answer is None:
        return
    trips = [
        trip for _ in range(ROUND_TRIPS) if (trip := _round_trip(session, peer.zone, request, responses)) is not None
    ]
    if trips:
        yield from judge_round_trips(trips)
    else:
        yield judge_timeout(peer.zone, own_zone, WAIT_S)
    yield judge_streams(peer.zone, answer, peer.pulls)


def _round_trip(session: Session, zone: str, request: str, responses: str) -> RoundTrip | None:
    correlation = secrets.token_bytes(16)
    question = encode_request(ListStreams())
    sent_s, sent_unix_ms = time.monotonic(), time.time() * 1000
    session.publish(request, question, responses, correlation)
    arrived = session.take(responses, correlation, WAIT_S)
    if arrived is None:
        return None
    took_ms = 1000 * (arrived.at_s - sent_s)
    _, answer = judge_answer(zone, arrived.payload)
    return RoundTrip(took_ms, sent_unix_ms + took_ms / 2, None if answer is None else answer.unix_ms)


def _instance() -> str:
    return f"test-{secrets.token_hex(8)}"
