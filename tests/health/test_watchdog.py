"""The watchdog is not fed exactly while a part with work stands still for longer than its limit."""

from agent.health.watchdog import NS_PER_S, Decision, Progress, WatchdogCore

FED = Decision(feed=True)


def at(second: float) -> int:
    """A moment in nanoseconds."""
    return int(second * NS_PER_S)


def writer(counter: int, *, busy: bool = True) -> Progress:
    """A store writer that may stand still for ten seconds."""
    return Progress("writer", counter, busy, 10)


def test_a_moving_counter_feeds_the_watchdog() -> None:
    """While the counter moves the watchdog is fed."""
    core = WatchdogCore()
    assert all(core.decide([writer(turn)], at(turn * 9)) == FED for turn in range(20))


def test_a_stalled_part_withholds() -> None:
    """With work and without progress feeding ends at the limit and names the part; it resumes with the next
    progress."""
    core = WatchdogCore()
    assert core.decide([writer(5)], at(0)) == FED
    assert core.decide([writer(5)], at(10)) == FED
    assert core.decide([writer(5)], at(10.1)) == Decision(feed=False, stalled=("writer",))
    assert core.decide([writer(5)], at(99)) == Decision(feed=False, stalled=("writer",))
    assert core.decide([writer(6)], at(100)) == FED


def test_idle_is_not_stalled() -> None:
    """A part without work is not stalled, and work that arrives later has the whole limit."""
    core = WatchdogCore()
    assert core.decide([writer(5, busy=False)], at(0)) == FED
    assert core.decide([writer(5, busy=False)], at(1_000)) == FED
    assert core.decide([writer(5)], at(1_009)) == FED
    assert not core.decide([writer(5)], at(1_011)).feed


def test_one_part_is_enough_to_withhold() -> None:
    """A part that moves does not cover for one that does not."""
    core = WatchdogCore()
    for second in range(12):
        decision = core.decide([writer(second), Progress("line1", 1, True, 10)], at(second))
    assert decision == Decision(feed=False, stalled=("line1",))


def test_a_removed_part_does_not_stall() -> None:
    """A part that is gone stalls nothing; when it is back it has the whole limit."""
    core = WatchdogCore()
    core.decide([writer(1)], at(0))
    assert core.decide([], at(100)) == FED
    assert core.decide([writer(1)], at(200)) == FED


def test_a_counter_that_starts_over_has_moved() -> None:
    """A restarted part counts from 0 again; that is progress."""
    core = WatchdogCore()
    core.decide([writer(500)], at(0))
    core.decide([writer(0)], at(9))
    assert core.decide([writer(0)], at(18)) == FED


def test_a_stopped_or_reset_clock_is_no_stall() -> None:
    """Only time that has passed counts; a step back is no stall."""
    core = WatchdogCore()
    core.decide([writer(1)], at(100))
    assert core.decide([writer(1)], at(50)) == FED
