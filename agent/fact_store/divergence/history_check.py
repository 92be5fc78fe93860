"""What a peer shows of this store, compared with it: whether the store is an old copy of the one that the peer has read.

A copy that was put back and has grown since holds other facts where the peer has read on, and an old copy looks perfect to itself. A
peer's offset alone tells it only while the copy is the shorter one. So a peer shows the end of a batch it took and the digest there,
which vouches for all of that origin before it; and the last of our own facts that it holds, whichever way they came.

Only what is here and whole can contradict a peer. What retention has released or the disk has damaged proves nothing, unless the batch
behind it is here, which names its digest.
"""

from __future__ import annotations

from agent.batch import DIGEST_BYTES, parse
from agent.fact_store.log import Catalog
from agent.fact_store.read import StoreReader
from agent.pages import Page

End = tuple[int, bytes]
"""Where a batch ends, as an offset or a sequence, and its digest."""


def contradiction(
    reader: StoreReader, catalog: Catalog, stream: str, taken: End | None, held: End | None
) -> str | None:
    """What of that which a peer shows of this epoch is not here, in words; None where nothing speaks against it. Two look-ups on disk
    at most, none where what is shown are the ends. Raises the errors of reading."""
    known = catalog.streams.get(stream)
    ranges = catalog.held.get((known.id, catalog.own_origin), ()) if known else ()
    own = (ranges[-1].last_sequence, ranges[-1].last_digest) if ranges else (0, b"")
    end_offset = known.end_offset if known else 0
    if held is not None and held != own:
        where = f"our sequence {held[0]} of {stream}"
        if held[0] > own[0]:
            return f"it holds {where}, we have written {own[0]}"
        page = reader.read_sequences(stream, catalog.origin, held[0], held[0] + 1, 1, 1)
        if (why := _differs(_end_at(page, held[0]) or _predecessor(page, held[0]), held)) is not None:
            return f"{where}: {why}"
    if taken is not None and taken != (end_offset, own[1]):
        where = f"offset {taken[0]} of {stream}"
        if taken[0] > end_offset:
            return f"it has read up to {where}, which ends at {end_offset}"
        page = reader.read(stream, taken[0] - 1, 1, 1, until_offset=taken[0], end_offset=end_offset)
        if (why := _differs(_end_at(page, taken[0]), taken)) is not None:
            return f"{where}: {why}"
    return None


def _end_at(page: Page, place: int) -> End | None:
    """Where the batch ends that holds a place, and its digest; None where it was released or is damaged."""
    for found in page.batches:
        if found.first_offset <= place <= found.last_offset:
            return found.last_offset, found.sealed[-DIGEST_BYTES:]
    return None


def _predecessor(page: Page, last_sequence: int) -> End | None:
    """The same as the batch that begins behind it names it: all that is left of one that is gone."""
    for found in page.batches:
        if found.first_offset == last_sequence + 1:
            return last_sequence, parse(found.sealed).header.previous_digest
    return None


def _differs(found: End | None, shown: End) -> str | None:
    """How what is here is not what is shown."""
    if found is None or found == shown:
        return None
    if found[0] != shown[0]:
        return f"a batch ends there at the peer, ours goes on to {found[0]}"
    return f"the batch that ends there is {shown[1].hex()} at the peer and {found[1].hex()} here"
