"""The server's clock: what it shows now, and which gaps a clock that was set back makes longer.

A gap has a first and a last time of the server's clock. When that clock is set back in between, some of the lost values
bear times that came a second time: they are in no gap, unless the gap is declared in the times of the new clock too.
The first reading of the clock after the gap shows it. Core: takes times, holds no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from agent.ingest.gap import CLOCK_SET_BACK, OUTAGE_REASONS, TagGap

CLOCK_JUMP_NS = 2_000_000_000  # a server clock that differs by more than publishing explains was set
DRIFT_PER_MILLE = 1  # of two clocks that nothing sets; NTP slews by half of that at most
DELAY_NS = 100_000_000  # a reading may come so much faster than the one before it
GAPS_MAX = 100  # gaps that may still turn out to be longer; a server whose clock stands never settles them


class ServerTime(NamedTuple):
    """A time of a server's clock, and by how much the clock had been set back in all until then."""

    time_ns: int
    set_back_ns: int


class ClockReading(NamedTuple):
    """The server's clock in an answer, in ns; 0: it does not say. What the answer holds besides is not older than what
    the clock shows there."""

    shown_ns: int
    read_ns: int


class ServerClock:
    """The server's clock beside our monotonic one, which is never set. All times in ns."""

    def __init__(self) -> None:
        self.set_back_ns = 0  # by how much in all, at most, since the start
        self._shown: tuple[int, int] | None = None  # the last reading, and our clock at its arrival
        self._ahead_ns = 0  # of our clock

    @property
    def shown_ns(self) -> int | None:
        """The last reading; None before the first."""
        return None if self._shown is None else self._shown[0]

    def now_ns(self, monotonic_ns: int, wall_ns: int) -> int:
        """What it shows now, as far as it is known. `wall_ns`, our own clock, until it has shown anything."""
        return wall_ns if self._shown is None else monotonic_ns + self._ahead_ns

    def in_new_times(self, moment: ServerTime) -> int:
        """A moment in the times of the clock as it is now."""
        return moment.time_ns - (self.set_back_ns - moment.set_back_ns)

    def least_ns(self, monotonic_ns: int) -> int | None:
        """What readings made from now on show at least, if it is not set back; None: it has shown nothing yet."""
        if self._shown is None:
            return None
        shown_ns, arrived_ns = self._shown
        elapsed_ns = monotonic_ns - arrived_ns
        return shown_ns + elapsed_ns - drift_ns(elapsed_ns) - DELAY_NS

    def read(self, server_ns: int, monotonic_ns: int, least_ns: int | None) -> int:
        """Take in a reading that arrived now. Returns by how much the clock was set back, at most; 0: it was not.
        `least_ns` is what this reading shows at least. Delays make a server's clock look slower than it is, never
        faster: the reading that is furthest ahead is the best, less what two clocks drift apart since then."""
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
    """By how much a clock may have lost against another one in this time."""
    return elapsed_ns * DRIFT_PER_MILLE // 1000


def sent_ns(publish_time_ns: int, arrived_ns: int, clock: ServerClock) -> int:
    """When an answer that arrives now was sent, or earlier, by the server's clock: the publish time that it bears, else
    what the clock has shown last, for that came ahead of it. The time of arrival is later by what the line took. An
    answer cannot have been sent after it came; a publish time that says so is not used."""
    if 0 < publish_time_ns <= arrived_ns + CLOCK_JUMP_NS:
        return publish_time_ns
    return arrived_ns if clock.shown_ns is None else clock.shown_ns


def read_ns(shown_ns: int, answered_ns: int) -> int:
    """When a clock that shows this was read, by itself; the answer says that it was made then. Some servers move the
    clock that they show once a second (asyncua): it may be older than a reading before it was at its arrival. A time
    that lies ahead of it by more is of another clock, or of a late answer, and is not used."""
    return answered_ns if shown_ns <= answered_ns <= shown_ns + CLOCK_JUMP_NS else shown_ns


class SetBacks:
    """The gaps of one source within which its server's clock was set back. `now_ns` is that clock, as known; `declare`
    takes what is to be declared beside a gap that is declared already."""

    def __init__(self, clock: ServerClock, now_ns: Callable[[], int], declare: Callable[[TagGap], None]) -> None:
        self._clock, self._now_ns, self._declare = clock, now_ns, declare
        self._recent: deque[TagGap] = deque(maxlen=GAPS_MAX)  # that end later than the clock has shown since
        self._total_ns: int | None = None  # of set-backs, when the present outage began; None: there is none

    def end_life(self) -> None:
        """The source is lost. An outage may have many lives, also with values: its gap says when it is over."""
        if self._total_ns is None and self._clock.shown_ns is not None:
            self._total_ns = self._clock.set_back_ns

    def add(self, gap: TagGap) -> None:
        """A gap is declared. The clock may have been set back within it: while the source was away, or unseen yet."""
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
        """A reading of the clock has come, which was set back by so much since the one before."""
        recent, self._recent = self._recent, deque(maxlen=GAPS_MAX)
        for gap in recent:
            if set_back_ns:
                self._declare(_in_new_times(gap, set_back_ns, server_ns))
            elif gap.last_time_ns > server_ns:
                self._recent.append(gap)

    def declare(self, gap: TagGap, set_back_ns: int, end_ns: int | None = None) -> None:
        """The clock was set back by so much since a gap began: its times are those of the clock as it is now, and those
        of the clock as it was, which may have been ahead by what publishing had delayed its readings. `end_ns`: when
        the gap ended, if that is not now."""
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
