"""The newest batches of a stream, in memory: what a reader who waits at its end is served from. Core: no IO.

Whoever follows a stream asks for what was committed a moment ago. Asking the file for it takes six statements and the digest of each
batch, more than half of what a live page costs its sender; the writer still has the very bytes it sealed or checked.

Promised: a tail holds whole batches without a break, ending where its stream ends. It is published with the catalog of the commit
that made them durable, so whoever sees the one sees the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.batch import Batch
from agent.fact_store.log.records import Page, StoredBatch

BYTES_MAX = 64 * 1024
"""For each stream: a tenth of a second of 100,000 facts/s, and a reader that is further behind is no longer a live one."""


@dataclass(frozen=True, slots=True)
class TailCache:
    """The last batches of one stream, in order."""

    batches: tuple[StoredBatch, ...] = ()

    def extended(self, added: Sequence[Batch], end_offset: int) -> TailCache:
        """With batches that were put behind it, the last of them ending at `end_offset`; the oldest give way."""
        kept, left = list[StoredBatch](), BYTES_MAX
        for batch in reversed(added):
            left -= len(batch.sealed)
            if left < 0:
                return TailCache(tuple(reversed(kept)))
            header = batch.header
            first_offset = end_offset - header.count + 1
            kept.append(StoredBatch(first_offset, end_offset, batch.sealed, header.origin, header.definitions.count))
            end_offset = first_offset - 1
        for stored in reversed(self.batches):
            left -= len(stored.sealed)
            if left < 0:
                break
            kept.append(stored)
        return TailCache(tuple(reversed(kept)))

    def page(self, after_offset: int, facts_max: int, bytes_max: int, until_offset: int) -> Page | None:
        """What `StoreReader.read` would answer; None where that begins before this tail, finds nothing, or is asked wrongly."""
        batches = self.batches
        if not batches or min(facts_max, bytes_max) < 1:
            return None
        if not batches[0].first_offset <= after_offset + 1 <= min(batches[-1].last_offset, until_offset):
            return None
        taken = list[StoredBatch]()
        for stored in batches:
            if stored.last_offset <= after_offset:
                continue
            bytes_max -= len(stored.sealed)
            if stored.first_offset > until_offset or (taken and bytes_max < 0):
                break
            taken.append(stored)
            if stored.last_offset - after_offset >= facts_max:
                break
        return Page(taken, batches[-1].last_offset)
