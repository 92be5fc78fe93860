"""Appends that are durable here and wait for consumers to confirm them.

Belongs to the writer's thread, which hands over each append after its commit, comes back after every commit and at
`alarm_ns`, and never waits itself: an append that waits delays nobody. Each is answered once: acknowledged, or `queued` with
the reason when its time is over, when too many wait, or when the store closes. What to answer is decided in acks.py.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.fact_store.append import (
    AckTerms,
    AppendMessages,
    Follower,
    Pending,
    Queued,
    acknowledged_offset,
    decide_ack,
    decide_new_ack,
    out_of_sync_ns,
)
from agent.fact_store.consumers.activity import Presence
from agent.fact_store.log import AppendOutcome, Catalog

WAITING_MAX = 10_000
"""Appends of one stream that may wait at once: ten times the producers one gateway is measured with."""
ANSWERED_MAX = 1000
"""Appends of one line kept after they were answered, besides as many as wait: a sweep costs as much as there are."""
_STORED = frozenset({"applied", "noop_already_applied"})
NEVER_NS = 2**63 - 1
_GOES_ON = "the fact is durable here and goes on replicating"
_GONE = "the fact was released before it was confirmed; the notice facts_expired says what went"


@dataclass(slots=True, eq=False)
class _Waiting:
    append: AppendMessages
    outcome: list[AppendOutcome]
    offset: int
    since_ns: int
    is_answered: bool = False

    def __lt__(self, other: _Waiting) -> bool:
        return self.offset < other.offset


@dataclass(slots=True)
class _Line:
    """Appends that wait on the same terms: by offset, for they are acknowledged in this order, and by time, for so it ends."""

    by_offset: list[_Waiting] = field(default_factory=list)
    by_time: deque[_Waiting] = field(default_factory=deque)  # bounded by WAITING_MAX


class Acknowledging:
    """Answers appends when their terms are met."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._lines: dict[AckTerms, _Line] = {}
        self._counts: Counter[str] = Counter()
        self.alarm_ns = NEVER_NS
        """When `settle` is due although nothing was committed."""

    @property
    def waiting(self) -> int:
        """How many appends wait."""
        return self._counts.total()

    def answer(self, append: AppendMessages, outcome: list[AppendOutcome], catalog: Catalog, now_ns: int) -> None:
        """Answer an append that has just been committed, now or later."""
        terms, offset = append.terms, _last_offset(outcome)
        if terms is None or not terms.promises or not offset:
            _set(append, outcome)
            return
        waiting = _Waiting(append, outcome, offset, now_ns)
        followers = self._presence.followers(catalog, terms.stream)
        decision = decide_new_ack(offset, terms, followers, now_ns)
        if isinstance(decision, Pending) and self._counts[terms.stream] >= WAITING_MAX:
            decision = Queued(f"{WAITING_MAX} appends to {terms.stream} wait for its consumers already")
        match decision:
            case Pending(until_ns):
                line = self._lines.setdefault(terms, _Line())
                heapq.heappush(line.by_offset, waiting)
                line.by_time.append(waiting)
                self._counts[terms.stream] += 1
                self.alarm_ns = min(self.alarm_ns, until_ns)
            case Queued(why):
                _set(append, _queued(outcome, acknowledged_offset(terms, followers, now_ns), why))
            case _:
                _set(append, outcome)

    def settle(self, catalog: Catalog, now_ns: int) -> None:
        """Answer what can be answered now, and work out when to come back."""
        self.alarm_ns = NEVER_NS
        for terms, line in list(self._lines.items()):
            followers = self._presence.followers(catalog, terms.stream)
            self._give_up_released(terms, line, catalog.streams[terms.stream].released_offset)
            self._settle_line(terms, line, followers, now_ns)
            if not line.by_time:
                del self._lines[terms]

    def close(self, why: str) -> None:
        """Answer everything that waits as queued."""
        for terms, line in self._lines.items():
            for waiting in line.by_time:
                if not waiting.is_answered:
                    self._finish(terms, waiting, _queued(waiting.outcome, 0, why))
        self._lines.clear()

    def _give_up_released(self, terms: AckTerms, line: _Line, released_offset: int) -> None:
        """What retention let go of while it waited was never confirmed: frontiers pass over the hole it left, which is no
        confirmation. Each commit is settled before the next, so what was confirmed before it went has its answer."""
        while line.by_offset and (line.by_offset[0].is_answered or line.by_offset[0].offset <= released_offset):
            waiting = heapq.heappop(line.by_offset)
            if not waiting.is_answered:
                self._finish(terms, waiting, _queued(waiting.outcome, 0, _GONE, goes_on=False))

    def _settle_line(self, terms: AckTerms, line: _Line, followers: Sequence[Follower], now_ns: int) -> None:
        reach = acknowledged_offset(terms, followers, now_ns)
        while line.by_offset and (line.by_offset[0].is_answered or line.by_offset[0].offset <= reach):
            waiting = heapq.heappop(line.by_offset)
            if not waiting.is_answered:
                self._finish(terms, waiting, waiting.outcome)
        while line.by_time:
            waiting = line.by_time[0]
            if not waiting.is_answered:
                decision = decide_ack(waiting.offset, terms, followers, waiting.since_ns, now_ns)
                if isinstance(decision, Pending):
                    break
                assert isinstance(decision, Queued), decision
                self._finish(terms, waiting, _queued(waiting.outcome, reach, decision.why))
            line.by_time.popleft()
        if len(line.by_offset) > ANSWERED_MAX + 2 * len(line.by_time):
            # Under one that waits for an old offset, as repeats do, lie those whose time was over meanwhile.
            line.by_offset = [one for one in line.by_offset if not one.is_answered]
            heapq.heapify(line.by_offset)
        if line.by_time:
            deadline_ns = line.by_time[0].since_ns + terms.timeout_ns
            lowest = next(one for one in line.by_offset if not one.is_answered).offset
            out_ns = out_of_sync_ns(lowest, terms, followers, now_ns, deadline_ns)
            self.alarm_ns = min(self.alarm_ns, deadline_ns, out_ns)

    def _finish(self, terms: AckTerms, waiting: _Waiting, outcome: Any) -> None:
        waiting.is_answered = True
        self._counts[terms.stream] -= 1
        _set(waiting.append, outcome)


def _set(append: AppendMessages, outcome: Any) -> None:
    append.future.set_result(outcome)


def _last_offset(outcome: list[AppendOutcome]) -> int:
    """The last offset that somebody waits for; 0 where nothing was stored."""
    return max((one.offset for one in outcome if one.outcome in _STORED), default=0)


def _queued(outcome: list[AppendOutcome], reach: int, why: str, *, goes_on: bool = True) -> list[AppendOutcome]:
    """The outcome of an append whose time is over: what lies beyond `reach` is queued."""
    warning = f"{why}; {_GOES_ON}" if goes_on else why
    return [
        one._replace(outcome="queued", warning=warning) if one.outcome in _STORED and one.offset > reach else one
        for one in outcome
    ]
