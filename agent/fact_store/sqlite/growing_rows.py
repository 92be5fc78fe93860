"""Rows of the tables that grow with the years: tag definitions, origins, held ranges and lives. Read when they are
needed, so that neither an opening nor a request costs more for what it does not concern.

Each function takes the `execute` of a connection: the writer's within its transaction, or a reader's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.batch import Definitions, Origin, extended_digest
from agent.fact_store.core import StoreDamaged
from agent.fact_store.sqlite.queries import QUERIES
from agent.fact_store.sqlite.typed_rows import ImpossibleValue
from agent.pages import DefinitionChain, HeldRange
from agent.positions import LifeRow

Execute = Callable[..., sqlite3.Cursor]
RowsOf = Callable[[str, dict[str, object]], list[Any]]
"""rows(query, asked): the rows of a query about one stream, which the callee adds to what is asked."""


ROWS_KNOWN_MAX = 4_096
"""Origins and held ranges that the writer keeps in memory: about a megabyte."""


@dataclass(frozen=True, slots=True)
class KnownRows:
    """What the writer's transactions have read or written of these tables, so that a commit reads none of it again.
    Right only as long as each transaction that wrote is committed: after a roll-back it begins empty."""

    origins: dict[Origin, int] = field(default_factory=dict)
    held: dict[tuple[int, int], tuple[HeldRange, ...]] = field(default_factory=dict)
    """By number of stream and origin."""
    newest: set[tuple[int, int]] = field(default_factory=set)
    """Stream and origin, where this is the newest of its zone there."""

    def forget(self) -> None:
        """Begin empty."""
        self.origins.clear()
        self.held.clear()
        self.newest.clear()

    def bound(self) -> None:
        """Begin empty if there are too many."""
        if len(self.origins) + sum(map(len, self.held.values())) > ROWS_KNOWN_MAX:
            self.forget()


def zone_number(execute: Execute, zone: str) -> int:
    """The number of a zone; assigned if it has none. Within the writer's transaction."""
    known = execute(QUERIES["select_zone"], (zone,)).fetchone()
    number: int = (known or execute(QUERIES["insert_zone"], (zone,)).fetchone())[0]
    return number


def origins_of(execute: Execute, zone: str) -> dict[Origin, int]:
    """The origins of a zone with their numbers, in the order in which they were recorded."""
    return {Origin(zone, life): number for number, life in execute(QUERIES["select_origins_of_zone"], (zone,))}


def held_of(execute: Execute, stream: int, origin: int) -> tuple[HeldRange, ...]:
    """The ranges of an origin that are held in a stream, or were before retention."""
    return tuple(HeldRange(*row) for row in execute(QUERIES["select_held_of"], (stream, origin)).fetchall())


def ranges_of(rows: Iterable[tuple[Any, ...]]) -> dict[Origin, tuple[HeldRange, ...]]:
    """Rows of origins and their ranges, by origin."""
    found = dict[Origin, list[HeldRange]]()
    for zone, life, *ends in rows:
        found.setdefault(Origin(zone, life), []).append(HeldRange(*ends))
    return {origin: tuple(ranges) for origin, ranges in found.items()}


class StoredLives:
    """The lives of a stream's log (`positions.LifeRows`)."""

    def __init__(self, rows: RowsOf) -> None:
        self._rows = rows

    def first_offset(self, life: bytes) -> int | None:
        """The first offset that a life stored."""
        rows = self._rows(QUERIES["select_life"], {"life": life})
        return rows[0][0] if rows else None

    def starting(self, offset: int, limit: int) -> Sequence[LifeRow]:
        """The life that stored the fact at an offset, and those after it."""
        rows: list[LifeRow] = self._rows(QUERIES["select_lives_from"], {"offset": offset, "limit": limit})
        return rows


def read_definitions(
    execute: Callable[..., sqlite3.Cursor], zone: str, digest: bytes, held: Collection[bytes] = ()
) -> DefinitionChain | None:
    """The definitions up to the one with this digest, after the newest whose digest begins with one of `held`; None if
    they are not stored. Raises StoreDamaged."""
    rows, after, ends = list[tuple[int, bytes, bytes]](), Definitions(), tuple(held)
    try:
        for row in execute(QUERIES["select_definition_chain"], {"zone": zone, "digest": digest}):
            if row[1].startswith(ends):
                after = Definitions(*row[:2])
                break
            rows.append(row)
    except ImpossibleValue as error:
        raise StoreDamaged(f"tag definitions of {zone}: {error}") from error
    if not rows and not after.count:
        return None
    rows.reverse()
    running = after.digest
    for count, (number, stored, body) in enumerate(rows, after.count + 1):
        running = extended_digest(running, body)
        if number != count or stored != running:
            raise StoreDamaged(f"tag definition {number} of {zone} is damaged, or one before it is missing")
    wanted = Definitions(after.count + len(rows), running)
    if running != digest:
        raise StoreDamaged(f"tag definition {wanted.count} of {zone} is damaged")
    return DefinitionChain(zone, wanted, after, [body for _, _, body in rows], [stored for _, stored, _ in rows])
