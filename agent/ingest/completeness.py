"""Up to when a source is complete, and the times of the gap that follows.

A source is *complete up to* a time on its own clock when every value with an earlier time is recorded, or declared
missing. Whatever happens to the source then, what may be missing lies between that time and the first reading of its
clock after the trouble. That is the gap, however it came about.

A clock that was set in between shows some times twice or not at all, so the gap has several spans: in its times as it
is now, as it was, and as it was between two sets. The time up to which a source is complete is stored with its samples,
so that the next process declares what this one did not receive. Core: no IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CLOCK_JUMP_NS = 2_000_000_000  # a difference that publishing does not explain: the clock was set
STOOD_STILL_NS_MAX = 366 * 86_400 * 1_000_000_000  # a machine without a battery clock that was off, or was suspended


class Moment(NamedTuple):
    """A time on the clock of a source, and by how much in total that clock had been set back until then; negative: it
    was set ahead."""

    time_ns: int
    set_back_ns: int = 0

    def on(self, now: Moment) -> int:
        """This time on the clock as it is set at `now`."""
        return self.time_ns - (now.set_back_ns - self.set_back_ns)


class Stored(NamedTuple):
    """Up to when an earlier process was complete, and by how much the clock of the source was ahead of ours then; None:
    not known, or ours was not believed."""

    complete_ns: int
    ahead_ns: int | None = None


def spans(since: Moment, until: Moment, sets: Iterable[Moment] = ()) -> list[tuple[int, int]]:
    """The spans in which values have times that were sampled from `since` to `until`: in the times of the clock as it
    is now, and if it was set in between, also as it was. If it seems to have been set ahead, the first has the time
    between as well. `sets`: when it was set, on the clock as it was then."""
    first_ns = begun_ns = since.on(until)
    if 0 < first_ns - since.time_ns <= STOOD_STILL_NS_MAX:
        begun_ns = since.time_ns  # ours may have stood still: the time between has values
    found = [(min(begun_ns, until.time_ns), max(begun_ns, until.time_ns))]
    earlier = [since, *(moment for moment in sets if moment.on(until) > first_ns)]
    for set_back_ns in dict.fromkeys(moment.set_back_ns for moment in earlier):
        if set_back_ns != until.set_back_ns:
            begin_ns = since.on(Moment(0, set_back_ns))
            # It may have been ahead of its last reading when it was set.
            found.append((begin_ns, max(begin_ns, begin_ns + until.time_ns - first_ns + CLOCK_JUMP_NS)))
    return found


def earliest(moments: Iterable[Moment], now: Moment) -> Moment | None:
    """The moment that is furthest back; None of none."""
    return min(moments, key=lambda moment: moment.on(now), default=None)
