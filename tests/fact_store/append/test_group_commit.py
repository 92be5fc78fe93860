"""When to commit, and what a commit takes along: tables of the decision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fact_store.append.group_commit import (
    ENOUGH_FACTS,
    Commit,
    CommitPace,
    QueuedSamples,
    Wait,
    batch_sizes,
    decide_commit,
)

MS = 1_000_000
PACE = CommitPace(interval_ns=1000 * MS, facts_target=8192)
DEFAULT = CommitPace(interval_ns=250 * MS, facts_target=8192)
NOW = 10_000 * MS
JUST_NOW, LONG_AGO = NOW - 100 * MS, NOW - 1100 * MS


def since(age_ms: int, facts: int = 10, newest_ms: int = 0) -> QueuedSamples:
    """Samples that have waited for `age_ms`, the last of them for `newest_ms`."""
    return QueuedSamples(facts, NOW - age_ms * MS, NOW - newest_ms * MS)


@pytest.mark.parametrize(
    "waiting, committed_ns, decision",
    [
        ({}, LONG_AGO, Wait(None)),
        ({"a": since(0)}, LONG_AGO, Wait(NOW + 1000 * MS)),
        ({"a": since(100)}, LONG_AGO, Wait(NOW + 900 * MS)),
        ({"a": since(100), "b": since(30)}, LONG_AGO, Wait(NOW + 900 * MS)),
        ({"a": since(1000)}, JUST_NOW, Commit(("a",))),
        ({"a": since(60, ENOUGH_FACTS, 20)}, LONG_AGO, Commit(("a",))),  # a burst has come, and the node was quiet
        ({"a": since(60, ENOUGH_FACTS, 5)}, LONG_AGO, Wait(NOW + 15 * MS)),  # it may not be over yet
        ({"a": since(990, ENOUGH_FACTS, 5)}, LONG_AGO, Wait(NOW + 10 * MS)),
        ({"a": since(60, ENOUGH_FACTS, 20)}, JUST_NOW, Wait(NOW + 900 * MS)),  # the interval governs, not the number
        ({"a": since(60, ENOUGH_FACTS - 1, 20)}, LONG_AGO, Wait(NOW + 940 * MS)),
        ({"a": since(0, 8191)}, JUST_NOW, Wait(NOW + 900 * MS)),
        ({"a": since(0, 8192)}, JUST_NOW, Commit(("a",))),  # as much as a batch takes
        ({"a": since(1000), "b": since(499)}, JUST_NOW, Commit(("a",))),
        ({"a": since(1000), "b": since(500)}, JUST_NOW, Commit(("a", "b"))),
    ],
)
def test_when_samples_are_committed(
    waiting: dict[str, QueuedSamples], committed_ns: int, decision: Commit | Wait
) -> None:
    """Samples are committed after the interval. A burst is committed earlier if the last commit is an interval ago, and
    a full batch at once."""
    assert decide_commit(waiting, NOW, PACE, committed_ns=committed_ns) == decision


def test_at_the_default_interval_a_burst_is_not_held() -> None:
    """At the default interval latency counts: a confirmation that finds half of a burst waiting takes it along. An
    operator who has set a longer interval gets fewer commits."""
    burst, less = {"a": since(0, ENOUGH_FACTS)}, {"a": since(0, ENOUGH_FACTS - 1)}
    assert decide_commit(burst, NOW, DEFAULT, committed_ns=JUST_NOW) == Commit(("a",))
    assert decide_commit(less, NOW, DEFAULT, committed_ns=LONG_AGO) == Wait(NOW + 250 * MS)
    half = {"a": since(50, ENOUGH_FACTS // 2)}
    for deferred_ms, decision in (
        (40, Commit(("a",))),
        (60, Wait(NOW + 200 * MS)),
    ):  # queued behind the half, before it
        deferred_ns = NOW - deferred_ms * MS
        assert decide_commit(half, NOW, DEFAULT, committed_ns=JUST_NOW, deferred_ns=deferred_ns) == decision
    longer = CommitPace(DEFAULT.interval_ns + 1, DEFAULT.facts_target)
    assert isinstance(decide_commit(burst, NOW, longer, committed_ns=JUST_NOW), Wait)


@pytest.mark.parametrize(
    "waiting, decision",
    [
        ({}, Commit(())),
        ({"a": since(10)}, Commit(())),  # too young: a message must not split samples into small batches
        ({"a": since(10, 4000)}, Commit(())),
        ({"a": since(500)}, Commit(("a",))),
        ({"a": since(10, 8192)}, Commit(("a",))),
    ],
)
def test_urgent_work_is_committed_at_once(waiting: dict[str, QueuedSamples], decision: Commit) -> None:
    """Urgent work is committed whatever the time of the last commit, with the samples that have waited half their
    interval."""
    assert decide_commit(waiting, NOW, PACE, committed_ns=JUST_NOW, is_urgent=True) == decision


@pytest.mark.parametrize(
    "waiting, deferred_ms, decision",
    [
        ({}, 0, Wait(NOW + 1000 * MS)),
        ({}, 999, Wait(NOW + 1 * MS)),
        ({}, 1000, Commit(())),
        ({"a": since(100)}, 999, Wait(NOW + 1 * MS)),
        ({"a": since(100)}, 0, Wait(NOW + 900 * MS)),  # the commit of the samples takes it along
    ],
)
def test_a_deferred_call_waits_for_a_commit(
    waiting: dict[str, QueuedSamples], deferred_ms: int, decision: Commit | Wait
) -> None:
    """A deferred call goes with the next commit. Where none comes, it has one of its own."""
    deferred_ns = NOW - deferred_ms * MS
    assert decide_commit(waiting, NOW, PACE, committed_ns=JUST_NOW, deferred_ns=deferred_ns) == decision


@pytest.mark.parametrize("interval_ms, waits_ms", [(0, 0), (100, 400), (250, 1000), (1000, 1000), (60_000, 60_000)])
def test_how_long_a_deferred_call_waits(interval_ms: int, waits_ms: int) -> None:
    """A deferred call does not wait where nothing else waits, and never less than the samples do."""
    assert CommitPace(interval_ms * MS, 1).deferred_ns == waits_ms * MS


def test_closing_takes_everything() -> None:
    """What is queued when the store closes is committed, due or not."""
    waiting = {"a": since(0), "b": since(9)}
    assert decide_commit(waiting, NOW, PACE, committed_ns=NOW, is_last=True) == Commit(("a", "b"))


def test_an_interval_of_0_commits_at_once() -> None:
    """With an interval of 0 nothing waits."""
    pace = CommitPace(0, 2000)
    assert decide_commit({"a": since(0)}, NOW, pace, committed_ns=NOW) == Commit(("a",))
    assert decide_commit({}, NOW, pace, committed_ns=NOW, deferred_ns=NOW) == Commit(())


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 3000)), min_size=1, max_size=200),
    st.sampled_from([251, 500, 1000]),
)
def test_no_samples_wait_longer_than_the_interval_and_commits_are_no_more_often(
    arrivals: list[tuple[int, int]], interval_ms: int
) -> None:
    """However samples arrive, each is committed within the interval. Two commits are an interval apart, unless a batch
    was full."""
    pace = CommitPace(interval_ms * MS, 8192)
    now, committed, waiting = 0, -interval_ms * MS, None
    for pause_ms, facts in [*arrivals, (2 * interval_ms, 1)]:
        arrives = now + pause_ms * MS
        while waiting is not None:
            match decide_commit({"a": waiting}, now, pace, committed_ns=committed):
                case Wait(until_ns):
                    assert until_ns is not None
                    assert until_ns <= waiting.oldest_ns + pace.interval_ns
                    if until_ns > arrives:
                        break
                    now = until_ns
                case Commit(streams):
                    assert streams == ("a",)
                    assert now - waiting.oldest_ns <= pace.interval_ns
                    assert waiting.facts >= 8192 or now - min(committed, waiting.oldest_ns) >= pace.interval_ns
                    committed, waiting = now, None
        now = arrives
        before, oldest_ns = (waiting.facts, waiting.oldest_ns) if waiting else (0, now)
        waiting = QueuedSamples(before + facts, oldest_ns, now)


@given(st.integers(1, 100_000), st.integers(1, 16_384))
def test_batch_sizes(facts: int, target: int) -> None:
    """Every fact is in one batch, no batch exceeds the target, there are no more than needed, and none is tiny."""
    sizes = batch_sizes(facts, target)
    assert sum(sizes) == facts
    assert max(sizes) <= target
    assert len(sizes) == -(-facts // target)
    assert max(sizes) - min(sizes) <= 1
