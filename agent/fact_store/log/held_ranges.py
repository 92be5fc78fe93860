"""The held ranges of sequences of an origin, and the decision about one more batch of it. Core: no IO.

An origin assigns its sequences without gaps, and its batches form a hash chain, so a batch is compared with a few
ranges and no fact is looked up. Each range has the digest that its first batch names as predecessor and the digest of
its last batch. A batch is one of:

    Insert      new, and its digests fit its neighbours; `gap` names the sequences that were skipped, for an incident
    Duplicate   held already: a repeat after a lost answer, or the same history by another path
    Fork        contradicts what is held: a changed, restored or forged history. Never stored, always reported

Batches are immutable and never merged or cut, so one that overlaps a range without lying inside it is a fork. For a
batch inside a range the digests at the range's ends prove nothing; the shell compares it with the stored batch
(decision 0003).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from agent.batch import NO_DIGEST
from agent.pages import BatchEnd, HeldRange

RANGES_MAX = 1000  # each gap is an incident for an operator; a batch that would add one more is refused


@dataclass(frozen=True, slots=True)
class Insert:
    """Store the batch; `ranges` are held afterwards. `gap` is (first, last) of the sequences skipped, if any."""

    ranges: tuple[HeldRange, ...]
    gap: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is held already, as far as the digests at the ends of the ranges show."""


@dataclass(frozen=True, slots=True)
class Fork:
    """The batch contradicts what is held. `held` is the end of a batch that is held here, or that a held one names as
    its predecessor, and that no history shares with the offered batch; None if the offered batch is in no history at
    all."""

    why: str
    held: BatchEnd | None = None


def decide_insert(ranges: tuple[HeldRange, ...], offered: HeldRange) -> Insert | Duplicate | Fork:
    """Decide about a batch, given as the range `offered`, where `ranges` (sorted, disjoint, never adjacent) are
    held."""
    if (offered.first_sequence == 1) != (offered.first_previous_digest == NO_DIGEST):
        return Fork(f"sequence {offered.first_sequence} names {offered.first_previous_digest.hex()} as predecessor")
    at = bisect_right(ranges, offered.first_sequence, key=lambda held: held.first_sequence)
    left = ranges[at - 1] if at else None
    right = ranges[at] if at < len(ranges) else None
    if left is not None and offered.first_sequence <= left.last_sequence:
        return _inside(left, offered)
    if right is not None and offered.last_sequence >= right.first_sequence:
        return Fork(f"{_text(offered)} overlaps {_text(right)}, which is held", _before(right))
    if left is not None and not _attaches(left, offered):
        why = f"{_text(offered)} follows {offered.first_previous_digest.hex()}, held is {left.last_digest.hex()}"
        return Fork(why, _end(left))
    if right is not None and not _attaches(offered, right):
        why = f"{_text(offered)} is {offered.last_digest.hex()}, its successor follows another batch"
        return Fork(why, _before(right))
    joined = _joined(left, offered, right)
    if len(joined) + len(ranges) - sum(one is not None for one in (left, right)) > RANGES_MAX:
        return Fork(f"{_text(offered)} would be the {RANGES_MAX + 1}th separate range of its origin")
    first_of_joined = at - (left is not None)
    after = ranges[at + (right is not None) :]
    return Insert((*ranges[:first_of_joined], *joined, *after), _gap(left, offered, right))


def _inside(held: HeldRange, offered: HeldRange) -> Duplicate | Fork:
    """Decide about a range that starts inside a held one: the same facts, or another history of the same sequences."""
    if offered.last_sequence > held.last_sequence:
        return Fork(f"{_text(offered)} overlaps {_text(held)}, which is held", _end(held))
    if offered.last_sequence == held.last_sequence and offered.last_digest != held.last_digest:
        return Fork(f"{_text(offered)} is {offered.last_digest.hex()}, held is {held.last_digest.hex()}", _end(held))
    if offered.first_sequence == held.first_sequence and offered.first_previous_digest != held.first_previous_digest:
        return Fork(f"{_text(offered)} follows another batch than the one held", _before(held))
    return Duplicate()


def _attaches(before: HeldRange, after: HeldRange) -> bool:
    """Whether two ranges are apart, or adjacent and linked by digest."""
    return before.last_sequence + 1 != after.first_sequence or before.last_digest == after.first_previous_digest


def _joined(left: HeldRange | None, offered: HeldRange, right: HeldRange | None) -> tuple[HeldRange, ...]:
    """The offered range with its neighbours, joined where they are adjacent."""
    joined = [left] if left is not None else []
    for following in (offered, right):
        if following is None:
            continue
        if joined and joined[-1].last_sequence + 1 == following.first_sequence:
            last = joined.pop()
            following = HeldRange(  # noqa: PLW2901 - the joined range takes its place
                last.first_sequence, following.last_sequence, last.first_previous_digest, following.last_digest
            )
        joined.append(following)
    return tuple(joined)


def _gap(left: HeldRange | None, offered: HeldRange, right: HeldRange | None) -> tuple[int, int] | None:
    """The sequences between the last range and a batch after it. A batch that fills an older gap, or is the first one
    held, skips none."""
    if left is None or right is not None or left.last_sequence + 1 == offered.first_sequence:
        return None
    return left.last_sequence + 1, offered.first_sequence - 1


def _end(one: HeldRange) -> BatchEnd:
    return BatchEnd(one.last_sequence, one.last_digest)


def _before(one: HeldRange) -> BatchEnd:
    """The end of the batch before a range, as the range's first batch names it."""
    return BatchEnd(one.first_sequence - 1, one.first_previous_digest)


def _text(one: HeldRange) -> str:
    return f"{one.first_sequence} to {one.last_sequence}"
