"""The decision about a batch that arrives, from what is held of its zone. Core: no IO.

A life assigns its sequences without gaps, and its batches form a hash chain, so a batch is compared with a few ranges
and no fact is looked up. Each range has the digest that its first batch names as predecessor and the digest of its last
batch. Batches are never merged or cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.batch import NO_DIGEST
from agent.pages import HeldRange

RANGES_MAX = 1000  # each gap is an incident for an operator; a batch that would add one more is refused

BatchAt = Callable[[int], HeldRange | None]
"""The batch of a life that holds a sequence; None if it is released or damaged."""


@dataclass(frozen=True, slots=True)
class Insert:
    """Store the batch; `ranges` are held afterwards. `fork`: how it contradicts a neighbour, which stays. `is_start`:
    it begins a range."""

    ranges: tuple[HeldRange, ...]
    is_start: bool
    fork: str = ""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is held already."""


@dataclass(frozen=True, slots=True)
class LifeRefused:
    """Other facts are held under these sequences of the same life. `held`: the batch there, if it is not released."""

    why: str
    held: HeldRange | None = None


def decide_insert(
    ranges: tuple[HeldRange, ...], offered: HeldRange, batch_at: BatchAt
) -> Insert | Duplicate | LifeRefused:
    """Decide about a batch, given as the range `offered`, where `ranges` of its life (sorted, disjoint) are held.

    its sequences are   it                                                     decision
    ------------------  -----------------------------------------------------  ----------------------------------------
    held                is another batch, or overlaps one in part              LifeRefused
                        is the batch held there, or cannot be compared         Duplicate
    not held            follows a range here, or precedes one, by its digests  Insert, joined
                        lies beside a range whose digest does not fit          Insert, a range of its own; a fork
                        lies apart                                             Insert, a range of its own
    """
    first, last, before, _ = offered
    text = f"{first} to {last}"
    at = bisect_right(ranges, first, key=lambda held: held.first_sequence)
    left, right = ranges[at - 1] if at else None, ranges[at] if at < len(ranges) else None
    if (first == 1) != (before == NO_DIGEST):
        return LifeRefused(f"sequence {first} names {before.hex()} as predecessor")
    if left is not None and first <= left.last_sequence:
        stored = batch_at(first)
        if last > left.last_sequence or (stored is not None and stored != offered):
            return LifeRefused(f"{text} is another batch than the one held", stored)
        is_other_end = last == left.last_sequence and offered.last_digest != left.last_digest
        # What is released can be compared only where a range begins or ends.
        if is_other_end or (first == left.first_sequence and before != left.first_previous_digest):
            return LifeRefused(f"{text} is another batch than the one that was held")
        return Duplicate()
    if right is not None and last >= right.first_sequence:
        held = f"{right.first_sequence} to {right.last_sequence}"
        return LifeRefused(f"{text} overlaps {held}, which is held", batch_at(right.first_sequence))
    fork, joined, begin, end = "", offered, at, at
    if left is not None and left.last_sequence + 1 == first:
        if left.last_digest == before:
            joined, begin = _join(left, joined), at - 1
        else:
            fork = f"{text} follows {before.hex()}, held is {left.last_digest.hex()}"
    if right is not None and last + 1 == right.first_sequence:
        if offered.last_digest == right.first_previous_digest:
            joined, end = _join(joined, right), at + 1
        else:
            fork = f"{text} is {offered.last_digest.hex()}, its successor follows another batch"
    if len(ranges) + 1 - (end - begin) > RANGES_MAX:
        return LifeRefused(f"{text} would be the {RANGES_MAX + 1}th separate range of its life")
    return Insert((*ranges[:begin], joined, *ranges[end:]), begin == at, fork)


def _join(left: HeldRange, right: HeldRange) -> HeldRange:
    return left._replace(last_sequence=right.last_sequence, last_digest=right.last_digest)


# ----------------------------------------------------------------------------------------- what a batch continues


class Branch(NamedTuple):
    """The history of a zone divides after a sequence: facts of `life` follow it as well. `is_exact`: not earlier."""

    life: bytes
    after_sequence: int
    is_exact: bool = True


class MissingSequences(NamedTuple):
    """What a batch continues is not held: sequences of its zone that are missing before it."""

    first_sequence: int
    last_sequence: int


Held = Mapping[bytes, tuple[HeldRange, ...]]
"""What is held of a zone in a stream, by life."""


def is_followed(held: HeldRange, offered: HeldRange) -> bool:
    """Whether a batch continues a range at its end."""
    return (held.last_sequence + 1, held.last_digest) == (offered.first_sequence, offered.first_previous_digest)


def find_division(held: Held, life: bytes, offered: HeldRange) -> Branch | None:
    """Another life that has a range which begins where a batch of `life` begins, after the same batch."""
    for held_life, ranges in held.items():
        if held_life == life:
            continue
        at = bisect_right(ranges, offered.first_sequence, key=lambda held_range: held_range.first_sequence) - 1
        start = (ranges[at].first_sequence, ranges[at].first_previous_digest) if at >= 0 else None
        if start == (offered.first_sequence, offered.first_previous_digest):
            return Branch(held_life, offered.first_sequence - 1)
    return None


def find_predecessor(
    held: Held, life: bytes, offered: HeldRange, batch_at: Callable[[bytes, int], HeldRange | None]
) -> Branch | MissingSequences | None:
    """What a batch of `life` that begins a range continues: None if it is the end of what is held of a life, a branch
    if that life goes on, a gap if it is not held."""
    sequence, released = offered.first_sequence - 1, None
    for held_life, ranges in held.items():
        at = bisect_right(ranges, sequence, key=lambda held_range: held_range.first_sequence) - 1
        if not sequence or at < 0 or sequence > ranges[at].last_sequence:
            continue
        if sequence == ranges[at].last_sequence:
            if ranges[at].last_digest == offered.first_previous_digest:
                return None
            continue
        stored = batch_at(held_life, sequence)
        if stored is None:
            released = Branch(held_life, sequence, is_exact=False)
        elif (stored.last_sequence, stored.last_digest) == (sequence, offered.first_previous_digest):
            return Branch(held_life, sequence) if held_life != life else None
    if released is not None or not sequence or not held:
        return released
    before = [part.last_sequence for ranges in held.values() for part in ranges if part.last_sequence < sequence]
    return MissingSequences(max(before, default=sequence - 1) + 1, sequence)
