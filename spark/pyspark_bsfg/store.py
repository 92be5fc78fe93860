"""Shell: reads an enterprise store's file on this host, read-only, in pages, each with a short statement of its own.

Every fact of the requested range that the store still has, and that a query's filters do not exclude, is returned once,
in order. Each missing range is reported: as a warning in the log of the task, or as an exception if the caller wants
one. Of batches that the filters exclude by their summaries nothing is read, so nothing is reported either. Between pages no
statement or transaction is open, so the node that owns the store can reuse its write-ahead log while a long job reads.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agent.batch import DEFINITIONS_MAX, Kind, Origin, first_sequence, parse
from agent.columns import BatchError
from agent.fact_store import BatchSummary, StoreDamaged, StoreReader, Verified
from agent.pages import Hole, StoredBatch
from pyspark_bsfg.columns import Columns
from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.errors import FactsGone, StoreUnreadable, StreamUnknown
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange, joined

PAGE_FACTS = 200_000
PAGE_BYTES = 4 * 1024 * 1024  # some milliseconds of reading; a page of larger ones was no faster
SUMMARIES_PAGE = 4096  # some milliseconds for each statement
HOLES_LOGGED_MAX = 20  # lines of one task; a failing disk has more, and their sum is enough

log = logging.getLogger(__name__)


@contextmanager
def opened(path: Path) -> Iterator[StoreReader]:
    """A reader of the store at `path`. Raises StoreUnreadable, or the store's own error, when it cannot be read from
    here."""
    _check_access(path)
    with closing(StoreReader(path)) as reader:
        yield reader


def held(reader: StoreReader, stream: str) -> OffsetRange:
    """The offsets of a stream that the store holds now. Raises StreamUnknown."""
    streams = {one.name: OffsetRange(one.first_offset, one.end_offset) for one in reader.streams()}
    if stream not in streams:
        names = ", ".join(sorted(streams)) or "none yet"
        raise StreamUnknown(f"{reader.path} holds no stream {stream!r}", f"it holds: {names}")
    return streams[stream]


def files(patterns: Sequence[str]) -> list[Path]:
    """The stores' files that these paths name, where * ? and [...] match names. Raises StoreUnreadable for a pattern
    without a file."""
    found: list[Path] = []
    for pattern in patterns:
        if not glob.has_magic(pattern) or Path(pattern).exists():
            found.append(Path(pattern))
        elif matches := sorted(glob.glob(pattern)):  # noqa: PTH207  Path.glob takes no absolute pattern
            found += map(Path, matches)
        else:
            raise StoreUnreadable(f"{pattern} matches no file on this host", "name the store's file, facts.db")
    return list(dict.fromkeys(found))


def matching(reader: StoreReader, stream: str, asked: OffsetRange, pruning: Pruning) -> list[OffsetRange]:
    """The parts of a range whose batches may hold facts that match. No batch is read."""
    return list(_matching(reader, stream, asked, pruning, Dictionary(pruning.wants)))


def record_batches(
    path: Path,
    stream: str,
    asked: OffsetRange,
    schema: Any,
    pruning: Pruning | None = None,
    *,
    is_expired_refused: bool = False,
) -> Iterator[Any]:
    """The facts of a range as Arrow record batches of `schema`; what is missing is logged.

    With `is_expired_refused`, raises FactsGone where retention has released some of them.
    """
    pruning = pruning or Pruning()
    dictionary = Dictionary(pruning.wants)
    columns = Columns(schema, stream, dictionary, pruning)
    missing = _Missing(path, stream, is_expired_refused)
    with opened(path) as reader:
        for span in _matching(reader, stream, asked, pruning, dictionary):
            for stored, verified in _proven(reader, stream, span, missing, needs_proofs=columns.needs_proofs):
                if columns.needs_tags:
                    _define(reader, dictionary, stored.origin, stored.definition_count)
                start = max(span.first - stored.first_offset, 0)
                stop = min(span.last, stored.last_offset) - stored.first_offset + 1
                try:
                    yield from columns.add(parse(stored.sealed), stored.first_offset, start, stop, verified)
                except BatchError as error:
                    where = f"{path}: facts {stored.first_offset} to {stored.last_offset} of {stream}"
                    raise StoreUnreadable(f"{where}: {error}", "run bsfg store verify on the node") from error
        yield from columns.flush()
    missing.sum_up()


class _Missing:
    """Logs the facts of a task's range that the store does not have."""

    def __init__(self, path: Path, stream: str, is_expired_refused: bool) -> None:  # noqa: FBT001  one caller
        self._path = path
        self._stream = stream
        self._is_expired_refused = is_expired_refused
        self._holes = 0
        self._facts = 0

    def take(self, hole: Hole) -> None:
        """Log one. Raises FactsGone for what retention has released, if that is refused."""
        where = f"{self._path}: facts {hole.first_offset} to {hole.last_offset} of {self._stream}"
        if hole.reason == "expired" and self._is_expired_refused:
            raise FactsGone(f"{where} were released while this was reading", "read again, from a later one")
        self._holes += 1
        self._facts += hole.last_offset - hole.first_offset + 1
        if self._holes <= HOLES_LOGGED_MAX:
            hint = "" if hole.reason == "expired" else "; run bsfg store verify on the node"
            log.warning("%s are missing: %s%s", where, hole.reason, hint)

    def sum_up(self) -> None:
        """Log the sum, where holes were too many to log each."""
        if self._holes > HOLES_LOGGED_MAX:
            log.warning("%s: %s facts of %s are missing in this task", self._path, self._facts, self._stream)


def _matching(
    reader: StoreReader, stream: str, asked: OffsetRange, pruning: Pruning, dictionary: Dictionary
) -> Iterator[OffsetRange]:
    """As `matching`; spans that touch are one."""
    first, last = max(asked.first, pruning.offsets[0]), min(asked.last, pruning.offsets[1])
    if not pruning.skips_batches or first > last:
        yield from [OffsetRange(first, last)] * (first <= last)
        return

    def may_hold(summary: BatchSummary) -> bool:
        if not pruning.may_hold(summary):
            return False
        if summary.kind != Kind.SAMPLES or not pruning.names_tags:
            return True
        _define(reader, dictionary, summary.origin, summary.definition_count)
        return dictionary.wants_some(summary.origin, summary.definition_count)

    def kept() -> Iterator[OffsetRange]:
        at = first
        while at <= last:
            try:
                summaries = reader.summaries(stream, at, last, SUMMARIES_PAGE)
            except StoreDamaged:
                summaries = []  # a page is read around the damage, and names it
            if not summaries:
                yield OffsetRange(at, last)
                return
            for summary in summaries:
                if summary.first_offset > at:  # rows are lost: to be read, so that the hole is reported
                    yield OffsetRange(at, summary.first_offset - 1)
                if may_hold(summary):
                    yield OffsetRange(max(at, summary.first_offset), min(summary.last_offset, last))
                at = summary.last_offset + 1

    yield from joined(kept())


def _proven(
    reader: StoreReader, stream: str, asked: OffsetRange, missing: _Missing, *, needs_proofs: bool
) -> Iterator[tuple[StoredBatch, Verified]]:
    """The batches that hold a range, and whether each is proven by a signature."""
    for batches in _pages(reader, stream, asked, missing):
        found: list[Verified] = ["no"] * len(batches)
        if needs_proofs:
            places = [(one.origin, first_sequence(one.sealed)) for one in batches]
            found = reader.verified(stream, places)
        yield from zip(batches, found, strict=True)


def _pages(reader: StoreReader, stream: str, asked: OffsetRange, missing: _Missing) -> Iterator[Sequence[StoredBatch]]:
    """The batches that hold a range, in pages. The holes that the store names between them are added to `missing`."""
    after = asked.first - 1
    while after < asked.last:
        page = reader.read(stream, after, PAGE_FACTS, PAGE_BYTES, until_offset=asked.last)
        for hole in page.holes:
            missing.take(hole)
        yield page.batches
        reached = max([after, *(one.last_offset for one in page.batches), *(one.last_offset for one in page.holes)])
        if reached == after:  # the range was held when this was planned: it is another file now
            raise StoreUnreadable(f"{reader.path}: {stream} ends at {after}, not at {asked.last}", "read again")
        after = reached


def _define(reader: StoreReader, dictionary: Dictionary, origin: Origin, count: int) -> None:
    """Add the definitions that a batch needs to the dictionary: all of an origin, once."""
    if dictionary.known(origin) >= count:
        return
    dictionary.put(origin, reader.definitions(origin, 0, DEFINITIONS_MAX))
    if (known := dictionary.known(origin)) < count:
        raise StoreUnreadable(
            f"{reader.path}: {origin} has {known} tag definitions, a batch needs {count}",
            "run bsfg store verify on the node",
        )


def _check_access(path: Path) -> None:
    """Raise a clear error before SQLite raises its own."""
    if not path.exists():
        raise StoreUnreadable(
            f"{path} does not exist on this host",
            "the sqlite transport reads a file where the task runs: run on the store's host (master local[*])",
        )
    if not path.is_file():
        raise StoreUnreadable(f"{path} is no file", "name the store's file itself, facts.db in the node's state_dir")
    if not os.access(path, os.R_OK):
        raise StoreUnreadable(f"{path} cannot be read by this user", "add the user to the group that owns it")
    shared = path.with_name(path.name + "-shm")
    if shared.exists() and not os.access(shared, os.R_OK):
        raise StoreUnreadable(f"{shared} cannot be read by this user", "add the user to the group that owns it")
    if not shared.exists() and not os.access(path.parent, os.W_OK):
        # SQLite must make this file to read a store that was closed cleanly (it shares locks through it).
        raise StoreUnreadable(
            f"{shared} does not exist and this user may not create it",
            "start the node, which creates it, or read a copy of the store in a folder of your own",
        )
