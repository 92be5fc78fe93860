"""GetLatest: the latest values of an exported stream, searched for on request.

One search runs at a time, because it opens batches, which nothing else in serving does; a few requests may wait for it,
more are refused as busy. The later pages of a question come from the search that answered the first, while it is kept.
"""

from __future__ import annotations

import asyncio
import time

from agent.replication.protocol.messages import GetLatest, LatestAnswer
from agent.replication.serving.admission import Caller, not_exported
from agent.replication.serving.latest_page import KEPT_MS, LatestQuery, LookUp, Search, SearchCache, page_of
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome, Refuse, Reply

WAITING_MAX = 8
"""Searches that wait for the one before, some tenths of a second each: all end before their requests time out."""

HEAD_BYTES = 2048
"""Of an answer and its packet, besides the values."""


class Latest:
    """Answers with what `look_up` finds."""

    def __init__(self, context: Context, look_up: LookUp) -> None:
        self._context = context
        self._look_up = look_up
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._kept = SearchCache()

    async def get_latest(self, caller: Caller, request: GetLatest) -> Outcome:
        """A page of values."""
        context = self._context
        if request.stream not in context.exports[caller.zone]:
            return not_exported(request.stream, caller.zone)
        if self._waiting > WAITING_MAX:
            return Refuse("busy", f"{self._waiting} searches for latest values are waiting already")
        self._waiting += 1
        try:
            async with self._turn:
                searched = await self._searched(request)
                room = context.packet_bytes_max - HEAD_BYTES
                after = None if request.after is None else request.after.order
                page = searched.found, after, request.limit, min(request.bytes_max, room)
                values, more = await context.in_thread(page_of, *page)
        finally:
            self._waiting -= 1
        answer = LatestAnswer(
            **context.own,
            stream=request.stream,
            end_offset=searched.end_offset,
            queue_depth=searched.found.queue_depth,
            depth_facts=searched.found.depth_facts,
            values=values,
            more=more,
        )
        return Reply(answer, [])

    async def _searched(self, request: GetLatest) -> Search:
        """The search for a request: a new one for the first page, and for a later page if it is no longer kept."""
        context, question = self._context, LatestQuery.of(request)
        searched = None if request.after is None else self._kept.get(question, _now_ms())
        if searched is None:
            end_offset = context.store.end_offset(request.stream)
            asked = request.stream, question.is_about, request.fresh_ms, request.depth_facts
            searched = Search(await context.in_thread(self._look_up, *asked), end_offset, _now_ms())
            self._kept.put(question, searched)
            asyncio.get_running_loop().call_later(KEPT_MS / 1000, lambda: self._kept.forget(_now_ms()))
        return searched


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
