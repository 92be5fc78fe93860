import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest import lifecycle
from agent.ingest.lifecycle import (
    AHEAD_NS,
    FORGET_S,
    REASONS_PER_OUTAGE_MAX,
    TRANSITIONS,
    Backoff,
    DeclaredGap,
    Event,
    Failures,
    FastClock,
    Newest,
    Outage,
    State,
    Stop,
    events_missing_since,
    next_state,
    stop_of,
    values_missing_since,
)
from agent.message import Sample

S, NOW = 1_000_000_000, 1_800_000_000 * 1_000_000_000


def test_every_state_can_be_reached_and_left() -> None:
    """Nothing hangs: from idle every state is reached, and from every state but the last a stop ends it."""
    reached = {State.IDLE}
    for _ in State:
        reached |= {to for (start, _), to in TRANSITIONS.items() if start in reached}
    assert reached == set(State)
    assert {start for start, event in TRANSITIONS if event is Event.STOP} == set(State) - {State.STOPPED}


def test_the_drawing_is_the_table() -> None:
    """Each transition of the table is in the module's drawing."""
    drawing = lifecycle.__doc__ or ""
    for (_, event), to in TRANSITIONS.items():
        assert f"--{event.value}--> {to.value}" in drawing


@pytest.mark.parametrize("state, event", [(s, e) for s in State for e in Event if (s, e) not in TRANSITIONS])
def test_what_the_table_lacks_is_our_mistake(state: State, event: Event) -> None:
    """An impossible turn ends the process instead of being papered over."""
    with pytest.raises(AssertionError):
        next_state(state, event)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_grow_and_stay_within_their_limit(failures: int, jitter: float) -> None:
    """Never more than the limit, never less than half the first pause, however many failures."""
    wait_ms = Backoff(1_000, 60_000).wait_ms(failures, jitter)
    assert 500 <= wait_ms <= 60_000
    assert wait_ms >= min(60_000, 1_000 * 2 ** min(failures - 1, 10)) // 2


def test_failures_are_forgotten_after_some_seconds_of_values() -> None:
    """A life that never gave a value, or gave values for a moment, is one more failure; one that gave them for longer
    is forgotten with all before it, and so is everything when a person asks for it."""
    failures = Failures()
    assert failures.end(alive_s=1000.0) == 1  # connected for long, no value
    failures.begin()
    failures.note_value(1000.0)
    assert failures.end(alive_s=1000.0 + FORGET_S / 2) == 2
    failures.begin()
    assert failures.end(alive_s=1000.0 + FORGET_S) == 3  # not connected: the sign of life is an old one
    failures.begin()
    failures.note_value(2000.0)
    assert failures.end(alive_s=2000.0 + FORGET_S) == 1
    failures.begin()
    assert failures.end(alive_s=2000.0 + FORGET_S) == 2
    failures.forget()
    assert failures.end(alive_s=2000.0 + FORGET_S) == 1


def test_an_outage_logs_each_reason_once() -> None:
    """A reason that differs in numbers only is the same; one that is new each time ends."""
    outage = Outage()
    assert outage.is_new_reason("refused by port 4840")
    assert not outage.is_new_reason("refused by port 4841")
    assert outage.is_new_reason("no route")
    assert not outage.is_new_reason("refused by port 4840")
    texts = ("x" * n for n in range(1, 100))
    assert sum(outage.is_new_reason(text) for text in texts) == REASONS_PER_OUTAGE_MAX - 2


def newest(source_ns: int, recorded_ns: int = NOW) -> Newest:
    """The newest sample of a tag, with these times."""
    return Newest(Sample(1, source_ns, 1.0), source_ns, recorded_ns)


def test_a_stop_is_dated_by_what_was_recorded_last() -> None:
    """Not by the newest time: a clock may have been set back since. A device whose clock is far behind dates nothing,
    and of several streams the latest stop counts."""
    assert stop_of([], S) is None
    assert stop_of([[]], S) is None
    assert stop_of([[newest(NOW), newest(NOW + 5 * S)]], S) == Stop(NOW - S, None)
    assert stop_of([[newest(NOW - AHEAD_NS), newest(NOW + S)]], S) == Stop(NOW, None)
    assert stop_of([[newest(NOW)], [newest(NOW + 5 * S)]], S) == Stop(NOW + 4 * S, None)


def test_a_time_ahead_of_its_recording_dates_no_stop() -> None:
    """A value that was set while a clock was ahead says nothing of a stop. If the last one is such, the clock may have
    been ahead at the stop too, and that is dated by both; if all are, by our own clock."""
    ahead = newest(NOW + 3_600 * S)
    assert stop_of([[newest(NOW), ahead]], S) == Stop(NOW - S, None)
    assert stop_of([[ahead, newest(NOW - 9 * S)]], S) == Stop(NOW - 10 * S, FastClock(NOW + 3_599 * S, NOW - S))
    assert stop_of([[ahead]], S) == Stop(NOW - 2 * S, FastClock(NOW + 3_599 * S, NOW - S))


def test_a_clock_that_was_ahead_goes_on() -> None:
    """As ours does, unless that was set back."""
    assert FastClock(100 * S, 7 * S).last_ns(9 * S) == 102 * S
    assert FastClock(100 * S, 7 * S).last_ns(5 * S) == 100 * S


@pytest.mark.parametrize("recorded_ns", [0, 5 * S])
def test_a_clock_of_ours_that_was_never_set_judges_no_time(recorded_ns: int) -> None:
    """A gateway without a battery begins in 1970; and a store without marks does not say when it recorded."""
    assert stop_of([[newest(NOW, recorded_ns), newest(NOW + 5 * S, recorded_ns)]], S) == Stop(NOW - S, None)


S = 1_000_000_000


def test_the_time_without_a_process_begins_where_the_last_gap_fact_ends() -> None:
    """Successive losses are recorded once in ten seconds. A process that ended within these has recorded values after
    losses that no fact names, so the time without a process begins where the last fact ends."""
    assert values_missing_since(100 * S, []) == 100 * S
    assert values_missing_since(100 * S, [DeclaredGap(60 * S, 92 * S, is_outage=False)]) == 92 * S
    assert values_missing_since(100 * S, [DeclaredGap(60 * S, 80 * S, is_outage=True)]) == 100 * S
    assert values_missing_since(100 * S, [DeclaredGap(60 * S, 900 * S, is_outage=False)]) == 100 * S


def test_events_of_an_outage_may_not_have_come_when_the_process_ended() -> None:
    """They are missing since that outage began, or since one that ended right before it; not since one that was over
    for long, and not since a gap of values."""
    least = events_missing_since(1_000 * S, [])
    assert 985 * S < least < 1_000 * S
    lost, later = DeclaredGap(300 * S, 900 * S, is_outage=True), DeclaredGap(905 * S, 960 * S, is_outage=True)
    assert events_missing_since(1_000 * S, [later, lost]) == 300 * S
    assert events_missing_since(1_000 * S, [later]) == 905 * S
    assert events_missing_since(1_000 * S, [lost]) == least
    assert events_missing_since(1_000 * S, [DeclaredGap(300 * S, 999 * S, is_outage=False)]) == least
    assert events_missing_since(1_000 * S, [DeclaredGap(300 * S, 999 * S, is_outage=False), later]) == 905 * S
