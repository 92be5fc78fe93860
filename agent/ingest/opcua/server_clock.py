"""The server's clock: what it shows now, and the gaps that become longer because it was set back.

A gap has a first and a last time on the server's clock. If that clock is set back in between, it shows some times
twice, and some of the lost values have such times. So the gap is declared again in the times of the clock after it was
set. The first reading of the clock after the gap shows whether that is needed. Core: takes times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from agent.ingest.gap import CLOCK_SET_BACK, OUTAGE_REASONS, TagGap

CLOCK_JUMP_NS = 2_000_000_000  # a difference that publishing does not explain: the clock was set
DRIFT_PER_MILLE = 1  # of two clocks that are not set; NTP slews by half of that at most
DELAY_NS = 100_000_000  # difference in delay between two readings
GAPS_MAX = 100  # gaps that may still become longer; they stay open if the clock of the server stands still


class ServerTime(NamedTuple):
    """A time on a server's clock, and by how much in total the clock had been set back until then."""

    time_ns: int
    set_back_ns: int


class ClockReading(NamedTuple):
    """The server's clock in an answer, in ns; 0: not given. The values in the answer are not older than `shown_ns`."""

    shown_ns: int
    read_ns: int


class ServerClock:
    """Follows the server's clock by our monotonic clock, which is never set. All times are in ns."""

    def __init__(self) -> None:
        self.set_back_ns = 0  # total since the start, at most
        self._shown: tuple[int, int] | None = None  # the last reading, and our clock when it arrived
        self._ahead_ns = 0  # of our monotonic clock

    @property
    def shown_ns(self) -> int | None:
        """The last reading; None before the first."""
        return None if self._shown is None else self._shown[0]

    def now_ns(self, monotonic_ns: int, wall_ns: int) -> int:
        """The present time on it, as far as is known; `wall_ns`, our own clock, before the first reading."""
        return wall_ns if self._shown is None else monotonic_ns + self._ahead_ns

    def ahead_of_ns(self, monotonic_ns: int, wall_ns: int) -> int | None:
        """By how much it is ahead of our own clock; None before the first reading."""
        return None if self._shown is None else monotonic_ns + self._ahead_ns - wall_ns

    def in_new_times(self, moment: ServerTime) -> int:
        """A moment in the times of the clock as it is set now."""
        return moment.time_ns - (self.set_back_ns - moment.set_back_ns)

    def least_ns(self, monotonic_ns: int) -> int | None:
        """A lower bound of the readings from now on, unless it is set back; None before the first reading."""
        if self._shown is None:
            return None
        shown_ns, arrived_ns = self._shown
        elapsed_ns = monotonic_ns - arrived_ns
        return shown_ns + elapsed_ns - drift_ns(elapsed_ns) - DELAY_NS

    def read(self, server_ns: int, monotonic_ns: int, least_ns: int | None) -> int:
        """Take in a reading that arrived now. Returns by how much the clock was set back at most; 0: it was not.
        `least_ns` is the lower bound of this reading. A delay makes the server's clock seem late, never early: so the
        reading that is furthest ahead is the best one, less the drift since then."""
        ahead_ns, set_back_ns = server_ns - monotonic_ns, 0
        if self._shown is None:
            self._ahead_ns = ahead_ns
        elif least_ns is not None and server_ns < least_ns:
            set_back_ns = max(0, self._ahead_ns - ahead_ns)
            self._ahead_ns = ahead_ns
        else:
            self._ahead_ns = max(ahead_ns, self._ahead_ns - drift_ns(monotonic_ns - self._shown[1]))
        self._shown = server_ns, monotonic_ns
        self.set_back_ns += set_back_ns
        return set_back_ns


def drift_ns(elapsed_ns: int) -> int:
    """How much a clock may lose against another one in this time."""
    return elapsed_ns * DRIFT_PER_MILLE // 1000


def sent_ns(publish_time_ns: int, arrived_ns: int, clock: ServerClock) -> int:
    """A time on the server's clock that is not later than the sending of an answer that arrives now: its publish time,
    otherwise the last reading of the clock, which arrived before it. The time of arrival is later by the time on the
    line. A publish time that is later than the arrival is wrong and not used."""
    if 0 < publish_time_ns <= arrived_ns + CLOCK_JUMP_NS:
        return publish_time_ns
    return arrived_ns if clock.shown_ns is None else clock.shown_ns


def read_ns(shown_ns: int, answered_ns: int) -> int:
    """When a clock with this reading was read, by its own time. Some servers (asyncua) update the clock that they show
    only once a second, so the time of the answer is better. If it is further ahead, it is of another clock or of a late
    answer, and the reading is used."""
    return answered_ns if shown_ns <= answered_ns <= shown_ns + CLOCK_JUMP_NS else shown_ns


class SetBacks:
    """The gaps of one source within which its server's clock was set back. `now_ns` gives that clock as far as is
    known. `declare` is called for what is to be declared in addition to a declared gap."""

    def __init__(self, clock: ServerClock, now_ns: Callable[[], int], declare: Callable[[TagGap], None]) -> None:
        self._clock, self._now_ns, self._declare = clock, now_ns, declare
        self._recent: deque[TagGap] = deque(maxlen=GAPS_MAX)  # gaps whose end the clock has not yet shown since
        self._total_ns: int | None = None  # total of set-backs when the present outage began; None: there is no outage

    def end_life(self) -> None:
        """The source is lost. The outage may last several lives, and ends with its gap."""
        if self._total_ns is None and self._clock.shown_ns is not None:
            self._total_ns = self._clock.set_back_ns

    def add(self, gap: TagGap) -> None:
        """A gap is declared. The clock may have been set back within it, while the source was away or without having
        been read."""
        if gap.reason == CLOCK_SET_BACK:
            return
        total_ns = self._clock.set_back_ns
        if gap.reason in OUTAGE_REASONS and self._total_ns is not None:
            began_ns, self._total_ns = self._total_ns, None
            if total_ns > began_ns:
                self.declare(gap, total_ns - began_ns)
                return
        self._recent.append(gap)

    def read(self, server_ns: int, set_back_ns: int) -> None:
        """Take in a reading of the clock, which was set back by `set_back_ns` since the previous reading."""
        recent, self._recent = self._recent, deque(maxlen=GAPS_MAX)
        for gap in recent:
            if set_back_ns:
                self._declare(_in_new_times(gap, set_back_ns, server_ns))
            elif gap.last_time_ns > server_ns:
                self._recent.append(gap)

    def declare(self, gap: TagGap, set_back_ns: int, end_ns: int | None = None) -> None:
        """The clock was set back by `set_back_ns` since a gap began. Declare the gap in the times of the clock as it is
        now and as it was before, when it may have been ahead of its readings because of publishing. `end_ns`: the end
        of the gap, by default now."""
        if set_back_ns:
            now_ns = self._now_ns() if end_ns is None else end_ns
            newer = _in_new_times(gap, set_back_ns, now_ns)
            self._recent.append(newer)
            self._declare(newer)
            last_ns = now_ns + set_back_ns + CLOCK_JUMP_NS
            self._declare(TagGap(CLOCK_SET_BACK, gap.first_time_ns, last_ns, gap.tags))


def _in_new_times(gap: TagGap, set_back_ns: int, server_ns: int) -> TagGap:
    first_ns = gap.first_time_ns - set_back_ns
    return TagGap(CLOCK_SET_BACK, first_ns, max(first_ns, server_ns), gap.tags)
