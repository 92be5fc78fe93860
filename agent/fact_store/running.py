"""The running store as everybody sees it: its name, what it knows by heart, pages read in the caller's thread, how it is.

Here is what all its doors share: own facts come in by one (own_facts.py), those of peers by another (peers_facts.py), and readers are
known and served at the third (readership.py). Whatever changes something goes to the writer's thread as a call and comes back as a future;
the rest are looks into the writer's catalog, or reads on connections that cannot write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from agent.batch import Origin
from agent.fact_store.append import Call
from agent.fact_store.artifacts import Artifacts
from agent.fact_store.divergence import ReadHighWater
from agent.fact_store.integrity import DamageRegistry
from agent.fact_store.log import (
    ConsumerState,
    Incident,
    StoreError,
    StoreStatistics,
    StreamInfo,
    StreamSettings,
    StreamState,
    TailCache,
)
from agent.fact_store.read import StoreReader
from agent.fact_store.writer import OnCommit, Writer
from agent.pages import BatchEnd, HeldRange, Page, PeerPosition


class Parts(NamedTuple):
    """What a running store is put together from (store.py)."""

    path: Path
    writer: Writer
    reader: StoreReader
    origin: Origin
    damages: DamageRegistry
    artifacts: Artifacts


class RunningStore:
    """One life of a store, for whoever reads it or asks how it is."""

    def __init__(self, parts: Parts) -> None:
        self.path = parts.path
        self.origin = parts.origin
        self.artifacts = parts.artifacts
        self._writer = parts.writer
        self._reader = parts.reader
        self._damages = parts.damages
        catalog = parts.writer.catalog
        self._seen = ReadHighWater({name: state.end_offset for name, state in catalog.streams.items()})

    @property
    def zone(self) -> str:
        """The zone whose store this is."""
        return self.origin.zone

    @property
    def epoch(self) -> bytes:
        """Identity of this life of the store, 16 random bytes."""
        return self.origin.epoch

    @property
    def reader(self) -> StoreReader:
        """For who asks more than pages of it (`agent.query`), in threads of his own; it ends with the store."""
        return self._reader

    def read(
        self, stream: str, after_offset: int, facts_max: int, bytes_max: int, *, until_offset: int | None = None
    ) -> Page:
        """A page of whole batches, read in the calling thread; see `StoreReader.read`.

        Nothing beyond `end_offset`: a reader sees a commit some moments before `end_offset` tells of it, and a peer that confirmed in
        those moments what it was served would be taken for one that has read another, longer life of this store.
        """
        page = self._read(stream, after_offset, facts_max, bytes_max, until_offset)
        if page.batches:
            self._seen.record(stream, page.batches[-1].last_offset)
        return page

    def _read(
        self, stream: str, after_offset: int, facts_max: int, bytes_max: int, until_offset: int | None = None
    ) -> Page:
        """A page that leaves this store for nobody."""
        catalog = self._writer.catalog
        known = catalog.streams.get(stream, StreamState(0, stream))
        end_offset = known.end_offset
        until_offset = end_offset if until_offset is None else min(until_offset, end_offset)
        if known.released_offset <= after_offset:
            tail = catalog.tails.get(known.id, TailCache())
            if (page := tail.page(after_offset, facts_max, bytes_max, until_offset)) is not None:
                return page
        return self._reader.read(
            stream, after_offset, facts_max, bytes_max, until_offset=until_offset, end_offset=end_offset
        )

    def read_sequences(
        self, stream: str, origin: Origin, first_sequence: int, last_sequence: int, facts_max: int, bytes_max: int
    ) -> Page:
        """A page of one origin's batches by its sequences, read in the calling thread; see `StoreReader.read_sequences`."""
        page = self._reader.read_sequences(stream, origin, first_sequence, last_sequence, facts_max, bytes_max)
        if page.batches and origin == self.origin:
            self._seen.record(stream, self.end_offset(stream))  # sequences are no offsets, and it is rarely asked
        return page

    def batch_ends(self, stream: str, origin: Origin, sequences: Iterable[int]) -> list[BatchEnd]:
        """Ends and digests of the batches that hold these sequences, read in the calling thread."""
        return self._reader.batch_ends(stream, origin, sequences)

    def held(self, stream: str) -> dict[Origin, tuple[HeldRange, ...]]:
        """Which sequences of each origin are held in a stream, or were before retention, with the digests at the ends of each range;
        from memory."""
        catalog = self._writer.catalog
        known = catalog.streams.get(stream)
        ranges = (
            {origin: catalog.held.get((known.id, number), ()) for origin, number in catalog.origins.items()}
            if known
            else {}
        )
        return {origin: found for origin, found in ranges.items() if found}

    def definitions(self, origin: Origin, after_number: int, until_number: int) -> list[bytes]:
        """Canonical JSON of an origin's definitions, after one number up to another, read in the calling thread."""
        return self._reader.definitions(origin, after_number, until_number)

    def incidents(self) -> list[Incident]:
        """What was lost or refused, newest first, read in the calling thread."""
        return self._reader.incidents()

    def end_offset(self, stream: str) -> int:
        """Offset of the last durable fact of a stream, 0 where there is none; from memory."""
        known = self._writer.catalog.streams.get(stream)
        return known.end_offset if known else 0

    def streams(self) -> list[StreamInfo]:
        """Every stream, from memory."""
        return [state.info() for state in self._writer.catalog.streams.values()]

    def origins(self) -> list[Origin]:
        """Everybody whose facts are held, this store first, from memory."""
        return list(self._writer.catalog.origins)

    def definition_counts(self) -> dict[Origin, int]:
        """How many tag definitions are held of each origin, numbered from 1 without holes, from memory."""
        catalog = self._writer.catalog
        counts = catalog.definitions
        return {origin: counts[number].count for origin, number in catalog.origins.items() if number in counts}

    def consumer(self, name: str) -> ConsumerState | None:
        """A registered consumer, from memory."""
        return self._writer.catalog.consumers.get(name)

    def consumers(self) -> list[ConsumerState]:
        """Every registered consumer, from memory."""
        return list(self._writer.catalog.consumers.values())

    def policy(self, stream: str) -> StreamSettings:
        """What is promised of a stream's facts."""
        return self._writer.policy(stream)

    def peer_position(self, peer: str, stream: str) -> PeerPosition | None:
        """How far a peer's stream has been stored here, from memory."""
        return self._writer.catalog.peers.get((peer, stream))

    def statistics(self) -> StoreStatistics:
        """Counters since `open`, what waits now, and the size of the files."""
        return self._writer.statistics()

    @property
    def failure(self) -> StoreError | None:
        """Why this store cannot go on, if it cannot. The process must end then; see `ended`."""
        return self._writer.failure

    @property
    def ended(self) -> Future[None]:
        """Done when the writer has ended: after `close`, or with StoreFailed when the disk failed it."""
        return self._writer.ended

    def on_commit(self, callback: OnCommit) -> Callable[[], None]:
        """Have `callback({stream: end_offset})` called in the writer's thread after each commit that moved an end.

        It must only enqueue and never raise. Returns a function that undoes this.
        """
        return self._writer.subscribe(callback)

    def _call(
        self, name: str, run: Callable[..., Any], *, size: int = 0, is_early: bool = False, stream: str | None = None
    ) -> Future[Any]:
        call = Call(name, size, time.monotonic_ns(), run, is_early, stream)
        self._writer.call(call)
        return call.future
