"""Reads the tag definitions of a zone from the tables, compared with their digests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection

from agent.batch import Definitions, extended_digest
from agent.fact_store.core import StoreDamaged
from agent.fact_store.sqlite.queries import QUERIES
from agent.fact_store.sqlite.typed_rows import ImpossibleValue
from agent.pages import DefinitionChain


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
