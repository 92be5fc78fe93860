"""Appending at another node: the same request as at our own, sent to a peer across the broker.

A module of its own, imported when somebody appends there, so that an append here need not wait for what speaks MQTT to load.
"""

from __future__ import annotations

import msgspec

from agent import local
from agent.cli.ask_peer import ask_peer
from agent.config import NodeSettings
from agent.replication.errors import MalformedMessage
from agent.replication.messages import (
    AcquireLease,
    AppendAnswer,
    AppendedEntry,
    AppendFact,
    LeaseAnswer,
    NewFact,
    NewMessage,
)


def append(settings: NodeSettings, peer: str, request: local.AppendFact, answer_s: float) -> AppendedEntry:
    """What became of one message at the node of `peer`."""
    fact = request.fact
    message = NewMessage(
        envelope=request.envelope,
        fact=NewFact(subject=fact.subject, predicate=fact.predicate, object=msgspec.Raw(fact.object_json)),
        producer=request.producer,
        lease_epoch=request.lease_epoch,
        base_offset=request.base_offset,
    )
    asked = AppendFact(stream=request.stream, messages=[message], acks=request.acks)
    (outcome, *more) = ask_peer(settings, peer, asked, AppendAnswer, answer_s).outcomes
    if more:
        raise MalformedMessage(f"{peer} answered {1 + len(more)} outcomes for one message")
    return outcome


def acquire_lease(settings: NodeSettings, peer: str, stream: str, producer: str, answer_s: float) -> int:
    """A new lease epoch for a producer of this zone at the node of `peer`."""
    request = AcquireLease(stream=stream, producer=producer)
    return ask_peer(settings, peer, request, LeaseAnswer, answer_s).lease_epoch
