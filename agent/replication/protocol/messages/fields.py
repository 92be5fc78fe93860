"""Types of message fields with their ranges and patterns, and the base classes that requests and answers share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.lease import LEASE_EPOCH_MAX
from agent.replication.protocol.errors import MalformedMessage

OFFSET_MAX = 2**63 - 1
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Position = Annotated[int, msgspec.Meta(ge=1, le=OFFSET_MAX)]
Time = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
StartText = Annotated[str, msgspec.Meta(max_length=40)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9._-]{1,64}\Z")]
Zone = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}\Z")]
Epoch = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
OriginName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}/[0-9a-f]{32}\Z")]
Lease = Annotated[int, msgspec.Meta(ge=0, le=LEASE_EPOCH_MAX)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
TimeText = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
Word = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_0-9]{1,64}\Z")]
Artifact = Annotated[str, msgspec.Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]
Reason = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,64}\Z")]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message; fields with their default value are not encoded."""


class RequestBody(Part, frozen=True):
    """Base class of requests."""

    def check(self) -> None:
        """Raise MalformedMessage for rules that field types cannot express."""


class AnswerBody(Part, frozen=True):
    """Base class of answers: names the answering store."""

    store_zone: Zone
    epoch: Epoch

    def check(self) -> None:
        """Raise MalformedMessage for rules that field types cannot express."""

    def attached(self) -> list[int]:
        """Length in bytes of each piece of the attachment, in order."""
        return []


def operation_of(message: RequestBody | AnswerBody | type[RequestBody | AnswerBody]) -> str:
    """The operation of a message."""
    return str(message.__struct_config__.tag)


def check_forwards(first: int, last: int, operation: str) -> None:
    """Raise MalformedMessage if `first` is after `last`."""
    if first > last:
        raise MalformedMessage(f"the range {first} to {last} is backwards", "bad_request", operation)


def check_range(name: str, value: int, least: int, most: int, operation: str) -> None:
    """Raise MalformedMessage with `limit_out_of_range` unless least <= value <= most."""
    if not least <= value <= most:
        shown = str(value) if abs(value) <= OFFSET_MAX else "a number beyond 64 bits"
        raise MalformedMessage(f"{name} is {shown}, must be {least} to {most}", "limit_out_of_range", operation)
