"""The watchdog is not fed exactly while a part with work stands still for longer than its limit."""

import pytest

from agent.health.watchdog import NS_PER_S, PartProgress, WatchdogCore

IDLE = None
"""In the place of a counter: without work."""
CASES = {
    "a moving counter feeds": [(9.0 * turn, turn, True) for turn in range(20)],
    "a part that stands still is named until it moves": [
        *((0.0, 5, True), (10.0, 5, True), (10.1, 5, False), (99.0, 5, False), (100.0, 6, True)),
    ],
    "work that arrives after a rest has the whole limit": [
        *((0.0, IDLE, True), (1_000.0, IDLE, True), (1_009.0, 5, True), (1_011.0, 5, False)),
    ],
    "a restarted part counts from 0, and has moved": [(0.0, 500, True), (9.0, 0, True), (18.0, 0, True)],
    "a step back of the clock is no stall": [(100.0, 1, True), (50.0, 1, True)],
}


def writer(counter: int | None) -> PartProgress:
    """A store writer that may stand still for ten seconds."""
    return PartProgress("writer", 5 if counter is IDLE else counter, counter is not IDLE, 10)


@pytest.mark.parametrize("turns", CASES.values(), ids=CASES)
def test_a_part_with_work_must_move(turns: list[tuple[float, int | None, bool]]) -> None:
    """By the second, the counter, and whether the watchdog is fed."""
    core = WatchdogCore()
    for second, counter, is_fed in turns:
        stalled = () if is_fed else ("writer",)
        assert core.find_stalled([writer(counter)], int(second * NS_PER_S)) == stalled, second


def test_each_part_is_judged_by_itself() -> None:
    """A part that moves does not cover for one that does not; one that is gone stalls nothing, and has the whole limit
    when it is back."""
    core, line = WatchdogCore(), PartProgress("line1", 1, True, 10)
    for second in range(12):
        stalled = core.find_stalled([writer(second), line], second * NS_PER_S)
    assert stalled == ("line1",)
    assert core.find_stalled([writer(12)], 100 * NS_PER_S) == ()
    assert core.find_stalled([writer(13), line], 200 * NS_PER_S) == ()
