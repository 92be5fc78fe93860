"""Words for producers in other zones: facts to be stored once, what became of each, and the leases of producers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from agent.append_contract import WARNING_CHARACTERS_MAX
from agent.message import Envelope
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages.fields import AnswerBody, Name, Offset, Part, Position, RequestBody

MESSAGES_MAX = 256
"""Messages of one append: as many small ones as fit a request, and their outcomes an answer."""


class NewFact(Part, frozen=True):
    """What is asserted; `object` is any JSON, kept in its canonical form."""

    subject: str
    predicate: str
    object: msgspec.Raw


class NewMessage(Part, frozen=True):
    """A message to be stored once, and on what it depends: the producer's lease, the newest fact of the subject seen."""

    envelope: Envelope
    fact: NewFact
    producer: str | None = None
    lease_epoch: int | None = None
    base_offset: int | None = None


class AppendFact(RequestBody, frozen=True, tag="AppendFact", tag_field="operation"):
    """Append messages to a stream, in their order, all of them or (when one breaks a rule) none."""

    stream: Name
    messages: Annotated[list[NewMessage], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    acks: Literal["none", "local", "quorum", "all"] | None = None


class AcquireLease(RequestBody, frozen=True, tag="AcquireLease", tag_field="operation"):
    """A lease epoch for a producer of the asker that begins: whoever appends with a lower one is fenced from now on. With `lease_after`
    only if that epoch is in force (0: none)."""

    stream: Name
    producer: Name
    lease_after: Offset | None = None


class AppendedEntry(Part, frozen=True):
    """What became of one message: `fact_store.admission` has the outcomes; one not known here is to be read as a refusal."""

    offset: Offset
    outcome: Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]
    warning: Annotated[str, msgspec.Meta(max_length=WARNING_CHARACTERS_MAX)] = ""
    lease_epoch: Offset | None = None


class AppendAnswer(AnswerBody, frozen=True, tag="AppendFact", tag_field="operation"):
    """What became of each message, in the order of the request."""

    outcomes: Annotated[list[AppendedEntry], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]


class LeaseAnswer(AnswerBody, frozen=True, tag="AcquireLease", tag_field="operation"):
    """The epoch to append with; or none, and the one in force, where that was not the one named."""

    lease_epoch: Position | None = None
    lease_in_force: Offset | None = None

    def check(self) -> None:
        if (self.lease_epoch is None) is (self.lease_in_force is None):
            raise MalformedMessage("one of lease_epoch and lease_in_force must be there", operation="AcquireLease")
