"""How long consumers have been behind and which catch up, from one sample a second."""

from itertools import accumulate

import pytest

from agent.health.consumer_lag import (
    APPENDS_MIN,
    ENDS_MAX,
    NOTICED_S,
    SAMPLES_MAX,
    AppendWindow,
    LagSamples,
    PollWindow,
    PullLag,
    ReadRate,
)
from agent.health.snapshot import Latency

STREAM = "facts.telemetry"


def watched(ends: list[int], frontiers: list[int]) -> LagSamples:
    """One sample a second of a stream and its consumer, from second 1."""
    lag = LagSamples()
    for second, (end, frontier) in enumerate(zip(ends, frontiers, strict=True), 1):
        lag.sample(second, {STREAM: end}, {"idmz": (STREAM, frontier)})
    return lag


def test_age_is_since_a_fact_came_here() -> None:
    """To the second, by where the stream ended; unknown for facts that were here before the first sample that is still
    kept."""
    lag = watched([10, 20, 30, 30], [0, 0, 0, 0])
    assert [lag.age_s(STREAM, frontier, 4.5) for frontier in (9, 10, 19, 20, 29, 30)] == [
        None,
        3.5,
        3.5,
        2.5,
        2.5,
        0.5,
    ]
    assert lag.age_s("facts.other", 0, 4.5) is None
    long = watched([*range(1, ENDS_MAX + 2)], [0] * (ENDS_MAX + 1))
    assert (long.age_s(STREAM, 1, ENDS_MAX + 1), long.age_s(STREAM, 2, ENDS_MAX + 1)) == (None, ENDS_MAX - 1)


@pytest.mark.parametrize(
    "what, ends, frontiers, expected",
    [
        ("seen once", [100], [0], None),
        ("stands still", [100, 100, 100], [5, 5, 5], None),
        ("drains a log that rests", [100, 100, 100], [0, 10, 20], ReadRate(10.0, 8.0)),
        ("drains one that grows", [100, 105, 110], [0, 10, 20], ReadRate(10.0, 18.0)),
        ("grows as fast as it reads", [100, 110, 120], [0, 10, 20], ReadRate(10.0, None)),
        ("falls behind", [100, 200, 300], [0, 10, 20], ReadRate(10.0, None)),
        ("counts from where it began to move", [100, 100, 100, 100], [0, 0, 0, 30], ReadRate(30.0, 70 / 30)),
        ("has everything", [100, 100], [90, 100], ReadRate(10.0, 0.0)),
        (
            "reads again after a minute away",
            [100] * SAMPLES_MAX + [100, 100],
            [0] * SAMPLES_MAX + [20, 40],
            ReadRate(20.0, 3.0),
        ),
        ("read a minute ago, and stopped", [100] * (SAMPLES_MAX + 1), [0, *[50] * SAMPLES_MAX], None),
    ],
)
def test_rate_and_time_left(what: str, ends: list[int], frontiers: list[int], expected: ReadRate | None) -> None:
    """The rate counts confirmed facts; the time left allows for the growth of the log, and is None if the backlog does
    not shrink."""
    assert watched(ends, frontiers).rate("idmz") == expected, what


def test_samples_of_a_removed_consumer_are_dropped() -> None:
    """A consumer that is registered again under the same name starts without samples."""
    lag = watched([100, 100], [0, 50])
    lag.sample(3, {STREAM: 100}, {})
    assert lag.rate("idmz") is None
    lag.sample(4, {STREAM: 100}, {"idmz": (STREAM, 0)})
    assert lag.rate("idmz") is None


def test_a_pull_that_is_never_level_is_not_late() -> None:
    """Whenever one looks, facts are on their way, but what was known at the last look has come: no lag, although the
    pull was never seen to have everything."""
    lag = PullLag(0.0)
    seen = [lag.sample(float(s), 10_000 * s, 10_000 * s + 500, is_connected=True) for s in range(1, 300)]
    assert (max(seen), lag.lag_s_max) == (0.0, 0.0)


def test_a_pull_that_falls_behind_is_late_since_then() -> None:
    """From when the first fact that is not here was known, however far the peer's log has grown since; over once that
    has come."""
    lag = PullLag(0.0)
    assert [lag.sample(float(s), 100, 100 + s, is_connected=True) for s in (0, 1, 2, 7)] == [0.0, 0.0, 1.0, 6.0]
    assert lag.sample(8.0, 102, 120, is_connected=True) == 1.0, "up to 107 was learnt at second 7"
    assert lag.sample(9.0, 120, 120, is_connected=True) == 0.0
    assert lag.lag_s_max == 6.0


def test_a_pull_without_its_peer_is_late_since_the_last_answer() -> None:
    """What the peer has meanwhile is not known; the end that was known before does not make the pull level. Before the
    first answer it is late since the pull began."""
    assert PullLag(5.0).sample(7.0, 100, 100, is_connected=False) == 2.0
    lag = PullLag(0.0)
    assert lag.sample(5.0, 100, 100, is_connected=True) == 0.0
    assert [lag.sample(s, 100, 100, is_connected=False) for s in (6.0, 65.0)] == [1.0, 60.0]
    assert lag.sample(66.0, 100, 300, is_connected=True) == 0.0
    assert lag.sample(70.0, 100, 300, is_connected=True) == 4.0


def test_facts_that_no_answer_has_named_may_be_missing() -> None:
    """Since the pull was level, whatever the lag is; before that in this life, since the earlier process was, which may
    not have noticed yet that answers were lost."""
    lag = PullLag(100.0, behind_s=7.0)
    lag.sample(105.0, 100, 100, is_connected=True)
    assert lag.unseen_s(106.0, None) == 13.0 + NOTICED_S
    assert lag.unseen_s(106.0, 104.0) == 2.0


def test_the_ends_of_a_long_backlog_are_bounded() -> None:
    """A day behind, with a peer that goes on recording: the memory stays small, and the lag right."""
    lag = PullLag(0.0)
    for second in range(86_400):
        lag.sample(float(second), 0, second + 1, is_connected=True)
    assert len(lag._ends) <= ENDS_MAX + 1
    assert lag.sample(86_400.0, 0, 90_000, is_connected=True) == 86_400.0


def test_consumers_of_two_streams_are_measured_by_their_own() -> None:
    """Three consumers drain two streams at different paces; one is registered again later, and begins anew."""
    lag, ends = LagSamples(), {STREAM: 100, "facts.alarms": 50}
    for second in range(1, 5):
        frontiers = {"fast": (STREAM, 20 * second), "slow": (STREAM, second), "other": ("facts.alarms", 5 * second)}
        if second == 2:
            del frontiers["fast"]
        lag.sample(second, ends, frontiers)
    assert {name: lag.rate(name) for name in ("fast", "slow", "other", "none")} == {
        "fast": ReadRate(20.0, 1.0),
        "slow": ReadRate(1.0, 96.0),
        "other": ReadRate(5.0, 6.0),
        "none": None,
    }
    lag.sample(5, {STREAM: 110, "facts.alarms": 50}, {})
    assert [lag.age_s(stream, 50, 6) for stream in (STREAM, "facts.alarms")] == [None, 1.0]
    assert [lag.age_s(STREAM, offset, 6) for offset in (100, 110)] == [2.0, 1.0]


def test_appends_are_judged_by_those_of_ten_minutes() -> None:
    """One slow append of the first few says nothing; a slow minute is seen, and is forgotten ten minutes later."""
    window, fast, slow = AppendWindow(), 0, 0
    found = []
    for minute in range(30):
        fast, slow = fast + APPENDS_MIN // 4, slow + {1: 1, 12: 4}.get(minute, 0)
        found.append(window.sample(minute * 60.0, Latency((fast, slow, 0), bounds_s=(0.1, 1.0))))
    assert found[:4] == [None] * 4
    assert [minute for minute, p99_s in enumerate(found) if p99_s == 1.0] == list(range(12, 22))
    assert set(found[4:]) == {0.1, 1.0}


def test_missed_polls_are_judged_by_those_of_ten_minutes() -> None:
    """The first minutes of a source say nothing, also after a reload, which counts anew; missed polls are forgotten
    after ten minutes. Nothing is said of a source that is not polled."""
    window, polled, missed = PollWindow(), [50] * 30, [0] * 30
    missed[2], polled[20:] = 150, [-1000, *[0] * 9]
    counts = zip(accumulate(polled), accumulate(missed), strict=True)
    found = [window.sample(minute * 60.0, *count) for minute, count in enumerate(counts)]
    assert found[:6] == [None] * 5 + [pytest.approx(100 * 150 / 400)]
    assert found[11:13] == [pytest.approx(100 * 150 / 650), 0.0]
    assert found[19:] == [0.0] + [None] * 10
