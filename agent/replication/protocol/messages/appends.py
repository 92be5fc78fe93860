"""Messages for producers in other zones: append facts once, the outcome of each, and producer leases."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from agent.append_contract import WARNING_CHARACTERS_MAX
from agent.message import Envelope
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages.fields import AnswerBody, Name, Offset, Part, Position, RequestBody

MESSAGES_MAX = 256
"""Messages of one append: as many small ones as fit into a request, and their outcomes into an answer."""


class NewFact(Part, frozen=True):
    """A fact; `object` is any JSON, stored in canonical form."""

    subject: str
    predicate: str
    object: msgspec.Raw


class NewMessage(Part, frozen=True):
    """A message to store once, with its preconditions: the producer's lease, the newest fact of the subject that it is
    based on."""

    envelope: Envelope
    fact: NewFact
    producer: str | None = None
    lease_epoch: int | None = None
    base_offset: int | None = None


class AppendFact(RequestBody, frozen=True, tag="AppendFact", tag_field="operation"):
    """Append messages to a stream in this order; if one breaks a rule, none is stored."""

    stream: Name
    messages: Annotated[list[NewMessage], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    acks: Literal["none", "local", "quorum", "all"] | None = None


class AcquireLease(RequestBody, frozen=True, tag="AcquireLease", tag_field="operation"):
    """Acquire a new lease epoch for a producer of the requesting zone; appends with a lower epoch are fenced from then
    on.

    With `lease_after` only if that epoch is in force (0: none).
    """

    stream: Name
    producer: Name
    lease_after: Offset | None = None


class AppendedEntry(Part, frozen=True):
    """The outcome of one message, as in `agent.append_contract`; an unknown outcome counts as a refusal."""

    offset: Offset
    outcome: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    warning: Annotated[str, msgspec.Meta(max_length=WARNING_CHARACTERS_MAX)] = ""
    lease_epoch: Offset | None = None


class AppendAnswer(AnswerBody, frozen=True, tag="AppendFact", tag_field="operation"):
    """The outcome of each message, in the order of the request."""

    outcomes: Annotated[list[AppendedEntry], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]


class LeaseAnswer(AnswerBody, frozen=True, tag="AcquireLease", tag_field="operation"):
    """The new lease epoch; or, if `lease_after` was not in force, the epoch that is."""

    lease_epoch: Position | None = None
    lease_in_force: Offset | None = None

    def check(self) -> None:
        if (self.lease_epoch is None) is (self.lease_in_force is None):
            raise MalformedMessage(
                "exactly one of lease_epoch and lease_in_force must be present", operation="AcquireLease"
            )
