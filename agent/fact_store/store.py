"""FactStore: the store as the rest of the house sees it. Appends and confirmations go to the writer's thread and come back as
futures; reads happen in the caller's thread on its own connection.

Promised: a result is durable; what cannot be stored is refused by name; nothing blocks except reads, `open` and `close`. What
is wrong in the arguments, or a queue that is full, is raised at once by the call; everything else through the future. Futures
are `concurrent.futures.Future` (asyncio: `asyncio.wrap_future`); giving up on one does not take the facts back.

Here it begins and ends, and is told that it has to become another; what it does meanwhile is at its three doors.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Self

from agent.fact_store import consumers
from agent.fact_store.artifacts import Artifacts
from agent.fact_store.divergence import (
    Scrubber,
    mark_suspect,
    open_writer,
    peer_is_ahead,
    quarantined_files,
    require_new_epoch,
)
from agent.fact_store.integrity import DamageRegistry
from agent.fact_store.log import Integrity, StoreDamaged, StoreError, StoreSettings, StreamSettings
from agent.fact_store.own_facts import OwnFacts
from agent.fact_store.peers_facts import PeersFacts
from agent.fact_store.read import StoreReader, StoreSpace
from agent.fact_store.readership import Readership
from agent.fact_store.retention import Ballast, disk_free
from agent.fact_store.running import Parts
from agent.fact_store.sqlite import Connect, connect, lock, unlock
from agent.fact_store.writer import Writer
from agent.message import ZONE, check_name

log = logging.getLogger(__name__)


class FactStore(OwnFacts, PeersFacts, Readership):
    """The fact store of one node. Owns the lock, the writer's thread, a thread that checks batches, and reading connections."""

    def __init__(self, parts: Parts, lock_descriptor: int, space: Callable[[], StoreSpace]) -> None:
        super().__init__(parts)
        self.space = space
        """How much room there is, and for how long: a few look-ups, in the calling thread."""
        self._upkeep = Scrubber(parts.path, parts.writer, self._read, parts.artifacts.sweep)
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
        unattended: bool = False,
    ) -> FactStore:
        """Open the store of `zone`, or begin a new one; recovers by itself from whatever ended the last life.

        Streams that `streams` does not name have the defaults of `StreamSettings`.

        `unattended`, as nodes open it: a file that cannot be used is set aside and a new store begins in its place, an old copy
        goes on under a new epoch, and what is stored is read again in the background (opening.py, scrubber.py).

        Raises StoreUnusable: StoreMissing (folder), StoreLocked, StoreForeign, StoreTooNew, StoreDamaged.
        """
        check_name("zone", zone, ZONE)
        descriptor = lock(path)
        try:
            policies = {one.name: one for one in streams}
            return cls._open_locked(
                path, zone, settings or StoreSettings(), policies, connect_to, descriptor, unattended=unattended
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
            opened.connection.close()
            raise
        writer = Writer(path, opened.connection, opened.catalog, opened.index, settings, policies)
        damages.start(writer, opened.catalog.origin)
        space = partial(_space, writer, reader, settings, policies)
        artifacts = Artifacts(path, settings, reader, writer)
        parts = Parts(path, writer, reader, opened.catalog.origin, damages, artifacts)
        store = cls(parts, descriptor, space)
        if unattended:
            store._be_kept_up()
        writer.start()
        return store

    def _be_kept_up(self) -> None:
        """As a node: remember what there is, read it again in the background, and mark the file when writing meets damage."""
        self._upkeep.start()
        self._writer.ended.add_done_callback(self._mark_if_damaged)

    def _mark_if_damaged(self, ended: Future[None]) -> None:
        if isinstance(error := ended.exception(), StoreDamaged):
            mark_suspect(self.path, error.why)

    def require_new_epoch(self, why: str) -> Future[None]:
        """Have this store go on under a new epoch. It ends with StoreForked once that is durable: open it again at once."""
        return self._call_freezing("require a new epoch", partial(require_new_epoch, why=why, read=self._seen))

    def peer_is_ahead(self, peer: str, why: str) -> None:
        """A configured peer that has read this store under its present epoch speaks of facts that were never written here.
        Believed once a week, and then as `require_new_epoch`; see decision 0030. Returns at once."""
        with contextlib.suppress(StoreError):
            self._call_freezing("a peer is ahead", partial(peer_is_ahead, peer=peer, why=why, read=self._seen))

    def _call_freezing(self, name: str, run: Callable[..., None]) -> Future[None]:
        """A call that stops reading so that the store can end; where it fails, reading goes on."""
        calling = self._call(name, run)
        calling.add_done_callback(lambda called: None if called.exception() is None else self._seen.thaw())
        return calling

    def integrity(self) -> Integrity:
        """What was found damaged, how far it was looked for, and what was set aside; from memory, but for the last."""
        upkeep = self._upkeep
        return Integrity(
            self._damages.count,
            upkeep.batches_verified,
            upkeep.last_full_pass_unix_ms,
            tuple((one.file, one.bytes) for one in quarantined_files(self.path)),
        )

    def close(self) -> None:
        """Commit what is queued and close the files. Calling it again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if seen := self._writer.activity.unsaved(self._writer.catalog):
            with contextlib.suppress(StoreError):  # whatever ended the writer, the rest is to be closed
                self._call("remember", partial(consumers.save_last_seen, seen_unix_ms=seen))
        self._upkeep.stop()
        self._checker.shutdown()
        self._reader.close()  # first: the last connection to close folds the log into the database, readers cannot
        self._writer.close()
        if self._upkeep.is_started:
            self._upkeep.save_witness()
        unlock(self._lock_descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _space(
    writer: Writer, reader: StoreReader, settings: StoreSettings, policies: dict[str, StreamSettings]
) -> StoreSpace:
    return reader.space(settings, policies, catalog=writer.catalog, age_ms=writer.age_ms())
