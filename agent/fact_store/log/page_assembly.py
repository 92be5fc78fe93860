"""What a page may hold: rows of the table `batch` in, whole batches and named holes out. Core: no IO.

A bit that the disk changed must never become a fact, and a row that it hid must never become silence. So the sealed bytes are
the truth: a row is served only when its bytes have the digest they were sealed with, name the stream it was found in, and
hold as many facts as its offsets say. And offsets have no gaps: whatever lies between two batches served is a hole, `expired`
where retention released it, `damaged` anywhere else.

One bad row costs itself and nothing more: a good row is believed wherever it lies beyond the last one believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.batch import DIGEST_BYTES, Batch, BatchError, parse
from agent.fact_store.log.records import Hole, StoredBatch

PageRow = tuple[object, object, object, object]  # first_offset, last_offset, body, digest, as the disk has them


def parse_row(stream: str, row: PageRow) -> Batch | str:
    """The batch in a row of `stream`, or what is wrong with it."""
    first_offset, last_offset, body, digest = row
    if not (isinstance(first_offset, int) and isinstance(last_offset, int)):
        return "its offsets are no numbers"
    if not (isinstance(body, bytes) and isinstance(digest, bytes)) or len(digest) != DIGEST_BYTES:
        return "its bytes are not there"
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
    """A page being put together from rows in the order of their offsets."""

    stream: str
    after_offset: int
    facts_max: int
    bytes_max: int
    until_offset: int
    released_offset: int = 0
    batches: list[StoredBatch] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    problem: str = ""  # what was wrong with the last bad row

    def __post_init__(self) -> None:
        """What retention has let go of is passed over first, and is no damage."""
        released = min(self.released_offset, self.until_offset)
        if released > self.after_offset:
            self.holes.append(Hole(self.after_offset + 1, released, "expired"))

    @property
    def reached(self) -> int:
        """Everything after the offset asked for up to here is in the page, as facts or as a hole."""
        last = self.batches[-1].last_offset if self.batches else self.after_offset
        return max(last, self.holes[-1].last_offset if self.holes else 0)

    def add_row(self, row: PageRow) -> bool:
        """Put one row into the page; True when the page is full, and then a row it has no room for is left out."""
        batch = parse_row(self.stream, row)
        if isinstance(batch, str):
            self.problem = batch
            return False
        first_offset, last_offset = int(row[0]), int(row[1])  # type: ignore[call-overload]  # `whole` has looked
        is_inside = not self.batches and first_offset <= self.reached + 1 <= last_offset
        if not is_inside and first_offset <= self.reached:
            self.problem = f"it lies at offset {first_offset}, where another batch lies"
            return False
        if self.batches and self.bytes_max < len(batch.sealed):
            return True
        self._add_hole(first_offset - 1)
        self.bytes_max -= len(batch.sealed)
        header = batch.header
        self.batches.append(
            StoredBatch(first_offset, last_offset, batch.sealed, header.origin, header.definitions.count)
        )
        is_full: bool = last_offset - self.after_offset >= self.facts_max
        return is_full

    def finish(self, end_offset: int) -> None:
        """No row is left before `end_offset`: what is not in the page by now is damaged."""
        self._add_hole(min(end_offset, self.until_offset))

    def damaged(self) -> list[Hole]:
        """The holes that are nobody's decision."""
        return [hole for hole in self.holes if hole.reason == "damaged"]

    def _add_hole(self, last_offset: int) -> None:
        if last_offset > self.reached:
            self.holes.append(Hole(self.reached + 1, last_offset, "damaged"))
