"""Admission: which node may ask what, and whether a fetch is answered now or waits. A
core: no IO, no clock.

Nothing here changes state. A repeated fetch gets the same facts again until they are confirmed. No field of a request
proves its sender: the asking node is taken from the request topic, which the broker has checked.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from agent.pages import Consumer
from agent.replication.mqtt import Incoming
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import FetchFacts, FetchRange, FetchSequences
from agent.replication.protocol.topics import check_response_topic, parse_request_topic
from agent.replication.serving.outcomes import Drop, DropReason, Refuse
from agent.replication.serving.page import ReadPlan
from agent.settings.peers import STREAMS_MAX, PeerLimits

PARKED_PER_NODE_MAX = STREAMS_MAX
"""Fetches of one node that may wait for facts at the same time: one for each of its streams."""
CORRELATION_BYTES_MIN, CORRELATION_BYTES_MAX = 8, 32


@dataclass(frozen=True, slots=True)
class PeerRights:
    """What one peer may do, by default nothing: the streams that it may read and append to, the zones for which it
    records (empty: only that of its own name), and its limits."""

    exports: AbstractSet[str] = frozenset()
    appends: AbstractSet[str] = frozenset()
    zones: AbstractSet[str] = frozenset()
    limits: PeerLimits = field(default_factory=PeerLimits)


@dataclass(frozen=True, slots=True)
class Caller:
    """The asking node, which the broker has proven, and where the answer goes."""

    node: str
    instance: str
    correlation: bytes
    answer_to: str = ""


def check_arrival(incoming: Incoming, own_node: str, peer_nodes: Container[str]) -> Caller | Drop:
    """The sender of a message and where the answer goes, or why it gets none: a message with any fault is dropped."""
    if incoming.is_retained:
        return Drop(DropReason.RETAINED)
    try:
        topic = parse_request_topic(incoming.topic)
    except MalformedMessage:
        return Drop(DropReason.BAD_TOPIC)
    if topic.serving_node != own_node:
        return Drop(DropReason.BAD_TOPIC)
    if topic.asking_node not in peer_nodes:
        return Drop(DropReason.NOT_A_PEER)
    if incoming.response_topic is None:
        return Drop(DropReason.NO_RESPONSE_TOPIC)
    try:
        instance = check_response_topic(incoming.response_topic, own_node, topic.asking_node)
    except MalformedMessage:
        return Drop(DropReason.FOREIGN_RESPONSE_TOPIC)
    correlation = incoming.correlation or b""
    if not CORRELATION_BYTES_MIN <= len(correlation) <= CORRELATION_BYTES_MAX:
        return Drop(DropReason.BAD_CORRELATION)
    return Caller(topic.asking_node, instance, correlation, incoming.response_topic)


def check_consumer_name(name: str, asking_node: str) -> Refuse | None:
    """Why a node may not use this consumer name; None if it may. The names of a node begin with its own name, so no
    node can take a name of another node, or find out which consumers other nodes have."""
    if name.startswith(f"{asking_node}."):
        return None
    return Refuse(
        "consumer_not_yours", f"consumer_name is {name!r}; consumers of {asking_node} are {asking_node}.<name>"
    )


def admit_fetch(
    request: FetchFacts, asking_node: str, exports: AbstractSet[str], consumer: Consumer | None
) -> str | Refuse:
    """The stream that a fetch reads, if the node may read it with this consumer (None: not yet registered). Decided
    before any state is changed."""
    if consumer is None:
        if (refusal := check_consumer_name(request.consumer_name, asking_node)) is not None:
            return refusal
        if request.stream is None:
            return Refuse("unknown_consumer", f"no consumer {request.consumer_name!r}")
        if request.stream not in exports:
            return not_exported(request.stream, asking_node)
        return request.stream
    own = check_consumer(request.consumer_name, asking_node, exports, consumer)
    if isinstance(own, Refuse):
        return own
    if request.stream is not None and request.stream != own.stream:
        return Refuse(
            "consumer_stream_mismatch",
            f"consumer {request.consumer_name!r} reads {own.stream!r}, not {request.stream!r}",
        )
    return own.stream


def check_consumer(
    name: str, asking_node: str, exports: AbstractSet[str], consumer: Consumer | None
) -> Consumer | Refuse:
    """The consumer, if it exists and the node may use it."""
    if (refusal := check_consumer_name(name, asking_node)) is not None:
        return refusal
    if consumer is None:
        return Refuse("unknown_consumer", f"no consumer {name!r}")
    if consumer.zone != asking_node:
        return Refuse("consumer_not_yours", f"consumer {name!r} is not registered by {asking_node}")
    if consumer.stream not in exports:  # no longer exported
        return not_exported(consumer.stream, asking_node)
    return consumer


def admit_range(request: FetchRange, asking_node: str, exports: AbstractSet[str]) -> ReadPlan | Refuse:
    """What to read of a range. A stream that is not exported is refused before its position is resolved, which would
    reveal its end."""
    if request.stream not in exports:
        return not_exported(request.stream, asking_node)
    return ReadPlan(request.stream, request.first_offset - 1, request.limit, request.bytes_max, request.last_offset)


def admit_sequences(request: FetchSequences, asking_node: str, exports: AbstractSet[str]) -> ReadPlan | Refuse:
    """What to read of an origin. The plan counts sequences instead of offsets."""
    if request.stream not in exports:
        return not_exported(request.stream, asking_node)
    first, last = request.first_sequence, request.last_sequence
    return ReadPlan(request.stream, first - 1, request.limit, request.bytes_max, last)


def decide_fetch(
    request: FetchFacts,
    stream: str,
    position: int,
    end_offset: int,
    parked_of_node: int,
    until_ms: int,
    now_ms: int,
) -> ReadPlan | Refuse | None:
    """What to read now; None to wait for facts. `position` is the offset after which the page begins. `until_ms` is
    when the wait ends: the arrival of the request plus `wait_ms`."""
    if end_offset > position or now_ms >= until_ms:
        return ReadPlan(stream, position, request.limit, request.bytes_max)
    if parked_of_node >= PARKED_PER_NODE_MAX:
        return Refuse("busy", f"{parked_of_node} of your fetches are waiting already")
    return None


def not_exported(stream: str, asking_node: str) -> Refuse:
    """The refusal of a stream that this node may not read. It does not reveal whether the stream exists."""
    return Refuse("stream_not_exported", f"stream {stream!r} is not exported to {asking_node}")
