"""The frontier: tables, the specification's example, and a set as the model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fact_store.core.errors import ConfirmBeyondLog, ConfirmRefused
from agent.fact_store.core.frontier import RANGES_MAX, Confirmed, confirm_range

END = 40


def test_adr_0004_example() -> None:
    """The example of ADR-0004, counted from 1: 1, 2, 3, 5, 6 leave the frontier at 3; then 4 moves it to 6."""
    confirmed = Confirmed()
    for offset in (1, 2, 3, 5, 6):
        confirmed = confirm_range(confirmed, offset, offset, END)
    assert confirmed == Confirmed(3, ((5, 6),))
    assert confirm_range(confirmed, 4, 4, END) == Confirmed(6)


@pytest.mark.parametrize("first, last", [(0, 3), (-1, 3), (5, 4), (None, -1), (True, 3), (1, 2.0)])
def test_invalid_ranges(first: int | None, last: int) -> None:
    """An empty, negative or non-integer range is refused by name."""
    with pytest.raises(ConfirmRefused, match="offsets"):
        confirm_range(Confirmed(), first, last, END)


@pytest.mark.parametrize("first", [None, 1, END + 1])
def test_offsets_beyond_the_log_cannot_be_confirmed(first: int | None) -> None:
    """An offset that was never written cannot be confirmed."""
    with pytest.raises(ConfirmBeyondLog, match=f"the log ends at {END}"):
        confirm_range(Confirmed(), first, END + 1, END)


def test_separate_ranges_are_limited() -> None:
    """A consumer that confirms every second fact is refused beyond the limit, with the missing offset."""
    islands = tuple((offset, offset) for offset in range(3, 3 + 2 * RANGES_MAX, 2))
    full = Confirmed(1, islands)
    with pytest.raises(ConfirmRefused, match="confirm offset 2 first"):
        confirm_range(full, 10 * RANGES_MAX, 10 * RANGES_MAX, 100 * RANGES_MAX)
    assert confirm_range(full, 2, 2, 100 * RANGES_MAX).frontier == 3
    last = islands[-1][0]
    assert confirm_range(Confirmed(1, islands[:-1]), last, last, last) == full


@given(st.lists(st.tuples(st.none() | st.integers(1, END), st.integers(0, END)), max_size=30))
def test_confirmations_in_any_order_give_the_same_state(receipts: list[tuple[int | None, int]]) -> None:
    """In whatever order ranges are confirmed, the state is that of a set of offsets, and the frontier never moves
    back."""
    confirmed, offsets = Confirmed(), set[int]()
    for first, last in receipts:
        if first is not None and first > last:
            continue
        after = confirm_range(confirmed, first, last, END)
        offsets.update(range(first or 1, last + 1))
        assert after.frontier >= confirmed.frontier
        confirmed = after
        frontier = next(offset for offset in range(END + 2) if offset + 1 not in offsets)
        assert confirmed.frontier == frontier
        beyond = {offset for first_, last_ in confirmed.ranges for offset in range(first_, last_ + 1)}
        assert beyond == {offset for offset in offsets if offset > frontier}
        edges = [frontier, *(edge for pair in confirmed.ranges for edge in pair)]
        assert all(right - left > 1 for left, right in zip(edges[::2], edges[1::2], strict=False)), (
            "ranges must not touch"
        )
