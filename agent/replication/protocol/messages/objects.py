"""Messages about artifacts: their bytes by digest, read or written in chunks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages.facts import BYTES_MAX_MIN
from agent.replication.protocol.messages.fields import AnswerBody, Artifact, Offset, Position, RequestBody, check_range

CHUNK_BYTES_MAX = 256 * 1024
"""Bytes of an artifact in one answer: as many as a page."""
PUT_BYTES_MAX = 45_000
"""Bytes of an artifact in one request; base64 makes 60,000 of them."""


class GetObject(RequestBody, frozen=True, tag="GetObject", tag_field="operation"):
    """Bytes of an artifact from `offset`; a fact that the requester may read must refer to it."""

    digest: Artifact
    offset: Offset = 0
    bytes_max: int = CHUNK_BYTES_MAX

    def check(self) -> None:
        check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, CHUNK_BYTES_MAX, "GetObject")


class PutObject(RequestBody, frozen=True, tag="PutObject", tag_field="operation"):
    """The next bytes of an artifact of `size` bytes. Without `data`: ask how many bytes an earlier attempt stored."""

    digest: Artifact
    size: Position
    offset: Offset = 0
    data: Annotated[bytes, msgspec.Meta(max_length=PUT_BYTES_MAX)] = b""


class ObjectAnswer(AnswerBody, frozen=True, tag="GetObject", tag_field="operation"):
    """The attachment is `bytes` bytes of the artifact, from `offset`. After the last one the requester checks the
    digest."""

    size: Position
    offset: Offset
    bytes: Offset = 0

    def attached(self) -> list[int]:
        return [self.bytes] if self.bytes else []

    def check(self) -> None:
        if self.bytes > CHUNK_BYTES_MAX or (self.offset + self.bytes > self.size and self.bytes):
            why = f"{self.bytes} bytes from {self.offset} of {self.size}"
            raise MalformedMessage(why, operation="GetObject")


class PutAnswer(AnswerBody, frozen=True, tag="PutObject", tag_field="operation"):
    """`received`: bytes stored so far, continue there. `is_complete`: all bytes, checked against the digest, and
    durable."""

    received: Offset
    is_complete: bool
