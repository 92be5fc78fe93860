"""Messages that list streams: which streams a zone may read, and which offsets each holds.

Answered from memory, so frequent requests cost the serving node little.
"""

from __future__ import annotations

from agent.replication.protocol.messages.fields import AnswerBody, Name, Offset, Part, Position, RequestBody


class GetBounds(RequestBody, frozen=True, tag="GetBounds", tag_field="operation"):
    """The first and last offset a stream holds."""

    stream: Name


class ListStreams(RequestBody, frozen=True, tag="ListStreams", tag_field="operation"):
    """List the streams exported to the requester."""


class StreamEntry(Part, frozen=True):
    """One exported stream and its bounds; `first_offset` is `end_offset + 1` if it is empty."""

    name: Name
    first_offset: Position
    end_offset: Offset


class BoundsAnswer(AnswerBody, frozen=True, tag="GetBounds", tag_field="operation"):
    """The bounds of one stream."""

    stream: Name
    first_offset: Position
    end_offset: Offset


class StreamsAnswer(AnswerBody, frozen=True, tag="ListStreams", tag_field="operation"):
    """The streams exported to the requester, by name, and the server's wall clock in ms since 1970, for comparison
    only."""

    streams: list[StreamEntry]
    unix_ms: Offset | None = None
