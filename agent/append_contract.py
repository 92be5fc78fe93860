"""The contract of an append: preconditions, outcomes, and the names it may use. Core: no IO.

Programs of the zone append through the node's socket (`agent.local_socket`), programs of other zones through the broker
(`agent.replication`). Both use this module, so that their checks of `from_zone` and `producer` are the same. The store
decides the outcomes (`agent.fact_store.append`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from agent.message import Message, MessageError

WARNING_CHARACTERS_MAX = 300
"""Limit of a warning, so that answers about many messages stay small. It leaves room for the names of the first few
consumers not in sync."""

STORED = frozenset({"applied", "noop_already_applied", "queued"})
"""Outcomes with which the message is stored. With any other outcome, including one of a later version, it is not."""


class Precondition(NamedTuple):
    """A condition for storing a message. `producer` with `lease_epoch`: no newer lease under this name is in force.
    `base_offset`: no message about the subject is newer than this offset (0: there is no message about it)."""

    producer: str | None = None
    lease_epoch: int | None = None
    base_offset: int | None = None


NO_PRECONDITION = Precondition()


Outcome = Literal["applied", "noop_already_applied", "conflicting_duplicate", "superseded", "rejected_fenced", "queued"]


class AppendOutcome(NamedTuple):
    """The outcome of an append; `agent.fact_store.append.admission` lists them. `offset` is that of the message first
    stored under the id, 0 while it is not known (acks none). `queued`: durable here (unless acks is none), but not
    confirmed as `acks` requires; `warning` has the reason."""

    offset: int
    outcome: Outcome
    warning: str = ""
    lease_epoch: int = 0  # of rejected_fenced: the epoch in force


def check_from_zone(message: Message, *zones: str) -> None:
    """Raise MessageError unless `from_zone` of a message is one of the zones of the node that appends it."""
    named = message.envelope.from_zone
    if named not in zones:
        own = " or ".join(map(repr, zones))
        raise MessageError("from_zone", f"{named!r}; messages that {zones[0]} appends must be from {own}")


def check_producer(producer: str | None, *zones: str) -> None:
    """Raise MessageError unless the name of another node's producer begins with one of its zones. Otherwise a node
    could take the lease of another zone's producer, or of this one's, and fence it."""
    if producer is not None and not producer.startswith(tuple(f"{zone}." for zone in zones)):
        named = " or ".join(f"{zone}.<name>" for zone in zones)
        raise MessageError("producer", f"{producer!r}; producers of {zones[0]} are named {named}")
