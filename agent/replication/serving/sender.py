"""The serving side's decisions: who may ask, what is done with a request, what goes into a page.

A core: values in, frozen decisions out, no clock, no store, no network.  The shell (`server`) calls, in this order,
`check_arrival` on what came from the broker, `admit_fetch` or `admit_confirm` on a decoded request, `decide_fetch` as
often as the log grows or time passes; what it then reads, `page` makes a page of.  The sender never pushes, and nothing here
changes state: a fetch that is repeated gets the same facts again until they are confirmed.

What a request's sender claims counts for nothing; who he is stands in the request topic, which the broker vouches for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agent.lease import NO_LEASE, Lease, Shown, decide
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import Confirm, ConfirmReceipt, FetchFacts, FetchRange, FetchSequences
from agent.replication.protocol.topics import check_response_topic, parse_request_topic
from agent.replication.serving.page import ReadPlan, Refuse

PARKED_PER_ZONE_MAX = 32
"""Fetches of one zone that may wait for facts at once: one for each consumer, with room to spare."""
CONSUMERS_PER_ZONE_MAX = 64
"""Consumers cost retention: each one that is forgotten holds the log back."""
CORRELATION_BYTES_MIN, CORRELATION_BYTES_MAX = 8, 32


class DropReason(Enum):
    """Why a message gets no answer at all; each is counted."""

    BAD_TOPIC = "bad_topic"
    NOT_A_PEER = "not_a_peer"
    NO_RESPONSE_TOPIC = "no_response_topic"
    FOREIGN_RESPONSE_TOPIC = "foreign_response_topic"
    BAD_CORRELATION = "bad_correlation"
    RETAINED = "retained"
    TOO_MANY_REQUESTS = "too_many_requests"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the broker delivered, besides the payload."""

    topic: str
    response_topic: str | None
    correlation: bytes | None
    is_retained: bool


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as it is proven, and where his answer goes."""

    zone: str
    instance: str
    correlation: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """No answer to anybody."""

    reason: DropReason


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A registered consumer, as the decision needs it."""

    zone: str
    stream: str
    frontier: int
    lease: Lease = NO_LEASE


@dataclass(frozen=True, slots=True)
class LogView:
    """The serving store at one moment: its epoch and the end of the stream in question."""

    epoch: str
    end_offset: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Carry on: register the consumer for `stream` if it is new, merge `confirm` if there is one."""

    stream: str
    must_register: bool
    confirm: Confirm | None


@dataclass(frozen=True, slots=True)
class AskStore:
    """The lease changes, or seems to fence the caller: only the store, which takes one after the other, has the last word."""

    shown: Shown


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer now, with what the plan reads (which may be nothing)."""

    plan: ReadPlan


@dataclass(frozen=True, slots=True)
class Park:
    """Nothing yet: ask again when the stream goes beyond `after_offset`, or at `until_ms`."""

    until_ms: int
    after_offset: int


def check_arrival(arrival: Arrival, own_zone: str, peer_zones: frozenset[str]) -> Caller | Drop:
    """Who asks and where the answer goes; everything that is not exactly right is dropped unanswered."""
    if arrival.is_retained:
        return Drop(DropReason.RETAINED)
    try:
        topic = parse_request_topic(arrival.topic)
    except MalformedMessage:
        return Drop(DropReason.BAD_TOPIC)
    if topic.serving_zone != own_zone:
        return Drop(DropReason.BAD_TOPIC)
    if topic.asking_zone not in peer_zones:
        return Drop(DropReason.NOT_A_PEER)
    if arrival.response_topic is None:
        return Drop(DropReason.NO_RESPONSE_TOPIC)
    try:
        instance = check_response_topic(arrival.response_topic, own_zone, topic.asking_zone)
    except MalformedMessage:
        return Drop(DropReason.FOREIGN_RESPONSE_TOPIC)
    correlation = arrival.correlation or b""
    if not CORRELATION_BYTES_MIN <= len(correlation) <= CORRELATION_BYTES_MAX:
        return Drop(DropReason.BAD_CORRELATION)
    return Caller(topic.asking_zone, instance, correlation)


def admit_fetch(
    request: FetchFacts,
    asking_zone: str,
    exports: frozenset[str],
    consumer: ConsumerView | None,
    consumers_of_zone: int,
) -> Admit | Refuse:
    """Whether this zone may read with this consumer; decided before any state is touched."""
    if consumer is None:
        if request.stream is None:
            return Refuse("unknown_consumer", f"no consumer {request.consumer_name!r}")
        if request.stream not in exports:
            return not_exported(request.stream, asking_zone)
        if consumers_of_zone >= CONSUMERS_PER_ZONE_MAX:
            return Refuse("too_many_consumers", f"{asking_zone} has {consumers_of_zone} consumers")
        return Admit(request.stream, must_register=True, confirm=request.confirm)
    refusal = check_consumer(request.consumer_name, asking_zone, exports, consumer)
    if refusal is not None:
        return refusal
    if request.stream is not None and request.stream != consumer.stream:
        return Refuse(
            "consumer_stream_mismatch",
            f"consumer {request.consumer_name!r} reads {consumer.stream!r}, not {request.stream!r}",
        )
    return Admit(consumer.stream, must_register=False, confirm=request.confirm)


def admit_confirm(
    request: ConfirmReceipt,
    asking_zone: str,
    exports: frozenset[str],
    consumer: ConsumerView | None,
) -> Admit | Refuse:
    """Whether this zone may confirm for this consumer."""
    refusal = check_consumer(request.consumer_name, asking_zone, exports, consumer)
    if refusal is not None:
        return refusal
    assert consumer is not None
    return Admit(consumer.stream, must_register=False, confirm=request.confirm)


def admit_range(request: FetchRange, asking_zone: str, exports: frozenset[str], log: LogView) -> ReadPlan | Refuse:
    """What to read of a range; a stream that is not exported is refused before anything is said of its offsets."""
    if request.stream not in exports:
        return not_exported(request.stream, asking_zone)
    refusal = check_offsets(log, request.epoch, request.first_offset - 1, None)
    if refusal is not None:
        return refusal
    return ReadPlan(request.stream, request.first_offset - 1, request.limit, request.bytes_max, request.last_offset)


def admit_sequences(request: FetchSequences, asking_zone: str, exports: frozenset[str]) -> ReadPlan | Refuse:
    """What to read of an origin's sequences, which are the plan's places."""
    if request.stream not in exports:
        return not_exported(request.stream, asking_zone)
    first, last = request.first_sequence, request.last_sequence
    return ReadPlan(request.stream, first - 1, request.limit, request.bytes_max, last)


def check_offsets(log: LogView, epoch: str | None, after_offset: int | None, confirm: Confirm | None) -> Refuse | None:
    """Whether the offsets a request speaks of can exist in this log; None when they can.

    Offsets of another epoch are never taken for our own, else a confirmation of a store that is gone would release
    facts of this one that nobody has read.
    """
    if epoch is not None and epoch != log.epoch:
        return Refuse("epoch_changed", f"offsets of epoch {epoch}, this store is {log.epoch}")
    if confirm is not None and confirm.last_offset > log.end_offset:
        return Refuse("confirm_beyond_log", f"confirm up to {confirm.last_offset}, the log ends at {log.end_offset}")
    if after_offset is not None and after_offset > log.end_offset:
        return Refuse("offset_beyond_log", f"offset {after_offset} is named, the log ends at {log.end_offset}")
    return None


def check_lease(
    consumer: ConsumerView, caller: Caller, epoch: int | None, after: int | None = None
) -> Lease | AskStore:
    """The lease in force where the caller changes nothing about it, which is nearly always; else what the store has to be asked."""
    shown = Shown(caller.instance, epoch, after)
    return consumer.lease if decide(consumer.lease, shown) == consumer.lease else AskStore(shown)


def decide_fetch(
    request: FetchFacts,
    stream: str,
    position: int,
    end_offset: int,
    parked_of_zone: int,
    waited_until_ms: int,
    now_ms: int,
) -> Answer | Park | Refuse:
    """Answer, or wait for facts.  `position` is `after_offset`, else the frontier after the confirmation.

    `waited_until_ms` is when the request's patience ends: arrival plus `wait_ms`.
    """
    if end_offset > position or now_ms >= waited_until_ms:
        return Answer(ReadPlan(stream, position, request.limit, request.bytes_max))
    if parked_of_zone >= PARKED_PER_ZONE_MAX:
        return Refuse("busy", f"{parked_of_zone} fetches of your zone are waiting already")
    return Park(waited_until_ms, position)


def check_consumer(
    name: str, asking_zone: str, exports: frozenset[str], consumer: ConsumerView | None
) -> Refuse | None:
    """Whether the zone may use this consumer at all; None when it may."""
    if consumer is None:
        return Refuse("unknown_consumer", f"no consumer {name!r}")
    if consumer.zone != asking_zone:
        return Refuse("consumer_not_yours", f"consumer {name!r} is not registered by {asking_zone}")
    if consumer.stream not in exports:  # exported once, withdrawn since
        return not_exported(consumer.stream, asking_zone)
    return None


def not_exported(stream: str, asking_zone: str) -> Refuse:
    """A stream that this zone may not read, whether it exists or not."""
    return Refuse("stream_not_exported", f"stream {stream!r} is not exported to {asking_zone}")
