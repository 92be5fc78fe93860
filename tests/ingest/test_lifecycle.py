from hypothesis import given
from hypothesis import strategies as st

from agent.ingest import lifecycle
from agent.ingest.lifecycle import (
    REASONS_PER_OUTAGE_MAX,
    TRANSITIONS,
    Backoff,
    Failures,
    Outage,
    SourceEvent,
    State,
)


def test_every_state_can_be_reached_and_left() -> None:
    """Nothing hangs: from idle every state is reached, and from every state but the last a stop ends it."""
    reached = {State.IDLE}
    for _ in State:
        reached |= {to for (start, _), to in TRANSITIONS.items() if start in reached}
    assert reached == set(State)
    assert {start for start, event in TRANSITIONS if event is SourceEvent.STOP} == set(State) - {State.STOPPED}


def test_the_drawing_is_the_table() -> None:
    """Each transition of the table is in the module's drawing."""
    drawing = lifecycle.__doc__ or ""
    for (_, event), to in TRANSITIONS.items():
        assert f"--{event.value}--> {to.value}" in drawing


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_grow_and_stay_within_their_limit(failures: int, jitter: float) -> None:
    """Never more than the limit, never less than half the first pause, however many failures."""
    wait_ms = Backoff(1_000, 60_000).wait_ms(failures, jitter)
    assert 500 <= wait_ms <= 60_000
    assert wait_ms >= min(60_000, 1_000 * 2 ** min(failures - 1, 10)) // 2


def test_only_a_life_with_values_ends_a_row_of_failures() -> None:
    """Values for five seconds of one life do not count for the next ones, however long these are alive."""
    failures, counts = Failures(), []
    for first_value_s, alive_s in ((None, 5.0), (10.0, 12.0), (20.0, 30.0), (None, 40.0), (None, 50.0)):
        failures.begin_life()
        if first_value_s is not None:
            failures.note_value(first_value_s)
        counts.append(failures.end_life(alive_s))
    assert counts == [1, 2, 1, 2, 3]


def test_an_outage_logs_each_reason_once() -> None:
    """A reason that differs in numbers only is the same; one that is new each time ends."""
    outage = Outage()
    assert outage.is_new_reason("refused by port 4840")
    assert not outage.is_new_reason("refused by port 4841")
    assert outage.is_new_reason("no route")
    assert not outage.is_new_reason("refused by port 4840")
    texts = ("x" * n for n in range(1, 100))
    assert sum(outage.is_new_reason(text) for text in texts) == REASONS_PER_OUTAGE_MAX - 2
