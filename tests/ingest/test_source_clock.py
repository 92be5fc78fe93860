import pytest

from agent.ingest.completeness import Moment, spans
from agent.ingest.source_clock import SET_WHILE_AWAY_NS, ServerClock, moment_shown, sent_ns

S, MS = 1_000_000_000, 1_000_000
NOW = 1_800_000_000 * S


def test_a_clock_that_was_set_back_is_followed_at_once() -> None:
    """A reading that shows less than it must is one: by so much, at most, and its delay. The total of all is kept."""
    clock = ServerClock()
    clock.read(3600 * S, 0, None, 0)
    clock.read(15 * S, 10 * S, clock.least_ns(9 * S), 0)
    assert (clock.now_ns(10 * S, 0), clock.set_back_ns) == (15 * S, 3595 * S)
    assert list(clock.sets) == [Moment(3610 * S)], "on the clock as it was"
    clock.read(16 * S, 11 * S, clock.least_ns(11 * S), 0)
    clock.read(7 * S, 12 * S, clock.least_ns(12 * S), 0)
    assert clock.set_back_ns == 3605 * S


def test_a_clock_that_only_a_read_saw_ahead_is_followed_at_the_next_read() -> None:
    """A read sees it an hour ahead, to date a loss; the published readings before and after do not, and may as well be
    late. The next read shows that it was set back, so that a gap lasts as long as the trouble, in this process and in
    the next."""
    clock = ServerClock()
    clock.read(NOW, 0, None, NOW)
    clock.read(NOW + 3600 * S + 300 * MS, 300 * MS, clock.least_ns(300 * MS), NOW)
    assert clock.set_back_ns == -3600 * S
    clock.read(NOW + S, S, NOW, NOW)  # set right before
    clock.read(NOW + 9 * S, 9 * S, clock.least_ns(9 * S), NOW)  # the next session
    clock.read(NOW + 10 * S, 10 * S, clock.least_ns(9 * S), NOW)  # its first published reading
    assert clock.now_ns(10 * S, NOW) == NOW + 10 * S
    assert abs(clock.set_back_ns) < MS, "but for the drift"
    complete = Moment(NOW + 10 * S, clock.set_back_ns)
    assert spans(complete, Moment(clock.now_ns(13 * S, NOW), clock.set_back_ns)) == [(NOW + 10 * S, NOW + 13 * S)]
    following = ServerClock()
    following.continue_from(clock.ahead_of_ns(10 * S, NOW + 10 * S))
    following.read(NOW + 13 * S, 0, None, NOW + 13 * S)
    assert following.set_back_ns == 0


def test_a_published_time_is_of_the_past_however_often_the_clock_was_set() -> None:
    """The subscription began on a clock an hour behind; a read then saw it an hour ahead; right before that, it was
    right for a moment, and that publication arrives last. Losses begin in the past, however the next reading shows the
    clock. A publication from before a set that a read has shown has the time from before it."""
    before, now = Moment(NOW - 3600 * S, 3600 * S), Moment(NOW + 3600 * S + S, -3600 * S)
    assert moment_shown(NOW + S * 8 // 10, before, now).on(now) <= now.time_ns
    assert moment_shown(NOW, Moment(NOW - S), Moment(NOW - 3600 * S, 3600 * S)) == Moment(NOW)


def test_a_publish_time_dates_a_proof_unless_it_lies_ahead() -> None:
    """An answer held up on its way is as old as it says. A time that is not set or lies ahead is not used: the answer
    was sent behind what the clock has shown, and not as late as it came."""
    clock = ServerClock()
    assert sent_ns(0, 20 * S, clock) == 20 * S
    clock.read(19 * S, 0, None, 0)
    assert sent_ns(5 * S, 20 * S, clock) == 5 * S
    assert sent_ns(0, 20 * S, clock) == 19 * S
    assert sent_ns(3600 * S, 20 * S, clock) == 19 * S


@pytest.mark.parametrize(
    "wall_ns, earlier_s, set_back_s",
    [(NOW, 3_600, 3_599), (NOW, -3_600, -3_601), (NOW, -30, 0), (NOW, 1, 0), (0, 3_600, 0), (NOW, None, 0)],
)
def test_a_clock_that_was_set_while_no_process_ran(wall_ns: int, earlier_s: int | None, set_back_s: int) -> None:
    """It is as much less ahead of ours than the earlier process saw. Small differences are of the line, and a clock of
    ours that was never set compares nothing."""
    clock = ServerClock()
    clock.continue_from(None if earlier_s is None else earlier_s * S)
    clock.read(wall_ns + S - SET_WHILE_AWAY_NS // 2 * (earlier_s == 1), 7, None, wall_ns)
    assert clock.set_back_ns == set_back_s * S
