"""How a pull catches up: what is logged and when, and when an estimate is given."""

import pytest

from agent.replication.pulling.catch_up import (
    BEHIND_FACTS_MIN,
    LOG_EVERY_MS,
    NEAR_FACTS,
    SAMPLES_MAX,
    CatchUp,
    CatchUpEvent,
    CatchUpTracker,
)

FAR = 50 * BEHIND_FACTS_MIN


def test_pace_and_time_left() -> None:
    """The pace counts arriving facts; the time left includes the growth of the peer's log meanwhile. So it is in each
    catch-up: an earlier one counts for nothing."""
    tracker = CatchUpTracker()
    for began_ms, at in ((0, 0), (3_600_000, 519_000), (7_200_000, 1_100_000)):
        assert tracker.update(began_ms, at, at + 500_000) == (CatchUpEvent.STARTED, CatchUp(at, at, at + 500_000))
        assert tracker.now == CatchUp(at, at, at + 500_000)
        assert tracker.update(began_ms + 10_000, at + 100_000, at + 520_000) is None
        assert tracker.now == CatchUp(at, at + 100_000, at + 520_000, 10_000.0, 420_000 / 8_000)
        assert tracker.now.percent == pytest.approx(100 / 5.2)
        assert tracker.update(began_ms + 60_000, at + 519_000, at + 520_000) is not None
        assert tracker.now is None


def test_no_time_is_estimated_while_the_lag_grows() -> None:
    """If the lag does not shrink, no time is given."""
    tracker = CatchUpTracker()
    tracker.update(0, 0, FAR)
    tracker.update(5_000, 1_000, FAR + 2_000)
    assert tracker.now is not None
    assert (tracker.now.facts_per_s, tracker.now.seconds_left) == (200.0, None)


def test_pages_are_backlog_while_the_lag_shrinks() -> None:
    """From the first page on, but not if the peer writes as fast as this zone reads."""
    tracker = CatchUpTracker()
    assert not tracker.takes_backlog
    tracker.update(0, 0, FAR)
    assert tracker.takes_backlog
    tracker.update(5_000, 2_000, FAR + 1_000)
    assert tracker.takes_backlog
    tracker.update(10_000, 4_000, FAR + 4_000)
    assert not tracker.takes_backlog


def test_the_pace_is_that_of_the_last_seconds() -> None:
    """A link that becomes slow shows within the window, whatever its pace before."""
    tracker, now_ms, offset = CatchUpTracker(), 0, 0
    tracker.update(now_ms, offset, 10 * FAR)
    for pace in [10_000] * 60 + [100] * (SAMPLES_MAX + 1):
        now_ms, offset = now_ms + 1_000, offset + pace
        tracker.update(now_ms, offset, 10 * FAR)
    assert tracker.now is not None
    assert tracker.now.facts_per_s == pytest.approx(100)


def test_catch_up_is_logged_at_start_periodically_and_at_the_end() -> None:
    """One line each, and none in between. It ends when the lag is that of a busy stream, and starts again only when the
    pull is far behind again."""
    tracker, said = CatchUpTracker(), list[tuple[int, CatchUpEvent]]()
    for second in range(101):
        if (event := tracker.update(second * 1_000, second * (FAR - NEAR_FACTS) // 100, FAR)) is not None:
            said.append((second, event[0]))
    apart = LOG_EVERY_MS // 1_000
    between = [(apart * number, CatchUpEvent.PROGRESS) for number in (1, 2, 3)]
    assert said == [(0, CatchUpEvent.STARTED), *between, (100, CatchUpEvent.FINISHED)]
    assert tracker.now is None
    assert tracker.update(200_000, FAR, FAR + BEHIND_FACTS_MIN - 1) is None
    assert tracker.update(201_000, FAR, 2 * FAR) == (CatchUpEvent.STARTED, CatchUp(FAR, FAR, 2 * FAR))


def test_a_new_epoch_of_the_peer_starts_another_catch_up() -> None:
    """An offset that goes back belongs to another life of the peer's store."""
    tracker = CatchUpTracker()
    tracker.update(0, 400_000, 500_000)
    assert tracker.update(1_000, 0, 100_000) == (CatchUpEvent.STARTED, CatchUp(0, 0, 100_000))
    tracker.update(2_000, 50_000, 100_000)
    assert tracker.update(3_000, 10, 200_000) == (CatchUpEvent.STARTED, CatchUp(10, 10, 200_000))
