"""FactStore: the fact store of one node, assembled from its parts.

Changes are made by the writer's thread and answered through futures: `appends` takes facts of this zone (appends.py),
`inbound` those of peers (inbound.py), `consumers` registrations and confirmations (consumer_registry.py). Reads run in
the calling thread, on connections that cannot write, or use the writer's catalog.

Guarantees: a result is durable; what cannot be stored is refused with the reason; nothing blocks except reads, `open`
and `close`. An invalid argument, or a full queue, raises at once; every other error comes through the future. Futures
are `concurrent.futures.Future` (asyncio: `asyncio.wrap_future`); cancelling one does not withdraw the facts.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from agent.batch import Origin
from agent.errors import StoreError
from agent.fact_store import consumers
from agent.fact_store.append import append_checkpoint
from agent.fact_store.appends import Appends
from agent.fact_store.artifacts import Artifacts
from agent.fact_store.consumer_registry import ConsumerRegistry
from agent.fact_store.core import (
    Integrity,
    StoreLimits,
    StoreNames,
    StoreUnusable,
    StreamInfo,
    StreamState,
    TailCache,
)
from agent.fact_store.divergence import IntegrityWatch, Scrubber, open_writer
from agent.fact_store.inbound import Inbound
from agent.fact_store.integrity import DamageRegistry
from agent.fact_store.read import StoreReader, StoreSpace
from agent.fact_store.retention import Ballast
from agent.fact_store.sqlite import (
    OPENING_BYTES,
    Connect,
    close_and_keep_log,
    connect,
    disk_free,
    file_bytes,
    lock,
    room_hint,
    unlock,
)
from agent.fact_store.writer import Committer, Writer
from agent.message import ZONE, check_name
from agent.pages import Page
from agent.positions import LogLives, Position, Resolved, begun_ms
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit
from agent.signing.records import RecordSigner

log = logging.getLogger(__name__)


class FactStore:
    """The fact store of one node. Owns the lock, the writer's thread and reading connections."""

    def __init__(
        self, writer: Writer, reader: StoreReader, artifacts: Artifacts, watch: IntegrityWatch, closing: ExitStack
    ) -> None:
        self.artifacts = artifacts
        self.appends = Appends(writer, artifacts)
        self.inbound = Inbound(writer, reader, watch.damages)
        self.consumers = ConsumerRegistry(writer)
        self.reader = reader
        """What is stored and held, in any thread; closed with the store."""
        self.statistics, self.on_commit, self.note_incident = writer.statistics, writer.subscribe, writer.note_incident
        self.times_restored = 0
        """How often a peer has shown in this life that the store was put back."""
        self._writer = writer
        self._watch = watch
        self._closing = closing

    @classmethod
    def open(
        cls,
        path: Path,
        zone: str,
        *,
        node: str | None = None,
        settings: StoreSettings | None = None,
        streams: Sequence[StreamSettings] = (),
        holds: Mapping[str, ZoneLimit] | None = None,
        pair_zones: frozenset[str] = frozenset(),
        connect_to: Connect = connect,
        signer: RecordSigner | None = None,
        unattended: bool = False,
    ) -> FactStore:
        """Open the store of `zone`, or create it; recovers without an operator, however the last life ended. `node`:
        the one that records here, if it is not named like its zone. What it says about itself (health, notices,
        checkpoints) is sealed under that name.

        Streams that `streams` does not name have the defaults of `StreamSettings`. `holds`: what each zone may hold
        back from being released. `pair_zones`: those that two nodes record. With `signer` the facts recorded here are
        signed. `unattended`, as nodes open it: a file that cannot be used is quarantined and a new store begins in its
        place, an old copy says so and goes on, and everything stored is scrubbed in the background (opening.py,
        scrubber.py).

        Raises StoreUnusable: StoreMissing (folder), StoreLocked, StoreForeign, StoreTooNew, StoreDamaged.
        """
        names = StoreNames(zone, node or zone)
        for what, name in names._asdict().items():
            check_name(what, name, ZONE)
        policies = {stream.name: stream for stream in streams}
        limits = StoreLimits(settings or StoreSettings(), policies, holds or {}, pair_zones)
        with ExitStack() as closing:
            closing.callback(unlock, lock(path))
            if Ballast(path, limits.settings.ballast_bytes).delete_if_needed(disk_free(path.parent)):
                log.warning("ballast_given_up", extra={"store": str(path)})
            free = disk_free(path.parent)
            if file_bytes(path) == 0 and free is not None and free < OPENING_BYTES:  # an old store is opened with less
                raise StoreUnusable(f"{path.parent} has {free:,} bytes free, too few for a new store", room_hint())
            opened = open_writer(path, names, connect_to, time.time_ns() // 1_000_000, signer, is_unattended=unattended)
            damages = DamageRegistry()
            try:
                reader = StoreReader(path, connect_to=connect_to, on_damaged=damages.report)
            except StoreError:
                close_and_keep_log(path, opened.connection)
                raise
            witness = opened.witness
            if witness is not None:
                closing.callback(witness.close)
            writer = Writer(Committer(path, opened.connection, opened.catalog, opened.index, limits, witness, signer))
            damages.start(writer)
            artifacts = Artifacts(path, limits.settings, reader, writer)
            scrubber = Scrubber(path, writer, artifacts.sweep, witness, reader.read)
            watch = IntegrityWatch(path, reader, damages, scrubber)
            closing.callback(writer.close)
            # Before the writer: the last connection to close copies the write-ahead log into the database, which a
            # reader cannot.
            closing.callback(reader.close)
            closing.callback(scrubber.stop)
            closing.callback(_save_last_seen, writer)
            store = cls(writer, reader, artifacts, watch, closing.pop_all())
        if unattended:
            watch.start(writer.ended)
        if signer is not None:  # before any append: no batch is served without the certificate of its key
            store.set_signer(signer)
        writer.start()
        return store

    def close(self) -> None:
        """Commit what is queued and close the files. Calling it again does nothing."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------------------------- reading

    @property
    def path(self) -> Path:
        """The store's file."""
        return self.reader.path

    @property
    def zone(self) -> str:
        """The zone whose store this is."""
        return self._writer.catalog.names.zone

    @property
    def node(self) -> str:
        """The node that records here; the zone of what it says about itself."""
        return self._writer.catalog.names.node

    @property
    def own_zones(self) -> frozenset[str]:
        """The zones of what is recorded here: the zone, and the node."""
        return self._writer.catalog.names.own_zones

    @property
    def ended(self) -> Future[None]:
        """Done when the writer has ended: after `close`, or with the error that ended it."""
        return self._writer.ended

    @property
    def origin(self) -> Origin:
        """Zone and life of what is recorded now; from memory."""
        return self._writer.catalog.origin

    @property
    def signer(self) -> RecordSigner | None:
        """The key that signs what is recorded here; None if nothing is signed. From memory."""
        return self._writer.committer.signer

    def read(
        self,
        stream: str,
        after_offset: int,
        facts_max: int,
        bytes_max: int,
        *,
        until_offset: int | None = None,
    ) -> Page:
        """A page of whole batches, read in the calling thread; see `StoreReader.read`.

        The page ends at `end_offset`. A reading connection sees a commit a moment before `end_offset` includes it; a
        peer that confirmed such a fact at once would appear to have read a newer copy of this store.
        """
        catalog = self._writer.catalog
        known = catalog.streams.get(stream) or StreamState(0, stream)
        end_offset = known.end_offset
        until_offset = end_offset if until_offset is None else min(until_offset, end_offset)
        if known.released_offset <= after_offset and (tail := catalog.tails.get(known.id)) is not None:
            page = tail.page(after_offset, facts_max, bytes_max, until_offset)
            if page is not None:
                return page
        return self.reader.read(
            stream, after_offset, facts_max, bytes_max, until_offset=until_offset, end_offset=end_offset
        )

    @property
    def recorded_unix_ms(self) -> int:
        """When the last facts were recorded here, at most a minute too early, by the wall clock of then; 0: never."""
        streams = self._writer.catalog.streams.values()
        return max(((stream.mark_ms or 0, stream.mark_unix_ms) for stream in streams), default=(0, 0))[1]

    @property
    def refuses_appends(self) -> bool:
        """Whether the last append to a stream was refused for want of room. From memory."""
        return self._writer.refuses_appends

    def is_nearly_full(self, stream: str) -> bool:
        """Whether a stream, the store or the disk is filled to 80 %. From memory."""
        return self._writer.committer.housekeeping.room.is_near(self._writer.catalog, stream)

    def set_limits(
        self,
        bytes_max: int,
        streams: Sequence[StreamSettings],
        holds: Mapping[str, ZoneLimit],
        pair_zones: frozenset[str] = frozenset(),
    ) -> None:
        """Replace the limit of the store's file, the settings of all streams, what zones may hold back, and which zones
        two nodes record. They apply to new appends and from the next check of retention; an append that already waits
        keeps its terms."""
        self._limits.replace(bytes_max, {stream.name: stream for stream in streams}, holds, pair_zones)

    def set_signer(self, signer: RecordSigner | None) -> Future[None]:
        """Sign with this key from its commit on, which also stores its certificate. With None nothing is signed from
        then on. Existing signatures stay. If the call fails, the previous key stays in use."""
        return self._writer.submit("sign", lambda transaction: transaction.sign_with(signer), is_early=True)

    def checkpoint(self, date: str) -> Future[None]:
        """Record a checkpoint of what is held (append/checkpoint.py), once for each date (YYYY-MM-DD, UTC); does
        nothing in a store that does not sign."""
        return self._writer.submit("checkpoint", partial(append_checkpoint, date=date))

    def set_compromised(self, since_unix_ms: Mapping[bytes, int]) -> Future[None]:
        """Replace the list of compromised keys: key ids, and since when their signatures prove nothing."""
        return self._writer.submit(
            "compromised", lambda transaction: transaction.set_compromised(since_unix_ms), is_early=True
        )

    def signers(self, key_ids: Iterable[bytes]) -> Sequence[bytes]:
        """The stored certificates (DER) of these keys."""
        return self.reader.signers(key_ids)

    def signed_zones(self) -> frozenset[str]:
        """The zones of which a record was ever verified here, including this one if it has signed; from memory."""
        return self._writer.catalog.proven_zones

    def own_lives(self) -> frozenset[bytes]:
        """The lives of this store that have stored something, and the present one. Read in the calling thread."""
        return frozenset({self.life, *self.reader.own_lives()})

    def end_offset(self, stream: str) -> int:
        """Offset of the last durable fact of a stream, 0 if there is none; from memory."""
        known = self._writer.catalog.streams.get(stream)
        return known.end_offset if known else 0

    def streams(self) -> list[StreamInfo]:
        """Every stream, from memory."""
        return [state.info() for state in self._writer.catalog.streams.values()]

    # ----------------------------------------------------------------------------------------------------------- status

    @property
    def failure(self) -> StoreError | None:
        """The error that ended the writer, None while it runs. The process must end then; see `ended`."""
        return self._writer.failure

    def integrity(self) -> Integrity:
        """Damage found, progress of the scrub, and quarantined files."""
        return self._watch.report()

    def policy(self, stream: str) -> StreamSettings:
        """The settings of a stream; from memory."""
        return self._limits.policy(stream)

    def space(self) -> StoreSpace:
        """Free space and forecasts: a few look-ups, in the calling thread."""
        limits, age_ms = self._limits, self._writer.committer.age_ms()
        return self.reader.space(
            limits.settings, limits.streams, catalog=self._writer.catalog, age_ms=age_ms, holds=limits.holds
        )

    @property
    def _limits(self) -> StoreLimits:
        return self._writer.committer.limits

    # ------------------------------------------------------------------------------------------------- lives, positions

    @property
    def life(self) -> bytes:
        """The life of this process, until it takes the lead or its clock jumps; from memory."""
        return self._writer.catalog.life

    @property
    def next_life_number(self) -> int:
        """One more than the number of the highest own life, the least that `take_lead` accepts; from memory."""
        return begun_ms(self._writer.catalog.highest_life) + 1

    def take_lead(self, term: int) -> Future[bytes]:
        """Record the zone from now on under a new life with this number; returns the life. In each stream its chain
        runs on from the end of the newest life of the zone that is held here, also after a restart.

        Through the future: TermRefused, which is a ValueError, unless the term is above the numbers of all own lives.
        """
        return self._writer.submit("take_lead", lambda transaction: transaction.take_lead(term), is_early=True)

    def is_in_memory(self, stream: str, after_offset: int) -> bool:
        """Whether a page after this offset is read from memory; False also if nothing is known of the stream."""
        catalog = self._writer.catalog
        tail = catalog.tails.get(catalog.streams[stream].id) if stream in catalog.streams else None
        return tail is not None and bool(tail.batches) and tail.batches[0].first_offset <= after_offset + 1

    def log(self, stream: str) -> LogLives:
        """The lives of a stream's log: the newest from memory, others are read when they are needed."""
        return self._writer.catalog.log(stream, self.reader.lives(stream))

    def resolve(self, stream: str, position: Position) -> Resolved:
        """What a position in a log of this stream means here. Read in the calling thread, except in the newest life and
        at the end of the log, which are in memory."""
        catalog = self._writer.catalog

        def is_other(offset: int, digest: bytes) -> bool:
            tail = catalog.tails.get(catalog.streams[stream].id) or TailCache()  # it has facts, so it is known
            for batch in reversed(tail.batches):
                if batch.first_offset <= offset:
                    return (batch.last_offset, batch.batch.digest) != (offset, digest)
            return self.reader.holds_other(stream, offset, digest)

        return catalog.log(stream, self.reader.lives(stream)).resolve(position, is_other)

    def peer_reads_more(self, peer: str, why: str) -> None:
        """Record an incident: a peer has read a log of this store that is not the one here, or further. Returns at
        once."""
        self.times_restored += 1
        with contextlib.suppress(StoreError):
            self.note_incident("restored", f"peer {peer}", why)


def _save_last_seen(writer: Writer) -> None:
    if seen := writer.activity.unsaved(writer.catalog):
        with contextlib.suppress(StoreError):  # the writer may have ended; everything else is still closed
            writer.submit("remember", partial(consumers.save_last_seen, seen_unix_ms=seen))
