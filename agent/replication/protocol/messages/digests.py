"""Messages of anti-entropy: digests of what is held of each origin, to compare two stores.

An equal digest proves equality of the whole history before it, so a few digests find where two stores differ.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.batch import Origin
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages.fields import (
    AnswerBody,
    Digest,
    Name,
    Offset,
    OriginName,
    Position,
    RequestBody,
    check_forwards,
    check_range,
)

ENDS_MAX, ENDS_DEFAULT = 256, 64
"""Digests inside a range in one answer: each exchange narrows it to a 64th, so a billion facts take five exchanges."""
RANGES_MAX = 2000
"""Ranges in one answer: whole origins until there are a thousand ranges, and one origin has at most a thousand."""


class GetDigests(RequestBody, frozen=True, tag="GetDigests", tag_field="operation"):
    """Ranges held of each origin after `after_origin`; or, with `origin`, digests at some batch ends in a range of
    it."""

    stream: Name
    after_origin: OriginName | None = None
    origin: OriginName | None = None
    first_sequence: Position | None = None
    last_sequence: Position | None = None
    ends_max: int = ENDS_DEFAULT

    def check(self) -> None:
        check_range("ends_max", self.ends_max, 1, ENDS_MAX, "GetDigests")
        given = [one is not None for one in (self.origin, self.first_sequence, self.last_sequence)]
        if any(given) and not (all(given) and self.after_origin is None):
            why = "origin, first_sequence and last_sequence are only valid together and without after_origin"
            raise MalformedMessage(why, "bad_request", "GetDigests")
        if self.first_sequence is not None and self.last_sequence is not None:
            check_forwards(self.first_sequence, self.last_sequence, "GetDigests")


class DigestsAnswer(AnswerBody, frozen=True, tag="GetDigests", tag_field="operation"):
    """Ranges held, or digests of batch ends.

    `ranges`: (origin, first_sequence, last_sequence, digest before the first, digest of the last batch), sorted, of
    what is held or was held before retention; whole origins, and `more` if others follow. `ends`: (last_sequence,
    digest) of batches in the requested range. `end_offset`: end of the log when it was read; the log up to there
    contains all `ranges`."""

    stream: Name
    end_offset: Offset
    ranges: Annotated[
        list[tuple[OriginName, Position, Position, Digest, Digest]], msgspec.Meta(max_length=RANGES_MAX)
    ] = []
    ends: Annotated[list[tuple[Position, Digest]], msgspec.Meta(max_length=ENDS_MAX + 2)] = []
    more: bool = False

    def check(self) -> None:
        """Raise MalformedMessage unless ranges and ends are sorted and do not overlap."""
        starts = [(origin, first) for origin, first, _, _, _ in self.ranges]
        overlaps = any(
            left[0] == right[0] and left[2] >= right[1]
            for left, right in zip(self.ranges, self.ranges[1:], strict=False)
        )
        if sorted(starts) != starts or overlaps or any(first > last for _, first, last, _, _ in self.ranges):
            raise MalformedMessage("ranges of digests are not in order", operation="GetDigests")
        places = [last for last, _ in self.ends]
        if sorted(set(places)) != places:
            raise MalformedMessage("ends of batches are not in order", operation="GetDigests")


def origin_named(name: str) -> Origin:
    """The origin in a field that was already checked."""
    zone, _, epoch = name.partition("/")
    return Origin(zone, bytes.fromhex(epoch))
