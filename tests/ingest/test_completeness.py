"""Where the values of a gap can lie, by a model of a clock that is set while nothing is read."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.completeness import CLOCK_JUMP_NS, Moment, earliest, spans

S = 1_000_000_000


@given(st.lists(st.tuples(st.integers(1, 60 * S), st.integers(-7_200 * S, 7_200 * S)), max_size=5))
def test_every_time_of_a_clock_that_was_set_several_times_is_in_a_span(stretches: list[tuple[int, int]]) -> None:
    """It is read after each set, and what it showed before, however shortly, is known then. A set before the gap adds
    nothing."""
    shown = since = Moment(0)
    times_ns, sets = [0], [Moment(-10_000 * S, 9_999 * S)]
    for runs_ns, back_ns in stretches:
        shown = shown._replace(time_ns=shown.time_ns + runs_ns)
        sets.append(shown)
        times_ns += [shown.time_ns, shown.time_ns - back_ns]
        shown = Moment(shown.time_ns - back_ns, shown.set_back_ns + back_ns)
    found = spans(since, shown, sets)
    for time_ns in times_ns:
        assert any(first_ns <= time_ns <= end_ns for first_ns, end_ns in found), (time_ns, found)
    assert len(found) <= 1 + len(stretches)


def test_a_clock_that_was_not_set_has_one_span() -> None:
    """A gap does not end before it begins, whatever the readings."""
    assert spans(Moment(5 * S), Moment(9 * S)) == [(5 * S, 9 * S)]
    assert spans(Moment(9 * S), Moment(5 * S)) == [(5 * S, 9 * S)]
    assert spans(Moment(90 * S), Moment(50 * S, 60 * S)) == [(30 * S, 50 * S), (90 * S, 110 * S + CLOCK_JUMP_NS)]


def test_a_clock_that_seems_set_ahead_may_be_ours_that_stood_still() -> None:
    """This machine was off, without a battery clock, or was suspended: the time between has values. A clock that was
    decades behind was set."""
    assert spans(Moment(50 * S), Moment(9_000 * S, -8_000 * S))[0] == (50 * S, 9_000 * S)
    set_ahead = Moment(2_000_000_000 * S, -1_999_999_940 * S)
    assert spans(Moment(50 * S), set_ahead)[0] == (1_999_999_990 * S, 2_000_000_000 * S)


def test_moments_are_compared_on_one_clock() -> None:
    """Of several subscriptions the one that is furthest behind is found, also if the clock was set between them: back,
    so that it shows a later moment as an earlier time, and ahead."""
    moments = [Moment(90 * S), Moment(50 * S, 60 * S), Moment(65 * S, 60 * S), Moment(140 * S, -10 * S)]
    for count in range(1, len(moments) + 1):
        for shuffled in permutations(moments[:count]):
            assert earliest(shuffled, moments[-1]) == moments[0]
    assert earliest([], moments[-1]) is None
