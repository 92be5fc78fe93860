"""The decision about one more batch of an origin: tables, and a set of sequences as the model."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import NO_DIGEST
from agent.fact_store.core.held_ranges import (
    RANGES_MAX,
    Branch,
    Duplicate,
    Insert,
    LifeRefused,
    MissingSequences,
    decide_insert,
    find_division,
    find_predecessor,
)
from agent.pages import HeldRange

SIZE = 10


def digest(number: int, history: str = "honest") -> bytes:
    """A stand-in for the digest of batch `number` (from 1) of a history."""
    return NO_DIGEST if number == 0 else f"{history[:8]}{number:08d}".encode()


def batch(number: int, history: str = "honest") -> HeldRange:
    """Batch `number` of a chain in which every batch holds `SIZE` facts."""
    return HeldRange((number - 1) * SIZE + 1, number * SIZE, digest(number - 1, history), digest(number, history))


def run(first: int, last: int) -> HeldRange:
    """The range held after batches `first` to `last`."""
    return HeldRange(batch(first).first_sequence, batch(last).last_sequence, digest(first - 1), digest(last))


def chain(first: int, last: int, history: str = "honest") -> dict[int, HeldRange]:
    """The batches of a history by each of their sequences, as a store has them that released none."""
    return {n: batch((n - 1) // SIZE + 1, history) for n in range((first - 1) * SIZE + 1, last * SIZE + 1)}


INTACT, RELEASED = chain(1, 12).get, dict[int, HeldRange]().get
OTHER = batch(4, "other")
BEFORE = HeldRange(31, 40, digest(3), digest(4, "other"))
"""A batch of another history that follows batch 3 of this one."""


@pytest.mark.parametrize(
    "held, offered, ranges",
    [
        ((run(1, 3),), OTHER, (run(1, 3), OTHER)),
        ((run(5, 7),), OTHER, (OTHER, run(5, 7))),
        ((run(1, 3), run(5, 7)), OTHER, (run(1, 3), OTHER, run(5, 7))),
        ((run(1, 3), run(5, 7)), BEFORE, (HeldRange(1, 40, NO_DIGEST, BEFORE.last_digest), run(5, 7))),
    ],
)
def test_a_batch_beside_another_history_is_a_range_of_its_own(
    held: tuple[HeldRange, ...], offered: HeldRange, ranges: tuple[HeldRange, ...]
) -> None:
    """Both sides are stored, and the fork is reported."""
    decision = decide_insert(held, offered, INTACT)
    assert isinstance(decision, Insert)
    assert decision.ranges == ranges
    assert decision.fork


@pytest.mark.parametrize(
    "held, offered, is_seen_when_released",
    [
        ((run(1, 3),), batch(1, "other"), False),
        ((run(1, 3),), batch(2, "other"), False),
        ((run(1, 3),), batch(3, "other"), True),
        ((run(3, 5),), HeldRange(21, 30, digest(2, "other"), digest(3)), True),
        ((run(1, 3),), HeldRange(25, 34, digest(2), digest(4)), True),  # across the end of what is held
        ((run(3, 5),), HeldRange(15, 24, digest(1), digest(2)), True),  # across its beginning
        ((run(1, 1), run(3, 5)), HeldRange(12, 21, digest(1), digest(2)), True),  # by one sequence
        ((run(3, 5),), HeldRange(11, 60, digest(1), digest(6)), True),  # around it
        ((), HeldRange(1, 10, digest(7), digest(1)), True),  # sequence 1 has no predecessor
        ((), HeldRange(11, 20, NO_DIGEST, digest(2)), True),  # and every other has one
    ],
)
def test_only_what_overlaps_other_facts_is_refused(
    held: tuple[HeldRange, ...], offered: HeldRange, *, is_seen_when_released: bool
) -> None:
    """Compared with the batch that is held there; where that is released, only the ends of a range tell them apart."""
    assert isinstance(decide_insert(held, offered, INTACT), LifeRefused)
    assert isinstance(decide_insert(held, offered, RELEASED), LifeRefused) == is_seen_when_released


OLD, NEW, THIRD = b"old", b"new", b"third"


@pytest.mark.parametrize(
    "held, offered, found",
    [
        ({}, batch(1), None),
        ({}, batch(4), None),  # a reader that begins late
        ({OLD: (run(1, 3),)}, batch(4), None),  # a restart
        ({OLD: (run(1, 3),), THIRD: (run(4, 4),)}, batch(5), None),
        ({OLD: (run(1, 5),)}, batch(4), Branch(OLD, 30)),  # the store was put back
        ({OLD: (run(1, 3),)}, batch(6), MissingSequences(31, 50)),
        ({OLD: (run(1, 3),)}, batch(4, "forked"), MissingSequences(30, 30)),  # what it continues was never here
    ],
)
def test_what_a_life_continues(
    held: dict[bytes, tuple[HeldRange, ...]], offered: HeldRange, found: Branch | MissingSequences | None
) -> None:
    """The end of a life, another life that goes on, or something that is not held."""
    assert find_predecessor(held, NEW, offered, lambda _, sequence: INTACT(sequence)) == found


def test_a_branch_from_released_facts_is_named_as_at_the_latest() -> None:
    """The batch before cannot be compared: the histories divide there or earlier. Where a later range of the other life
    begins with the batch's predecessor, they divide right after that."""
    found = find_predecessor({OLD: (run(1, 5),)}, NEW, batch(4), lambda *_: None)
    assert found == Branch(OLD, 30, is_exact=False)
    assert find_division({OLD: (run(1, 2), run(4, 5))}, NEW, batch(4)) == Branch(OLD, 30)


def test_ranges_are_limited() -> None:
    """A life with too many gaps is refused; a gap can still be filled."""
    held = tuple(run(number, number) for number in range(1, 2 * RANGES_MAX, 2))
    assert len(held) == RANGES_MAX
    assert isinstance(decide_insert(held, batch(2 * RANGES_MAX + 5), RELEASED), LifeRefused)
    filled = decide_insert(held, batch(2), RELEASED)
    assert isinstance(filled, Insert)
    assert len(filled.ranges) == RANGES_MAX - 1


@given(st.lists(st.integers(1, 12), max_size=40))
def test_batches_in_any_order_give_the_same_ranges(order: list[int]) -> None:
    """Batches of one history in any order and number: exactly those that came are held, none forks, none is stored
    twice."""
    held: tuple[HeldRange, ...] = ()
    came = set[int]()
    for number in order:
        decision = decide_insert(held, batch(number), INTACT)
        if number in came:
            assert decision == Duplicate()
            continue
        assert isinstance(decision, Insert)
        assert not decision.fork
        assert decision.is_start == (number - 1 not in came)
        came.add(number)
        held = decision.ranges
        covered = {(s - 1) // SIZE + 1 for part in held for s in range(part.first_sequence, part.last_sequence + 1)}
        assert covered == came
        assert list(held) == sorted(held)
        for left, right in pairwise(held):
            assert left.last_sequence + 1 < right.first_sequence, "adjacent ranges must have been joined"
        for part in held:
            first, last = (part.first_sequence - 1) // SIZE + 1, part.last_sequence // SIZE
            assert part == run(first, last), "a joined range keeps the digests of its ends"


@given(st.sets(st.integers(1, 12)), st.integers(1, 12))
def test_a_foreign_branch_never_joins(held_numbers: set[int], number: int) -> None:
    """A batch of another history is never joined to the held ranges of this one."""
    held: tuple[HeldRange, ...] = ()
    for known in sorted(held_numbers):
        decision = decide_insert(held, batch(known), INTACT)
        assert isinstance(decision, Insert)
        held = decision.ranges
    foreign = batch(number, "other")
    decision = decide_insert(held, foreign, INTACT)
    if isinstance(decision, Insert):
        assert foreign in decision.ranges
        assert bool(decision.fork) == (not {number - 1, number + 1}.isdisjoint(held_numbers))
