"""Sets of whole numbers as sorted, disjoint ranges (first, last), both ends included: what they have in common, and what is left.

For offsets and sequences, which come in runs of millions; nothing here is ever counted out. Core: no IO.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]


def intersect(left: Iterable[Span], right: Iterable[Span]) -> list[Span]:
    """What both hold. Each piece lies within one span of either."""
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
    """What `spans` hold and `taken` do not."""
    return list(_subtract(spans, list(taken)))


def count(spans: Iterable[Span]) -> int:
    """How many numbers they hold."""
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
