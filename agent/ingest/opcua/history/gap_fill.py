"""The work of filling one gap: which values of which tags to read next, and which of the values read are missing here.

Each tag has a window: everything up to `after_ns` was delivered before the gap, everything from `before_ns` on is
delivered live. Values strictly between them are missing. They are read forward, many tags in one call, each tag page
after page by continuation point, or from the last value read where a server gives none.

A value is accepted once. A page that begins again at the last value read repeats values of that instant, which are
recognised by time, value and status. After a restart of the process the lower end of a window is only known to within
some seconds; `stored` then names the times that are in the store already.

Core: takes answers, returns samples; no IO and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

from agent.ingest import quality
from agent.message import Sample, Value

SEAM_NS = 10_000_000_000
"""How long before the last sign of life a value may lie that was not delivered: it was sampled, and waited for the next
publication. Sampling and publishing intervals beyond this are refused by no server but are no way to watch a plant."""
TICK_NS = 100  # resolution of a DateTime
READS_PER_TAG_FAILED_MAX = 3  # a node that fails as often is given up; a server that is busy answers sooner


class Window(NamedTuple):
    """Where values of a tag are missing, in ns of source time since 1970.

    `after_ns` is the time of its last value and `before_ns` that of the first one after the gap, both excluded.
    `lost_ns` is when the gap began: a tag whose value stood still has its last value long before.
    """

    after_ns: int
    lost_ns: int
    before_ns: int


class HistoryRange(NamedTuple):
    """One node of a HistoryRead call. Times in ns since 1970, `start_ns` included, `end_ns` excluded."""

    tag: int
    start_ns: int
    end_ns: int
    continuation_point: bytes | None = None


class HistoryValue(NamedTuple):
    """One value of a server's history. The quality is the server's StatusCode."""

    source_time_ns: int
    value: Value
    quality: int


class HistoryPage(NamedTuple):
    """A server's answer for one node. A continuation point says that there is more."""

    status: int
    values: Sequence[HistoryValue] = ()
    continuation_point: bytes | None = None


class Outcome(Enum):
    """How the reading of one tag ended."""

    FILLED = "filled"
    NO_HISTORY = "no_history"
    FAILED = "failed"
    NODE_GONE = "node_gone"  # its history may be there when the node is again


# Status codes (OPC 10000-6, Annex A.2) of nodes without history, or whose history we may not read: asking again changes
# nothing.
_NO_HISTORY = frozenset(
    {
        0x8072_0000,  # BadHistoryOperationUnsupported
        0x8071_0000,  # BadHistoryOperationInvalid
        0x800B_0000,  # BadServiceUnsupported
        0x803A_0000,  # BadNotReadable
        0x801F_0000,  # BadUserAccessDenied
        quality.BAD_NOT_SUPPORTED,
    }
)
_NO_DATA = frozenset({0x809B_0000, 0x80D7_0000})  # BadNoData, BadBoundNotFound: the answer is complete and empty


@dataclass(slots=True)
class _Cursor:
    """How far one tag has been read."""

    window: Window
    start_ns: int
    continuation_point: bytes | None = None
    call: tuple[int, int] | None = None  # start and end of the call that gave the continuation point
    last: set[tuple[str, int]] = field(default_factory=set)  # value and status of what was read at `start_ns`
    has_moved: bool = True  # since it was last read without a continuation point
    is_alone: bool = False  # to be read from its own start only
    failures: int = 0


class GapFill:
    """Fills the windows of one gap. `nodes_max` nodes in one call, `values_max` values of each."""

    def __init__(
        self,
        windows: Mapping[int, Window],
        nodes_max: int,
        values_max: int,
        stored: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        assert nodes_max >= 1 <= values_max, "a call reads something"
        self._open = {
            tag: _Cursor(window, max(window.after_ns, window.lost_ns - SEAM_NS))
            for tag, window in windows.items()
            if window.before_ns - window.after_ns > 1
        }
        self.windows = windows
        self.outcomes = dict.fromkeys((tag for tag in windows if tag not in self._open), Outcome.FILLED)
        self._nodes_max, self.values_max = nodes_max, values_max
        self._stored = stored or {}
        self.values_total = 0

    @property
    def is_done(self) -> bool:
        return not self._open

    def next_call(self) -> list[HistoryRange]:
        """What to read now, in one call. The same tags are read to their end before others begin, so that a server
        holds few continuation points. A call has one start for all its nodes, so these lie close together in it; one
        with continuation points has the times of the call that gave them, for some servers (open62541) count from
        there."""
        if not self._open:
            return []
        first = next(iter(self._open.values()))
        alike = (
            HistoryRange(tag, *(cursor.call or (cursor.start_ns, cursor.window.before_ns)), cursor.continuation_point)
            for tag, cursor in self._open.items()
            if cursor.call == first.call and (first.call is not None or _are_near(cursor, first))
        )
        return list(islice(alike, self._nodes_max))

    def call_too_large(self) -> bool:
        """The server refuses so much in one call. True if a smaller one is to be tried."""
        if self._nodes_max > 1:
            self._nodes_max //= 2
        elif self.values_max > 1:
            self.values_max //= 2
        else:
            return False
        return True

    def forget_continuation_points(self) -> None:
        """The session that gave them has ended; reading goes on from the last value.

        A tag whose pages held only what lies before its own start would get the same pages again, as often as
        sessions end: it is read from its own start from now on.
        """
        for cursor in self._open.values():
            cursor.is_alone |= cursor.continuation_point is not None and not cursor.has_moved
            cursor.continuation_point = cursor.call = None

    def give_up(self, outcome: Outcome) -> None:
        """End all that is open with this outcome."""
        self.outcomes.update(dict.fromkeys(self._open, outcome))
        self._open.clear()

    def answered(self, ranges: Sequence[HistoryRange], pages: Sequence[HistoryPage]) -> list[Sample]:
        """Take in the answer to a call. Returns the missing samples, tag by tag in the order of time."""
        assert len(ranges) == len(pages), "one page for each node"
        missing: list[Sample] = []
        call = min(asked.start_ns for asked in ranges), max(asked.end_ns for asked in ranges)
        for asked, page in zip(ranges, pages, strict=True):
            cursor = self._open.get(asked.tag)
            if cursor is None:
                continue  # given up meanwhile
            if quality.is_bad(page.status) and page.status & quality.CODE_BITS not in _NO_DATA:
                self._refused(asked.tag, cursor, page.status)
                continue
            cursor.failures = 0
            read_before = cursor.start_ns, len(cursor.last)
            missing += self._missing(asked.tag, cursor, page)
            has_moved = (cursor.start_ns, len(cursor.last)) != read_before
            cursor.has_moved = has_moved or (asked.continuation_point is not None and cursor.has_moved)
            cursor.continuation_point = page.continuation_point or None
            cursor.call = call if page.continuation_point else None
            # One call has one end for all its nodes: values behind the window fill pages too.
            is_behind = any(value.source_time_ns >= cursor.window.before_ns for value in page.values)
            if cursor.continuation_point is not None and not is_behind:
                continue
            if is_behind or len(page.values) < self.values_max:
                self._end(asked.tag, Outcome.FILLED)
            elif not has_moved:
                # A full page without a continuation point: this server pages by time, and one instant filled the page.
                cursor.start_ns += TICK_NS
        self.values_total += len(missing)
        return missing

    def _missing(self, tag: int, cursor: _Cursor, page: HistoryPage) -> list[Sample]:
        """The values of a page that were not recorded; the cursor moves behind them."""
        stored = self._stored.get(tag, ())
        found: list[Sample] = []
        for time_ns, value, status in sorted(page.values, key=_time):
            if not cursor.window.after_ns < time_ns < cursor.window.before_ns or time_ns < cursor.start_ns:
                continue
            known = (repr(value), status)  # as text: NaN equals nothing, and 1 is not True
            if time_ns > cursor.start_ns:
                cursor.start_ns = time_ns
                cursor.last.clear()
            elif known in cursor.last:
                continue
            cursor.last.add(known)
            if time_ns not in stored:
                found.append(Sample(tag, time_ns, value, status))
        return found

    def _refused(self, tag: int, cursor: _Cursor, status: int) -> None:
        cursor.continuation_point = cursor.call = None  # lost or refused with the rest: read on from the last value
        cursor.failures += 1
        if status & quality.CODE_BITS in quality.GONE:
            self._end(tag, Outcome.NODE_GONE)
        elif status & quality.CODE_BITS in _NO_HISTORY:
            self._end(tag, Outcome.NO_HISTORY)
        elif cursor.failures >= READS_PER_TAG_FAILED_MAX:
            self._end(tag, Outcome.FAILED)

    def _end(self, tag: int, outcome: Outcome) -> None:
        del self._open[tag]
        self.outcomes[tag] = outcome


def _are_near(one: _Cursor, other: _Cursor) -> bool:
    return abs(one.start_ns - other.start_ns) <= (0 if one.is_alone or other.is_alone else SEAM_NS)


def _time(value: HistoryValue) -> int:
    return value.source_time_ns
