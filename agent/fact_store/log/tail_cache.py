"""The tail cache: the newest batches of a stream in memory, from which live readers are served. Core: no IO.

A reader at the end of a stream fetches what was committed a moment ago. Reading that from the file takes six statements
and a digest for each batch, more than half of the cost of a live page; the writer still has the bytes in memory.

Guarantees: the cache holds whole consecutive batches and ends at the end of its stream. It is published with the
catalog of the commit that made the batches durable, so a thread sees both or neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from agent.batch import Batch
from agent.pages import Page, StoredBatch

BYTES_MAX = 64 * 1024
"""For each stream: a tenth of a second at 100,000 facts/s. A reader that is further behind reads from the file."""


@dataclass(frozen=True, slots=True)
class TailCache:
    """The last batches of one stream, in order, and their size."""

    batches: tuple[StoredBatch, ...] = ()
    bytes: int = 0

    def extended(self, added: Sequence[Batch], end_offset: int) -> TailCache:
        """The cache after an append of batches, the last of which ends at `end_offset`. The oldest batches are
        dropped."""
        stored, size = list[StoredBatch](), self.bytes
        for batch in reversed(added):
            stored.append(StoredBatch(end_offset - batch.header.count + 1, batch))
            end_offset -= batch.header.count
            size += len(batch.sealed)
        batches, dropped = (*self.batches, *reversed(stored)), 0
        while size > BYTES_MAX:
            size -= len(batches[dropped].sealed)
            dropped += 1
        return TailCache(batches[dropped:], size)

    def page(self, after_offset: int, facts_max: int, bytes_max: int, until_offset: int) -> Page | None:
        """The page that `StoreReader.read` would return; None if it begins before the cache, is empty, or has invalid
        limits."""
        batches = self.batches
        if not batches or min(facts_max, bytes_max) < 1:
            return None
        if not batches[0].first_offset <= after_offset + 1 <= min(batches[-1].last_offset, until_offset):
            return None
        first = bisect_right(batches, after_offset + 1, key=lambda stored: stored.first_offset) - 1
        taken = list[StoredBatch]()
        for stored in islice(batches, first, None):
            bytes_max -= len(stored.sealed)
            is_full = bytes_max < 0 or stored.first_offset - 1 - after_offset >= facts_max
            if stored.first_offset > until_offset or (taken and is_full):
                break
            taken.append(stored)
        return Page(taken, batches[-1].last_offset)
