"""Back-off, the size of pages and the alarm, at their limits."""

from collections.abc import Callable

import pytest

from agent.replication.protocol.pacing import (
    BYTES_MAX,
    BYTES_MIN,
    BYTES_START,
    DOUBLINGS_MAX,
    QUICK_MS,
    SLOW_MS,
    Alarm,
    PageSize,
    backoff_ms,
)


@pytest.mark.parametrize(
    "tries, chance, wait_ms",
    [(0, 0.0, 500), (0, 1.0, 1_000), (1, 0.0, 1_000), (3, 0.5, 6_000), (4, 0.0, 5_000), (10**9, 1.0, 10_000)],
)
def test_the_wait_doubles_up_to_its_longest(tries: int, chance: float, wait_ms: int) -> None:
    """From 1 s to 10 s, half of it by chance; after 10^9 failures the wait is the longest, too."""
    assert backoff_ms(1_000, 10_000, tries, chance) == wait_ms
    assert backoff_ms(2, 2**40, tries, 1.0) == 2 << min(tries, DOUBLINGS_MAX)


@pytest.mark.parametrize("took_ms, change", [(QUICK_MS, 2), (QUICK_MS + 1, 1), (SLOW_MS - 1, 1), (SLOW_MS, 0.5)])
def test_a_page_is_doubled_halved_or_kept(took_ms: int, change: float) -> None:
    """By how long the one before took; both limits count."""
    page = PageSize()
    page.arrived(took_ms)
    assert page.bytes == BYTES_START * change


@pytest.mark.parametrize("bytes_max, least", [(BYTES_MAX, BYTES_MIN), (BYTES_START + 1, BYTES_MIN), (1_000, 1_000)])
def test_the_size_of_a_page_stays_within_its_limits(bytes_max: int, least: int) -> None:
    """However many pages are quick or do not come, also where less is allowed than the usual least."""
    page = PageSize(bytes_max)
    assert page.bytes == min(BYTES_START, bytes_max)
    for _ in range(10):
        page.timed_out()
    assert page.bytes == least
    for _ in range(10):
        page.arrived(0)
    assert page.bytes == bytes_max


@pytest.mark.parametrize("bytes_per_ms", [2, 8, 125, 12_500])
def test_on_any_link_pages_settle_at_a_size_that_arrives_in_time(bytes_per_ms: int) -> None:
    """From 16 kbit/s to 100 Mbit/s, after a few pages each page arrives within the time-out of 3 s, if the smallest
    can."""
    page = PageSize()
    for _ in range(20):
        took_ms = page.bytes // bytes_per_ms
        page.arrived(took_ms) if took_ms < 3_000 else page.timed_out()
    assert page.bytes // bytes_per_ms < 3_000 or page.bytes == BYTES_MIN


class Clock:
    """Calls back when it is told to, and keeps what is due."""

    def __init__(self) -> None:
        self.due: dict[int, Callable[[], object]] = {}
        self._count = 0

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        self._count += 1
        number, self.delay_s = self._count, delay_s
        self.due[number] = callback
        return lambda: self.due.pop(number, None)  # type: ignore[return-value]


def test_an_alarm_rings_at_the_earliest_time() -> None:
    """A later time, or none, changes nothing, and an earlier one replaces it. After a ring, and after a cancel, any
    time can be set."""
    clock, rung = Clock(), list[str]()
    alarm = Alarm(clock.call_later, lambda: rung.append("rung"))
    for at_ms, delay_s in ((5_000, 4.0), (6_000, 4.0), (None, 4.0), (5_000, 4.0), (3_000, 2.0)):
        alarm.set(at_ms, 1_000)
        assert (len(clock.due), clock.delay_s) == (1, delay_s)
    clock.due.popitem()[1]()
    assert rung == ["rung"]
    alarm.set(9_000, 3_000)
    assert (len(clock.due), clock.delay_s) == (1, 6.0)
    alarm.cancel()
    assert not clock.due
    alarm.set(10_000, 3_000)
    assert (len(clock.due), clock.delay_s) == (1, 7.0)
