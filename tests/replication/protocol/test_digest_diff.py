"""The core of comparisons: it requests exactly what is missing, names where a fork begins, and needs few requests."""

import math
import random
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import pages
from agent.pages import HeldRange
from agent.replication.protocol.digest_diff import Forked, Interval, missing, narrow, shared, spread

Batch = tuple[int, int, bytes]  # first and last sequence, digest


def history(sizes: list[int], salt: int = 0, prefix: tuple[Batch, ...] = ()) -> list[Batch]:
    """A chain of batches of these sizes after a prefix, each with a digest of its own."""
    found = list(prefix)
    for size in sizes:
        first = found[-1][1] + 1 if found else 1
        found.append((first, first + size - 1, random.Random(f"{salt} {first} {size} {found[-1:]}").randbytes(16)))
    return found


def held(batches: list[Batch]) -> list[HeldRange]:
    """The held ranges that some batches of one chain make."""
    found = list[HeldRange]()
    for first, last, digest in batches:
        if found and found[-1].last_sequence + 1 == first:
            first = found.pop().first_sequence  # noqa: PLW2901 - the joined range takes its place
        found.append(HeldRange(first, last, b"", digest))
    return found


def search(ours: list[Batch], theirs: list[Batch], count: int) -> tuple[Forked, int]:
    """Where two chains fork whose last batches differ, and how many requests that took."""
    own = {last: digest for _, last, digest in ours}
    lasts = [last for _, last, _ in theirs]
    interval: Interval | Forked = Interval(0, lasts[-1])
    asked = 0
    while isinstance(interval, Interval):
        asked += 1
        places = {bisect_left(lasts, sequence) for sequence in spread(interval.equal + 1, interval.different, count)}
        there = {theirs[place][1]: theirs[place][2] for place in places}
        interval = narrow(interval, {sequence: own.get(sequence, b"") for sequence in there}, there)
    return interval, asked


CHAIN = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(CHAIN, st.randoms(use_true_random=False))
def test_missing_sequences_are_requested_exactly(sizes: list[int], choice: random.Random) -> None:
    """One history, with batches lost at random on either side: exactly the sequences that they have and we do not are
    requested; those after our last one only if we have had everything that they had."""
    chain = history(sizes)
    ours, theirs = ([batch for batch in chain if choice.random() < 0.6] for _ in range(2))
    here = {n for first, last, _ in ours for n in range(first, last + 1)}
    there = {n for first, last, _ in theirs for n in range(first, last + 1)}

    def numbers(found: list[pages.Span]) -> set[int]:
        return {n for first, last in found for n in range(first, last + 1)}

    level = missing(held(ours), held(theirs), is_complete=True)
    assert numbers(level) == there - here
    assert pages.count(level) == len(there - here)
    behind = missing(held(ours), held(theirs), is_complete=False)
    assert numbers(behind) == {n for n in there - here if n < max(here, default=0)}
    first = min(here, default=7)
    late = missing(held(ours), held(theirs), first, is_complete=True)
    assert numbers(late) == {n for n in there - here if n >= first}
    both = shared(held(ours), held(theirs))
    assert numbers(both) == there & here
    for first, last in both:
        assert len([run for run in held(ours) if run.first_sequence <= first <= last <= run.last_sequence]) == 1
        assert len([run for run in held(theirs) if run.first_sequence <= first <= last <= run.last_sequence]) == 1


@given(CHAIN, CHAIN, st.integers(0, 40), st.integers(1, 20))
def test_a_fork_is_named_at_its_first_batch(sizes: list[int], others: list[int], kept: int, count: int) -> None:
    """For two chains with a common beginning, the search ends at the first batch of theirs that we do not have, however
    many digests are requested at once."""
    ours = history(sizes)
    theirs = history(others, 1, tuple(ours[:kept]))
    end = min(ours[-1][1], theirs[-1][1])
    theirs_till = [batch for batch in theirs if batch[1] <= end]
    different = [batch for batch in theirs_till if batch not in ours]
    if not different or theirs_till[-1][1] != end:
        return  # nothing to compare at the end: no search begins
    found, _ = search(ours, theirs_till, count)
    assert (found.first_sequence, found.last_sequence) == different[0][:2]


@pytest.mark.parametrize("count", [4, 64])
@pytest.mark.parametrize("batches", [1_000, 30_000])
def test_the_number_of_exchanges_is_logarithmic(batches: int, count: int) -> None:
    """The number of exchanges grows with the logarithm of the facts, to the base of the digests requested at once."""
    sizes = [random.Random(n).randint(1, 2_000) for n in range(batches)]
    for at in (0, 1, batches // 3, batches - 1):
        ours = history(sizes)
        theirs = [(first, last, digest[::-1] if n >= at else digest) for n, (first, last, digest) in enumerate(ours)]
        found, asked = search(ours, theirs, count)
        assert found.first_sequence == ours[at][0]
        assert asked <= math.log(ours[-1][1], count) + 2
