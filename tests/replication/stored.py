"""Batches as a store reads them, of any size and without facts: for tests of what only counts bytes and offsets."""

from agent.batch import DIGEST_BYTES, Batch, Codec, Definitions, Header, Kind, Origin
from agent.pages import StoredBatch


def stored(first: int, last: int, size: int = 100, origin: Origin | None = None) -> StoredBatch:
    """A batch of `size` zero bytes at these offsets, by default of zone plant-a."""
    header = Header(
        *("facts", origin or Origin("plant-a", bytes(16)), Kind.SAMPLES, Codec.RAW),
        *(False, first, last - first + 1, 0, 0, bytes(DIGEST_BYTES), Definitions(), 0),
    )
    return StoredBatch(first, Batch(header, bytes(size), bytes(DIGEST_BYTES), 0))
