"""Positions: each case of the resolution, and of what a reader takes; and that a reader of any copies of a log misses
nothing and is never told that it has read what it has not."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.positions import (
    NOTHING_READ,
    TRAIL_MAX,
    UNKNOWN,
    LifeList,
    LogLives,
    Position,
    Resolved,
    Trail,
    continues,
    drawn_life,
    extended,
    furthest,
    last_of,
)

A, B, C, OTHER = (bytes([number]) * 16 for number in range(1, 5))
D, E = b"d" * 16, b"e" * 16
LOG = LogLives(LifeList(((A, 1), (B, 6), (C, 11))), 20, C)
"""A stored 1 to 5, B 6 to 10, and C, which still writes, 11 to 20; batches are of five facts, all with digest D."""


@pytest.mark.parametrize(
    "position, expected",
    [
        (NOTHING_READ, Resolved("exact", 0)),
        (Position(A, 3), Resolved("exact", 3)),
        (Position(A, 5, D), Resolved("exact", 5)),
        (Position(B, 3, E), Resolved("exact", 3)),  # a digest is compared only where that life has stored the fact
        (Position(C, 20, D), Resolved("exact", 20)),
        (Position(A, 5, E), UNKNOWN),
        (Position(A, 6), Resolved("cut", 5)),
        (Position(B, 100, E), Resolved("cut", 10)),
        (Position(C, 21), UNKNOWN),
        (Position(OTHER, 3), UNKNOWN),
        (Position(b"", 3), UNKNOWN),
    ],
)
def test_what_a_position_means(position: Position, expected: Resolved) -> None:
    """Each row of the table in the module."""
    assert LOG.resolve(position, lambda _, digest: digest != D) == expected


def test_a_position_beyond_a_forked_life_is_unknown() -> None:
    """There is no log in which it lies; within it the log is the one that was read."""
    forked = LogLives(LOG.rows, LOG.end_offset, C, frozenset([B]))
    found = [forked.resolve(Position(B, offset), lambda *_: False) for offset in (10, 11)]
    assert found == [Resolved("exact", 10), UNKNOWN]


def test_the_lives_of_a_page() -> None:
    """Each life with facts between two offsets, with its last one there; and the life of a single fact."""
    assert LOG.between(3, 12) == [Position(A, 5), Position(B, 10), Position(C, 12)]
    assert (LOG.between(5, 10), LOG.between(20, 20)) == ([Position(B, 10)], [])
    assert [LOG.at(offset) for offset in (0, 1, 5, 6, 20)] == [b"", A, A, B, C]
    assert (LOG.end, LogLives().end) == (Position(C, 20), NOTHING_READ)
    many = LogLives(LifeList([(bytes([n]) * 16, n) for n in range(1, 100)]), 99)
    assert len(many.between(0, 99)) == TRAIL_MAX


def test_a_trail_keeps_the_newest_lives() -> None:
    """A life that comes again has its new entry, also with a lower offset, and is the newest."""
    trail = extended((Position(A, 5), Position(B, 10)), [Position(A, 3, D), Position(C, 12)])
    assert trail == (Position(B, 10), Position(A, 3, D), Position(C, 12))
    long = extended((), [Position(bytes([n]) * 16, n) for n in range(1, 100)])
    assert (len(long), long[0].offset, last_of(long).offset, last_of(())) == (TRAIL_MAX, 36, 99, NOTHING_READ)


@pytest.mark.parametrize(
    "after, is_answer_to_trail, expected",
    [
        (Position(B, 10), False, True),
        (Position(B, 9), False, False),
        (NOTHING_READ, False, False),
        (NOTHING_READ, True, True),
        (Position(B, 9), True, True),
        (Position(A, 5), True, True),
        (Position(A, 6), True, False),
        (Position(C, 1), True, False),
    ],
)
def test_which_page_may_be_stored(after: Position, *, is_answer_to_trail: bool, expected: bool) -> None:
    """One that begins at the position, or in a life of the trail at or before its entry, where that was asked for."""
    trail = (Position(A, 5, D), Position(B, 10, D))
    assert continues(trail, after, is_answer_to_trail=is_answer_to_trail) is expected


def test_a_page_begins_where_the_trail_is_valid_furthest() -> None:
    """Whatever the order of its lives; from the beginning where none of them is known."""
    trail = (Position(B, 12), Position(A, 3), Position(OTHER, 30))
    assert furthest([(position, LOG.resolve(position, lambda *_: False)) for position in trail]) == Position(B, 10)
    assert furthest([(Position(OTHER, 30), UNKNOWN)]) == furthest([]) == NOTHING_READ


def test_a_life_is_later_than_those_before_it() -> None:
    """Also where the clock was set back; two processes with one number differ."""
    first = drawn_life(b"", 5_000, b"one")
    assert len(first) == 16
    assert drawn_life(first, 1_000, b"one") > first
    assert drawn_life(b"", 5_000, b"two") != first


class _Fact(NamedTuple):
    life: bytes
    number: int


class _Store:
    """A log and its lives, and the trail of a reader of such logs."""

    opened = 0

    def __init__(self, facts: list[_Fact], lives: list[tuple[bytes, int]]) -> None:
        self.facts, self.lives = list(facts), list(lives)
        _Store.opened += 1
        self.now = _Store.opened.to_bytes(16)

    def grow(self, number: int) -> None:
        """Record a fact in this life."""
        if not self.lives or self.lives[-1][0] != self.now:
            self.lives.append((self.now, len(self.facts) + 1))
        self.facts.append(_Fact(self.now, number))

    @property
    def log(self) -> LogLives:
        return LogLives(LifeList(self.lives), len(self.facts), self.now)


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_a_reader_of_copies_misses_nothing(chance: Random, steps: int) -> None:
    """Stores are copied, reopened and grow; a reader asks any of them, with its position or with its trail. A position
    that is exact names a log that it has read; and when it is level with a store, it has all of its facts."""
    stores, trail, read = [_Store([], [])], (), set[_Fact]()
    for number in range(steps):
        at = chance.randrange(len(stores))
        store = stores[at]
        match chance.choice(["grow", "grow", "reopen", "copy", "read", "read", "read"]):
            case "grow":
                store.grow(number)
            case "reopen":
                stores[at] = _Store(store.facts, store.lives)
            case "copy":
                stores.append(_Store(store.facts, store.lives))
            case "read":
                trail = _read(store, trail, read, chance)
    for store in stores:
        for position in trail:
            if store.log.resolve(position, lambda *_: False).how == "exact":
                assert set(store.facts[: position.offset]) <= read
        trail = _read(store, trail, read, Random(1), most=10**6)
        assert set(store.facts) <= read


def _read(store: _Store, trail: Trail, read: set[_Fact], chance: Random, most: int = 5) -> Trail:
    """The trail after a page of a store, asked for with the position first, and with the trail if that is unknown."""
    names_trail = chance.random() < 0.3
    at = last_of(trail)
    here = store.log.resolve(at, lambda *_: False)
    after = Position(at.life, here.offset)
    if names_trail or here.how != "exact":
        names_trail = True
        after = furthest([(position, store.log.resolve(position, lambda *_: False)) for position in trail])
    assert continues(trail, after, is_answer_to_trail=names_trail), "an honest answer is refused"
    until = min(len(store.facts), after.offset + chance.randint(1, most) if most < 10**6 else len(store.facts))
    read |= set(store.facts[after.offset : until])
    return extended(trail, store.log.between(after.offset, until))
