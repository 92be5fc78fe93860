"""Set operations on sorted, disjoint ranges (first, last) of integers, both ends included. Core: no IO.

Used for offsets and sequences, which form runs of millions: the cost depends on the number of ranges, not on their
length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]


def intersect(left: Iterable[Span], right: Iterable[Span]) -> list[Span]:
    """The numbers in both. Each resulting span lies within one span of either."""
    found, rights = [], list(right)
    at = 0
    for first, last in left:
        while at < len(rights) and rights[at][1] < first:
            at += 1
        for other_first, other_last in rights[at:]:
            if other_first > last:
                break
            found.append((max(first, other_first), min(last, other_last)))
    return found


def subtract(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """The numbers in `spans` that are not in `taken`."""
    return list(_subtract(spans, list(taken)))


def count(spans: Iterable[Span]) -> int:
    """How many numbers are in the spans."""
    return sum(last - first + 1 for first, last in spans)


def _subtract(spans: Iterable[Span], taken: list[Span]) -> Iterator[Span]:
    at = 0
    for first, last in spans:
        while at < len(taken) and taken[at][1] < first:
            at += 1
        start = first
        for taken_first, taken_last in taken[at:]:
            if taken_first > last:
                break
            if taken_first > start:
                yield start, taken_first - 1
            start = taken_last + 1
        if start <= last:
            yield start, last
