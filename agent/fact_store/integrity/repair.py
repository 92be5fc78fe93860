"""Repairs damaged batches and tag definitions with a peer's copies: byte for byte as they were sealed or defined,
batches at the same offsets, or not at all.

The peer is not trusted. A copy is accepted only if this store can prove it: the digest of a batch must be the one in
the table or, if the disk has changed that too, the previous digest in the next batch or the last digest of a held
range. Any other batch is another history (ForkError). The digest of definitions is one that a batch held here names.

The damaged row is not changed and the table `batch` stays append-only: a write to a damaged page would follow pointers
that may be damaged as well (decision 0038). The copies are stored in the tables `repaired` and `repaired_definition`,
which readers consult first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from agent.batch import Batch
from agent.fact_store.append import append_notice, store_definitions
from agent.fact_store.core import FactsRefused, ForkError, parse_row
from agent.fact_store.sqlite import Transaction, is_damage
from agent.pages import DefinitionChain, OriginRange, RepairedRange

INCIDENT = "repaired"


def damaged_batches(transaction: Transaction, *, stream: str) -> list[OriginRange]:
    """The batches of a stream that were found damaged and are not repaired."""
    known = transaction.catalog.streams.get(stream)
    return [OriginRange(*row) for row in transaction.damaged(known.id)] if known else []


def repair_batches(
    transaction: Transaction, *, stream: str, peer: str, batches: Sequence[Batch]
) -> list[RepairedRange]:
    """Repair the batches that are damaged here. Batches that are undamaged or released are only removed from the list
    of damage.

    Returns the offsets whose facts are served again. Raises FactsRefused, ForkError; then nothing has changed.
    """
    known = transaction.catalog.streams.get(stream)
    places = [_place(transaction, stream, batch) for batch in batches]
    assert known is not None
    found = list[RepairedRange]()
    for batch, offset in zip(batches, places, strict=True):
        header = batch.header
        origin = transaction.origin(header.origin)
        transaction.remove_damage(known.id, origin, header.first_sequence)
        if offset is None:
            continue
        transaction.add_repaired(known.id, offset, batch)
        repaired = RepairedRange(offset, offset + header.count - 1)
        found.append(repaired)
        _record_repair(transaction, stream, peer, batch, repaired)
    return found


def _place(transaction: Transaction, stream: str, batch: Batch) -> int | None:
    """The offset at which a batch must be repaired; None if there is nothing to repair. Raises FactsRefused,
    ForkError."""
    header, known = batch.header, transaction.catalog.streams.get(stream)
    origin = transaction.origin_number(header.origin)
    what = f"{stream} of {header.origin}: {header.first_sequence} to {header.last_sequence}"
    if known is None or origin is None:
        raise FactsRefused(f"{what} was never held here", "fetch it like any other batch")
    try:
        place = transaction.place(known.id, origin, header.first_sequence)
        if place is None or place[1] <= known.released_offset:
            return None  # retention has released it, or its row is lost
        first_offset, last_offset, count, digest = place
        if (count, last_offset) != (header.count, first_offset + header.count - 1):
            raise ForkError(f"{what} lies where the table has {count} facts")
        # Only this store's own digests prove the copy (decision 0038).
        if batch.digest not in {digest, _digest_by_chain(transaction, known.id, origin, header.last_sequence)}:
            raise ForkError(f"{what} has digest {batch.digest.hex()}, the damaged batch has {digest.hex()}")
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise FactsRefused(f"{what}: its row can no longer be read: {error}", "see bsfg store verify") from error
    return None if _is_served(transaction, stream, known.id, first_offset) else first_offset


def _digest_by_chain(transaction: Transaction, stream: int, origin: int, last_sequence: int) -> bytes | None:
    """The digest of the batch that ends at a sequence, from its held range or its successor."""
    for held in transaction.held(stream, origin):
        if held.last_sequence == last_sequence:
            return held.last_digest
    return transaction.digest_before(stream, origin, last_sequence + 1)


def _is_served(transaction: Transaction, stream: str, number: int, first_offset: int) -> bool:
    try:
        return any(not isinstance(parse_row(stream, row), str) for row in transaction.rows_at(number, first_offset))
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return False


def _record_repair(transaction: Transaction, stream: str, peer: str, batch: Batch, place: RepairedRange) -> None:
    """Record a repair as an incident for the operator of this node, and as a fact for other readers that have passed
    the hole."""
    header, origin = batch.header, batch.header.origin
    where = f"{place.first_offset} to {place.last_offset}"
    detail = f"repaired from {peer}: {origin} {header.first_sequence} to {header.last_sequence}"
    transaction.add_incident(INCIDENT, f"{stream} {where}", detail)
    about: dict[str, object] = {
        **place._asdict(),
        "count": header.count,
        "from": peer,
        "origins": [OriginRange(origin.zone, origin.life, header.first_sequence, header.last_sequence).named()],
    }
    append_notice(transaction, stream, "facts_repaired", about, f"{stream}:{place.first_offset}-{place.last_offset}")


def repair_definitions(transaction: Transaction, *, stream: str, peer: str, chain: DefinitionChain) -> int:
    """Repair those of all definitions up to the wanted ones that are damaged or missing here; returns how many. Raises
    FactsRefused for other definitions; then nothing has changed."""
    try:
        count = store_definitions(transaction, [chain])
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        why = f"tag definitions of {chain.zone} can no longer be read: {error}"
        raise FactsRefused(why, "see bsfg store verify") from error
    if count:
        detail = f"{count} repaired from {peer}, which a batch of {stream} names"
        transaction.add_incident("definitions_repaired", f"{chain.zone} 1 to {chain.wanted.count}", detail)
    return count
