"""Reads the facts of a store within bounds, batch by batch: first the summaries of batches, then only those that may
match.

Every fact within the bounds that existed when the scanner was made, and was not released since, is returned once, in
the order of streams and offsets, or backwards. Unreadable offsets are recorded as holes and do not end the scan. No
read transaction stays open between two statements, so the write-ahead log can be reused during a long query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from agent.batch import Kind, Origin, open_messages, open_packed
from agent.columns import BatchError
from agent.fact_store import BatchSummary, StoreDamaged, StoreReader, Verified
from agent.pages import Hole, StoredBatch
from agent.query.scan.bounds import Bounds
from agent.query.scan.dictionary import Dictionary, WantedTags
from agent.query.scan.errors import StreamUnknown
from agent.query.scan.fact_columns import BatchFacts

SUMMARIES_PAGE = 4096  # a few milliseconds for each statement
READ_BYTES_MAX = 4 * 1024 * 1024
ROW_LEAP_MAX = 2**40  # beyond any row that was ever written
HOLES_MAX = 1000  # named one by one; more are counted


@dataclass(slots=True)
class ScanCounters:
    """Counts of a scan: summaries of batches read, batches opened, facts found; the holes, and whether one of them is
    damage."""

    summaries: int = 0
    batches_opened: int = 0
    facts: int = 0
    holes: list[tuple[str, Hole]] = field(default_factory=list)
    holes_total: int = 0
    is_damaged: bool = False
    unreadable: list[str] = field(default_factory=list)
    """Definitions that could not be read, one text for each zone."""

    def add_hole(self, stream: str, hole: Hole) -> None:
        """Record a hole."""
        if (stream, hole) in self.holes:
            return
        self.holes_total += 1
        self.is_damaged |= hole.reason == "damaged"
        if len(self.holes) < HOLES_MAX:
            self.holes.append((stream, hole))

    def note_unreadable(self, what: str) -> None:
        """Record definitions that cannot be read."""
        self.is_damaged = True
        if what not in self.unreadable:
            self.unreadable.append(what)


class Scanner:
    """Scans one store up to the ends that its streams had when this was made, so that several scans see the same
    facts."""

    def __init__(self, reader: StoreReader, dictionary: Dictionary | None = None) -> None:
        self.reader = reader
        self.dictionary = dictionary or Dictionary(reader)  # a caller that scans repeatedly keeps one
        bounds = reader.bounds()
        self.firsts: Mapping[str, int] = {name: first for name, (first, _) in bounds.items()}
        self.ends: Mapping[str, int] = {name: last for name, (_, last) in bounds.items()}
        self.counters = ScanCounters()
        self._rows: dict[str, list[tuple[int, BatchSummary]]] | None = None  # only of a damaged file

    def check_streams(self, streams: Iterable[str]) -> frozenset[str]:
        """The streams as a set. Raises StreamUnknown for one that the store does not have."""
        for stream in streams:
            if stream not in self.ends:
                raise StreamUnknown(
                    f"there is no stream {stream!r}", f"there are: {', '.join(sorted(self.ends)) or 'none'}"
                )
        return frozenset(streams)

    def scan(self, bounds: Bounds, *, newest_first: bool = False) -> Iterator[BatchFacts]:
        """The facts within the bounds, by batch; in a batch they are in the order of `BatchFacts.places`, which may be
        backwards."""
        wanted = WantedTags(self.dictionary, bounds)
        for stream in sorted(self.ends, reverse=newest_first):
            if bounds.streams is None or stream in bounds.streams:
                yield from self._scan_stream(stream, bounds, wanted, newest_first=newest_first)

    def summaries(
        self, stream: str, first_offset: int, last_offset: int, *, newest_first: bool = False
    ) -> Iterator[list[BatchSummary]]:
        """The summaries of the batches of a range, by page."""
        while first_offset <= last_offset:
            try:
                page = self.reader.summaries(
                    stream, first_offset, last_offset, SUMMARIES_PAGE, newest_first=newest_first
                )
            except StoreDamaged:
                page = [summary for _, summary in self._salvaged(stream, first_offset, last_offset)]
                yield page[::-1] if newest_first else page
                return
            self.counters.summaries += len(page)
            if not page:
                return
            yield page
            if newest_first:
                last_offset = page[-1].first_offset - 1
            else:
                first_offset = page[-1].last_offset + 1

    def read(self, stream: str, first_offset: int, last_offset: int) -> list[StoredBatch]:
        """The batches of a range, as far as they can be read; the rest is recorded as holes."""
        found = list[StoredBatch]()
        after = first_offset - 1
        while after < last_offset:
            try:
                page = self.reader.read(stream, after, last_offset - after, READ_BYTES_MAX, until_offset=last_offset)
            except StoreDamaged:
                return found + self._read_rows(stream, after + 1, last_offset)
            for hole in page.holes:
                self.counters.add_hole(stream, hole)
            found += page.batches
            ends = [part.last_offset for part in page.batches] + [part.last_offset for part in page.holes]
            if not ends:
                self.counters.add_hole(stream, Hole(after + 1, last_offset, "expired"))
                break
            after = max(ends)
        return found

    def read_ranges(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[tuple[str, StoredBatch]]:
        """The batches of ranges (stream, first and last offset), with the stream; adjacent ranges are read together."""
        joined = list[tuple[str, int, int]]()
        for stream, first, last in sorted(ranges):
            if joined and joined[-1][0] == stream and joined[-1][2] == first - 1:
                first = joined.pop()[1]  # noqa: PLW2901 the range goes on
            joined.append((stream, first, last))
        return ((at[0], stored) for at in joined for stored in self.read(*at))

    def facts_of(self, stream: str, summaries: Iterable[BatchSummary]) -> Iterator[BatchFacts]:
        """All facts of batches whose summaries were read; a few megabytes of adjacent batches are read together."""
        bounds = Bounds()
        wanted = WantedTags(self.dictionary, bounds)
        group, size = list[tuple[str, int, int]](), 0
        for found in sorted(summaries):
            group.append((stream, found.first_offset, found.last_offset))
            size += found.body_bytes
            if size >= READ_BYTES_MAX:
                yield from self._facts_in(group, bounds, wanted)
                group, size = [], 0
        yield from self._facts_in(group, bounds, wanted)

    def _facts_in(
        self, ranges: Iterable[tuple[str, int, int]], bounds: Bounds, wanted: WantedTags
    ) -> Iterator[BatchFacts]:
        for stream, stored in self.read_ranges(ranges):
            if facts := self.opened(stream, stored, bounds, wanted):
                yield facts

    def opened(self, stream: str, stored: StoredBatch, bounds: Bounds, wanted: WantedTags) -> BatchFacts | None:
        """The facts of a batch within the bounds, if it has any. A batch that does not open is recorded as a hole."""
        try:
            batch = stored.batch
            self.counters.batches_opened += 1
            verified = partial(self._verified, stream, stored.origin, batch.header.first_sequence)
            if batch.header.kind is Kind.MESSAGES:
                messages = open_messages(batch)
                places = bounds.message_places(stored.first_offset, messages)
                facts = BatchFacts(stream, stored.first_offset, batch, places, None, messages, (), verified)
            else:
                zone, needed = stored.origin.zone, stored.definitions
                numbers = wanted.numbers(zone, needed)
                samples = open_packed(batch)
                places = bounds.sample_places(stored.first_offset, samples, numbers)
                definitions = self.dictionary.of(zone, needed).tags
                facts = BatchFacts(stream, stored.first_offset, batch, places, samples, (), definitions, verified)
        except (BatchError, StoreDamaged):  # a batch cannot be interpreted without its definitions
            self.counters.add_hole(stream, Hole(stored.first_offset, stored.last_offset, "damaged"))
            return None
        self.counters.facts += len(places)
        return facts if places else None

    def _verified(self, stream: str, origin: Origin, sequence: int) -> Verified:
        try:
            return self.reader.verified(stream, [(origin, sequence)])[0]
        except StoreDamaged:  # a failed look-up proves nothing
            return "no"

    def _scan_stream(
        self, stream: str, bounds: Bounds, wanted: WantedTags, *, newest_first: bool
    ) -> Iterator[BatchFacts]:
        group_max = 1  # small first, for queries that need few rows
        first, last = max(bounds.offset_min, self.firsts[stream]), min(bounds.offset_max, self.ends[stream])
        for page in self.summaries(stream, first, last, newest_first=newest_first):
            kept = [summary for summary in page if bounds.may_hold(summary) and self._names_some(summary, wanted)]
            at = 0
            while at < len(kept):
                group = _contiguous(kept, at, group_max, newest_first=newest_first)
                group_max = min(group_max * 2, SUMMARIES_PAGE)
                at += len(group)
                ends = group[0], group[-1]
                stored = self.read(stream, min(h.first_offset for h in ends), max(h.last_offset for h in ends))
                for batch in reversed(stored) if newest_first else stored:
                    if facts := self.opened(stream, batch, bounds, wanted):
                        yield replace(facts, places=facts.places[::-1]) if newest_first else facts

    def _salvaged(self, stream: str, first_offset: int, last_offset: int) -> list[tuple[int, BatchSummary]]:
        """Rows and summaries of a range in a file that SQLite finds damaged. Offsets without a row are recorded as
        holes."""
        if self._rows is None:
            self._rows = salvage(self.reader)
        found, expected = list[tuple[int, BatchSummary]](), first_offset
        for row, summary in self._rows.get(stream, ()):
            if summary.last_offset < first_offset or summary.first_offset > last_offset:
                continue
            if summary.first_offset > expected:
                self.counters.add_hole(stream, Hole(expected, summary.first_offset - 1, "damaged"))
            found.append((row, summary))
            expected = summary.last_offset + 1
        if expected <= last_offset:
            self.counters.add_hole(stream, Hole(expected, last_offset, "damaged"))
        return found

    def _read_rows(self, stream: str, first_offset: int, last_offset: int) -> list[StoredBatch]:
        found = list[StoredBatch]()
        for row, summary in self._salvaged(stream, first_offset, last_offset):
            try:
                found.append(self.reader.row(stream, row))
            except StoreDamaged:
                self.counters.add_hole(stream, Hole(summary.first_offset, summary.last_offset, "damaged"))
        return found

    def _names_some(self, summary: BatchSummary, wanted: WantedTags) -> bool:
        """Whether one of the wanted tags was defined when the batch was sealed."""
        if summary.kind != Kind.SAMPLES:
            return True
        try:
            numbers = wanted.numbers(*self.reader.definitions_named(summary.definition or 0))
        except (BatchError, StoreDamaged):
            return True  # reported when it is opened
        return numbers is None or bool(numbers)


def salvage(reader: StoreReader) -> dict[str, list[tuple[int, BatchSummary]]]:
    """The readable rows of the table of batches in a damaged file, by stream and offset. Unreadable rows are skipped in
    growing steps."""
    found: dict[str, dict[int, tuple[int, BatchSummary]]] = {}
    row, leap, limit = 0, 1, SUMMARIES_PAGE
    while leap < ROW_LEAP_MAX:
        try:
            page = reader.row_summaries(row, limit)
        except StoreDamaged:
            if limit > 1:
                limit = 1
            else:
                row, leap = row + leap, leap * 2
            continue
        if not page:
            break
        for number, stream, summary in page:
            found.setdefault(stream, {})[summary.first_offset] = number, summary
        row, leap, limit = page[-1][0], 1, min(limit * 2, SUMMARIES_PAGE)
    return {stream: [summaries[first] for first in sorted(summaries)] for stream, summaries in found.items()}


def _contiguous(summaries: list[BatchSummary], at: int, count: int, *, newest_first: bool) -> list[BatchSummary]:
    """Consecutive batches from `at` on, at most `count` and small enough for one read."""
    group, size = [summaries[at]], summaries[at].body_bytes
    for summary in summaries[at + 1 : at + count]:
        last = group[-1]
        follows = (
            last.first_offset - 1 == summary.last_offset
            if newest_first
            else last.last_offset + 1 == summary.first_offset
        )
        size += summary.body_bytes
        if not follows or size > READ_BYTES_MAX:
            break
        group.append(summary)
    return group
