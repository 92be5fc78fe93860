"""Computes the frontier of a consumer from the ranges that it has confirmed. Core: no IO.

A consumer confirms ranges of offsets in any order, some of them twice. The ranges are merged. The *frontier* is the end
of the longest prefix without a gap, and only the frontier frees space (ADR-0004 of the specification: confirming 0, 1,
2, 4, 5 leaves the frontier at 2; then 3 moves it to 5). It never moves back, and never beyond the end of the log.

A confirmation that is already covered changes nothing and is not an error, because clients repeat a confirmation after
a lost answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.fact_store.core.errors import ConfirmBeyondLog, ConfirmRefused

RANGES_MAX = 10_000  # separate ranges beyond the frontier; parallel work makes tens, so more is a consumer's fault


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a consumer has confirmed: everything up to `frontier`, and `ranges` (first, last) beyond it, sorted, never
    adjacent."""

    frontier: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


def confirm_range(confirmed: Confirmed, first_offset: int | None, last_offset: int, end_offset: int) -> Confirmed:
    """The state after confirming `first_offset` to `last_offset`; without a first offset, all offsets up to the last.

    Raises ConfirmBeyondLog beyond `end_offset`, ConfirmRefused for an empty or invalid range, or more than RANGES_MAX
    of them.
    """
    first = confirmed.frontier + 1 if first_offset is None else first_offset
    if type(first) is not int or type(last_offset) is not int or last_offset < 0 or first < 1:
        raise ConfirmRefused(f"offsets {first_offset!r} to {last_offset!r} are not a range", "offsets start at 1")
    if last_offset > end_offset:
        raise ConfirmBeyondLog(f"offset {last_offset} was confirmed, the log ends at {end_offset}")
    if first_offset is not None and first > last_offset:
        raise ConfirmRefused(
            f"offsets {first} to {last_offset} are an empty range", "give a first offset that is not after the last"
        )
    if last_offset <= confirmed.frontier:
        return confirmed
    merged = _merged(confirmed.ranges, max(first, confirmed.frontier + 1), last_offset)
    if merged[0][0] == confirmed.frontier + 1:
        return Confirmed(merged[0][1], merged[1:])
    if len(merged) > RANGES_MAX:
        raise ConfirmRefused(
            f"{len(merged)} separate ranges beyond {confirmed.frontier}, the limit is {RANGES_MAX}",
            f"confirm offset {confirmed.frontier + 1} first",
        )
    return Confirmed(confirmed.frontier, merged)


def skip_released(confirmed: Confirmed, released_offset: int) -> Confirmed:
    """The state after retention has released all offsets up to one. They can no longer be confirmed, so the frontier
    moves past them, and past a confirmed range right after them."""
    if released_offset <= confirmed.frontier:
        return confirmed
    left = [(max(first, released_offset + 1), last) for first, last in confirmed.ranges if last > released_offset]
    if left and left[0][0] == released_offset + 1:
        return Confirmed(left[0][1], tuple(left[1:]))
    return Confirmed(released_offset, tuple(left))


def _merged(ranges: tuple[tuple[int, int], ...], first: int, last: int) -> tuple[tuple[int, int], ...]:
    """Sorted ranges with one more, joined with each one it overlaps or is adjacent to."""
    before = tuple(span for span in ranges if span[1] < first - 1)
    after = tuple(span for span in ranges if span[0] > last + 1)
    touched = ranges[len(before) : len(ranges) - len(after)]
    if touched:
        first, last = min(first, touched[0][0]), max(last, touched[-1][1])
    return (*before, (first, last), *after)
