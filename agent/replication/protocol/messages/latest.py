"""Words about last known values, each with how stale it is and how much is still on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages.facts import BYTES_MAX_DEFAULT, BYTES_MAX_MIN
from agent.replication.protocol.messages.fields import (
    AnswerBody,
    Name,
    Offset,
    Part,
    Position,
    RequestBody,
    Text,
    TimeText,
    Word,
    Zone,
    check_range,
)

SUBJECTS_MAX = 1000
VALUES_MAX, VALUES_DEFAULT = 10_000, 1_000
VALUES_BYTES_MAX = 768 * 1024
"""They stand in the header of an answer, which has at most a mebibyte."""
FRESH_MS_MAX, FRESH_MS_DEFAULT = 30 * 86_400_000, 60_000
DEPTH_FACTS_MAX, DEPTH_FACTS_DEFAULT = 20_000_000, 2_000_000
"""Facts looked through, from the end of the stream: some tenths of a second where a tag is not found, and some seconds."""


class TagKey(Part, frozen=True):
    """What has a last value: what a zone says of a subject under a predicate. Ordered as these three are."""

    zone: Zone
    subject: Text
    predicate: Text

    @property
    def order(self) -> tuple[str, str, str]:
        """Where it stands among others."""
        return self.zone, self.subject, self.predicate


class GetLatest(RequestBody, frozen=True, tag="GetLatest", tag_field="operation"):
    """The last known value of each tag of a stream, by zone, subject and predicate, after a tag or from the first."""

    stream: Name
    subjects: Annotated[list[Text], msgspec.Meta(max_length=SUBJECTS_MAX)] = []
    prefix: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    after: TagKey | None = None
    limit: int = VALUES_DEFAULT
    bytes_max: int = BYTES_MAX_DEFAULT
    fresh_ms: int = FRESH_MS_DEFAULT
    depth_facts: int = DEPTH_FACTS_DEFAULT

    def check(self) -> None:
        check_range("limit", self.limit, 1, VALUES_MAX, "GetLatest")
        check_range("bytes_max", self.bytes_max, BYTES_MAX_MIN, VALUES_BYTES_MAX, "GetLatest")
        check_range("depth_facts", self.depth_facts, 1, DEPTH_FACTS_MAX, "GetLatest")
        check_range("fresh_ms", self.fresh_ms, 0, FRESH_MS_MAX, "GetLatest")


class LatestEntry(Part, frozen=True):
    """The last known value of a tag, and how stale what the answering node knows of its source is."""

    zone: Zone
    subject: Text
    predicate: Text
    source: str
    value: msgspec.Raw
    value_type: Word
    quality: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    source_time: TimeText
    as_of: TimeText
    staleness_ms: Offset
    mode: Word
    unit: str | None = None
    offset: Position | None = None
    via: Zone | None = None

    @property
    def key(self) -> TagKey:
        """Whose value it is."""
        return TagKey(zone=self.zone, subject=self.subject, predicate=self.predicate)


class LatestAnswer(AnswerBody, frozen=True, tag="GetLatest", tag_field="operation"):
    """Values in the order of their tags; `more`: ask on after the last of them.  A tag without a value within the last
    `depth_facts` facts is not named."""

    stream: Name
    end_offset: Offset
    queue_depth: Offset
    depth_facts: Offset
    values: Annotated[list[LatestEntry], msgspec.Meta(max_length=VALUES_MAX)] = []
    more: bool = False

    def last_after(self, before: TagKey | None) -> TagKey:
        """The last tag, from which to ask on.  MalformedMessage where that leads nowhere."""
        last = self.values[-1].key if self.values else None
        if last is None or (before is not None and last.order <= before.order):
            raise MalformedMessage("a page of values that is not beyond the one before", operation="GetLatest")
        return last


@dataclass(frozen=True, slots=True)
class PeerLatest:
    """The latest values of a stream in a peer's store (zone, epoch), and when the peer was asked for them."""

    peer: str
    epoch: str
    stream: str
    asked_unix_ms: int
    values: Sequence[LatestEntry]
