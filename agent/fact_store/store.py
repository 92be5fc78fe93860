"""FactStore: the fact store of one node, put together from its parts.

Changes go to the writer's thread and come back as futures: `appends` takes facts of this zone (appends.py), `inbound`
those of peers (inbound.py), `consumers` registrations and confirmations (consumer_registry.py). Reads run in the
calling thread, on connections that cannot write, or look into the writer's catalog.

Promised: a result is durable; what cannot be stored is refused by name; nothing blocks except reads, `open` and
`close`. A mistake in the arguments, or a full queue, raises at once; every other error comes through the future.
Futures are `concurrent.futures.Future` (asyncio: `asyncio.wrap_future`); cancelling one does not take the facts back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Self

from agent.batch import Origin
from agent.fact_store import consumers
from agent.fact_store.append import append_checkpoint, sign_backlog
from agent.fact_store.appends import Appends
from agent.fact_store.artifacts import Artifacts
from agent.fact_store.consumer_registry import ConsumerRegistry
from agent.fact_store.divergence import (
    LiveWitness,
    ReadHighWater,
    Scrubber,
    find_contradiction,
    mark_suspect,
    open_writer,
    peer_is_ahead,
    quarantined_files,
)
from agent.fact_store.inbound import Inbound
from agent.fact_store.integrity import DamageRegistry
from agent.fact_store.log import (
    Integrity,
    StoreDamaged,
    StoreError,
    StoreSettings,
    StreamInfo,
    StreamSettings,
    StreamState,
    TailCache,
)
from agent.fact_store.read import StoreReader, StoreSpace
from agent.fact_store.retention import Ballast, disk_free
from agent.fact_store.sqlite import Connect, close_and_keep_log, connect, lock, unlock
from agent.fact_store.writer import Writer
from agent.message import ZONE, check_name
from agent.pages import HeldRange, Page
from agent.signing.heads import HeadSigner

log = logging.getLogger(__name__)


class FactStore:
    """The fact store of one node. Owns the lock, the writer's thread and reading connections."""

    def __init__(
        self,
        path: Path,
        origin: Origin,
        writer: Writer,
        reader: StoreReader,
        damages: DamageRegistry,
        artifacts: Artifacts,
        space: Callable[[], StoreSpace],
        lock_descriptor: int,
        witness: LiveWitness | None,
    ) -> None:
        self.path = path
        self.origin = origin
        self.artifacts = artifacts
        self.appends = Appends(origin.zone, writer, artifacts)
        self.inbound = Inbound(writer, reader, damages)
        self.consumers = ConsumerRegistry(writer)
        self.space = space
        """Free space and forecasts: a few look-ups, in the calling thread."""
        self.reader = reader
        """For queries in other threads (`agent.query`); closed with the store."""
        self.batch_ends, self.definitions, self.incidents = reader.batch_ends, reader.definitions, reader.incidents
        self.signers, self.head_at, self.next_head = reader.signers, reader.head_at, reader.next_head
        self.policy, self.statistics, self.on_commit = writer.policy, writer.statistics, writer.subscribe
        self.ended = writer.ended
        """Done when the writer has ended: after `close`, or with StoreFailed when the disk failed it."""
        self._writer = writer
        self._damages = damages
        self._seen = ReadHighWater({name: state.end_offset for name, state in writer.catalog.streams.items()})
        self._witness = witness
        self._scrubber = Scrubber(path, writer, self._read, artifacts.sweep, witness)
        self._lock_descriptor = lock_descriptor
        self._is_closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        zone: str,
        *,
        settings: StoreSettings | None = None,
        streams: Sequence[StreamSettings] = (),
        connect_to: Connect = connect,
        signer: HeadSigner | None = None,
        unattended: bool = False,
    ) -> FactStore:
        """Open the store of `zone`, or create it; recovers without help from however the last life ended.

        Streams that `streams` does not name have the defaults of `StreamSettings`. With `signer` the facts recorded
        here are signed, also those recorded before in this epoch. `unattended`, as nodes open it: a
        file that cannot be used is set aside and a new store begins in its place, an old copy continues under a new
        epoch, and everything stored is verified again in the background (opening.py, scrubber.py).

        Raises StoreUnusable: StoreMissing (folder), StoreLocked, StoreForeign, StoreTooNew, StoreDamaged.
        """
        check_name("zone", zone, ZONE)
        descriptor = lock(path)
        try:
            policies = {one.name: one for one in streams}
            return cls._open_locked(
                path, zone, settings or StoreSettings(), policies, connect_to, signer, descriptor, unattended=unattended
            )
        except StoreError:
            unlock(descriptor)
            raise

    @classmethod
    def _open_locked(
        cls,
        path: Path,
        zone: str,
        settings: StoreSettings,
        policies: dict[str, StreamSettings],
        connect_to: Connect,
        signer: HeadSigner | None,
        descriptor: int,
        *,
        unattended: bool,
    ) -> FactStore:
        if Ballast(path, settings.ballast_bytes).give_up_if_needed(disk_free(path.parent)):
            log.warning("ballast_given_up", extra={"store": str(path)})
        opened = open_writer(path, zone, connect_to, time.time_ns() // 1_000_000, is_unattended=unattended)
        damages = DamageRegistry()
        try:
            reader = StoreReader(path, connect_to=connect_to, on_damaged=damages.report)
        except StoreError:
            close_and_keep_log(path, opened.connection)
            raise
        witness = opened.witness
        writer = Writer(
            *(path, opened.connection, opened.catalog, opened.index, settings, policies),
            witness=witness.record if witness is not None else None,
            signer=signer,
        )
