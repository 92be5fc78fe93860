"""Assembles a page of whole batches and holes from rows of the table `batch`. Core: no IO.

A bit that the disk has changed must never be served as a fact, and a lost row must never be skipped silently. So a row
is served only if its bytes have the digest with which they were sealed, name the stream in which the row was found, and
hold as many facts as its offsets say. Offsets have no gaps, so everything between two served batches is a hole:
`expired` where retention released it, `damaged` elsewhere.

A damaged row does not affect other rows: the next good row is accepted wherever it lies after the last one (decision
0029).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.batch import DIGEST_BYTES, Batch, parse
from agent.columns import BatchError
from agent.pages import BATCHES_MAX, Hole, StoredBatch

# first_offset, last_offset, body, digest, as read from the disk
PageRow = tuple[object, object, object, object]


def parse_row(stream: str, row: PageRow) -> Batch | str:
    """The batch in a row of `stream`, or what is wrong with it."""
    first_offset, last_offset, body, digest = row
    if not (isinstance(first_offset, int) and isinstance(last_offset, int)):
        return "its offsets are not integers"
    if not (isinstance(body, bytes) and isinstance(digest, bytes)) or len(digest) != DIGEST_BYTES:
        return "its bytes are missing"
    try:
        batch = parse(body + digest)
    except BatchError as error:
        return str(error)
    if batch.header.stream != stream:
        return f"it is of stream {batch.header.stream}"
    if last_offset - first_offset + 1 != batch.header.count:
        return f"it holds {batch.header.count} facts, its offsets are {first_offset} to {last_offset}"
    return batch


@dataclass(slots=True)
class PageAssembly:
    """A page that is assembled from rows in the order of their offsets."""

    stream: str
    after_offset: int
    facts_max: int
    bytes_max: int
    until_offset: int
    released_offset: int = 0
    batches: list[StoredBatch] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    problem: str = ""  # of the last bad row

    def __post_init__(self) -> None:
        """Add released offsets as a hole at the start of the page; they are not damaged."""
        released = min(self.released_offset, self.until_offset)
        if released > self.after_offset:
            self.holes.append(Hole(self.after_offset + 1, released, "expired"))

    @property
    def reached(self) -> int:
        """The page covers all offsets after `after_offset` up to this one, as facts or as holes."""
        last = self.batches[-1].last_offset if self.batches else self.after_offset
        return max(last, self.holes[-1].last_offset if self.holes else 0)

    def add_row(self, row: PageRow) -> bool:
        """Add one row; True when the page is full. A row that does not fit is left out."""
        if len(self.batches) >= BATCHES_MAX:
            return True
        batch = parse_row(self.stream, row)
        if isinstance(batch, str):
            self.problem = batch
            return False
        first_offset, last_offset = int(row[0]), int(row[1])  # type: ignore[call-overload]  # checked by `parse_row`
        is_inside = not self.batches and first_offset <= self.reached + 1 <= last_offset
        if not is_inside and first_offset <= self.reached:
            self.problem = f"it lies at offset {first_offset}, inside another batch"
            return False
        is_full = self.bytes_max < len(batch.sealed) or first_offset - 1 - self.after_offset >= self.facts_max
        if self.batches and is_full:
            return True
        self._add_hole(first_offset - 1)
        self.bytes_max -= len(batch.sealed)
        self.batches.append(StoredBatch(first_offset, batch))
        return self.batches[-1].last_offset - self.after_offset >= self.facts_max

    def finish(self, end_offset: int) -> None:
        """End the page. No row is left up to `end_offset`, so offsets that are not in the page are damaged."""
        self._add_hole(min(end_offset, self.until_offset))

    def damaged(self) -> list[Hole]:
        """The damaged holes."""
        return [hole for hole in self.holes if hole.reason == "damaged"]

    def _add_hole(self, last_offset: int) -> None:
        if last_offset > self.reached:
            self.holes.append(Hole(self.reached + 1, last_offset, "damaged"))
