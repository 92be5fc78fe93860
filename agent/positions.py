"""Positions in a log, and what each means in a store: the resolution, and the trail of a reader. Core: no IO.

A process that opens a store draws a life. A stream's log is divided into lives: a life begins with the first fact that
its process stored there and ends where the next one begins. A copy of a store has the lives of the original up to the
moment of the copy, and none of the later ones. So (life, offset) says which log was read, and how far:

    the life is not in this log                                 unknown
    the offset is within the life, or in a life before it       exact
        but another intact batch is here                        unknown: the life ran twice
    the offset is beyond the end of the life                    cut to that end: the log of this store was put back
        but this process still writes the life, or it is forked unknown: what was read is in no log that is here

A reader keeps, for each peer and stream, how far it has read each of the newest lives: its trail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

LIFE_BYTES, NUMBER_BYTES = 16, 8
TRAIL_MAX = 64
"""Lives of a trail, and of one page."""


class Position(NamedTuple):
    """A log was read up to `offset`, whose fact `life` has stored. `digest`: of the batch that ends there; empty where
    none does, or it is not known."""

    life: bytes
    offset: int
    digest: bytes = b""


NOTHING_READ = Position(b"", 0)

Trail = tuple[Position, ...]
"""Oldest first; the last is the reader's position. One for each life."""

IsOther = Callable[[int, bytes], bool]
"""Whether the batch that holds an offset is here, intact, and is not one that ends there with this digest: the same
batch may lie at other offsets where a life ran twice."""


class Resolved(NamedTuple):
    """What a position means in a log: it is valid here up to `offset`."""

    how: Literal["exact", "cut", "unknown"]
    offset: int = 0


UNKNOWN = Resolved("unknown")


def drawn_life(before: bytes, unix_ms: int, chance: bytes) -> bytes:
    """The life of a process: its number is later than that of `before`, the highest of the store's own table (empty:
    none); `chance` makes it one that no other process has."""
    number = max(unix_ms, 1 + int.from_bytes(before[:NUMBER_BYTES]))
    return number.to_bytes(NUMBER_BYTES) + blake2b(chance, digest_size=LIFE_BYTES - NUMBER_BYTES).digest()


def begun_ms(life: bytes) -> int:
    """When a life began, in ms since 1970 by the clock of then; later where lives before it were."""
    return int.from_bytes(life[:NUMBER_BYTES])


LifeRow = tuple[bytes, int]
"""A life, and the first offset that it stored."""


class LifeRows(Protocol):
    """The lives of one log, in order. There may be thousands, so they are read when they are needed."""

    def first_offset(self, life: bytes) -> int | None:
        """The first offset that a life stored; None if it is not in this log."""
        ...

    def starting(self, offset: int, limit: int) -> Sequence[LifeRow]:
        """The life that stored the fact at an offset (the first one if none did), and those after it."""
        ...


@dataclass(frozen=True, slots=True)
class LifeList:
    """Lives in memory."""

    lives: Sequence[LifeRow] = ()

    def first_offset(self, life: bytes) -> int | None:
        return next((first for known, first in self.lives if known == life), None)

    def starting(self, offset: int, limit: int) -> Sequence[LifeRow]:
        at = max(0, bisect_right(self.lives, offset, key=lambda row: row[1]) - 1)
        return self.lives[at : at + limit]


class LogLives(NamedTuple):
    """The lives of one log, and where the log ends. `newest` is the last one, which nearly all readers ask for;
    `present` the life of this process."""

    rows: LifeRows = LifeList()
    end_offset: int = 0
    present: bytes = b""
    forked: frozenset[bytes] = frozenset()
    newest: LifeRow | None = None

    def _starting(self, offset: int, limit: int) -> Sequence[LifeRow]:
        if self.newest is not None and offset >= self.newest[1]:
            return [self.newest]
        return self.rows.starting(offset, limit)

    def at(self, offset: int) -> bytes:
        """The life that stored the fact at an offset; empty for offset 0."""
        return next((life for life, first in self._starting(offset, 1) if first <= offset), b"")

    @property
    def end(self) -> Position:
        """The position of a reader that has read all."""
        return Position(self.at(self.end_offset), self.end_offset)

    def between(self, after_offset: int, until_offset: int) -> list[Position]:
        """The lives with facts after one offset up to another, each with its last offset there; at most TRAIL_MAX."""
        if self.newest is not None and after_offset + 1 >= self.newest[1]:
            last = min(self.end_offset, until_offset)
            return [Position(self.newest[0], last)] if last > after_offset else []
        rows = [row for row in self._starting(after_offset + 1, TRAIL_MAX + 1) if row[1] <= self.end_offset]
        lasts = [first - 1 for _, first in rows[1:]] + [self.end_offset]
        return [
            Position(life, min(last, until_offset))
            for (life, first), last in list(zip(rows, lasts, strict=False))[:TRAIL_MAX]
            if last > after_offset and first <= until_offset
        ]

    def resolve(self, position: Position, is_other: IsOther) -> Resolved:
        """What a position means here; see the table above."""
        if position == NOTHING_READ:
            return Resolved("exact")
        is_newest = self.newest is not None and position.life == self.newest[0]
        first = None if is_newest else self.rows.first_offset(position.life)
        if first is None and not is_newest:
            return UNKNOWN
        after = [] if first is None else self.rows.starting(first, 2)[1:]
        end = after[0][1] - 1 if after else self.end_offset
        if position.offset > end:
            is_lost = position.life == self.present or position.life in self.forked
            return UNKNOWN if is_lost else Resolved("cut", end)
        is_stored_by_it = position.digest and self.at(position.offset) == position.life
        if is_stored_by_it and is_other(position.offset, position.digest):
            return UNKNOWN
        return Resolved("exact", position.offset)


def furthest(resolved: Sequence[tuple[Position, Resolved]]) -> Position:
    """Where a page begins for a reader that named its whole trail: the position that is valid furthest here, as far as
    it is; from the beginning if none is."""
    known = [Position(named.life, here.offset) for named, here in resolved if here.how != "unknown"]
    return max(known, key=lambda position: position.offset, default=NOTHING_READ)


def extended(trail: Trail, read: Iterable[Position]) -> Trail:
    """The trail after a page with facts of these lives: each has its new entry, also with a lower offset."""
    new = {position.life: position for position in read}
    return (*(position for position in trail if position.life not in new), *new.values())[-TRAIL_MAX:]


def last_of(trail: Trail) -> Position:
    """The position of the reader."""
    return trail[-1] if trail else NOTHING_READ


def continues(trail: Trail, after: Position, *, is_answer_to_trail: bool) -> bool:
    """Whether a page that begins after this position may be stored: it begins at the reader's position; or it answers
    the newest request, which named the trail, and begins where the trail knows the peer's log."""
    if after[:2] == last_of(trail)[:2]:
        return True
    is_known = not after.offset or any(known.life == after.life and after.offset <= known.offset for known in trail)
    return is_answer_to_trail and is_known
