"""Fetches that wait for facts: each until its stream grows, its `wait_ms` have passed, or a newer fetch of the same
consumer replaces it. Meanwhile each requester gets a heartbeat that names its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from agent.replication.protocol.codec import encode_heartbeat
from agent.replication.protocol.pacing import HEARTBEAT_MS
from agent.replication.serving.admission import Caller
from agent.replication.serving.operations.context import Context

Key = tuple[str, str]
"""Zone and consumer."""


class Parked(NamedTuple):
    """How a wait for facts ended, and how long it lasted."""

    is_superseded: bool
    waited_ns: int


class _Wait(NamedTuple):
    caller: Caller
    stream: str
    ended: asyncio.Future[bool]


class Waiters:
    """The parked fetches of one server. Used only in the event loop's thread.

    A consumer has one parked fetch: a newer fetch supersedes an earlier one, which then ends without an answer. The
    result of its wait is True. `admission` decides how many fetches may wait.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waits: dict[Key, _Wait] = {}
        self._by_node: Counter[str] = Counter()
        self._are_heartbeats_due = False

    def count(self) -> int:
        """How many wait."""
        return len(self._waits)

    def count_others(self, node: str, name: str) -> int:
        """How many of a node wait besides that of a consumer, whose place a newer fetch takes."""
        return self._by_node[node] - ((node, name) in self._waits)

    def has_any(self) -> bool:
        """Whether any fetch waits. May be called from any thread."""
        return bool(self._waits)

    async def park(self, caller: Caller, name: str, stream: str, after_offset: int, until_ms: int) -> Parked:
        """Wait until a stream grows beyond an offset, until `until_ms`, or until a newer fetch of the consumer
        arrives."""
        context, store = self._context, self._context.store
        key, began_ns = (caller.node, name), context.now_ns()
        wait_ms = max(0, until_ms - began_ns // 1_000_000)
        store.consumers.seen(name, is_at_end=True, waits_ms=wait_ms)
        ended = context.future()
        self.supersede(key)
        self._waits[key] = _Wait(caller, stream, ended)
        self._by_node[caller.node] += 1
        self._begin_heartbeats()
        # The log may have grown since the caller looked, when the writer saw no fetch to wake.
        if store.end_offset(stream) > after_offset:
            end_wait(ended)
        cancel = context.call_later(wait_ms / 1000, partial(end_wait, ended))
        try:
            is_superseded = await ended
        finally:
            cancel()
            self._remove(key, ended)
        return Parked(is_superseded, context.now_ns() - began_ns)

    def wake(self, ends: Mapping[str, int]) -> None:
        """End the waits for these streams, which have grown."""
        for wait in self._waits.values():
            if wait.stream in ends:
                end_wait(wait.ended)

    def supersede(self, key: Key) -> None:
        """End an earlier wait of this consumer without an answer: a newer fetch, or another instance, has come."""
        if (wait := self._waits.get(key)) is not None:
            end_wait(wait.ended, is_superseded=True)
            self._remove(key, wait.ended)

    def _remove(self, key: Key, ended: asyncio.Future[bool]) -> None:
        """Remove a wait, unless another has replaced it."""
        if key in self._waits and self._waits[key].ended is ended:
            del self._waits[key]
            self._by_node[key[0]] -= 1

    def _begin_heartbeats(self) -> None:
        if not self._are_heartbeats_due:
            self._are_heartbeats_due = True
            self._context.call_later(HEARTBEAT_MS / 1000, self._send_heartbeats)

    def _send_heartbeats(self) -> None:
        """Name the parked fetches to their requesters: one message to each, however many streams it reads."""
        found = dict[tuple[str, str], list[bytes]]()
        for caller, *_ in self._waits.values():
            found.setdefault((caller.node, caller.answer_to), []).append(caller.correlation)
        for (node, answer_to), correlations in found.items():
            self._context.send(node, answer_to, encode_heartbeat(correlations), b"")
        self._are_heartbeats_due = False
        if self._waits:
            self._begin_heartbeats()


def end_wait(ended: asyncio.Future[bool], *, is_superseded: bool = False) -> None:
    """Resolve a wait once."""
    if not ended.done():
        ended.set_result(is_superseded)
