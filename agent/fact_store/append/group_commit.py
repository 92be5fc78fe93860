"""Decides when to commit and which work belongs to the commit. Core: no IO.

Every commit writes about 30 kB in addition to its facts, and one fsync costs the same for one fact as for ten thousand.
So an interval limits how often a node commits:

- a message, a peer's page, or a call whose caller waits commits at once, together with what queued up while the last
  fsync ran;
- samples are due after `interval_ns`, and at once when they fill a batch (`facts_target`); a burst of ENOUGH_FACTS
  samples of one stream is due when it has ended and the last commit is an interval ago, or at once if the interval is
  short;
- deferred calls (confirmations that came with a fetch) join any commit. They wait longer than samples, so that a commit
  for other work usually comes first;
- samples that have waited half an interval join a commit that happens anyway. Younger ones do not: with a message every
  few milliseconds they would be sealed into batches of a handful, at ten times the bytes per fact (decision 0001).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.fact_store.core import NEVER_NS

ENOUGH_FACTS = 2000
"""A burst of one stream that is worth a commit of its own: 6 to 15 kB sealed."""
BURST_OVER_NS = 20_000_000
"""A burst has ended when no sample has followed for this long. Without this delay its last samples would wait for the
next commit."""
SHORT_NS = 250_000_000
"""An interval up to the default is short: the operator has not asked for fewer commits, so a burst does not wait."""
DEFERRED_INTERVALS = 4
DEFERRED_NS = 1_000_000_000
"""Deferred calls wait for this many intervals, but no longer than a second, or than one interval if that is longer.
With the default interval they are committed with the next values of a source that is polled once a second."""


@dataclass(frozen=True, slots=True)
class CommitPace:
    """How long work may wait for a commit, and how many facts of one stream do not wait."""

    interval_ns: int
    facts_target: int

    @property
    def deferred_ns(self) -> int:
        """How long a deferred call waits for a commit."""
        return min(DEFERRED_INTERVALS * self.interval_ns, max(DEFERRED_NS, self.interval_ns))


@dataclass(frozen=True, slots=True)
class QueuedSamples:
    """Samples of one stream in the queue: their number, and when the oldest and the newest were queued."""

    facts: int
    oldest_ns: int
    newest_ns: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit now: all urgent work, and the samples of these streams."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is due before `until_ns`. None: nothing is due until something is queued."""

    until_ns: int | None


def decide_commit(
    waiting: Mapping[str, QueuedSamples],
    now_ns: int,
    pace: CommitPace,
    *,
    committed_ns: int,
    deferred_ns: int | None = None,
    is_urgent: bool = False,
    is_last: bool = False,
) -> Commit | Wait:
    """Whether to commit now. `committed_ns`: when the last commit was. `deferred_ns`: when the oldest deferred call was
    queued. `is_urgent`: work is queued that does not wait. `is_last`: the store closes, take everything."""
    if is_last:
        return Commit(tuple(waiting))
    due_ns = {stream: _due_ns(samples, pace, committed_ns, deferred_ns) for stream, samples in waiting.items()}
    next_ns = min(due_ns.values(), default=None)
    if deferred_ns is not None:
        next_ns = min(deferred_ns + pace.deferred_ns, NEVER_NS if next_ns is None else next_ns)
    if not is_urgent and (next_ns is None or next_ns > now_ns):
        return Wait(next_ns)
    half_ns = pace.interval_ns // 2
    return Commit(
        tuple(
            stream
            for stream, samples in waiting.items()
            if due_ns[stream] <= now_ns or now_ns - samples.oldest_ns >= half_ns
        )
    )


def batch_sizes(facts: int, facts_target: int) -> list[int]:
    """Sizes of the batches for this many facts: as few batches as the target allows, as equal as possible (never 2000
    and 1)."""
    assert facts > 0
    assert facts_target > 0
    batches = -(-facts // facts_target)
    short, longer = divmod(facts, batches)
    return [short + 1] * longer + [short] * (batches - longer)


def _due_ns(samples: QueuedSamples, pace: CommitPace, committed_ns: int, deferred_ns: int | None) -> int:
    """When samples of one stream are due."""
    if samples.facts >= pace.facts_target:
        return 0
    due_ns = samples.oldest_ns + pace.interval_ns
    # If a deferred call was queued after the oldest of them, half as many are enough: one commit serves both.
    shared = deferred_ns is not None and deferred_ns >= samples.oldest_ns
    if samples.facts < (ENOUGH_FACTS // 2 if shared else ENOUGH_FACTS):
        return due_ns
    if pace.interval_ns <= SHORT_NS:
        return 0
    return min(due_ns, max(committed_ns + pace.interval_ns, samples.newest_ns + BURST_OVER_NS))
