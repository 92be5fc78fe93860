"""Words of resource discovery: which streams a zone may read, and what each of them holds.

Answered from memory, so asking often costs the serving node nothing.
"""

from __future__ import annotations

from agent.replication.protocol.messages.fields import AnswerBody, Name, Offset, Part, Position, RequestBody


class GetBounds(RequestBody, frozen=True, tag="GetBounds", tag_field="operation"):
    """The first and last offset a stream holds."""

    stream: Name


class ListStreams(RequestBody, frozen=True, tag="ListStreams", tag_field="operation"):
    """The streams exported to the asker."""


class StreamEntry(Part, frozen=True):
    """One exported stream and its bounds; `first_offset` is `end_offset + 1` when it holds nothing."""

    name: Name
    first_offset: Position
    end_offset: Offset


class BoundsAnswer(AnswerBody, frozen=True, tag="GetBounds", tag_field="operation"):
    """The bounds of one stream."""

    stream: Name
    first_offset: Position
    end_offset: Offset


class StreamsAnswer(AnswerBody, frozen=True, tag="ListStreams", tag_field="operation"):
    """The streams exported to the asker, in order of name, and the server's wall clock, for comparing only."""

    streams: list[StreamEntry]
    unix_ms: Offset | None = None
