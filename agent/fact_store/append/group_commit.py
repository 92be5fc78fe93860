"""When to commit, and what one commit takes. Core: no IO.

One fsync costs the same for one fact as for two thousand, so samples wait for others, but not longer than promised:

- a message, a peer's page or a confirmation commits at once, together with whatever queued up while the last fsync ran;
- samples are due when there are `facts_target` of one stream, or after `interval_ns`;
- samples that have waited half as long, or are half as many, join a commit that happens anyway. Fewer do not: with a
  confirmation every few milliseconds they would be sealed into batches of a handful, at ten times the bytes per fact
  (decision 0007).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommitPace:
    """How long samples of one stream may wait for others, and how many of them need not wait."""

    interval_ns: int
    facts_target: int


@dataclass(frozen=True, slots=True)
class QueuedSamples:
    """Samples of one stream in the queue: their number, and when the oldest was queued."""

    facts: int
    oldest_ns: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit now: all urgent work, and the samples of these streams."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is due before `until_ns`; None: before something is queued."""

    until_ns: int | None


def decide_commit(
    waiting: Mapping[str, QueuedSamples], now_ns: int, pace: CommitPace, *, is_urgent: bool, is_last: bool
) -> Commit | Wait:
    """Whether to commit now. `is_urgent`: other work than samples is queued. `is_last`: the store closes, take
    everything."""
    if is_last:
        return Commit(tuple(waiting))
    if is_urgent or any(_is_due(one, now_ns, pace) for one in waiting.values()):
        half = CommitPace(pace.interval_ns // 2, max(pace.facts_target // 2, 1))
        return Commit(tuple(stream for stream, one in waiting.items() if _is_due(one, now_ns, half)))
    if not waiting:
        return Wait(None)
    return Wait(min(one.oldest_ns for one in waiting.values()) + pace.interval_ns)


def batch_sizes(facts: int, facts_target: int) -> list[int]:
    """Sizes of the batches for so many facts: as few batches as the target allows, as equal as possible (never 2000 and
    1)."""
    assert facts > 0
    assert facts_target > 0
    batches = -(-facts // facts_target)
    short, longer = divmod(facts, batches)
    return [short + 1] * longer + [short] * (batches - longer)


def _is_due(one: QueuedSamples, now_ns: int, pace: CommitPace) -> bool:
    return one.facts >= pace.facts_target or now_ns - one.oldest_ns >= pace.interval_ns
