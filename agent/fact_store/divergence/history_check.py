"""Compares what a peer claims to have read of this store with the store: a contradiction means that this store is an
old copy.

A copy that was restored and has grown since holds other facts where the peer has read on, and looks consistent to
itself. A peer's offset alone shows it only while the copy is the shorter log. So a peer sends the end of a batch that
it read with the digest there, which covers all facts of that origin before it, and the last of this store's own facts
that it holds by whatever path (decision 0041).

Only facts that are held here and are undamaged can contradict a peer. A batch that was released or is damaged proves
nothing, unless the batch after it is held, which names its digest.
"""

from __future__ import annotations

from agent.batch import DIGEST_BYTES, parse
from agent.fact_store.log import Catalog
from agent.fact_store.read import StoreReader
from agent.pages import Page

End = tuple[int, bytes]
"""Where a batch ends, as an offset or a sequence, and its digest."""


def find_contradiction(
    reader: StoreReader, catalog: Catalog, stream: str, last_read: End | None, last_held: End | None
) -> str | None:
    """How a peer's claim about this epoch contradicts the store; None where it does not.

    `last_read`: the end of a batch that the peer read here, by offset. `last_held`: the last of this store's own facts
    that it holds, by sequence. Costs two look-ups on disk at most, none where both are the ends of the log. Raises what
    StoreReader raises.
    """
    known = catalog.streams.get(stream)
    ranges = catalog.held.get((known.id, catalog.own_origin), ()) if known else ()
    own = (ranges[-1].last_sequence, ranges[-1].last_digest) if ranges else (0, b"")
    end_offset = known.end_offset if known else 0
    if last_held is not None and last_held != own:
        where = f"our sequence {last_held[0]} of {stream}"
        if last_held[0] > own[0]:
            return f"it holds {where}, we have written {own[0]}"
        page = reader.read_sequences(stream, catalog.origin, last_held[0], last_held[0] + 1, 1, 1)
        if (why := _difference(_end_at(page, last_held[0]) or _predecessor(page, last_held[0]), last_held)) is not None:
            return f"{where}: {why}"
    if last_read is not None and last_read != (end_offset, own[1]):
        where = f"offset {last_read[0]} of {stream}"
        if last_read[0] > end_offset:
            return f"it has read up to {where}, which ends at {end_offset}"
        page = reader.read(stream, last_read[0] - 1, 1, 1, until_offset=last_read[0], end_offset=end_offset)
        if (why := _difference(_end_at(page, last_read[0]), last_read)) is not None:
            return f"{where}: {why}"
    return None


def _end_at(page: Page, place: int) -> End | None:
    """The end of the batch that holds a place, and its digest; None where it was released or is damaged."""
    for found in page.batches:
        if found.first_offset <= place <= found.last_offset:
            return found.last_offset, found.sealed[-DIGEST_BYTES:]
    return None


def _predecessor(page: Page, last_sequence: int) -> End | None:
    """The end of a batch that is gone, as its successor names it; None where the successor is not held."""
    for found in page.batches:
        if found.first_offset == last_sequence + 1:
            return last_sequence, parse(found.sealed).header.previous_digest
    return None


def _difference(found: End | None, claimed: End) -> str | None:
    """How a claimed end differs from the one found; None where it does not, or where nothing was found to compare it
    with."""
    if found is None or found == claimed:
        return None
    if found[0] != claimed[0]:
        return f"a batch ends there at the peer, ours goes on to {found[0]}"
    return f"the batch that ends there is {claimed[1].hex()} at the peer and {found[1].hex()} here"
