import random

from agent.ingest.gap import CLOCK_SET_BACK, NOTIFICATIONS_MISSING, SOURCE_LOST, TagGap
from agent.ingest.opcua.server_clock import ServerClock, SetBacks, read_ns, sent_ns
from tests.sim import first_seed, scaled

S, MS = 1_000_000_000, 1_000_000


def test_a_reading_that_was_held_up_does_not_move_the_clock() -> None:
    """The reading furthest ahead is the best one; a server that is faster is followed at once."""
    clock = ServerClock()
    assert clock.now_ns(0, 77) == 77, "nothing is known yet"
    clock.read(3600 * S, 0, clock.least_ns(0))
    clock.read(3605 * S, 10 * S, 3600 * S)  # five seconds on its way
    assert clock.now_ns(10 * S, 0) == 3610 * S - 10 * MS, "less what two clocks may drift apart"
    clock.read(3621 * S, 20 * S, 3605 * S)
    assert (clock.now_ns(20 * S, 0), clock.set_back_ns) == (3621 * S, 0)


def test_a_clock_that_drifts_is_followed() -> None:
    """A server's clock that loses half a second in an hour is not believed ahead for ever."""
    clock = ServerClock()
    for s in range(100_000):
        clock.read(s * S - s * S // 7200, s * S, clock.least_ns(s * S))
    now_ns = clock.now_ns(99_999 * S, 0)
    assert abs(now_ns - (99_999 * S - 99_999 * S // 7200)) < 2 * MS
    assert clock.set_back_ns == 0


def test_a_clock_that_was_set_back_is_followed_at_once() -> None:
    """A reading that shows less than it must is one: by so much, at most, and its delay."""
    clock = ServerClock()
    clock.read(3600 * S, 0, None)
    assert clock.read(15 * S, 10 * S, clock.least_ns(9 * S)) == 3595 * S
    assert (clock.now_ns(10 * S, 0), clock.set_back_ns) == (15 * S, 3595 * S)


def test_a_clock_that_moves_once_a_second_is_not_set_back() -> None:
    """asyncua shows the time of its last tick: up to a second old, whenever it is read. The time of the answer says how
    old. A set-back of half a second is seen all the same, and one that the answer cannot show is not made up."""
    clock, offset_ns = ServerClock(), 3600 * S
    for number in range(1_000):
        now_ns = number * 331 * MS
        at_ns = now_ns + offset_ns
        clock.read(read_ns(at_ns // S * S, at_ns), now_ns + 50 * MS, clock.least_ns(now_ns))
    assert clock.set_back_ns == 0
    at_ns = now_ns + offset_ns
    assert clock.read(read_ns((at_ns - S // 2) // S * S, at_ns - S // 2), now_ns, clock.least_ns(now_ns)) > 400 * MS


def test_a_time_of_another_clock_does_not_date_a_reading() -> None:
    """An answer without a time, with one from before its own values, or far behind them."""
    assert [read_ns(100 * S, at_s * S) for at_s in (0, 99, 100, 101, 103)] == [100 * S] * 3 + [101 * S, 100 * S]


def test_a_publish_time_dates_a_proof_unless_it_lies_ahead() -> None:
    """An answer held up on its way is as old as it says. A time that is not set or lies ahead is not used: the answer
    was sent behind what the clock has shown, and not as late as it came."""
    clock = ServerClock()
    assert sent_ns(0, 20 * S, clock) == 20 * S
    clock.read(19 * S, 0, None)
    assert sent_ns(5 * S, 20 * S, clock) == 5 * S
    assert sent_ns(0, 20 * S, clock) == 19 * S
    assert sent_ns(3600 * S, 20 * S, clock) == 19 * S


class Watched:
    """A source's clock, and the gaps declared beside those it was told of."""

    def __init__(self) -> None:
        self.clock, self.now_s, self.declared = ServerClock(), 0.0, list[TagGap]()
        self.set_backs = SetBacks(self.clock, lambda: self.clock.now_ns(int(self.now_s * S), 0), self.declared.append)

    def read(self, now_s: float, server_s: float, least_s: float | None = None) -> None:
        """A reading arrives. Without `least_s`, the first of a subscription that was created just before."""
        self.now_s = now_s
        now_ns, server_ns = int(now_s * S), int(server_s * S)
        least_ns = self.clock.least_ns(now_ns) if least_s is None else int(least_s * S)
        self.set_backs.read(server_ns, self.clock.read(server_ns, now_ns, least_ns))

    def spans(self) -> list[tuple[float, float]]:
        """First and last times, in s."""
        assert all(gap.reason == CLOCK_SET_BACK for gap in self.declared)
        return [(gap.first_time_ns / S, gap.last_time_ns / S) for gap in self.declared]


def gap(reason: str, first_s: float, last_s: float) -> TagGap:
    """A gap of one tag."""
    return TagGap(reason, int(first_s * S), int(last_s * S), (1,))


def test_a_clock_set_back_while_the_source_is_away() -> None:
    """The outage is declared in the times of the new clock, and in those of the old one as far as it lasted."""
    seen = Watched()
    seen.read(0, 100)
    seen.set_backs.end_life()
    seen.read(10, 60)  # 110 was expected
    seen.set_backs.add(gap(SOURCE_LOST, 99, 99))
    assert seen.spans() == [(49, 60), (99, 112)]


def test_a_clock_set_back_while_the_source_is_there() -> None:
    """It is no matter of an outage before or after it."""
    seen = Watched()
    seen.read(0, 100)
    seen.read(1, 61, least_s=100)
    seen.set_backs.end_life()
    seen.read(10, 70)
    seen.set_backs.add(gap(SOURCE_LOST, 60, 70))
    assert seen.declared == []


def test_short_lives_forget_no_set_back() -> None:
    """The clock shows itself, and the connection breaks before the source has returned: a later life declares it."""
    seen = Watched()
    seen.read(0, 100)
    seen.set_backs.end_life()
    seen.read(10, 60)
    seen.set_backs.end_life()
    seen.read(20, 70)
    seen.set_backs.add(gap(SOURCE_LOST, 99, 99))
    assert seen.spans() == [(49, 70), (99, 122)]
    seen.set_backs.end_life()
    seen.read(30, 80)
    seen.set_backs.add(gap(SOURCE_LOST, 70, 80))
    assert len(seen.declared) == 2, "an outage of its own"


def test_a_gap_whose_end_the_clock_has_not_reached_may_be_declared_again() -> None:
    """The next reading shows that the clock was set back within a gap, or that it was not."""
    seen = Watched()
    seen.read(0, 100)
    seen.set_backs.add(gap(NOTIFICATIONS_MISSING, 98, 100))
    seen.read(1, 101, least_s=100)
    seen.set_backs.add(gap(NOTIFICATIONS_MISSING, 100, 102))
    seen.read(2, 62, least_s=101)
    assert seen.spans() == [(60, 62)]
    seen.read(3, 13, least_s=62)
    assert len(seen.declared) == 1


def test_a_gap_that_lies_ahead_of_the_clock_stays_open_for_several_readings() -> None:
    """The end of a gap may be later than the next readings, which then do not show whether the clock was set back
    within it."""
    seen = Watched()
    seen.read(0, 100)
    seen.set_backs.add(gap(NOTIFICATIONS_MISSING, 98, 110))
    seen.read(1, 101, least_s=100)
    seen.read(2, 62, least_s=101)
    assert seen.spans() == [(58, 62)]


def test_every_time_of_an_outage_is_declared() -> None:
    """A model of a server whose clock is set back at a random moment of an outage: each time that its clock showed
    while the source was away is in the outage's gap or in one declared beside it."""
    rng = random.Random(first_seed())
    for _ in range(scaled(300, 20_000)):
        seen = Watched()
        offset_s, now_s = rng.uniform(-5, 5), 0.0
        for _ in range(rng.randint(1, 5)):
            seen.read(now_s + rng.uniform(0.001, 0.5), now_s + offset_s, least_s=-100)
            now_s += 1
        lost_s = now_s - 1  # when the clock was read last
        seen.set_backs.end_life()
        set_s, back_s = now_s + rng.uniform(0, 5), rng.choice([0.0, rng.uniform(0.2, 3600)])
        returned_s = set_s + rng.uniform(0, 5)
        first_s = lost_s + offset_s - 1  # as a loss is dated: the reading before
        seen.read(returned_s + rng.uniform(0.001, 0.5), returned_s + offset_s - back_s)
        last_s = seen.clock.now_ns(int(seen.now_s * S), 0) / S
        seen.set_backs.add(gap(SOURCE_LOST, first_s, max(first_s, last_s)))
        spans = [*seen.spans(), (first_s, last_s)]
        for _ in range(20):
            at_s = rng.uniform(lost_s, returned_s)
            shown_s = at_s + offset_s - (back_s if at_s >= set_s else 0)
            assert any(first - 1e-6 <= shown_s <= last + 1e-6 for first, last in spans), (shown_s, spans, back_s)
