"""What an application is told of its append, and in whose name it may append: the same words at every door of a node.

A program of the zone appends through the node's socket (`agent.local_socket.local_socket`), one of another zone through
the broker (`agent.replication`). Both doors hand the message to the same store and ask it the same way; what the store
says of it becomes the fields of an answer here, and what may stand in `from_zone` and `producer` is decided here, so
that no door is wider than the other. The outcomes themselves are those of the store (`fact_store.admission`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, TypedDict

from agent.message import Message, MessageError

WARNING_CHARACTERS_MAX = 300
"""Of a warning, to keep answers about many messages small; it names who was not in sync, the first few at least."""


STORED = frozenset({"applied", "noop_already_applied", "queued"})
"""Outcomes that are a success; any other, also one that a later version may bring, has stored nothing."""


class Precondition(NamedTuple):
    """On what an application's message depends. `producer` with `lease_epoch`: nobody holds a newer lease under this
    name. `base_offset`: there is no newer message about the subject than this offset (0: there is none)."""

    producer: str | None = None
    lease_epoch: int | None = None
    base_offset: int | None = None


NO_PRECONDITION = Precondition()


Outcome = Literal["applied", "noop_already_applied", "conflicting_duplicate", "superseded", "rejected_fenced", "queued"]


class AppendOutcome(NamedTuple):
    """What became of a message: see `agent.fact_store.append.admission`. The offset is that of the message first stored
    under its id; 0 while it is not known (acks none). `queued`: durable here (unless acks is none) and not yet where
    `acks` promises it; `warning` says why."""

    offset: int
    outcome: Outcome
    warning: str = ""
    lease_epoch: int = 0  # of rejected_fenced: the epoch in force


class _Outcome(Protocol):
    """The fields of an outcome, in a store's or in an answer that reports it. `lease_epoch` 0 or None: none is in force
    against it."""

    @property
    def offset(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def warning(self) -> str: ...
    @property
    def lease_epoch(self) -> int | None: ...


class Told(TypedDict):
    """The fields of an answer about one message. `lease_epoch` is the one in force where the append was fenced."""

    offset: int
    outcome: str
    warning: str
    lease_epoch: int | None


def told(outcome: _Outcome) -> Told:
    """What the appender is told of his message."""
    return {
        "offset": outcome.offset,
        "outcome": outcome.outcome,
        "warning": outcome.warning[:WARNING_CHARACTERS_MAX],
        "lease_epoch": outcome.lease_epoch or None,
    }


def check_from_zone(message: Message, zone: str) -> None:
    """Raise MessageError unless a message names the zone that appends it as the one it comes from."""
    named = message.envelope.from_zone
    if named != zone:
        raise MessageError("from_zone", f"{named!r}; what {zone} appends is from {zone!r}")


def check_producer(producer: str | None, zone: str) -> None:
    """Raise MessageError unless a producer of another zone bears its zone's name: a lease that anybody may take would
    let one zone shut out another's producers, or this one's."""
    if producer is not None and not producer.startswith(f"{zone}."):
        raise MessageError("producer", f"{producer!r}; producers of {zone} are named {zone}.<name>")
