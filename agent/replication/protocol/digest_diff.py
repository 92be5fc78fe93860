"""Differences between two stores that should hold the same facts, found from digests alone. Core: no IO.

Each store lists the sequences of an origin that it holds, as ranges with the chain's digest at their ends. From two
such lists follow

    missing     held there and not here: gaps of ours, to be fetched
    shared      held by both: to be compared, and equal as a whole if the digest at the last common sequence is equal

A shared span whose last digests differ is a fork: one history was changed. Where it begins is found by `narrow`, with
the digests of batches spread over the rest, until no batch ends between the last that is equal and the first that is
not; each exchange leaves one piece in so many as it asks for. A fork is reported and never repaired: digests do
not show which history is right.

Batches that retention has released on one side cannot be compared and are no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent import ranges
from agent.pages import HeldRange
from agent.ranges import Span


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
    ours: Sequence[HeldRange], theirs: Sequence[HeldRange], *, is_level: bool, is_from_start: bool = True
) -> list[Span]:
    """The sequences that they hold and we do not. What comes after our last is still under way, unless we have
    everything they had when they listed it (`is_level`); what comes before our first was not requested, unless we
    began at the oldest (`is_from_start`)."""
    found = ranges.subtract([one.span for one in theirs], [one.span for one in ours])
    first = 1 if is_from_start else min((one.first_sequence for one in ours), default=0)
    last = ours[-1].last_sequence if ours else 0
    if is_level:
        last = max(last, *(one.last_sequence for one in theirs), 0)
    return ranges.intersect(found, [(first, last)]) if first else []


def shared(ours: Sequence[HeldRange], theirs: Sequence[HeldRange]) -> list[Span]:
    """The spans that both hold; each is part of one range on either side, so one comparison at its end is enough."""
    return ranges.intersect([one.span for one in ours], [one.span for one in theirs])


def known_end(held: Iterable[HeldRange], sequence: int) -> bytes | None:
    """The digest at a sequence, where a range ends with it: known though the batch itself may be released."""
    return next((one.last_digest for one in held if one.last_sequence == sequence), None)


def narrow(interval: Interval, ours: Ends, theirs: Ends) -> Interval | Forked:
    """What is left of an interval once some ends inside it are known: `theirs` as asked for, `ours` for the same
    sequences, where we have a batch there at all. At a sequence that is missing from `ours` we hold no batch end, and
    that is another history.

    Forked when they have no end left between the two.
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
    """At most `count` + 1 sequences from the first to the last, evenly: a batch is named by any sequence in it. The
    first is among them, so that one batch at least is new in each exchange."""
    width = last_sequence - first_sequence
    return sorted({first_sequence, *(first_sequence + width * number // count for number in range(1, count + 1))})
