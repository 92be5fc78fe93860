"""Words about artifacts: their bytes by digest, chunk by chunk, asked for or put."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages.facts import BYTES_MAX_MIN
from agent.replication.protocol.messages.fields import AnswerBody, Artifact, Offset, Position, RequestBody, check_range

CHUNK_BYTES_MAX = 256 * 1024
"""Of an artifact, in one answer: as much as a page."""
PUT_BYTES_MAX = 45_000
"""Of an artifact, in one request, where base64 makes 60,000 of them."""


class GetObject(RequestBody, frozen=True, tag="GetObject", tag_field="operation"):
    """Bytes of an artifact to which a fact that the asker may read refers, from `offset` on."""

    digest: Artifact
    offset: Offset = 0
    bytes_max: int = CHUNK_BYTES_MAX

    def check(self) -> None:
        check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, CHUNK_BYTES_MAX, "GetObject")


class PutObject(RequestBody, frozen=True, tag="PutObject", tag_field="operation"):
    """The next bytes of an artifact of `size` bytes; without any, how far an earlier attempt has come."""

    digest: Artifact
    size: Position
    offset: Offset = 0
    data: Annotated[bytes, msgspec.Meta(max_length=PUT_BYTES_MAX)] = b""


class ObjectAnswer(AnswerBody, frozen=True, tag="GetObject", tag_field="operation"):
    """The attachment are `bytes` of the artifact's `size` bytes, from `offset` on; whoever has the last compares the digest."""

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
    """`received` bytes are here: go on from there. `is_complete`: all of them, compared with the digest, and durable."""

    received: Offset
    is_complete: bool
