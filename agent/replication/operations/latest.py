"""GetLatest: the last known values of an exported stream, looked up when somebody asks.

One search at a time, for it opens batches, which nothing else in serving does; a few may wait for it, more are told to ask later.
"""

from __future__ import annotations

import asyncio

from agent.replication.last_values import LookUp, page_of, wanted_by
from agent.replication.messages import GetLatest, LatestAnswer
from agent.replication.operations.context import Context, Outcome, Reply
from agent.replication.page import Refuse
from agent.replication.sender import Caller, not_exported

WAITING_MAX = 8
"""Searches that wait for the one before, some tenths of a second each: all are answered before their askers give up."""

HEAD_BYTES = 2048
"""Of an answer and its packet, besides the values."""


class LastValues:
    """Answers with what `look_up` finds."""

    def __init__(self, context: Context, look_up: LookUp) -> None:
        self._context = context
        self._look_up = look_up
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def get_latest(self, caller: Caller, request: GetLatest) -> Outcome:
        """A page of values."""
        context = self._context
        if request.stream not in context.exports[caller.zone]:
            return not_exported(request.stream, caller.zone)
        if self._waiting > WAITING_MAX:
            return Refuse("busy", f"{self._waiting} searches for last values are waiting already")
        self._waiting += 1
        try:
            async with self._turn:
                end_offset = context.store.end_offset(request.stream)
                asked = request.stream, wanted_by(request), request.fresh_ms, request.depth_facts
                found = await context.in_thread(self._look_up, *asked)
        finally:
            self._waiting -= 1
        room = context.link.require().packet_bytes_max - HEAD_BYTES
        values, more = page_of(found.values, request.limit, min(request.bytes_max, room))
        answer = LatestAnswer(
            **context.own,
            stream=request.stream,
            end_offset=end_offset,
            queue_depth=found.queue_depth,
            depth_facts=found.depth_facts,
            values=values,
            more=more,
        )
        return Reply(answer, [])
