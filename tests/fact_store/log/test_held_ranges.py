"""The decision about one more batch of an origin: tables, and a set of sequences as the model."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import NO_DIGEST
from agent.fact_store.log.held_ranges import RANGES_MAX, Duplicate, Fork, Insert, decide_insert
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


@pytest.mark.parametrize(
    "held, offered, decision",
    [
        ((), batch(1), Insert((run(1, 1),))),
        ((), batch(4), Insert((run(4, 4),))),
        ((run(1, 3),), batch(4), Insert((run(1, 4),))),
        ((run(1, 3),), batch(6), Insert((run(1, 3), run(6, 6)), gap=(31, 50))),
        ((run(1, 3), run(6, 7)), batch(5), Insert((run(1, 3), run(5, 7)))),
        ((run(1, 3), run(6, 7)), batch(4), Insert((run(1, 4), run(6, 7)))),
        ((run(1, 3), run(5, 7)), batch(4), Insert((run(1, 7),))),
        ((run(5, 7),), batch(1), Insert((run(1, 1), run(5, 7)))),
        ((run(1, 3), run(6, 7)), batch(8), Insert((run(1, 3), run(6, 8)))),
        ((run(1, 3),), batch(1), Duplicate()),
        ((run(1, 3),), batch(2), Duplicate()),
        ((run(1, 3),), batch(3), Duplicate()),
        ((run(1, 3), run(6, 7)), batch(6), Duplicate()),
        ((run(1, 3),), batch(1, "other"), Duplicate()),  # ends are alike: the shell compares with the stored batch
    ],
)
def test_new_batches_join_adjacent_ranges(
    held: tuple[HeldRange, ...], offered: HeldRange, decision: Insert | Duplicate
) -> None:
    """New batches join adjacent ranges; a gap is reported only where the new end of the log skips sequences."""
    assert decide_insert(held, offered) == decision


@pytest.mark.parametrize(
    "held, offered",
    [
        ((run(1, 3),), batch(3, "other")),  # same sequences, other content, at the end
        ((run(3, 5),), HeldRange(21, 30, digest(2, "other"), digest(3))),  # same start, another predecessor
        ((run(1, 3),), batch(4, "other")),  # grown on a branch we do not hold
        ((run(5, 7),), batch(4, "other")),  # a predecessor our first batch does not follow
        ((run(1, 3),), HeldRange(25, 34, digest(2), digest(4))),  # across the end of what is held
        ((run(3, 5),), HeldRange(15, 24, digest(1), digest(2))),  # across its beginning
        ((run(1, 1), run(3, 5)), HeldRange(12, 21, digest(1), digest(2))),  # by one sequence, between two ranges
        ((run(3, 5),), HeldRange(11, 60, digest(1), digest(6))),  # around it
        ((), HeldRange(1, 10, digest(7), digest(1))),  # sequence 1 has no predecessor
        ((), HeldRange(11, 20, NO_DIGEST, digest(2))),  # and every other has one
    ],
)
def test_a_contradicting_history_is_a_fork(held: tuple[HeldRange, ...], offered: HeldRange) -> None:
    """A history that contradicts what is held is a fork, whichever end shows it; the fork names the end of a batch that
    no history has together with the offered one, or none where no history has the offered one."""
    decision = decide_insert(held, offered)
    assert isinstance(decision, Fork), decision
    assert decision.why
    if decision.held is None:
        assert not held
        return
    last, digest_there = decision.held
    ends = {offered.first_sequence - 1: offered.first_previous_digest, offered.last_sequence: offered.last_digest}
    assert offered.first_sequence - 1 <= last <= offered.last_sequence
    assert ends.get(last) != digest_there


def test_ranges_are_limited() -> None:
    """An origin with too many gaps is refused; a gap can still be filled."""
    held = tuple(run(number, number) for number in range(1, 2 * RANGES_MAX, 2))
    assert len(held) == RANGES_MAX
    assert isinstance(decide_insert(held, batch(2 * RANGES_MAX + 5)), Fork)
    filled = decide_insert(held, batch(2))
    assert isinstance(filled, Insert)
    assert len(filled.ranges) == RANGES_MAX - 1


@given(st.lists(st.integers(1, 12), max_size=40))
def test_batches_in_any_order_give_the_same_ranges(order: list[int]) -> None:
    """Batches of one history in any order and number: exactly those that came are held, none forks, none is stored
    twice."""
    held: tuple[HeldRange, ...] = ()
    came = set[int]()
    for number in order:
        decision = decide_insert(held, batch(number))
        if number in came:
            assert decision == Duplicate()
            continue
        assert isinstance(decision, Insert)
        if came and number > max(came) + 1:
            assert decision.gap == (max(came) * SIZE + 1, (number - 1) * SIZE)
        else:
            assert decision.gap is None
        came.add(number)
        held = decision.ranges
        covered = {(s - 1) // SIZE + 1 for one in held for s in range(one.first_sequence, one.last_sequence + 1)}
        assert covered == came
        assert list(held) == sorted(held)
        for left, right in pairwise(held):
            assert left.last_sequence + 1 < right.first_sequence, "adjacent ranges must have been joined"
        for one in held:
            first, last = (one.first_sequence - 1) // SIZE + 1, one.last_sequence // SIZE
            assert one == run(first, last), "a joined range keeps the digests of its ends"


@given(st.sets(st.integers(1, 12)), st.integers(1, 12))
def test_a_foreign_branch_never_joins(held_numbers: set[int], number: int) -> None:
    """A batch of another history is never joined to the held ranges of this one."""
    held: tuple[HeldRange, ...] = ()
    for one in sorted(held_numbers):
        decision = decide_insert(held, batch(one))
        assert isinstance(decision, Insert)
        held = decision.ranges
    foreign = batch(number, "other")
    decision = decide_insert(held, foreign)
    if isinstance(decision, Insert):
        assert foreign in decision.ranges
        assert {number - 1, number + 1}.isdisjoint(held_numbers)
