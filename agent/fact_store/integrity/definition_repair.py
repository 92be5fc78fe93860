"""Repairs damaged tag definitions with a peer's copies: byte for byte as the origin defined them, or not at all.

A damaged definition makes every later batch of its origin unreadable, and this store cannot serve it to peers that lack
it. A copy is accepted only if a batch of that origin that is held here proves it: the batch has the digest that the
table gives for its sequence, and the running digest in its header equals the one over the repaired definitions.

The damaged rows are not changed (see batch_repair.py). The copies are stored in the table `repaired_definition`, which
readers consult first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import reduce

from agent.batch import Batch, Definitions, Kind
from agent.fact_store.append import check_readable
from agent.fact_store.log import FactsRefused, ForkError
from agent.fact_store.sqlite import Transaction, is_damage
from agent.pages import ReceivedDefinition

INCIDENT = "definitions_repaired"


def repair_definitions(
    transaction: Transaction, *, stream: str, peer: str, batch: Batch, received: Sequence[ReceivedDefinition]
) -> int:
    """Repair the received definitions that are damaged or missing here, up to the number that the batch names; returns
    how many.

    They must be numbered without gaps and reach that number. Raises FactsRefused if the batch is not held or a
    definition is missing, ForkError if the batch proves other definitions; then nothing has changed.
    """
    try:
        return _repair(transaction, stream, peer, batch, received)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        why = f"tag definitions of {batch.header.origin} can no longer be read: {error}"
        raise FactsRefused(why, "see bsfg store verify") from error


def _repair(
    transaction: Transaction, stream: str, peer: str, batch: Batch, received: Sequence[ReceivedDefinition]
) -> int:
    header = batch.header
    known, origin = transaction.catalog.streams.get(stream), transaction.catalog.origins.get(header.origin)
    what = f"tag definitions of {header.origin}"
    place = None if known is None or origin is None else transaction.place(known.id, origin, header.first_sequence)
    if origin is None or place is None or place[3] != batch.digest or header.kind is not Kind.SAMPLES:
        raise FactsRefused(f"{what}: the batch that would prove them is not held here", "see bsfg store verify")
    bodies = {one.number: one.body for one in received if one.origin == header.origin}
    first = min(bodies, default=0)
    if sorted(bodies) != list(range(first, header.definitions.count + 1)) or not bodies:
        raise FactsRefused(f"{what}: not all of {first} to {header.definitions.count} were received", "compare again")
    right = reduce(Definitions.extended, transaction.definition_bodies(origin, 0, first - 1), Definitions())
    offered = list[tuple[int, bytes, bytes]]()
    for number in sorted(bodies):
        right = right.extended(bodies[number])
        offered.append((number, right.digest, bodies[number]))
    if right != header.definitions:
        raise ForkError(f"{what} up to {right.count} differ from those that the batch at {header.first_sequence} names")
    for number, _, body in offered:
        check_readable(header.origin, number, body)
    count = _store_repaired(transaction, origin, offered)
    if count:
        numbers = f"{offered[0][0]} to {offered[-1][0]}"
        detail = f"{count} repaired from {peer}, by a batch of {stream}"
        transaction.add_incident(INCIDENT, f"{header.origin} {numbers}", detail)
    return count


def _store_repaired(transaction: Transaction, origin: int, offered: Sequence[tuple[int, bytes, bytes]]) -> int:
    """Store the offered rows that are not in the table; returns how many."""
    first, last = offered[0][0], offered[-1][0]
    there = set(transaction.definition_rows(origin, first - 1, last))
    lacking = [row for row in offered if row not in there]
    known = transaction.catalog.definitions.get(origin, Definitions())
    transaction.add_repaired_definitions(origin, [row for row in lacking if row[0] <= known.count])
    if last >= known.count:  # the catalog was loaded from the damaged rows, or ends before them
        end = next((Definitions(*row[:2]) for row in offered if row[0] == known.count), known)
        transaction.catalog.definitions[origin] = end
        transaction.add_definitions(origin, [body for number, _, body in offered if number > known.count])
    return len(lacking)
