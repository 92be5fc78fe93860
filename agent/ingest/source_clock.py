"""The clock of a source: what it shows now, and by how much it was set back so far. It is read over a session, and
followed by our clocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from agent.ingest.clock import AHEAD_NS, JUMP_NS, Span
from agent.ingest.completeness import CLOCK_JUMP_NS, Moment, Stored, spans

DRIFT_PER_MILLE = 1  # of two clocks that are not set; NTP slews by half of that at most
DELAY_NS = 100_000_000  # difference in delay between two readings
SET_AHEAD_NS = 60_000_000_000  # less may be the delay of a reading
SETS_MAX = 16  # kept; nobody sets a clock more often within one gap
SET_WHILE_AWAY_NS = 500_000_000  # between two processes, the clocks are compared by two readings over the line


class ServerClockReading(NamedTuple):
    """The server's clock in an answer, in ns; 0: not given. The values in the answer are not older than `shown_ns`."""

    shown_ns: int
    read_ns: int


class ClockSession(Protocol):
    """The part of a session that is used here."""

    async def clock_ns(self) -> int | None:
        """The time on the server's clock; None if it gives none."""


def boot_ns() -> int:
    """Our monotonic clock: never set, and it runs on while the machine is suspended, unlike that of the event loop."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def our_clocks() -> tuple[int, int]:
    """Our monotonic clock and our wall clock."""
    return boot_ns(), time.time_ns()


class SourceClock:
    """The clock of a source. It exists across sessions. All times are in ns. `is_ours`: the source has none, and its
    samples have our time."""

    def __init__(
        self,
        ours: Callable[[], tuple[int, int]] = our_clocks,
        doubted: Callable[[], Sequence[Span]] = tuple,
        *,
        is_ours: bool = False,
    ) -> None:
        """`doubted` gives the times of our clock that are not believed."""
        self._ours, self._doubted, self.is_ours = ours, doubted, is_ours
        self._our_offset_ns = self._offset_ns()
        self.set_back_ns = 0  # total since the start, at most; less by how much it was set ahead
        self._sets: deque[Moment] = deque(maxlen=SETS_MAX)  # when it was set, on the clock as it was
        self._shown: tuple[int, int] | None = None  # the last reading, and our monotonic clock when it arrived
        self._ahead_ns = 0  # of our monotonic clock
        self._earlier_ahead_ns: int | None = None  # of our wall clock, in an earlier process
        self._earlier_complete_ns, self._is_compared = 0, True  # with that

    def now_ns(self) -> int:
        """The present time on it, as far as is known: before the first reading, by what an earlier process saw, and
        otherwise that of our own clock."""
        monotonic_ns, wall_ns = self._ours()
        if self._shown is not None:
            return monotonic_ns + self._ahead_ns
        return wall_ns + (0 if self.is_ours_doubted else self._earlier_ahead_ns or 0)

    def is_doubted(self, our_ns: int) -> bool:
        """Whether our clock gave this time while it was not believed."""
        return any(first_ns <= our_ns <= last_ns for first_ns, last_ns in self._doubted())

    @property
    def is_ours_doubted(self) -> bool:
        """Whether our clock is not believed now."""
        return self.is_doubted(self._ours()[1])

    def now(self) -> Moment:
        """The present moment on it."""
        set_back_ns = self._our_offset_ns - self._offset_ns()
        if self.is_ours and abs(set_back_ns) >= JUMP_NS:
            self._sets.append(Moment(self.now_ns() + set_back_ns, self.set_back_ns))
            self._our_offset_ns -= set_back_ns
            self.set_back_ns += set_back_ns
        return Moment(self.now_ns(), self.set_back_ns)

    def spans(self, since: Moment, until: Moment) -> list[tuple[int, int]]:
        """The spans of a gap (`completeness`)."""
        return spans(since, until, self._sets)

    @property
    def ahead_ns(self) -> int | None:
        """By how much it is ahead of ours; None before it was read."""
        monotonic_ns, wall_ns = self._ours()
        return None if self._shown is None else monotonic_ns + self._ahead_ns - wall_ns

    def _offset_ns(self) -> int:
        """What our clock shows at the start of the machine. It changes only if it is set."""
        monotonic_ns, wall_ns = self._ours()
        return wall_ns - monotonic_ns

    def continue_from(self, stored: Stored) -> None:
        """Compare it with what an earlier process saw."""
        self._earlier_complete_ns, self._earlier_ahead_ns = stored
        self._is_compared = False

    def earlier(self, part: Stored) -> Moment:
        """The moment up to which a part of the source was complete in an earlier process. This clock may have been set
        between the records of that part and of the source (`continue_from`): one of them is not complete any more."""
        if part.ahead_ns is None or self._earlier_ahead_ns is None:
            return Moment(part.complete_ns, self.set_back_ns)
        return Moment(part.complete_ns, self.set_back_ns - _set_back_ns(part.ahead_ns - self._earlier_ahead_ns))

    def stored(self, complete: Moment) -> Stored:
        """What the next process needs to know, if everything up to `complete` is stored."""
        return Stored(complete.on(self.now()), None if self.is_ours_doubted else self.ahead_ns)

    def least_ns(self) -> int | None:
        """A lower bound of the readings from now on, unless it is set back; None before the first reading. The last
        reading may have been late, or the first after a set back: `note_reading` cannot tell. So the best one counts
        too."""
        if self._shown is None:
            return None
        monotonic_ns, _ = self._ours()
        shown_ns, arrived_ns = self._shown
        elapsed_ns = monotonic_ns - arrived_ns
        by_last_ns = shown_ns + elapsed_ns - drift_ns(elapsed_ns) - DELAY_NS
        return max(by_last_ns, monotonic_ns + self._ahead_ns - drift_ns(elapsed_ns) - SET_AHEAD_NS)

    def note_reading(self, server_ns: int, least_ns: int | None) -> None:
        """Take in a reading that arrived now. `least_ns` is the lower bound of this reading. A delay makes the server's
        clock seem late, never early: so the reading that is furthest ahead is the best one, less the drift since
        then."""
        monotonic_ns, _ = self._ours()
        ahead_ns, set_back_ns = server_ns - monotonic_ns, 0
        if self._shown is None:
            self._ahead_ns = ahead_ns
            set_back_ns = self._compare(server_ns) or 0
        elif least_ns is not None and server_ns < least_ns:
            set_back_ns = max(0, self._ahead_ns - ahead_ns)
            self._ahead_ns = ahead_ns
        else:
            if ahead_ns - self._ahead_ns > SET_AHEAD_NS:
                set_back_ns = self._ahead_ns - ahead_ns
            self._ahead_ns = max(ahead_ns, self._ahead_ns - drift_ns(monotonic_ns - self._shown[1]))
        if set_back_ns and self._shown is not None:
            self._sets.append(Moment(server_ns + set_back_ns, self.set_back_ns))
        self._shown = server_ns, monotonic_ns
        self.set_back_ns += set_back_ns

    def set_while_away_ns(self) -> int | None:
        """By how much it was set back while no process ran, if our clock was not believed at the first reading; None:
        not known yet, or used for that."""
        return None if self._shown is None else self._compare(self.now_ns())

    def _compare(self, server_ns: int) -> int | None:
        """By how much it was set back since an earlier process, once. If it shows that little time has passed, and ours
        years, that was set."""
        if self._is_compared or self._earlier_ahead_ns is None or self.is_ours_doubted:
            return None
        self._is_compared = True
        _, wall_ns = self._ours()
        set_back_ns = self._earlier_ahead_ns - (server_ns - wall_ns) - self.set_back_ns
        passed_ns = server_ns - self._earlier_complete_ns
        return 0 if 0 <= passed_ns <= AHEAD_NS < abs(set_back_ns) else _set_back_ns(set_back_ns)

    def sent(self, publish_time_ns: int, before: Moment) -> Moment:
        """A moment on it that is not later than the sending of an answer that arrives now: its publish time, otherwise
        the last reading, which arrived before it. The time of arrival is later by the time on the line. A publish time
        that is later than the arrival is wrong and not used."""
        arrived_ns = self.now_ns()
        if 0 < publish_time_ns <= arrived_ns + CLOCK_JUMP_NS:
            return self.moment(publish_time_ns, before)
        return self.moment(arrived_ns if self._shown is None else self._shown[0], before)

    def moment(self, shown_ns: int, before: Moment) -> Moment:
        """When it showed this time, by an answer that arrives now: as it is set now, or as it was at `before`, because
        a reading that was made meanwhile may have shown already that it was set. It is not after now: of a clock that
        was set several times at once, that would be the time of a set that is not seen yet, and losses would begin
        after themselves."""
        now = self.now()
        found = Moment(shown_ns, now.set_back_ns), Moment(shown_ns, before.set_back_ns)
        return min(found, key=lambda at: (at.on(now) > now.time_ns + CLOCK_JUMP_NS, abs(at.on(now) - now.time_ns)))

    async def read(self, session: ClockSession) -> Moment:
        """Read it. A published clock is late: without this, the present may seem earlier than values that are lost."""
        least_ns = self.least_ns()
        server_ns = await session.clock_ns()
        if server_ns is not None:
            self.note_reading(server_ns, least_ns)
        return self.now()


def drift_ns(elapsed_ns: int) -> int:
    """How much a clock may lose against another one in this time."""
    return elapsed_ns * DRIFT_PER_MILLE // 1000


def _set_back_ns(behind_ns: int) -> int:
    """By how much a clock was set back that is so far behind what an earlier process saw: 0 if that may be a delay."""
    return 0 if -SET_AHEAD_NS < behind_ns < SET_WHILE_AWAY_NS else behind_ns


def read_ns(shown_ns: int, answered_ns: int) -> int:
    """When a clock with this reading was read, by its own time. Some servers (asyncua) update the clock that they show
    only once a second, so the time of the answer is better. If it is further ahead, it is of another clock or of a late
    answer, and the reading is used."""
    return answered_ns if shown_ns <= answered_ns <= shown_ns + CLOCK_JUMP_NS else shown_ns
