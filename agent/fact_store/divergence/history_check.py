"""Compares what a peer claims to have read of this store with the store: a contradiction means that this store is an
old copy.

A copy that was restored and has grown since is consistent in itself, but holds other facts than the peer at the same
sequences. So a peer sends the last sequence that it holds of this store's own facts, over whatever path they came, and
the digest there, which covers all facts before it (decision 0041). The peer's position says whether it has read this
copy of the log or another one (decision 0054).

Only undamaged facts that are held here can contradict a peer. A released or damaged batch proves nothing, unless the
batch after it, which contains its digest, is held.
"""

from __future__ import annotations

from agent.fact_store.log import Catalog
from agent.fact_store.read import StoreReader
from agent.pages import Page

End = tuple[int, bytes]
"""The sequence with which a batch ends, and its digest."""


def find_contradiction(reader: StoreReader, catalog: Catalog, stream: str, last_held: End) -> str | None:
    """How a peer's claim about this epoch contradicts the store; None if it does not.

    `last_held`: the last of this store's own facts that the peer holds, by sequence. Costs one look-up on disk, or none
    if it is the last one here. Raises what StoreReader raises.
    """
    known = catalog.streams.get(stream)
    ranges = reader.held_of(stream, catalog.origin) if known else ()
    own = (ranges[-1].last_sequence, ranges[-1].last_digest) if ranges else (0, b"")
    if last_held == own:
        return None
    where = f"our sequence {last_held[0]} of {stream}"
    if last_held[0] > own[0]:
        return f"the peer holds {where}, this store has written only up to {own[0]}"
    page = reader.read_sequences(stream, catalog.origin, last_held[0], last_held[0] + 1, 1, 1)
    why = _difference(_end_at(page, last_held[0]) or _predecessor(page, last_held[0]), last_held)
    return None if why is None else f"{where}: {why}"


def lacks_batch(reader: StoreReader, catalog: Catalog, stream: str, signed: End) -> bool:
    """Whether this store lacks a batch of its present epoch that its own key has signed, given by its last sequence and
    the digest that its record signs. False if what is held there was released or is damaged. Raises what StoreReader
    raises."""
    known, sequence = catalog.streams.get(stream), signed[0]
    ranges = reader.held_of(stream, catalog.origin) if known else ()
    if not ranges or sequence > ranges[-1].last_sequence:
        return True
    page = reader.read_sequences(stream, catalog.origin, sequence, sequence, 1, 1)
    return any((one.last_offset, one.batch.signed_digest) != signed for one in page.batches)


def _end_at(page: Page, sequence: int) -> End | None:
    """The end of the batch that holds a sequence, and its digest; None if it was released or is damaged."""
    for found in page.batches:
        if found.first_offset <= sequence <= found.last_offset:
            return found.last_offset, found.batch.digest
    return None


def _predecessor(page: Page, last_sequence: int) -> End | None:
    """The end of a batch that is gone, from the previous digest in its successor; None if that is not held."""
    for found in page.batches:
        if found.first_offset == last_sequence + 1:
            return last_sequence, found.batch.header.previous_digest
    return None


def _difference(found: End | None, claimed: End) -> str | None:
    """How a claimed end differs from the one found; None if it does not, or if nothing was found to compare it with."""
    if found is None or found == claimed:
        return None
    if found[0] != claimed[0]:
        return f"the peer's batch ends there, ours ends at {found[0]}"
    return f"the batch that ends there has digest {claimed[1].hex()} at the peer and {found[1].hex()} here"
