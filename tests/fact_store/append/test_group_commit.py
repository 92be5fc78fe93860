"""When to commit, and what goes along: tables over the decision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fact_store.append.group_commit import Commit, CommitPace, QueuedSamples, Wait, batch_sizes, decide_commit

MS = 1_000_000
PACE = CommitPace(interval_ns=250 * MS, facts_target=2000)
NOW = 1_000 * MS


def since(age_ms: int, facts: int = 10) -> QueuedSamples:
    """Samples that have waited for `age_ms`."""
    return QueuedSamples(facts, NOW - age_ms * MS)


@pytest.mark.parametrize(
    "waiting, is_urgent, decision",
    [
        ({}, False, Wait(None)),
        ({"a": since(0)}, False, Wait(NOW + 250 * MS)),
        ({"a": since(100)}, False, Wait(NOW + 150 * MS)),
        ({"a": since(100), "b": since(30)}, False, Wait(NOW + 150 * MS)),
        ({"a": since(250)}, False, Commit(("a",))),
        ({"a": since(0, 2000)}, False, Commit(("a",))),
        ({"a": since(0, 1999)}, False, Wait(NOW + 250 * MS)),
        ({}, True, Commit(())),
        ({"a": since(10)}, True, Commit(())),  # too few: a confirmation must not split samples into small batches
        ({"a": since(125)}, True, Commit(("a",))),
        ({"a": since(10, 1000)}, True, Commit(("a",))),
        ({"a": since(250), "b": since(124)}, False, Commit(("a",))),
        ({"a": since(250), "b": since(125)}, False, Commit(("a", "b"))),
    ],
)
def test_when_to_commit(waiting: dict[str, QueuedSamples], is_urgent: bool, decision: Commit | Wait) -> None:  # noqa: FBT001
    """Urgent work commits at once, due samples on time, half-due ones only with other work."""
    assert decide_commit(waiting, NOW, PACE, is_urgent=is_urgent, is_last=False) == decision


def test_closing_takes_everything() -> None:
    """What is queued when the store closes is committed, due or not."""
    assert decide_commit({"a": since(0), "b": since(9)}, NOW, PACE, is_urgent=False, is_last=True) == Commit(("a", "b"))


def test_an_interval_of_0_commits_at_once() -> None:
    """With an interval of 0 nothing waits."""
    pace = CommitPace(0, 2000)
    assert decide_commit({"a": since(0)}, NOW, pace, is_urgent=False, is_last=False) == Commit(("a",))


@given(st.integers(1, 100_000), st.integers(1, 16_384))
def test_batch_sizes(facts: int, target: int) -> None:
    """Every fact is in one batch, no batch exceeds the target, there are no more than needed, and none is a crumb."""
    sizes = batch_sizes(facts, target)
    assert sum(sizes) == facts
    assert max(sizes) <= target
    assert len(sizes) == -(-facts // target)
    assert max(sizes) - min(sizes) <= 1
