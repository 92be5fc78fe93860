"""Differences between two stores that should hold the same facts, found from digests alone. Core: no IO.

Each store lists the sequences of an origin that it holds, as ranges with the chain's digest at their ends. From two
such lists follow

    missing     held there and not here: gaps of ours, to be fetched
    shared      held by both: to be compared, and equal as a whole if the digest at the last common sequence is equal

A shared span whose last digests differ is a fork: one history was changed. `narrow` finds where it begins: each
exchange compares the digests of batches spread over the interval and keeps the part between the last equal and the
first different one, until no batch ends in between. A fork is reported and never repaired: digests do not show which
history is right.

Batches that retention has released on one side cannot be compared and are no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.pages import HeldRange, Span, intersect, subtract


@dataclass(frozen=True, slots=True)
class Interval:
    """A range with a fork: the histories are equal up to `equal` and differ at `different`, where a batch ends."""

    equal: int
    different: int


@dataclass(frozen=True, slots=True)
class Forked:
    """From this batch on the two histories differ."""

    first_sequence: int
    last_sequence: int


Ends = Mapping[int, bytes]
"""Digests at the last sequences of batches."""


def missing(
    ours: Sequence[HeldRange], theirs: Sequence[HeldRange], first_sequence: int = 1, *, is_complete: bool
) -> list[Span]:
    """The sequences of a life that they hold and we do not, from one on. Those after our last are still under way,
    unless all of the life must be here (`is_complete`)."""
    found = subtract([held.span for held in theirs], [held.span for held in ours])
    last = max((held.last_sequence for held in (theirs if is_complete else ours)), default=0)
    return intersect(found, [(first_sequence, last)])


def shared(ours: Sequence[HeldRange], theirs: Sequence[HeldRange]) -> list[Span]:
    """The spans that both hold; each is part of one range on either side, so one comparison at its end is enough."""
    return intersect([held.span for held in ours], [held.span for held in theirs])


def known_end(held: Iterable[HeldRange], sequence: int) -> bytes | None:
    """The digest at a sequence with which a range ends. It is known even if the batch itself was released."""
    return next((held_range.last_digest for held_range in held if held_range.last_sequence == sequence), None)


def narrow(interval: Interval, ours: Ends, theirs: Ends) -> Interval | Forked:
    """The interval that is left once digests inside it are known: `theirs` as requested, `ours` for the same sequences.
    At a sequence that is missing from `ours` no batch ends here, so the histories differ.

    Forked if no batch of theirs ends inside the interval.
    """
    equal, different = interval.equal, interval.different
    inside = sorted(sequence for sequence in theirs if equal < sequence < different)
    if not inside:
        return Forked(equal + 1, different)
    for sequence in inside:
        if ours.get(sequence) == theirs[sequence]:
            equal = sequence
        else:
            different = sequence
            break
    return Interval(equal, different)


def spread(first_sequence: int, last_sequence: int, count: int) -> list[int]:
    """At most `count` + 1 sequences, evenly spaced from the first to the last; each stands for the batch that contains
    it. The first is included, so at least one batch is new in each exchange."""
    width = last_sequence - first_sequence
    return sorted({first_sequence, *(first_sequence + width * number // count for number in range(1, count + 1))})
