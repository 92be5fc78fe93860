"""When polls begin, which are late, and which are missed."""

from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.poll_grid import MS, Missed, PollGrid, Slot


def test_intervals_that_fall_together_are_one_poll() -> None:
    """A second and five: the fifth slot of the one is the first of the other."""
    grid = PollGrid([1_000, 5_000], 0)
    taken = []
    for _ in range(6):
        now_ns = grid.next_ns()
        taken.append((now_ns // (1_000 * MS), sorted(grid.take_slot(now_ns).due)))
    assert taken == [(1, [1000]), (2, [1000]), (3, [1000]), (4, [1000]), (5, [1000, 5000]), (6, [1000])]


def test_a_slot_is_late_up_to_half_an_interval_and_then_missed() -> None:
    """Each keeps its place in the grid: what follows a late poll is not late itself."""
    grid = PollGrid([1_000], 0)
    assert grid.take_slot(1_090 * MS) == Slot(frozenset({1_000}), 0, ())
    assert grid.take_slot(2_400 * MS) == Slot(frozenset({1_000}), 1, ())
    assert grid.next_ns() == 3_000 * MS
    assert grid.take_slot(5_600 * MS) == Slot(frozenset(), 0, (Missed(1_000, 3, 3_000 * MS, 5_000 * MS),))
    assert grid.next_ns() == 6_000 * MS


def test_a_new_interval_begins_with_its_next_slot() -> None:
    """Nothing is missed by an interval that was not asked for; the others go on as they were."""
    grid = PollGrid([1_000], 0)
    grid.take_slot(1_000 * MS)
    grid.keep([1_000, 300], 2_600 * MS)
    assert grid.next_ns() == 2_000 * MS
    assert grid.take_slot(2_700 * MS) == Slot(frozenset({300}), 0, (Missed(1_000, 1, 2_000 * MS, 2_000 * MS),))


@given(st.sets(st.integers(10, 5_000), min_size=1, max_size=3), st.lists(st.integers(0, 20_000), max_size=30))
def test_every_slot_is_polled_or_missed_once(intervals: set[int], pauses: list[int]) -> None:
    """However long polls take, the slots of an interval that were polled and those that were missed are all that have
    passed."""
    grid, now_ns = PollGrid(intervals, 0), 0
    counted = dict.fromkeys(intervals, 0)
    for pause_ms in pauses:
        now_ns = max(now_ns, grid.next_ns()) + pause_ms * MS
        slot = grid.take_slot(now_ns)
        for interval in slot.due:
            counted[interval] += 1
        for missed in slot.missed:
            counted[missed.interval_ms] += missed.count
            assert missed.last_ns <= now_ns
    assert counted == {interval: now_ns // (interval * MS) for interval in intervals}
