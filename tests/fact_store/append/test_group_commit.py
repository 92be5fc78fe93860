"""When to commit, what belongs to a commit, and what the queue refuses."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.columns import SampleColumns
from agent.errors import StoreBusy
from agent.fact_store.append.group_commit import (
    ENOUGH_FACTS,
    Commit,
    CommitPace,
    QueuedSamples,
    Wait,
    decide_commit,
)
from agent.fact_store.append.queue import AppendSamples, Call, WriteQueue
from tests.fact_store.making import TELEMETRY, samples

MS = 1_000_000
PACE = CommitPace(interval_ns=1000 * MS, facts_target=8192)
DEFAULT = CommitPace(interval_ns=250 * MS, facts_target=8192)
NOW = 10_000 * MS
JUST_NOW, LONG_AGO = NOW - 100 * MS, NOW - 1100 * MS


def since(age_ms: int, facts: int = 10, newest_ms: int = 0) -> QueuedSamples:
    """Samples that have waited for `age_ms`, the last of them for `newest_ms`."""
    return QueuedSamples(facts, NOW - age_ms * MS, NOW - newest_ms * MS)


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


def call(size: int = 0, queued_ns: int = 0) -> Call:
    """A deferred call whose arguments take so many bytes."""
    return Call("call", size, queued_ns, lambda _: None, is_deferred=True)


def append(queued_ns: int, size: int = 1) -> AppendSamples:
    """One sample of so many bytes."""
    return AppendSamples(TELEMETRY, SampleColumns.of(samples(1)), 1, size, queued_ns)


@pytest.mark.parametrize("alarm_s, waits_s", [(9, 2), (1, 1)])
def test_the_writer_sleeps_until_samples_or_its_alarm_are_due(
    monkeypatch: pytest.MonkeyPatch, alarm_s: int, waits_s: int
) -> None:
    """Neither earlier nor later: samples wait for their interval and no longer."""
    queue, now_ns = WriteQueue(10, 100, CommitPace(2_000 * MS, 1000)), time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(queue._changed, "wait", lambda seconds: setattr(queue, "refusing", StoreBusy(f"{seconds:g} s")))
    queue.committed_ns = now_ns
    queue.put_samples(append(now_ns))
    assert queue.next_group(now_ns + alarm_s * 1_000 * MS) is not None
    assert str(queue.refusing).startswith(f"{waits_s} s;")


def put(queue: WriteQueue, work: AppendSamples | Call) -> None:
    """Queue a piece of work."""
    queue.put_call(work) if isinstance(work, Call) else queue.put_samples(work)


def test_work_larger_than_the_queue_is_taken() -> None:
    """While no limit is reached; then its kind of work has to wait. With StoreBusy its caller would retry for ever."""
    queue = WriteQueue(10, 100, CommitPace(10**9, 1000))
    for large, small in ((call(101), call(1)), (append(0, 101), append(0, 1))):
        put(queue, large)
        with pytest.raises(StoreBusy, match="of 101 bytes wait"):
            put(queue, small)
