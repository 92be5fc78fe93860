"""Counters of the writer's work, for statistics and metrics. No IO.

Only the writer's thread writes them; a snapshot read by another thread may be inconsistent by one piece of work.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from agent.append_contract import AppendOutcome
from agent.errors import StoreError, StoreFull
from agent.fact_store.append import AppendMessages, AppendSamples, Call, Work
from agent.fact_store.core import Histogram
from agent.pages import PutResult
from agent.telemetry import BOUNDS_S


class StoreMeter:
    """Counters since the store was opened."""

    def __init__(self) -> None:
        self.facts_appended = 0
        self.facts_received = 0
        self.facts_duplicate = 0
        self.appends = 0
        self.appends_failed = 0
        self.appends_full = 0  # of the failed ones, those refused for want of room
        self.confirms = 0
        self.commits = 0
        self.commit_began_ns: int | None = None  # while the writer is in a transaction or housekeeping
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def done(self, work: Work, outcome: Any, now_ns: int) -> None:
        """Count one piece of work that was answered with a result or an error."""
        match work:
            case AppendSamples() | AppendMessages():
                self._appended(work, outcome, now_ns)
            case Call(name="confirm"):
                self.confirms += 1
            case _:
                if isinstance(outcome, PutResult):
                    self.facts_received += outcome.stored_facts
                    self.facts_duplicate += outcome.duplicate_facts

    def commit_s(self, now_ns: int) -> float:
        """For how long the commit under way has lasted; 0 if there is none."""
        began_ns = self.commit_began_ns
        return 0.0 if began_ns is None else (now_ns - began_ns) / 1e9

    def latency(self) -> Histogram:
        """The time from queued to durable of successful appends of messages. Samples are not counted: they wait for
        `commit_interval_ms` on purpose, which does not depend on the disk."""
        return Histogram(tuple(self._counts), self._sum_s)

    def _appended(self, work: AppendSamples | AppendMessages, outcome: Any, now_ns: int) -> None:
        self.appends += 1
        if isinstance(outcome, StoreError):
            self.appends_failed += 1
            self.appends_full += isinstance(outcome, StoreFull)
            return
        if isinstance(work, AppendSamples):
            self.facts_appended += work.count
            return
        took_s = (now_ns - work.queued_ns) / 1e9
        self._counts[bisect_left(BOUNDS_S, took_s)] += 1
        self._sum_s += took_s
        results: list[AppendOutcome] = outcome
        self.facts_appended += sum(result.outcome == "applied" for result in results)
        self.facts_duplicate += sum(result.outcome == "noop_already_applied" for result in results)
