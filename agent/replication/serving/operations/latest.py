"""GetLatest: the latest values of an exported stream, searched for on request.

One search of a link runs at a time, because a search opens batches; no other operation does. Zones take turns, and a
node that has used much search time waits longer. A few requests of a node may wait; more are refused as busy. The later
pages of a query come from the search that answered the first page, while it is kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from agent.replication.protocol.messages import GetLatest, LatestAnswer
from agent.replication.serving.admission import Caller, not_exported
from agent.replication.serving.latest_page import KEPT_MS, CachedSearch, LatestQuery, LookUp, SearchCache, page_of
from agent.replication.serving.limits import SEARCHES_WAITING_MAX
from agent.replication.serving.operations.context import Context, give_place
from agent.replication.serving.outcomes import Outcome, Refuse, Reply
from agent.replication.serving.turns import Dispatcher, FairQueue, Use

HEAD_BYTES = 2048
"""Of an answer and its packet without the values."""


class Latest:
    """Answers with what `look_up` finds."""

    def __init__(self, context: Context, look_up: LookUp) -> None:
        self._context = context
        self._look_up = look_up
        ready_ms = partial(context.pacer.ready_ms, Use.SEARCH_MS)
        self._turns: FairQueue[asyncio.Future[bool]] = FairQueue(1, ready_ms=ready_ms)
        self._dispatcher = Dispatcher(self._turns, give_place, context.now_ms, context.call_later)
        self._kept = SearchCache()
        self._open = Counter[str]()

    async def get_latest(self, caller: Caller, request: GetLatest) -> Outcome:
        """A page of values."""
        context = self._context
        if request.stream not in context.peers[caller.node].exports:
            return not_exported(request.stream, caller.node)
        node = caller.node
        # Requests whose answer waits to be sent count too: each keeps its result, some megabytes.
        if self._open[node] > SEARCHES_WAITING_MAX:
            return Refuse("busy", f"{SEARCHES_WAITING_MAX} of your searches for latest values are waiting already")
        self._open[node] += 1
        try:
            return await self._page(node, request)
        finally:
            self._open[node] -= 1

    async def _page(self, node: str, request: GetLatest) -> Outcome:
        context, searched = self._context, await self._searched(node, request)
        room = context.packet_bytes_max - HEAD_BYTES
        after = None if request.after is None else request.after.order
        page = searched.found, after, request.limit, min(request.bytes_max, room)
        values, more = await context.in_thread(node, page_of, *page)
        answer = LatestAnswer(
            **context.store_name,
            stream=request.stream,
            end_offset=searched.end_offset,
            queue_depth=searched.found.queue_depth,
            depth_facts=searched.found.depth_facts,
            values=values,
            more=more,
        )
        return Reply(answer, [])

    async def _searched(self, node: str, request: GetLatest) -> CachedSearch:
        """The search for a request: a new one for the first page, and for a later page if it is no longer kept."""
        context, query = self._context, LatestQuery.of(request)
        searched = None if request.after is None else self._kept.get(node, query, context.now_ms())
        if searched is not None:
            return searched
        turn = context.future()
        self._turns.add(node, turn)
        self._dispatcher.begin_due()
        try:
            if not turn.done():
                await turn
            began_ms, end_offset = context.now_ms(), context.store.end_offset(request.stream)
            asked = request.stream, query.is_about, request.fresh_ms, request.depth_facts
            searched = CachedSearch(await context.in_executor(self._look_up, *asked), end_offset, context.now_ms())
            context.pacer.spend(Use.SEARCH_MS, node, searched.at_ms - began_ms, searched.at_ms)
        finally:
            self._turns.leave(node, turn)
            self._dispatcher.begin_due()
        self._kept.put(node, query, searched)
        context.call_later(KEPT_MS / 1000, lambda: self._kept.forget(context.now_ms()))
        return searched
