"""Plans the filling of one gap: what to read next, and which of the values read are missing in the store.

Everything up to `after_ns` was delivered before the gap, and everything from `before_ns` on is delivered live. Values
strictly between are missing. They are read forward, many tags in one call, each tag page after page by continuation
point, or from the last value read if the server gives none.

Each value is accepted once: one that is read again is recognised by time, value and status. `stored` has the times that
are already in the store.

The pages of one reading may not be in the order of time: a server whose clock was set back may return its values as it
recorded them (node-opcua). So only the server decides that there are no more, and a reading that ends early begins
again.

Core: takes answers, returns samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

from agent.ingest import quality
from agent.message import Sample, Value

TICK_NS = 100  # resolution of a DateTime
READS_PER_TAG_FAILED_MAX = 3  # a node that fails this often is given up
PAGES_STILL_MAX = 100  # in a row, of a node, without a new value and with more to come: the server never ends
VALUES_KNOWN_MAX = 50_000  # of one tag, by which a repeated value is recognised; for 20 tags in one call 70 MB


class HistoryRange(NamedTuple):
    """One node of a HistoryRead call. Times in ns since 1970; `start_ns` is included, `end_ns` is excluded."""

    tag: int
    start_ns: int
    end_ns: int
    continuation_point: bytes | None = None


class HistoryValue(NamedTuple):
    """One value of a server's history. The quality is the StatusCode of the server."""

    source_time_ns: int
    value: Value
    quality: int


class HistoryPage(NamedTuple):
    """A server's answer for one node. With a continuation point there is more."""

    status: int
    values: Sequence[HistoryValue] = ()
    continuation_point: bytes | None = None


class FillOutcome(Enum):
    """The result for one tag."""

    FILLED = "filled"
    NO_HISTORY = "no_history"
    FAILED = "failed"
    ENDLESS = "endless"  # the server goes on answering that there is more
    NODE_GONE = "node_gone"  # its history may be there when the node exists again


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
_NO_CONTINUATION_POINTS = 0x804B_0000  # BadNoContinuationPoints: the server cannot hold more
_NO_DATA = frozenset({0x809B_0000, 0x80D7_0000})  # BadNoData, BadBoundNotFound: the answer is complete and empty


@dataclass(slots=True)
class _Cursor:
    """The progress of one tag."""

    start_ns: int  # of the next reading: the newest value read
    continuation_point: bytes | None = None
    call_start_ns: int | None = None  # of the call that returned the continuation point
    known: set[int] = field(default_factory=set)  # digests of time, value and status of the values read
    knows_all: bool = True  # otherwise only those of the newest instants
    failures: int = 0
    still: int = 0  # pages in a row without a new value

    def takes(self, value: HistoryValue) -> bool:
        """Note a value that was read. True if it is new."""
        if value.source_time_ns > self.start_ns:
            if len(self.known) >= VALUES_KNOWN_MAX:
                self.known, self.knows_all = set(), False
            self.start_ns = value.source_time_ns
        elif value.source_time_ns < self.start_ns and not self.knows_all:
            return False
        digest = hash((value.source_time_ns, repr(value.value), value.quality))
        is_new = digest not in self.known
        self.known.add(digest)
        return is_new


class CallSize:
    """What one call asks for: at most `nodes` nodes, and `values` values of each. A server does not say its limits, so
    they are learned from what it refuses, and kept for the fills that follow."""

    def __init__(self, nodes_max: int, values_max: int) -> None:
        assert nodes_max >= 1 <= values_max, "a call reads at least one value of one node"
        self._nodes_max, self._values_max = nodes_max, values_max
        self.nodes, self.values = nodes_max, values_max
        self._is_refused = False

    def halve(self, nodes: int) -> bool:
        """A call of this many nodes was refused. True if a smaller one is to be tried."""
        self._is_refused = True
        if min(self.nodes, nodes) > 1:
            self.nodes = min(self.nodes, nodes) // 2
        elif self.values > 1:
            self.values //= 2
        else:
            return False
        return True

    def limit_nodes(self, nodes: int) -> None:
        """The server answered only this many nodes of a call."""
        self._is_refused = True
        self.nodes = max(1, min(self.nodes, nodes))

    def fill_ended(self) -> None:
        """Ask for more again in the next fill if nothing was refused in this one: a server may have been busy."""
        if not self._is_refused:
            self.nodes = min(2 * self.nodes, self._nodes_max)
            self.values = min(2 * self.values, self._values_max)
        self._is_refused = False


class GapFill:
    """Fills the gap of some tags with calls of this size. `after_ns` and `before_ns` are excluded."""

    def __init__(self, stored: Mapping[int, Collection[int]], after_ns: int, before_ns: int, size: CallSize) -> None:
        """`stored`: by tag, the times that are already in the store."""
        self._stored, self._after_ns, self.before_ns = stored, after_ns, before_ns
        self._open = {tag: _Cursor(after_ns) for tag in stored if before_ns - after_ns > 1}
        self.outcomes = dict.fromkeys(stored.keys() - self._open.keys(), FillOutcome.FILLED)
        self.size = size
        self._is_ordered = True  # the server has returned everything in the order of time

    def next_call(self) -> list[HistoryRange]:
        """What to read next, in one call. Some tags are read to their end before others begin, so that the server holds
        few continuation points; tags with one come first. A call has one start for all its nodes, so only tags with
        the same start are combined. A call with continuation points has the start of the call that returned them,
        because some servers (open62541) count from there."""
        kinds = (
            (cursor.continuation_point is None, cursor.call_start_ns or cursor.start_ns)
            for cursor in self._open.values()
        )
        kind = min(kinds, key=lambda kind: kind[0], default=None)
        alike = (
            HistoryRange(tag, start_ns, self.before_ns, cursor.continuation_point)
            for tag, cursor in self._open.items()
            if (cursor.continuation_point is None, start_ns := cursor.call_start_ns or cursor.start_ns) == kind
        )
        return list(islice(alike, self.size.nodes))

    def forget_continuation_points(self) -> None:
        """The session has ended, and its continuation points with it. Reading continues from the last value, or begins
        again if the server returns values in another order."""
        for cursor in self._open.values():
            self._break_off(cursor)

    def _break_off(self, cursor: _Cursor) -> None:
        if cursor.continuation_point is not None and not self._is_ordered and cursor.knows_all:
            cursor.start_ns = self._after_ns  # the rest may be anywhere
        cursor.continuation_point = cursor.call_start_ns = None

    def give_up(self, outcome: FillOutcome, tags: Collection[int] | None = None) -> None:
        """End these open tags with this outcome, by default all."""
        for tag in [tag for tag in self._open if tags is None or tag in tags]:
            self._end_tag(tag, outcome)

    def answered(self, ranges: Sequence[HistoryRange], pages: Sequence[HistoryPage]) -> list[Sample]:
        """Take in the answer to a call. Returns the missing samples, by tag and in the order of time."""
        assert len(ranges) == len(pages), "one page for each node"
        missing: list[Sample] = []
        self._read_fewer(pages)
        for asked, page in zip(ranges, pages, strict=True):
            cursor = self._open.get(asked.tag)
            if cursor is None:
                continue  # given up meanwhile
            if quality.is_bad(page.status) and page.status & quality.CODE_BITS not in _NO_DATA:
                self._refused(asked.tag, cursor, page.status, is_alone=len(ranges) == 1)
                continue
            taken, stored = self._taken(cursor, page), self._stored[asked.tag]
            missing += [Sample(asked.tag, *value) for value in taken if value.source_time_ns not in stored]
            has_moved = bool(taken)
            if has_moved:  # otherwise a reading that begins again and again would count as a success
                cursor.failures = 0
            cursor.still = 0 if has_moved else cursor.still + 1
            cursor.continuation_point = page.continuation_point or None
            cursor.call_start_ns = asked.start_ns if page.continuation_point else None
            if cursor.continuation_point is None and len(page.values) < self.size.values:
                has_all = self._is_ordered or cursor.knows_all
                self._end_tag(asked.tag, FillOutcome.FILLED if has_all else FillOutcome.FAILED)
            elif cursor.still >= PAGES_STILL_MAX:
                self._end_tag(asked.tag, FillOutcome.ENDLESS)
            elif cursor.continuation_point is None and not has_moved:
                # A full page without a continuation point: the server pages by time, and one instant fills the page.
                cursor.start_ns += TICK_NS
        return missing

    def _taken(self, cursor: _Cursor, page: HistoryPage) -> list[HistoryValue]:
        """The new values of a page within the gap, in the order of time. The cursor moves past them."""
        values, read_ns = sorted(page.values, key=_time), cursor.start_ns
        within = [value for value in values if self._after_ns < value.source_time_ns < self.before_ns]
        found = [value for value in within if cursor.takes(value)]
        is_late = bool(found) and found[0].source_time_ns < read_ns
        self._is_ordered &= not is_late and [*map(_time, values)] == [*map(_time, page.values)]
        return found

    def _read_fewer(self, pages: Sequence[HistoryPage]) -> None:
        """If the server had no continuation points for some nodes, read only as many nodes in a call as it had for."""
        refused = sum(page.status & quality.CODE_BITS == _NO_CONTINUATION_POINTS for page in pages)
        if refused:
            self.size.limit_nodes(len(pages) - refused or len(pages) // 2)

    def _refused(self, tag: int, cursor: _Cursor, status: int, *, is_alone: bool) -> None:
        self._break_off(cursor)  # the continuation point is lost
        if status & quality.CODE_BITS == _NO_CONTINUATION_POINTS and not is_alone:
            return  # read again in a smaller call
        cursor.failures += 1
        if status & quality.CODE_BITS in quality.GONE:
            self._end_tag(tag, FillOutcome.NODE_GONE)
        elif status & quality.CODE_BITS in _NO_HISTORY:
            self._end_tag(tag, FillOutcome.NO_HISTORY)
        elif cursor.failures >= READS_PER_TAG_FAILED_MAX:
            self._end_tag(tag, FillOutcome.FAILED)

    def _end_tag(self, tag: int, outcome: FillOutcome) -> None:
        del self._open[tag]
        self.outcomes[tag] = outcome


def _time(value: HistoryValue) -> int:
    return value.source_time_ns
