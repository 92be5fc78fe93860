"""GapFill against a model of a server that keeps history."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.ingest import quality
from agent.ingest.opcua.history.gap_fill import (
    PAGES_STILL_MAX,
    READS_PER_TAG_FAILED_MAX,
    CallSize,
    FillOutcome,
    GapFill,
    HistoryPage,
    HistoryRange,
    HistoryValue,
)

S = 1_000_000_000
UNSUPPORTED = 0x8072_0000
NO_DATA = 0x809B_0000
BUSY = 0x8082_0000
POINT_INVALID, NO_POINTS = 0x804A_0000, 0x804B_0000


class HistoryServer:
    """Raw history by tag. Pages by continuation point, or by time alone as servers without them do. One that does not
    remember the call counts on from the times of the next (open62541)."""

    def __init__(
        self,
        history: dict[int, list[HistoryValue]],
        *,
        has_points: bool,
        values_max: int = 1_000,
        remembers: bool = True,
    ) -> None:
        self.history, self.has_points, self.values_max, self.remembers = history, has_points, values_max, remembers
        self.session = 1

    def read(self, ranges: list[HistoryRange], values_max: int) -> list[HistoryPage]:
        """Answers as HistoryRead does: one start and one end for all nodes of a call."""
        start_ns, end_ns = min(part.start_ns for part in ranges), max(part.end_ns for part in ranges)
        return [self._page(part, start_ns, end_ns, min(values_max, self.values_max)) for part in ranges]

    def _page(self, asked: HistoryRange, start_ns: int, end_ns: int, limit: int) -> HistoryPage:
        if asked.continuation_point is not None:
            session, *times, done = map(int, asked.continuation_point.split(b" "))
            assert session == self.session, "the continuation point is of a session that has ended"
            start_ns, end_ns = times if self.remembers else (start_ns, end_ns)
        else:
            done = 0
        found = [v for v in self.history.get(asked.tag, []) if start_ns <= v.source_time_ns < end_ns]
        page = found[done : done + limit]
        if not page:
            return HistoryPage(NO_DATA)
        more = self.has_points and done + limit < len(found)
        point = b"%d %d %d %d" % (self.session, start_ns, end_ns, done + limit)
        return HistoryPage(quality.GOOD, page, point if more else None)


def values_at(*times_s: int) -> list[HistoryValue]:
    """Values of these times."""
    return [HistoryValue(at_s * S, at_s, quality.GOOD) for at_s in times_s]


class FewPoints(HistoryServer):
    """A server that holds so many continuation points, and refuses a node that needs one more."""

    def __init__(self, history: dict[int, list[HistoryValue]], points_max: int, *, first_refused: bool = False) -> None:
        super().__init__(history, has_points=True)
        self.points_max, self.first_refused = points_max, first_refused
        self.held: set[int] = set()
        self.refused_total = 0

    def read(self, ranges: list[HistoryRange], values_max: int) -> list[HistoryPage]:
        found = dict(zip(ranges, super().read(ranges, values_max), strict=True))
        self.held -= {asked.tag for asked in ranges if asked.continuation_point is not None}
        for asked in reversed(ranges) if self.first_refused else ranges:
            if found[asked].continuation_point is None:
                continue
            if len(self.held) >= self.points_max:
                found[asked] = HistoryPage(NO_POINTS)
                self.refused_total += 1
            else:
                self.held.add(asked.tag)
        return [found[asked] for asked in ranges]


def gap_of(tags: Iterable[int], nodes_max: int, values_max: int, after_s: int = 0, before_s: int = 9) -> GapFill:
    """The gap of these tags, of which the store has nothing."""
    return GapFill(dict.fromkeys(tags, ()), after_s * S, before_s * S, CallSize(nodes_max, values_max))


def fill(gap: GapFill, server: HistoryServer) -> list[tuple[int, HistoryValue]]:
    """Read until the gap is filled, with a limit of calls."""
    found = []
    for _ in range(10_000):
        call = gap.next_call()
        if not call:
            return found
        samples = gap.answered(call, server.read(call, gap.size.values))
        found += [(sample.tag, HistoryValue(sample.source_time_ns, sample.value, sample.quality)) for sample in samples]
    pytest.fail("the gap is not filled after 10,000 calls")


@given(
    times=st.dictionaries(st.integers(1, 5), st.sets(st.integers(90, 130)), min_size=1),
    after=st.integers(95, 110),
    length=st.integers(0, 15),
    nodes_max=st.integers(1, 4),
    values_max=st.integers(1, 5),
    has_points=st.booleans(),
    remembers=st.booleans(),
    cut_every=st.integers(2, 9),
)
@example(
    times={1: {96}, 2: {96}, 3: {96, 95}, 4: {96, 97}},
    after=95,
    length=1,
    nodes_max=3,
    values_max=1,
    has_points=True,
    remembers=True,
    cut_every=2,
)
@example(
    times={1: set(range(100, 108))},
    after=98,
    length=12,
    nodes_max=1,
    values_max=2,
    has_points=True,
    remembers=False,
    cut_every=9,
)
@example(
    times={tag: set(range(100, 108)) for tag in (1, 2, 3)},
    after=98,
    length=12,
    nodes_max=2,
    values_max=2,
    has_points=True,
    remembers=True,
    cut_every=3,
)
def test_each_missing_value_is_returned_once(
    times: dict[int, set[int]],
    after: int,
    length: int,
    nodes_max: int,
    values_max: int,
    has_points: bool,
    remembers: bool,
    cut_every: int,
) -> None:
    """For any history, gap, page size and loss of continuation points: exactly the values strictly inside the gap
    that the store lacks come back, each once, each tag in the order of time."""
    history = {tag: [HistoryValue(t * S, float(t), 0) for t in sorted(found)] for tag, found in times.items()}
    stored = {tag: {(100 + tag) * S} for tag in times}
    gap = GapFill(stored, after * S, (after + length) * S, CallSize(nodes_max, values_max))
    server = HistoryServer(history, has_points=has_points, values_max=values_max, remembers=remembers)
    found: list[tuple[int, HistoryValue]] = []
    for turn in range(10_000):
        if turn % cut_every == 0:
            gap.forget_continuation_points()
            server.session += 1
        if not (call := gap.next_call()):
            break
        samples = gap.answered(call, server.read(call, gap.size.values))
        found += [(sample.tag, HistoryValue(sample.source_time_ns, sample.value, sample.quality)) for sample in samples]
    for tag in times:
        missing = [v for v in history[tag] if v.source_time_ns not in stored[tag]]
        wanted = [v for v in missing if after * S < v.source_time_ns < (after + length) * S]
        assert [value for number, value in found if number == tag] == wanted
    assert set(gap.outcomes.values()) == {FillOutcome.FILLED}


@pytest.mark.parametrize("values_max", [1, 2, 3, 5])
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_reading_in_the_order_of_recording_begins_again_where_it_is_cut(values_max: int, *, is_refused: bool) -> None:
    """The session ends, or the server has forgotten the continuation point, when the disorder has shown: what is left
    may lie anywhere. What was read is not returned again."""
    times = [100, 110, 120, 101, 111, 121, 102, 112, 122]
    server = HistoryServer({1: [HistoryValue(t * S, float(t), 0) for t in times]}, has_points=True)
    gap = gap_of([1], 1, values_max, 95, 125)
    found: list[int] = []
    while not any(a > b for a, b in pairwise(found)) and len(found) < 5:
        call = gap.next_call()
        found += [sample.source_time_ns for sample in gap.answered(call, server.read(call, values_max))]
    if is_refused:
        gap.answered(gap.next_call(), [HistoryPage(POINT_INVALID)])
    else:
        gap.forget_continuation_points()
    found += [value.source_time_ns for _, value in fill(gap, server)]
    assert sorted(found) == [t * S for t in sorted(times)]
    assert gap.outcomes == {1: FillOutcome.FILLED}


def test_a_server_that_forgets_each_continuation_point_and_gives_no_order_is_given_up() -> None:
    """The same page again is no success."""
    times = [100, 110, 101, 111]
    server = HistoryServer({1: [HistoryValue(t * S, float(t), 0) for t in times]}, has_points=True)
    gap = gap_of([1], 1, 3, 95, 125)
    calls = 0
    while call := gap.next_call():
        calls += 1
        pages = server.read(call, 3) if call[0].continuation_point is None else [HistoryPage(POINT_INVALID)]
        gap.answered(call, pages)
    assert calls == 2 * READS_PER_TAG_FAILED_MAX
    assert gap.outcomes == {1: FillOutcome.FAILED}


def test_several_values_of_one_instant_survive_a_page_that_ends_between_them() -> None:
    """A server that pages by time repeats the last instant; its values are told apart, NaN among them."""
    history = {1: [HistoryValue(t * S, v, 0) for t, v in ((1, 1.0), (2, 2.0), (2, math.nan), (3, 4.0))]}
    gap = gap_of([1], 1, 3)
    found = fill(gap, HistoryServer(history, has_points=False, values_max=3))
    assert [repr(value.value) for _, value in found] == ["1.0", "2.0", "nan", "4.0"]


@pytest.mark.parametrize("points_max", [1, 2, 9])
@pytest.mark.parametrize("first_refused", [True, False])
def test_a_server_with_few_continuation_points_is_read_whole(points_max: int, *, first_refused: bool) -> None:
    """It refuses those nodes of a call for which it has none left, the first or the last of them. These are read again,
    fewer at once, when the others are read to their end; no tag is given up for it."""
    history = {tag: [HistoryValue(t * S, float(t), 0) for t in range(1, 8)] for tag in range(20)}
    server = FewPoints(history, points_max, first_refused=first_refused)
    gap = gap_of(history, 20, 2)
    found = fill(gap, server)
    assert sorted(found) == sorted((tag, value) for tag, values in history.items() for value in values)
    assert set(gap.outcomes.values()) == {FillOutcome.FILLED}
    assert server.refused_total <= 20


def test_a_node_is_not_given_up_for_the_continuation_points_of_others() -> None:
    """However often it is refused beside them."""
    history = {tag: [HistoryValue(5 * S, float(tag), 0)] for tag in range(10)}
    server = HistoryServer(history, has_points=True)
    gap = gap_of(history, READS_PER_TAG_FAILED_MAX + 1, 9)
    sizes = []
    while call := gap.next_call():
        sizes.append(len(call))
        pages = server.read(call, 9)
        if len(call) > 1 and call[0].tag == 0:
            pages[0] = HistoryPage(NO_POINTS)
        gap.answered(call, pages)
    assert sizes[: READS_PER_TAG_FAILED_MAX + 1] == [4, 3, 2, 1]
    assert set(gap.outcomes.values()) == {FillOutcome.FILLED}


def test_a_server_without_a_continuation_point_for_one_node_is_given_up() -> None:
    """Others may hold them all: it is asked some times."""
    server = FewPoints({1: [HistoryValue(t * S, float(t), 0) for t in range(1, 8)]}, 0)
    gap = gap_of([1], 20, 2)
    assert fill(gap, server) == []
    assert gap.outcomes == {1: FillOutcome.FAILED}
    assert server.refused_total == READS_PER_TAG_FAILED_MAX


def test_a_node_without_history_is_distinguished_from_one_that_fails() -> None:
    """Unsupported ends at once as no history; another refusal ends after some attempts as failed; the rest goes on."""
    history = {1: [HistoryValue(5 * S, 1.0, 0)], 2: [], 3: []}
    server = HistoryServer(history, has_points=True)
    gap = gap_of(history, 10, 10)
    calls = 0
    while call := gap.next_call():
        calls += 1
        pages = server.read(call, 10)
        statuses = {2: UNSUPPORTED, 3: BUSY}
        gap.answered(
            call, [HistoryPage(statuses[r.tag]) if r.tag in statuses else p for r, p in zip(call, pages, strict=True)]
        )
    assert gap.outcomes == {1: FillOutcome.FILLED, 2: FillOutcome.NO_HISTORY, 3: FillOutcome.FAILED}
    assert calls == READS_PER_TAG_FAILED_MAX


def test_a_node_that_fails_between_its_pages_is_read_to_the_end() -> None:
    """Only failures in a row count: a busy server that refuses every second call gives all its values."""
    server = HistoryServer({1: [HistoryValue(t * S, float(t), 0) for t in range(1, 21)]}, has_points=False)
    gap, found = gap_of([1], 1, 2, 0, 30), list[float]()
    while call := gap.next_call():
        gap.answered(call, [HistoryPage(BUSY)])
        if call := gap.next_call():
            found += [float(str(sample.value)) for sample in gap.answered(call, server.read(call, gap.size.values))]
    assert gap.outcomes == {1: FillOutcome.FILLED}
    assert found == [float(t) for t in range(1, 21)]


def test_a_size_is_learned_once_and_tried_larger_when_nothing_was_refused() -> None:
    """First fewer nodes, then fewer values, then the truth. The next fill begins with what the one before has learned,
    and a fill without a refusal lets the next one ask for twice as much, as a server may have been busy."""
    size = CallSize(4, 4)
    assert [size.halve(9) and (size.nodes, size.values) for _ in range(5)] == [(2, 4), (1, 4), (1, 2), (1, 1), False]
    size.fill_ended()
    assert (size.nodes, size.values) == (1, 1), "it has learned in this fill"
    size.fill_ended()
    assert (size.nodes, size.values) == (2, 2)
    size.limit_nodes(0)
    size.fill_ended()
    assert (size.nodes, size.values) == (1, 2)
    for _ in range(3):
        size.fill_ended()
    assert (size.nodes, size.values) == (4, 4), "no more than at first"


ENDLESS = {
    "empty pages": [HistoryPage(quality.GOOD, (), b"more")],
    "the same page": [HistoryPage(quality.GOOD, values_at(2, 3), b"more")],
    "two pages in turn": [HistoryPage(quality.GOOD, values_at(n, n + 1), b"%d" % n) for n in (2, 4)],
    "the same full page": [HistoryPage(quality.GOOD, values_at(2, 3))],
}


@pytest.mark.parametrize("pages", ENDLESS.values(), ids=ENDLESS)
def test_a_history_that_never_ends_is_given_up(pages: list[HistoryPage]) -> None:
    """After a bounded number of answers without a new value. Each value is taken once, and the tag beside it is
    filled."""
    fill = gap_of((1, 2), 20, 2)
    taken, calls = [], 0
    while call := fill.next_call():
        answers = {1: pages[calls % len(pages)], 2: HistoryPage(NO_DATA)}
        taken += fill.answered(call, [answers[asked.tag] for asked in call])
        calls += 1
    assert fill.outcomes == {1: FillOutcome.ENDLESS, 2: FillOutcome.FILLED}
    assert calls <= PAGES_STILL_MAX + len(pages)
    assert len(taken) == len({sample.source_time_ns for sample in taken})
