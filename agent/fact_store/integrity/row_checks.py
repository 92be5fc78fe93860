"""Checks rows of a store: each batch against its own bytes, its neighbours, and the other tables. Core: no IO.

`verify.py` walks the tables and calls these checks. The sealed bytes are authoritative: their digest, their header, and
the chain. Facts are served from the bytes alone. A column that disagrees with them also counts as damage, because
columns decide which batches are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.batch import DIGEST_BYTES, Batch, Definitions, Kind, Origin, open_messages, open_packed, parse
from agent.columns import FACTS_MAX, BatchError
from agent.fact_store.append import Checkpoint, checkpoints_in
from agent.pages import HeldRange


class Damage(NamedTuple):
    """One damaged place and what is wrong there. `offset` 0: not a place in a stream; `origin` "": no origin;
    `sequence` 0: not known."""

    stream: str
    offset: int
    last_offset: int
    origin: str
    sequence: int
    what: str

    def __str__(self) -> str:
        place = f"{self.stream} " if self.stream else ""
        place += f"{self.offset} to {self.last_offset}" if self.offset else "as a whole" if self.stream else "the store"
        whose = f" ({f'sequence {self.sequence} of ' if self.sequence else ''}{self.origin})" if self.origin else ""
        return f"{place}{whose}: {self.what}"


class BatchRow(NamedTuple):
    """A row of the table `batch` as read from the disk; any column may hold anything."""

    first_offset: Any
    last_offset: Any
    origin: Any
    first_sequence: Any
    count: Any
    time_min_ns: Any
    time_max_ns: Any
    kind: Any
    codec: Any
    definition: Any
    bytes_total: Any
    digest: Any
    previous_digest: Any
    body: Any


def definitions_damage(rows: Sequence[tuple[Any, ...]]) -> Iterator[Damage]:
    """Check that each definition (id, zone, digest, previous, number, body) has the digest that follows from the one
    before it."""
    names = {row[0]: Definitions(row[4], row[2]) for row in rows}
    for number, zone, digest, previous, count, body in rows:
        before = Definitions() if previous is None else names.get(previous)
        if before is None or before.extended(body) != Definitions(count, digest):
            yield Damage("", 0, 0, str(zone), 0, f"tag definition {count} (row {number}) is damaged")


@dataclass(slots=True)
class StreamCheck:
    """Checks the batches of one stream in the order of their offsets."""

    stream: str
    numbers: Mapping[int, Origin]
    definitions: Mapping[int | None, tuple[str, Definitions]]  # zone and name, by id
    released_offset: int
    released_bytes: int
    is_opened: bool = True
    next_offset: int = 0
    bytes_total: int = 0
    signed: int = 0
    ranges_seen: dict[Origin, list[HeldRange]] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Those found in the batches, of any zone, about any stream."""

    def __post_init__(self) -> None:
        """Begin at the offset after the released ones."""
        self.next_offset, self.bytes_total = self.released_offset + 1, self.released_bytes

    def release(self, released_offset: int, released_bytes: int) -> None:
        """Retention has released everything up to an offset: the rows that come next begin after it."""
        self.released_offset = released_offset
        if self.next_offset <= released_offset:
            self.next_offset, self.bytes_total = released_offset + 1, released_bytes

    def check_row(self, row: BatchRow) -> Iterator[Damage]:
        """What is wrong with the next row."""
        if isinstance(row.last_offset, int) and row.last_offset <= self.released_offset:
            return  # released; retention will delete it
        batch = self._batch(row)
        if isinstance(batch, str):
            yield self._damage(row, batch)
            self._advance(row)
            return
        header = batch.header
        for name, found, said in (
            ("stream", self.stream, header.stream),
            ("origin", self.numbers.get(row.origin), header.origin),
            ("first_sequence", row.first_sequence, header.first_sequence),
            ("count", row.count, header.count),
            ("last_offset", row.last_offset, row.first_offset + header.count - 1),
            ("time_min_ns", row.time_min_ns, header.time_min_ns),
            ("time_max_ns", row.time_max_ns, header.time_max_ns),
            ("kind", row.kind, header.kind),
            ("codec", row.codec, header.codec),
            ("previous_digest", row.previous_digest, header.previous_digest),
            ("bytes_total", row.bytes_total, self.bytes_total + len(batch.sealed)),
        ):
            if found != said and not (name == "bytes_total" and row.first_offset != self.next_offset):
                yield self._damage(row, f"column {name} is {_text(found)}, in the batch it is {_text(said)}", batch)
        self.signed += header.is_signed
        yield from self._place_damage(row, batch)
        self._advance(row, batch)

    def finish(self, end_offset: int) -> Iterator[Damage]:
        """Check the end, after the last row: `end_offset` is where the stream ended by the held ranges."""
        if self.next_offset - 1 != end_offset and self.released_offset < end_offset:
            what = f"the rows end at {self.next_offset - 1}, the held ranges end at {end_offset}"
            shorter, longer = sorted((self.next_offset - 1, end_offset))
            yield Damage(self.stream, shorter + 1, longer, "", 0, what)

    def held_damage(self, held: Mapping[Origin, Sequence[HeldRange]]) -> Iterator[Damage]:
        """Compare the checked rows with the held ranges, which also contain released facts."""
        for origin in {*held, *self.ranges_seen}:
            ranges = held.get(origin, ())
            ends = {seen.last_sequence: seen.last_digest for seen in self.ranges_seen.get(origin, ())}
            for seen in self.ranges_seen.get(origin, ()):
                inside = [
                    known for known in ranges if known.first_sequence <= seen.first_sequence <= known.last_sequence
                ]
                if not inside or inside[0].last_sequence < seen.last_sequence:
                    what = (
                        f"sequences {seen.first_sequence} to {seen.last_sequence} are stored but not in the held ranges"
                    )
                    yield Damage(self.stream, 0, 0, str(origin), seen.first_sequence, what)
                elif (
                    inside[0].first_sequence < seen.first_sequence
                    and ends.get(seen.first_sequence - 1, seen.first_previous_digest) != seen.first_previous_digest
                ):
                    what = "it does not continue the batch before it: the chain is broken"
                    yield Damage(self.stream, 0, 0, str(origin), seen.first_sequence, what)
                elif inside[0].last_sequence == seen.last_sequence and inside[0].last_digest != seen.last_digest:
                    what = "the last batch has another digest than the held range"
                    yield Damage(self.stream, 0, 0, str(origin), seen.last_sequence, what)

    def _batch(self, row: BatchRow) -> Batch | str:
        if not (isinstance(row.body, bytes) and isinstance(row.digest, bytes)) or len(row.digest) != DIGEST_BYTES:
            return "its bytes are missing"
        if not (isinstance(row.first_offset, int) and isinstance(row.last_offset, int)):
            return "its offsets are not integers"
        try:
            batch = parse(row.body + row.digest)
            if self.is_opened and batch.header.kind is Kind.MESSAGES:
                self.checkpoints += checkpoints_in(open_messages(batch))
            elif self.is_opened:
                open_packed(batch)
        except BatchError as error:
            return str(error)
        return batch

    def _place_damage(self, row: BatchRow, batch: Batch) -> Iterator[Damage]:
        """Check the order of offsets and sequences, the hash chain, and the tag definitions."""
        header = batch.header
        if row.first_offset > self.next_offset:
            what = "the rows are missing"
            yield Damage(self.stream, self.next_offset, row.first_offset - 1, "", 0, what)
        elif row.first_offset < self.next_offset:
            yield self._damage(row, "another batch has the same offsets", batch)
        if any(
            seen.first_sequence <= header.last_sequence and header.first_sequence <= seen.last_sequence
            for seen in self.ranges_seen.get(header.origin, ())
        ):
            yield self._damage(row, "another batch has the same sequences", batch)
        named = self.definitions.get(row.definition)
        if header.kind is Kind.SAMPLES and named != (header.origin.zone, header.definitions):
            yield self._damage(row, "the tag definitions held differ from those it was sealed with", batch)

    def _advance(self, row: BatchRow, batch: Batch | None = None) -> None:
        first, last = row.first_offset, row.last_offset
        is_range = isinstance(first, int) and isinstance(last, int) and 0 <= last - first < FACTS_MAX
        if is_range and first >= self.next_offset:
            self.next_offset = last + 1
        if isinstance(row.bytes_total, int):
            self.bytes_total = row.bytes_total
        if batch is None:
            return
        header = batch.header
        ranges = self.ranges_seen.setdefault(header.origin, [])
        end = (ranges[-1].last_sequence + 1, ranges[-1].last_digest) if ranges else None
        if end == (header.first_sequence, header.previous_digest):
            ranges[-1] = HeldRange(
                ranges[-1].first_sequence, header.last_sequence, ranges[-1].first_previous_digest, batch.digest
            )
        else:
            ranges.append(HeldRange.of(header, batch.digest))

    def _damage(self, row: BatchRow, what: str, batch: Batch | None = None) -> Damage:
        origin = batch.header.origin if batch else self.numbers.get(row.origin)
        sequence = batch.header.first_sequence if batch else row.first_sequence
        first, last = (bound if isinstance(bound, int) else 0 for bound in (row.first_offset, row.last_offset))
        if last < first:  # unreadable or changed: take the end from the batch if it is readable
            last = first + batch.header.count - 1 if batch else first
        return Damage(self.stream, first, last, str(origin or ""), sequence if isinstance(sequence, int) else 0, what)


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
