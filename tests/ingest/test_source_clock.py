import time

import pytest

from agent.ingest.completeness import Moment, Stored
from agent.ingest.source_clock import SET_WHILE_AWAY_NS, SourceClock

S, MS = 1_000_000_000, 1_000_000
NOW = 1_800_000_000 * S


class Played(SourceClock):
    """Our clocks show what a test says: the monotonic one since the first reading, and the wall clock."""

    def __init__(self, wall_ns: int = 0) -> None:
        self.since_ns, self.wall_ns = 0, wall_ns
        super().__init__(lambda: (self.since_ns, self.wall_ns + self.since_ns), lambda: [(0, 9 * S)])

    def at(self, since_ns: int) -> SourceClock:
        """This clock, so long after the first reading."""
        self.since_ns = since_ns
        return self

    def read_at(self, since_ns: int, server_ns: int, asked_ns: int | None = None) -> None:
        """A reading that was asked for at `asked_ns` arrives."""
        least_ns = self.at(since_ns if asked_ns is None else asked_ns).least_ns()
        self.at(since_ns).note_reading(server_ns, least_ns)


def test_a_clock_that_was_set_back_is_followed_at_once() -> None:
    """A reading that shows less than it must is one: by so much, at most, and its delay. The total of all is kept."""
    clock = Played()
    clock.read_at(0, 3600 * S)
    clock.read_at(10 * S, 15 * S, asked_ns=9 * S)
    assert clock.now() == Moment(15 * S, 3595 * S)
    assert list(clock._sets) == [Moment(3610 * S)], "on the clock as it was"
    clock.read_at(11 * S, 16 * S)
    clock.read_at(12 * S, 7 * S)
    assert clock.set_back_ns == 3605 * S


def test_a_clock_that_only_a_read_saw_ahead_is_followed_at_the_next_read() -> None:
    """A read sees it an hour ahead, to date a loss; the published readings before and after do not, and may as well be
    late. The next read shows that it was set back, so that a gap lasts as long as the trouble, in this process and in
    the next."""
    clock = Played(NOW)
    clock.read_at(0, NOW)
    clock.read_at(300 * MS, NOW + 3600 * S + 300 * MS)
    assert clock.set_back_ns == -3600 * S
    clock.at(S).note_reading(NOW + S, NOW)  # set right before
    clock.read_at(9 * S, NOW + 9 * S)  # the next session
    clock.read_at(10 * S, NOW + 10 * S, asked_ns=9 * S)  # its first published reading
    assert clock.now_ns() == NOW + 10 * S
    assert abs(clock.set_back_ns) < MS, "but for the drift"
    complete = clock.now()
    following = Played(NOW + 13 * S)
    following.continue_from(clock.stored(complete))
    assert clock.spans(complete, clock.at(13 * S).now()) == [(NOW + 10 * S, NOW + 13 * S)]
    following.read_at(0, NOW + 13 * S)
    assert following.set_back_ns == 0


def test_a_published_time_is_of_the_past_however_often_the_clock_was_set() -> None:
    """The subscription began on a clock an hour behind; a read then saw it an hour ahead; right before that, it was
    right for a moment, and that publication arrives last. Losses begin in the past, however the next reading shows the
    clock. A publication from before a set that a read has shown has the time from before it."""
    clock = Played(NOW + 3600 * S + S)
    clock.set_back_ns = -3600 * S
    found = clock.moment(NOW + S * 8 // 10, Moment(NOW - 3600 * S, 3600 * S))
    assert found.on(clock.now()) <= clock.now_ns()
    clock = Played(NOW - 3600 * S)
    clock.set_back_ns = 3600 * S
    assert clock.moment(NOW, Moment(NOW - S)) == Moment(NOW)


def test_a_publish_time_dates_a_proof_unless_it_lies_ahead() -> None:
    """An answer held up on its way is as old as it says. A time that is not set or lies ahead is not used: the answer
    was sent behind what the clock has shown, and not as late as it came."""
    clock = Played(20 * S)
    assert clock.sent(0, Moment(0)) == Moment(20 * S)
    clock.read_at(0, 19 * S)
    clock.at(S)
    assert clock.sent(5 * S, Moment(0)) == Moment(5 * S)
    assert clock.sent(0, Moment(0)) == Moment(19 * S)
    assert clock.sent(3600 * S, Moment(0)) == Moment(19 * S)


def test_a_machine_that_was_suspended_sees_no_clock_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still meanwhile."""
    suspended_ns = [0]
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: time.monotonic_ns() + suspended_ns[0])
    clock = SourceClock()
    clock.note_reading(NOW, None)
    suspended_ns[0] = 3600 * S
    clock.note_reading(NOW + 3600 * S, clock.least_ns())
    assert clock.set_back_ns == 0


@pytest.mark.parametrize(
    "wall_ns, earlier_s, set_back_s",
    [(NOW, 3_600, 3_599), (NOW, -3_600, -3_601), (NOW, -30, 0), (NOW, 1, 0), (0, 3_600, 0), (NOW, None, 0)],
)
def test_a_clock_that_was_set_while_no_process_ran(wall_ns: int, earlier_s: int | None, set_back_s: int) -> None:
    """It is as much less ahead of ours than the earlier process saw. Small differences are of the line, and a clock of
    ours that is not believed compares nothing, in this process and in the next."""
    clock = Played(wall_ns)
    clock.continue_from(Stored(0, None if earlier_s is None else earlier_s * S))
    clock.read_at(0, wall_ns + S - SET_WHILE_AWAY_NS // 2 * (earlier_s == 1))
    assert clock.set_back_ns == set_back_s * S
    assert (clock.stored(clock.now()).ahead_ns is None) == (wall_ns == 0)


@pytest.mark.parametrize(
    "passed_ns, earlier_s, set_back_s", [(S, 3_600, 3_600), (S, 10**9, 0), (-(10**18), 10**9, 10**9)]
)
def test_a_clock_that_was_set_is_known_when_ours_is_believed(passed_ns: int, earlier_s: int, set_back_s: int) -> None:
    """Once, and less what it was set since. Of two clocks that are years apart, the one was set by which years have
    passed, or less than no time."""
    clock = Played()
    clock.continue_from(Stored(NOW - passed_ns, earlier_s * S))
    clock.read_at(0, NOW)
    assert clock.set_while_away_ns() is None
    clock.wall_ns = NOW
    clock.read_at(S, NOW + 3_601 * S)
    assert clock.set_while_away_ns() == set_back_s * S
    assert clock.set_while_away_ns() is None
