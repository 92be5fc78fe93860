"""ListStreams and GetBounds: which streams a zone may read, and what they hold. From memory."""

from __future__ import annotations

import time

from agent.replication.protocol.messages import BoundsAnswer, GetBounds, ListStreams, StreamEntry, StreamsAnswer
from agent.replication.serving.operations.context import Context, Outcome, Reply
from agent.replication.serving.sender import Caller, not_exported


class Streams:
    """Resource discovery."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list_streams(self, caller: Caller, _: ListStreams) -> Outcome:
        """Every stream exported to the caller, by name."""
        unix_ms = time.time_ns() // 1_000_000
        return Reply(StreamsAnswer(**self._context.own, streams=self._exported(caller), unix_ms=unix_ms), [])

    async def get_bounds(self, caller: Caller, request: GetBounds) -> Outcome:
        """First and last offset of one stream."""
        for entry in self._exported(caller):
            if entry.name == request.stream:
                first, end = entry.first_offset, entry.end_offset
                answer = BoundsAnswer(**self._context.own, stream=entry.name, first_offset=first, end_offset=end)
                return Reply(answer, [])
        return not_exported(request.stream, caller.zone)

    def _exported(self, caller: Caller) -> list[StreamEntry]:
        """One that is exported but holds nothing yet is listed as empty."""
        bounds = {stream.name: stream for stream in self._context.store.streams()}
        entries = []
        for name in sorted(self._context.exports[caller.zone]):
            stream = bounds.get(name)
            first, end = (stream.first_offset, stream.end_offset) if stream is not None else (1, 0)
            entries.append(StreamEntry(name=name, first_offset=max(first, 1), end_offset=end))
        return entries
