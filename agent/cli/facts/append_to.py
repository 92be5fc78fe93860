"""Appending at another node: the same request as at our own, sent to a peer across the broker.

A module of its own, imported when somebody appends there, so that an append here need not wait for what speaks MQTT to load.
"""

from __future__ import annotations

import click
import msgspec

from agent import local_socket
from agent.cli.ask_peer import ask_peer
from agent.config import NodeSettings
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import (
    AcquireLease,
    AppendAnswer,
    AppendedEntry,
    AppendFact,
    LeaseAnswer,
    NewFact,
    NewMessage,
)

LEASE_TRIES = 5
"""The first finds out which lease is in force; each more means that another process has taken one meanwhile."""


def append(settings: NodeSettings, peer: str, request: local_socket.AppendFact, answer_s: float) -> AppendedEntry:
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
    """A new lease epoch for a producer of this zone at the node of `peer`: the one after that which is in force, so that what is on its
    way when this process ends takes nothing from whoever asks next."""
    after = 0
    for _ in range(LEASE_TRIES):
        request = AcquireLease(stream=stream, producer=producer, lease_after=after)
        answer = ask_peer(settings, peer, request, LeaseAnswer, answer_s)
        if answer.lease_epoch is not None:
            return answer.lease_epoch
        assert answer.lease_in_force is not None  # one of the two is there
        after = answer.lease_in_force
    raise click.ClickException(f"others take leases of {producer} as fast as we ask; stop all of them but one")
