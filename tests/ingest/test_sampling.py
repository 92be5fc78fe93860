import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.columns import SampleColumns
from agent.ingest.sampling import Sampler, SamplingRule, Tally
from agent.message import Sample, Value

S = 1_000_000_000
BAD = 0x8005_0000
TAG = 1


def made(rules: Iterable[tuple[int, SamplingRule]]) -> Sampler:
    """A sampler of tags with these rules."""
    sampler = Sampler()
    sampler.adopt(dict(rules))
    return sampler


def sampler_of(rule: SamplingRule = SamplingRule()) -> Sampler:  # noqa: B008 frozen
    """A sampler of one tag."""
    return made([(TAG, rule)])


def fed(sampler: Sampler, *values: Value, start_ns: int = S) -> list[Value]:
    """The values recorded when these come one after the other."""
    samples = [Sample(TAG, start_ns + n * S, value) for n, value in enumerate(values)]
    return [kept.value for sample in samples for kept in sampler.select([sample], sample.source_time_ns)]


@pytest.mark.parametrize(
    "rule, values, recorded",
    [
        (SamplingRule(), [1, 1, 1], [1, 1, 1]),
        (SamplingRule(deadband=0), [1, 1, 2, 2, 1], [1, 2, 1]),
        (SamplingRule(deadband=0.5), [10.0, 10.4, 10.5, 10.51, 10.2], [10.0, 10.51]),
        (SamplingRule(deadband=0.5), [10, 11, 11.2, 10.4], [10, 11, 10.4]),
        (SamplingRule(deadband=5, deadband_is_percent=True), [100.0, 104.9, 105.1, 110.0, 99.0], [100.0, 105.1, 99.0]),
        (SamplingRule(deadband=5, deadband_is_percent=True), [0.0, 0.0, 0.1, 0.1], [0.0, 0.1]),
        (SamplingRule(deadband=0.5), [True, True, False], [True, False]),
        (SamplingRule(deadband=0.5), ["a", "a", "b"], ["a", "b"]),
        (SamplingRule(deadband=0.5), [1.0, math.inf, math.inf, -math.inf, 1.0], [1.0, math.inf, -math.inf, 1.0]),
        (SamplingRule(deadband=0), [1, True, 1.0], [1, True, 1.0]),
        (SamplingRule(deadband=1), [1.0, math.nan, math.nan, 2.0], [1.0, math.nan, 2.0]),
        (
            SamplingRule(deadband=1),
            [n / 10 for n in range(40)],
            [0.0, 1.1, 2.2, 3.3],
        ),  # a slow drift: since the last fact
    ],
)
def test_deadbands(rule: SamplingRule, values: list[Value], recorded: list[Value]) -> None:
    """Which values become facts under each kind of deadband, also beside zero, infinity and what is no number. NaN
    differs from a number and equals itself."""
    assert repr(fed(sampler_of(rule), *values)) == repr(recorded)


def test_a_change_of_quality_is_recorded_at_once() -> None:
    """Deadband and interval are about values; that a value went bad is news."""
    sampler = sampler_of(SamplingRule(deadband=10, min_interval_ns=60 * S))
    rows = [Sample(TAG, S, 1.0), Sample(TAG, 2 * S, 1.0, BAD), Sample(TAG, 3 * S, 1.0, BAD), Sample(TAG, 4 * S, 1.0)]
    assert [row.quality for row in sampler.select(rows, 4 * S)] == [0, BAD, 0]


def test_what_is_held_back_is_recorded_when_its_time_comes() -> None:
    """With a minimum interval the newest value wins, and the last one before a standstill is not lost."""
    sampler = sampler_of(SamplingRule(min_interval_ns=10 * S))
    assert fed(sampler, 1, 2, 3) == [1]
    assert sampler.due(9 * S) == []
    assert sampler.due(11 * S) == [Sample(TAG, 3 * S, 3)]
    assert sampler.due(12 * S) == []


def test_what_is_held_back_is_dropped_when_the_value_returns() -> None:
    """A peak that was held back is not recorded after the value has returned to the recorded one: it would stand as
    the last value."""
    sampler = sampler_of(SamplingRule(deadband=1, min_interval_ns=10 * S))
    assert fed(sampler, 5, 8, 5) == [5]
    assert sampler.due(60 * S) == []


def test_a_standing_value_is_confirmed() -> None:
    """With a maximum interval a value that stands still is said again, with the time it was still so; where the clock
    of the source is ahead of ours, after the value in the order of time."""
    sampler = sampler_of(SamplingRule(deadband=1, max_interval_ns=10 * S))
    assert fed(sampler, 5) == [5]
    assert sampler.due(10 * S) == []
    assert sampler.due(11 * S) == [Sample(TAG, 11 * S, 5)]
    assert sampler.due(12 * S) == []
    sampler.lose(BAD, 13 * S)
    assert sampler.due(100 * S) == []  # nobody knows whether it still stands
    sampler = sampler_of(SamplingRule(max_interval_ns=10 * S))
    sampler.select([Sample(TAG, 100 * S, 1.5)], S)
    assert sampler.due(11 * S) == [Sample(TAG, 100 * S + 1, 1.5)]


def test_a_value_that_changed_during_a_loss_keeps_its_time() -> None:
    """What the server knows to have happened meanwhile is recorded as it happened."""
    sampler = sampler_of()
    sampler.select([Sample(TAG, 10 * S, 1.5)], 10 * S)
    sampler.lose(BAD, 20 * S)
    assert sampler.select([Sample(TAG, 25 * S, 2.5)], 30 * S) == [Sample(TAG, 25 * S, 2.5)]


def test_what_was_held_back_is_recorded_before_a_loss() -> None:
    """A minimum interval does not swallow the last value before the line went, and the loss is newer, although the
    source was complete only up to an earlier time."""
    for since_ns, lost_ns in ((None, 3 * S), (S, 2 * S + 1)):
        sampler = made([(tag, SamplingRule(min_interval_ns=10 * S)) for tag in (TAG, TAG + 1)])
        for at_s in (1, 2):
            sampler.select([Sample(tag, at_s * S, at_s) for tag in (TAG, TAG + 1)], at_s * S)
        lost = sampler.lose(BAD, 3 * S, since_ns=since_ns)
        assert lost == [
            sample for tag in (TAG, TAG + 1) for sample in (Sample(tag, 2 * S, 2), Sample(tag, lost_ns, None, BAD))
        ]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 50), st.sampled_from([0, 0, 0, BAD]), st.booleans()), max_size=60
    ),
    st.sampled_from([SamplingRule(), SamplingRule(deadband=0), SamplingRule(deadband=2, max_interval_ns=5 * S)]),
)
def test_the_last_fact_is_never_far_from_the_last_sample(
    rows: list[tuple[int, int, int, bool]], rule: SamplingRule
) -> None:
    """Whatever comes in whatever order, the newest recorded sample has the quality of the last one seen and a value
    within the deadband of it: a reader of the facts knows what the plant shows."""
    sampler = sampler_of(rule)
    facts: list[Sample] = []
    last: Sample | None = None
    now_ns = 0
    for time_s, value, quality, lost in rows:
        now_ns += S
        if lost:
            facts += sampler.lose(BAD, now_ns)
            last = None
            continue
        last = Sample(TAG, time_s * S, value, quality)
        facts += sampler.select([last], now_ns)
    if last is None or not facts:
        return
    assert facts[-1].quality == last.quality
    assert isinstance(facts[-1].value, int)
    assert abs(facts[-1].value - last.value) <= (rule.deadband or 0)  # type: ignore[operator]


@pytest.mark.parametrize("in_columns", [False, True])
def test_a_tag_whose_clock_is_behind_is_lost_and_returns_on_its_own_clock(*, in_columns: bool) -> None:
    """A device an hour behind its server: dated by the server's clock, the loss and the return would be newer than
    every value of the next hour, and `latest` would show one of them as fresh for as long."""
    behind, now = 3600 * S, 10_000 * S
    sampler = made([(1, SamplingRule()), (2, SamplingRule())])

    def feed(at_ns: int, *samples: Sample) -> list[Sample]:
        if not in_columns:
            return sampler.select(samples, at_ns)
        columns = sampler.select_columns(SampleColumns.of(list(samples)), at_ns)
        return [Sample(*row) for row in zip(*columns, strict=True)]

    feed(now, Sample(1, now - behind, 1.0), Sample(2, now - behind, 5.0))  # first values: they may just be old
    feed(now + 10 * S, Sample(1, now - behind + 10 * S, 2.0))
    lost = {bad.tag: bad.source_time_ns for bad in sampler.lose(BAD, now + 20 * S)}
    assert lost == {1: now - behind + 20 * S, 2: now + 20 * S}, "of the second tag no change was seen"
    (back,) = feed(now + 30 * S, Sample(1, now - behind + 10 * S, 2.0))
    assert back.source_time_ns == now - behind + 30 * S
    (changed,) = feed(now + 31 * S, Sample(1, now - behind + 31 * S, 3.0))
    assert changed.source_time_ns > back.source_time_ns
    feed(now + 40 * S, Sample(1, now + 40 * S, 4.0))  # the device's clock was set right
    assert [bad.source_time_ns for bad in sampler.lose(BAD, now + 50 * S, [1])] == [now + 50 * S]
    after_restart = made([(1, SamplingRule())])
    after_restart.seed(1, Sample(1, now - 2 * behind, 1.0), now - 2 * behind)
    after_restart.select([Sample(1, now - behind, 2.0)], now)  # it changed at any time while no process ran
    assert [bad.source_time_ns for bad in after_restart.lose(BAD, now + 20 * S)] == [now + 20 * S]


def test_tags_are_counted_by_their_last_sample() -> None:
    """Bad ones and those that never had a sample; whether the source or we called them bad makes no difference."""
    sampler = made([(n, SamplingRule()) for n in range(1, 5)])
    assert sampler.tally() == Tally(bad=0, silent=4)
    sampler.select([Sample(1, S, 1.0), Sample(2, S, None, BAD), Sample(3, S, 1.0)], S)
    sampler.lose(BAD, 2 * S, [3])
    assert sampler.tally() == Tally(bad=2, silent=1)
    sampler.select([Sample(2, 3 * S, 1.0), Sample(3, 3 * S, 1.0, 0x4000_0000)], 3 * S)
    assert sampler.tally() == Tally(bad=0, silent=1)


def test_a_tag_that_its_source_calls_lost_returns_with_any_value() -> None:
    """The bad sample of the source stays the only one; a value with an older time is recorded as a return."""
    sampler = sampler_of()
    sampler.select([Sample(TAG, 5 * S, 1.0), Sample(TAG, 10 * S, None, BAD)], 10 * S)
    sampler.mark_lost([TAG])
    assert sampler.lose(BAD, 11 * S) == []
    assert sampler.select([Sample(TAG, 5 * S, 1.0)], 20 * S) == [Sample(TAG, 20 * S, 1.0)]
    sampler.mark_lost([TAG])  # its last sample is good: it is not lost
    assert sampler.lose(BAD, 30 * S) == [Sample(TAG, 30 * S, None, BAD)]


RULES = [
    (1, SamplingRule()),
    (2, SamplingRule()),
    (3, SamplingRule(deadband=1.0, min_interval_ns=2)),
    (4, SamplingRule(max_interval_ns=3)),
]
sample_of_few = st.builds(
    Sample,
    st.sampled_from([1, 1, 2, 2, 3, 4]),
    st.integers(1, 12),
    st.sampled_from([1.0, 2.0, float("nan"), None, 1]),
    st.sampled_from([0, 0, 0, 0x8000_0000]),
)
steps = st.one_of(
    st.tuples(st.just("select"), st.lists(sample_of_few, max_size=8), st.sampled_from([None, 5])),
    st.tuples(st.just("lose"), st.sampled_from([None, [1], [2, 3]]), st.sampled_from([None, 4])),
    st.tuples(st.just("mark lost"), st.just([1, 2]), st.none()),
    st.tuples(st.just("due"), st.none(), st.none()),
    st.tuples(st.just("release"), st.just([1, 2, 3, 4]), st.none()),
    st.tuples(
        st.just("adopt"), st.sampled_from([RULES[1:], RULES, [(1, SamplingRule(deadband=0.5)), *RULES[1:]]]), st.none()
    ),
)


@example([("select", [Sample(1, 1, 1.0)], None), ("select", [Sample(1, 5, 2.0), Sample(1, 5, 2.0)], None)])
@example([("select", [Sample(1, 1, 1.0)], None), ("select", [Sample(2, 5, 2.0), Sample(1, 1, 1.0)], None)])
@example(
    [
        ("select", [Sample(1, 5, 1.0)], None),
        ("lose", None, 4),
        ("select", [Sample(1, 5, 1.0)], None),  # recorded with the time of the return, seen with its own
        ("select", [Sample(1, 6, 1.0)], None),
        ("lose", None, 4),
    ]
)
@example(
    [
        ("select", [Sample(1, 5, 1.0)], None),
        ("lose", None, 4),
        ("select", [Sample(1, 5, 1.0)], None),
        ("lose", [1], 4),
    ]
)
@given(st.lists(steps, max_size=12))
def test_columns_are_decided_like_rows(story: list[tuple[str, Any, Any]]) -> None:
    """Whatever happens to the tags in between, and whatever order, duplicates and repeated tags a column holds: what is
    recorded, what is counted and what is remembered is the same."""
    by_rows, by_columns = made(RULES), made(RULES)
    for now_ns, (what, content, option) in enumerate(story, 10):
        found: list[list[Sample]] = []
        for sampler in (by_rows, by_columns):
            known = set(sampler._states)
            match what:
                case "select" if sampler is by_rows:
                    found.append(sampler.select([s for s in content if s.tag in known], now_ns, option))
                case "select":
                    columns = SampleColumns.of([s for s in content if s.tag in known])
                    before = [list(column) for column in columns]
                    found.append(list(sampler.select_columns(columns, now_ns, option).rows()))
                    assert repr([list(column) for column in columns]) == repr(before)
                case "lose":
                    tags = None if content is None else [tag for tag in content if tag in known]
                    found.append(sampler.lose(BAD, now_ns, tags, corrects=option is None, since_ns=option))
                case "mark lost":
                    sampler.mark_lost([tag for tag in content if tag in known])
                case "due":
                    found.append(sampler.due(now_ns))
                case "release":
                    found.append(sampler.release([tag for tag in content if tag in known], now_ns))
                case "adopt":
                    sampler.adopt(dict(content))
        assert repr(found[:1]) == repr(found[1:])  # repr: NaN differs from itself
        assert by_rows.counts == by_columns.counts
        assert by_rows.tally() == by_columns.tally()
        times = [[sampler.last(tag).source_time_ns for tag in sampler._states] for sampler in (by_rows, by_columns)]
        assert times[0] == times[1]
