"""Offset ranges: what is covered, and how it is shared."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bsfg.errors import FactsGone
from pyspark_bsfg.ranges import FACTS_MIN_PER_TASK, OffsetRange, joined, recorded, resolve, split, task_count

FIRSTS = st.integers(1, 2**62)


@given(
    FIRSTS,
    st.integers(1, 10**7),
    st.integers(1, 64),
    st.one_of(st.none(), st.integers(1, 500)),
    st.integers(10**4, 10**9),
)
def test_every_offset_is_in_exactly_one_task(
    first: int, facts: int, cores: int, partitions: int | None, facts_max: int
) -> None:
    """Tasks lie end to end, fill the range, differ by one fact at most, and none exceeds its limit."""
    whole = OffsetRange(first, first + facts - 1)
    parts = split([whole], task_count(facts, cores, partitions, facts_max))
    assert parts[0].first == whole.first
    assert parts[-1].last == whole.last
    assert all(left.last + 1 == right.first for left, right in pairwise(parts))
    sizes = {part.facts for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= facts_max
    assert min(sizes) > 0


@pytest.mark.parametrize(
    "facts, cores, partitions, facts_max, tasks",
    [
        (0, 4, None, 10, 0),
        (1, 4, None, 10**6, 1),
        (FACTS_MIN_PER_TASK * 2, 8, None, 10**6, 2),  # not worth eight tasks
        (10**6, 2, None, 10**6, 2),
        (10**6, 2, 7, 10**6, 7),  # as asked
        (10**6, 2, 1, 10**5, 10),  # asked, but none may get so much
        (3, 2, 100, 10**6, 3),  # no task without a fact
    ],
)
def test_how_many_tasks(facts: int, cores: int, partitions: int | None, facts_max: int, tasks: int) -> None:
    """The number of tasks follows the documentation of the options."""
    count = task_count(facts, cores, partitions, facts_max)
    assert count == tasks == len(split([OffsetRange(5, 4 + facts)], count))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=12), st.integers(1, 9))
def test_facts_between_gaps_are_shared_too(gaps_and_facts: list[tuple[int, int]], tasks: int) -> None:
    """Where filters leave only parts of a range, each fact of the parts is in one task, and tasks get equal shares."""
    parts, at = [], 1
    for gap, facts in gaps_and_facts:
        parts.append(OffsetRange(at + gap, at + gap + facts - 1))
        at += gap + facts
    left = [offset for part in parts for offset in range(part.first, part.last + 1)]
    shares = [[offset for offset in left if share.first <= offset <= share.last] for share in split(parts, tasks)]
    assert [part for share in shares for part in share] == left
    assert (
        {len(share) for share in shares} <= {len(left) // len(shares), -(-len(left) // len(shares))} if left else True
    )
    touching = list(joined(parts))
    assert [offset for part in touching for offset in range(part.first, part.last + 1)] == left
    assert all(first.last + 1 < second.first for first, second in pairwise(touching))


def test_options_narrow_the_range() -> None:
    """Without options all that is held, otherwise what was named."""
    held = OffsetRange(11, 100)
    assert resolve(held, None, None) == held
    assert resolve(held, 20, 30) == OffsetRange(20, 30)
    assert resolve(held, 101, None).facts == 0


@pytest.mark.parametrize(
    "start, end, names", [(10, None, "before 11"), (None, 101, "ends at 100"), (102, None, "ends at 100")]
)
def test_a_range_beyond_the_store_is_refused(start: int | None, end: int | None, names: str) -> None:
    """A range that reaches beyond the store is no shorter range, it is an error that says where the store ends."""
    with pytest.raises(FactsGone, match=names):
        resolve(OffsetRange(11, 100), start, end)


@pytest.mark.parametrize(
    "since, before, span",
    [
        (None, None, (11, 100)),
        (60, 120, (20, 39)),  # marks at exactly these times
        (61, 121, (20, 69)),  # a minute more at each side, nothing less
        (150, 160, (40, 69)),
        (0, 5, (11, 10)),  # before the first mark
        (500, None, (70, 100)),
        (None, 500, (11, 100)),
        (60, 60, (20, 19)),
    ],
)
def test_times_are_widened_to_marks(since: int | None, before: int | None, span: tuple[int, int]) -> None:
    """Everything recorded since one time and before another is in the range, and at most a mark more at each end."""
    marks = [(11, 10), (20, 60), (40, 120), (70, 180)]
    assert recorded(OffsetRange(11, 100), marks, since, before) == OffsetRange(*span)
    assert recorded(OffsetRange(11, 100), [], since, before) == OffsetRange(11, 100)


def test_a_clock_that_was_set_back_hides_nothing() -> None:
    """Each fact that a mark of the time stands before is in the range."""
    marks = [(1, 100), (10, 200), (20, 150), (30, 250)]
    assert recorded(OffsetRange(1, 40), marks, 180, 190) == OffsetRange(1, 29)
