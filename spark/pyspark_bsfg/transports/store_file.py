"""Shell: reads a store's file on this host, read-only, in pages, each with a short statement of its own.

Between pages no statement or transaction is open, so the node that owns the store can reuse its write-ahead log while a
long job reads. The file is opened read-only: consumers are registered and confirmed through the local socket of the
node that owns it, by the same user.
"""

from __future__ import annotations

import asyncio
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agent.batch import Kind, Origin
from agent.fact_store import BatchSummary, StoreDamaged, StoreReader, Verified
from agent.lease import LeaseClaim
from agent.message import HEALTH_STREAM, OPERATIONAL_STREAM
from agent.pages import Start
from agent.positions import Position
from pyspark_bsfg.dictionary import Dictionary, Named
from pyspark_bsfg.errors import ConsumerRefused, FactsGone, StoreUnreadable, StreamAbsent
from pyspark_bsfg.options import TELEMETRY
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange, joined
from pyspark_bsfg.transports.ports import Asked, Bounds, Page, PlacedBatch, Registration

PAGE_FACTS = 200_000
PAGE_BYTES = 4 * 1024 * 1024  # some milliseconds of reading; larger pages were no faster
SUMMARIES_PAGE = 4096  # some milliseconds for each statement
# Of any node: where the file lacks one, no fact of it has come yet. Another name may be misspelt.
USUAL_STREAMS = frozenset((TELEMETRY, OPERATIONAL_STREAM, HEALTH_STREAM))

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A store's file, facts.db in a node's state_dir, on the host where it is opened."""

    path: str

    @contextmanager
    def opened(self) -> Iterator[StoreFileSource]:
        """The store's facts. Raises StoreUnreadable, or the store's own error, if the file cannot be read from here."""
        _check_access(Path(self.path))
        with closing(StoreReader(Path(self.path))) as reader:
            yield StoreFileSource(reader)


def files(patterns: Sequence[str]) -> list[StoreFile]:
    """The store files that these paths name; * ? and [...] match names. Raises StoreUnreadable for a pattern that
    matches no file."""
    found: list[str] = []
    for pattern in patterns:
        if not glob.has_magic(pattern) or Path(pattern).exists():
            found.append(str(Path(pattern)))
        elif matches := sorted(glob.glob(pattern)):  # noqa: PTH207  Path.glob takes no absolute pattern
            found += matches
        else:
            raise StoreUnreadable(f"{pattern} matches no file on this host", "name the store's file, facts.db")
    return [StoreFile(path) for path in dict.fromkeys(found)]


class StoreFileSource:
    """The facts of a store's file; see `FactSource`."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader

    @property
    def name(self) -> str:
        return str(self.reader.path)

    @property
    def zone(self) -> str:
        return self.reader.zone

    def bounds(self, stream: str, read: Position | None = None) -> Bounds:
        streams = {known.name: known for known in self.reader.streams()}
        if (found := streams.get(stream)) is None:
            names = ", ".join(sorted(streams)) or "none yet"
            absent = StreamAbsent(f"{self.name} holds no stream {stream!r}", f"it holds: {names}")
            if stream not in USUAL_STREAMS:
                raise absent
            _warn_once(str(absent))
        lives = self.reader.log(stream)
        here = None if read is None else self.reader.resolve(stream, read)
        resolved = None if here is None or here.how == "unknown" else here.offset
        first, end, stored = (1, 0, 0) if found is None else (found.first_offset, found.end_offset, found.bytes)
        fact_bytes = stored / (end - first + 1) if end >= first else 0.0
        return Bounds(lives.at(end).hex(), first, end, self.zone, fact_bytes, resolved)

    def marks(self, stream: str) -> Sequence[tuple[int, int]]:
        return self.reader.clock_marks(stream)

    def matching(self, asked: Asked, pruning: Pruning, dictionary: Dictionary) -> Iterator[OffsetRange]:
        """By the summaries of batches; no batch is read. Spans that touch are joined."""
        first, last = max(asked.offsets.first, pruning.offsets[0]), min(asked.offsets.last, pruning.offsets[1])
        if not pruning.skips_batches or first > last:
            yield from [OffsetRange(first, last)] * (first <= last)
            return

        def may_hold(summary: BatchSummary) -> bool:
            if not pruning.may_hold(summary):
                return False
            if summary.kind != Kind.SAMPLES or not pruning.names_tags:
                return True
            named = self.reader.definitions_named(summary.definition or 0)
            self.define(dictionary, named)
            return dictionary.wants_some(named)

        def kept() -> Iterator[OffsetRange]:
            at = first
            while at <= last:
                try:
                    summaries = self.reader.summaries(asked.stream, at, last, SUMMARIES_PAGE)
                except StoreDamaged:
                    summaries = []  # `read` reads around the damage, and reports it
                if not summaries:
                    yield OffsetRange(at, last)
                    return
                for summary in summaries:
                    if summary.first_offset > at:  # rows are missing: included, so that the hole is reported
                        yield OffsetRange(at, summary.first_offset - 1)
                    if may_hold(summary):
                        yield OffsetRange(max(at, summary.first_offset), min(summary.last_offset, last))
                    at = summary.last_offset + 1

        yield from joined(kept())

    def counts(self, asked: Asked) -> Sequence[tuple[Origin, int]] | None:
        self._check_log(asked)
        try:
            found = self.reader.counts(asked.stream, *asked.offsets)
        except StoreDamaged:
            return None  # `read` reads around the damage, and reports it
        return found if sum(count for _, count in found) == asked.offsets.facts else None

    def pages(self, asked: Asked, dictionary: Dictionary, *, needs_proofs: bool) -> Iterator[Page]:  # noqa: ARG002
        """Signatures are not verified again: the store has the results of its node."""
        after, last = asked.offsets.first - 1, asked.offsets.last
        self._check_log(asked)
        while after < last:
            page = self.reader.read(asked.stream, after, PAGE_FACTS, PAGE_BYTES, until_offset=last)
            verified: list[Verified] = ["no"] * len(page.batches)
            if needs_proofs:
                places = [(batch.origin, batch.batch.header.first_sequence) for batch in page.batches]
                verified = self.reader.verified(asked.stream, places)
            placed = [
                PlacedBatch(batch.first_offset, batch.batch, how)
                for batch, how in zip(page.batches, verified, strict=True)
            ]
            yield Page(placed, page.holes)
            reached = max(
                [after, *(batch.last_offset for batch in page.batches), *(hole.last_offset for hole in page.holes)]
            )
            if reached == after:  # the range was held when the read was planned: the file was replaced
                raise StoreUnreadable(f"{self.name}: {asked.stream} ends at {after}, not at {last}", "read again")
            after = reached

    def _check_log(self, asked: Asked) -> None:
        """Raise FactsGone if the log does not have the end of the range."""
        last = asked.offsets.last
        if self.reader.resolve(asked.stream, Position(bytes.fromhex(asked.life), last)).how != "exact":
            raise FactsGone(f"{self.name}: offset {last} of life {asked.life} is not in its log now", "read again")

    def define(self, dictionary: Dictionary, named: Named) -> None:
        """Read all definitions of a zone, once."""
        zone, needed = named
        if dictionary.has(named) or not needed.count:
            return
        for of, end in reversed(self.reader.definition_ends()):
            if of == zone and (chain := self.reader.definitions(zone, end.digest)) is not None:
                dictionary.put((zone, end), chain.bodies)
            if dictionary.has(named):
                return
        raise StoreUnreadable(
            f"{self.name}: the {needed.count} tag definitions of {zone} that a batch needs are not there",
            "run bsfg store verify on the node",
        )

    def cursor(self, consumer: str) -> int | None:
        return next((known.confirmed.frontier for known in self.reader.consumers() if known.name == consumer), None)

    def register(self, consumer: str, stream: str, start: Start, claim: LeaseClaim) -> Registration:
        from pyspark_bsfg.transports.registration import first_fetch, registration_of

        found = registration_of(self._ask(first_fetch(consumer, stream, start, claim), consumer, claim))
        holders = [known.lease.holder for known in self.reader.consumers() if known.name == consumer]
        return found._replace(holder="".join(holders))

    def confirm(self, consumer: str, offset: int, life: str, claim: LeaseClaim) -> None:
        from agent.replication.protocol.messages import ConfirmReceipt

        if offset > 0:
            request = ConfirmReceipt(consumer_name=consumer, offset=offset, life=life, lease=claim.epoch or None)
            self._ask(request, consumer, claim)

    def _ask(self, request: Any, consumer: str, claim: LeaseClaim) -> Any:
        """The answer of the node that owns the store, which alone writes it. Raises StoreUnreadable if none answers,
        and ConsumerRefused."""
        # Imported here: it takes as long as all other imports, and tasks do not need it.
        from agent.local_socket import LocalError, StateFolderUnusable, ask
        from agent.replication.protocol.messages import ErrorAnswer

        folder = self.reader.path.parent
        try:
            answer = asyncio.run(ask(folder, request, instance=claim.holder)).answer
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise StoreUnreadable(f"consumer {consumer}: no node runs on {folder}", "start it") from error
        except (LocalError, StateFolderUnusable) as error:
            raise StoreUnreadable(f"consumer {consumer}: {error}", error.hint) from error
        if isinstance(answer, ErrorAnswer):
            raise ConsumerRefused(f"consumer {consumer}: {answer.error.message}", answer.error.hint, answer.error.code)
        return answer


@cache
def _warn_once(said: str) -> None:
    """A stream asks several times a second."""
    log.warning("%s", said)


def _check_access(path: Path) -> None:
    """Raise a clear error before SQLite raises its own."""
    unreadable = StoreUnreadable(f"{path} cannot be read by this user", "add the user to the group that owns it")
    try:
        is_there = path.exists()
    except PermissionError:  # of a folder above it
        raise unreadable from None
    if not is_there:
        raise StoreUnreadable(
            f"{path} does not exist on this host",
            "a store's file is read where the task runs: run on the store's host (master local[*])",
        )
    if not path.is_file():
        raise StoreUnreadable(f"{path} is not a file", "name the store's file itself, facts.db in the node's state_dir")
    if not os.access(path, os.R_OK):
        raise unreadable
    shared = path.with_name(path.name + "-shm")
    if shared.exists() and not os.access(shared, os.R_OK):
        raise StoreUnreadable(f"{shared} cannot be read by this user", "add the user to the group that owns it")
    if not shared.exists() and not os.access(path.parent, os.W_OK):
        # SQLite must make this file to read a store that was closed cleanly (it shares locks through it).
        raise StoreUnreadable(
            f"{shared} does not exist and this user may not create it",
            "start the node, which creates it, or read a copy of the store in a folder of your own",
        )
