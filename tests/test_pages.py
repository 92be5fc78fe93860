"""Sets of numbers as ranges: the same as Python's sets of single numbers."""

from hypothesis import given
from hypothesis import strategies as st

from agent.pages import Span, count, intersect, subtract


def _spans(numbers: set[int]) -> list[Span]:
    """Sorted, disjoint ranges of consecutive numbers; some runs are left in two pieces that touch."""
    found = list[Span]()
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1 and number % 5:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _numbers(spans: list[Span]) -> list[int]:
    return [number for first, last in spans for number in range(first, last + 1)]


@given(left=st.sets(st.integers(1, 40)), right=st.sets(st.integers(1, 40)))
def test_ranges_are_sets(left: set[int], right: set[int]) -> None:
    """Intersection, difference and count are those of the numbers, sorted and without repetition."""
    assert _numbers(intersect(_spans(left), _spans(right))) == sorted(left & right)
    assert _numbers(subtract(_spans(left), _spans(right))) == sorted(left - right)
    assert count(_spans(left)) == len(left)
