"""Offset ranges: what is covered, and how it is shared."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bsfg.errors import FactsGone
from pyspark_bsfg.ranges import FACTS_MIN_PER_TASK, OffsetRange, resolve, split

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
    parts = split(whole, cores, partitions, facts_max)
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
    assert len(split(OffsetRange(5, 4 + facts), cores, partitions, facts_max)) == tasks


def test_options_narrow_the_range() -> None:
    """Without options all that is held, otherwise what was named."""
    held = OffsetRange(11, 100)
    assert resolve(held, None, None) == held
    assert resolve(held, 20, 30) == OffsetRange(20, 30)
    assert resolve(held, 101, None).facts == 0


@pytest.mark.parametrize("start, end, names", [(10, None, "before 11"), (None, 101, "ends at 100")])
def test_a_range_beyond_the_store_is_refused(start: int | None, end: int | None, names: str) -> None:
    """A range that reaches beyond the store is no shorter range, it is an error that says where the store ends."""
    with pytest.raises(FactsGone, match=names):
        resolve(OffsetRange(11, 100), start, end)
