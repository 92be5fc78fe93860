"""Appends that are durable here and wait for consumers to confirm them.

Belongs to the writer's thread, which passes each append here after its commit, calls `settle` after every commit and at
`alarm_ns`, and never blocks: a waiting append delays no other work. Each append is answered once: acknowledged, or
`queued` with the reason when its timeout has passed, when too many appends wait, or when the store closes. acks.py
decides the answer (decision 0026).
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.append_contract import AppendOutcome
from agent.fact_store.append.acks import (
    AckTerms,
    Follower,
    Pending,
    Queued,
    acknowledged_offset,
    decide_ack,
    decide_new_ack,
    out_of_sync_ns,
)
from agent.fact_store.append.queue import AppendMessages
from agent.fact_store.core import NEVER_NS, Catalog

WAITING_MAX = 10_000
"""Appends of one stream that may wait at once: ten times the number of producers that one gateway is measured with."""
ANSWERED_MAX = 1000
"""A group's heap is rebuilt without answered appends when it is longer than this plus twice the number of waiting ones:
a rebuild takes time in proportion to the heap's length."""
_STORED = frozenset({"applied", "noop_already_applied"})
_REPLICATION_CONTINUES = "the fact is durable here and replication continues"
_RELEASED = "the fact was released before it was confirmed; the operational fact facts_expired lists what was released"


@dataclass(slots=True, eq=False)
class _Waiter:
    append: AppendMessages
    outcome: list[AppendOutcome]
    offset: int
    since_ns: int
    is_answered: bool = False

    def __lt__(self, other: _Waiter) -> bool:
        return self.offset < other.offset


@dataclass(slots=True)
class _Group:
    """Appends that wait on the same terms: by offset for acknowledgement, by time for timeouts."""

    by_offset: list[_Waiter] = field(default_factory=list)
    by_time: deque[_Waiter] = field(default_factory=deque)  # bounded by WAITING_MAX


class AckWaiters:
    """Answers each append when its terms are met, or its timeout is over."""

    def __init__(self, followers: Callable[[Catalog, str], list[Follower]]) -> None:
        """`followers` gives the consumers of a stream."""
        self._followers = followers
        self._groups: dict[AckTerms, _Group] = {}
        self._counts: Counter[str] = Counter()
        self.alarm_ns = NEVER_NS
        """Monotonic time at which `settle` is due without a commit, in nanoseconds."""

    @property
    def has_any(self) -> bool:
        """Whether any append waits; from any thread."""
        return bool(self._groups)

    def answer(self, append: AppendMessages, outcome: list[AppendOutcome], catalog: Catalog, now_ns: int) -> None:
        """Answer an append that has just been committed, or keep it until it can be answered."""
        terms, offset = append.terms, _last_offset(outcome)
        if terms is None or not terms.promises or not offset:
            _set(append, outcome)
            return
        waiting = _Waiter(append, outcome, offset, now_ns)
        followers = self._followers(catalog, terms.stream)
        decision = decide_new_ack(offset, terms, followers, now_ns)
        if isinstance(decision, Pending) and self._counts[terms.stream] >= WAITING_MAX:
            decision = Queued(f"{WAITING_MAX} appends to {terms.stream} already wait for its consumers")
        match decision:
            case Pending():
                group = self._groups.setdefault(terms, _Group())
                heapq.heappush(group.by_offset, waiting)
                group.by_time.append(waiting)
                self._counts[terms.stream] += 1
            case Queued(why):
                _set(append, _queued(outcome, acknowledged_offset(terms, followers, now_ns), why))
            case _:
                _set(append, outcome)

    def settle(self, catalog: Catalog, now_ns: int) -> None:
        """Answer what can be answered now, and set `alarm_ns`."""
        self.alarm_ns = NEVER_NS
        for terms, group in list(self._groups.items()):
            followers = self._followers(catalog, terms.stream)
            # Released facts first: frontiers pass over them, which is not a confirmation (decision 0026).
            self._answer_released(terms, group, catalog.streams[terms.stream].released_offset)
            self._settle_group(terms, group, followers, now_ns)
            if not group.by_time:
                del self._groups[terms]

    def close(self, why: str) -> None:
        """Answer all waiting appends as `queued`, with this reason."""
        for terms, group in self._groups.items():
            for waiting in group.by_time:
                if not waiting.is_answered:
                    self._finish(terms, waiting, _queued(waiting.outcome, 0, why))
        self._groups.clear()

    def _answer_released(self, terms: AckTerms, group: _Group, released_offset: int) -> None:
        """Answer appends as `queued` if their facts were released while they waited.

        A frontier above such a fact does not confirm it, because frontiers also pass over released facts. Each commit
        is settled before the next, so appends whose facts were confirmed before the release are already answered.
        """
        while group.by_offset and (group.by_offset[0].is_answered or group.by_offset[0].offset <= released_offset):
            waiting = heapq.heappop(group.by_offset)
            if not waiting.is_answered:
                self._finish(terms, waiting, _queued(waiting.outcome, 0, _RELEASED, is_replicating=False))

    def _settle_group(self, terms: AckTerms, group: _Group, followers: Sequence[Follower], now_ns: int) -> None:
        reach = acknowledged_offset(terms, followers, now_ns)
        while group.by_offset and (group.by_offset[0].is_answered or group.by_offset[0].offset <= reach):
            waiting = heapq.heappop(group.by_offset)
            if not waiting.is_answered:
                self._finish(terms, waiting, waiting.outcome)
        while group.by_time:
            waiting = group.by_time[0]
            if not waiting.is_answered:
                decision = decide_ack(waiting.offset, terms, followers, waiting.since_ns, now_ns)
                if isinstance(decision, Pending):
                    break
                assert isinstance(decision, Queued), decision
                self._finish(terms, waiting, _queued(waiting.outcome, reach, decision.why))
            group.by_time.popleft()
        if len(group.by_offset) > ANSWERED_MAX + 2 * len(group.by_time):
            # An append that waits for a low offset, such as a retry, keeps answered ones behind it in the heap.
            group.by_offset = [waiter for waiter in group.by_offset if not waiter.is_answered]
            heapq.heapify(group.by_offset)
        if group.by_time:
            deadline_ns = group.by_time[0].since_ns + terms.timeout_ns
            lowest = next(waiter for waiter in group.by_offset if not waiter.is_answered).offset
            out_ns = out_of_sync_ns(lowest, terms, followers, now_ns, deadline_ns)
            self.alarm_ns = min(self.alarm_ns, deadline_ns, out_ns)

    def _finish(self, terms: AckTerms, waiting: _Waiter, outcome: Any) -> None:
        waiting.is_answered = True
        self._counts[terms.stream] -= 1
        _set(waiting.append, outcome)


def _set(append: AppendMessages, outcome: Any) -> None:
    append.future.set_result(outcome)


def _last_offset(outcome: list[AppendOutcome]) -> int:
    """The last offset to be confirmed; 0 if nothing was stored."""
    return max((result.offset for result in outcome if result.outcome in _STORED), default=0)


def _queued(outcome: list[AppendOutcome], reach: int, why: str, *, is_replicating: bool = True) -> list[AppendOutcome]:
    """The outcome of an append that is no longer waited for: facts above `reach` are `queued`."""
    warning = f"{why}; {_REPLICATION_CONTINUES}" if is_replicating else why
    return [
        result._replace(outcome="queued", warning=warning)
        if result.outcome in _STORED and result.offset > reach
        else result
        for result in outcome
    ]
