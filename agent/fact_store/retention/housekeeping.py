"""Keeps the store within its limits: releases facts, deletes their rows, and gives space back, in small pieces inside
the writer's commits.

Releasing and deleting are two steps (decision 0025). A release moves one number, durably and together with the record
of a loss; from then on no reader is served facts at or below it. The rows are deleted later, a few with each commit,
sharing its fsync: as many as were inserted and some more, so that deleting keeps up with any inflow and no commit waits
for a large deletion. When the writer is idle, the rest is deleted in commits of its own, and free pages that appends
will not reuse soon are given back to the file system.

Belongs to the writer's thread.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

from agent.errors import StoreFull
from agent.fact_store.core import NEVER_NS, Catalog, ShareFull, StoreLimits, StreamState
from agent.fact_store.retention.ballast import Ballast
from agent.fact_store.retention.fullness import Write
from agent.fact_store.retention.reclaim import Reclaimer
from agent.fact_store.retention.releasing import Releaser
from agent.fact_store.retention.room import Room
from agent.fact_store.retention.shares import excess_bytes
from agent.fact_store.sqlite import QUERIES, Transaction

log = logging.getLogger(__name__)

LOOK_EVERY_NS = 1_000_000_000  # between two checks of ages and limits: they change slowly
DELETE_AGAIN_NS = 20_000_000  # between two commits of deletions while the writer is idle: spares the disk
ROWS_WITH_COMMIT = 16  # deleted with a commit, in addition to twice the number it inserted
ROWS_WHEN_IDLE = 128  # about a millisecond


class Housekeeping:
    """Retention for the writer. `age_ms` gives the store's age."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, limits: StoreLimits, age_ms: Callable[[], int]
    ) -> None:
        self.limits = limits
        self._execute = connection.execute
        self._reclaimer = Reclaimer(connection)
        self.room = Room(path, connection, limits, self._reclaimer)
        self.releaser = Releaser(connection, limits, age_ms, self._reclaimer)
        self._ballast = Ballast(path, limits.settings.ballast_bytes)
        self._looked_ns = -NEVER_NS
        self.alarm_ns = NEVER_NS
        """Monotonic time at which `work` is due without other writes, in nanoseconds."""
        self._is_shrinking = False

    # -------------------------------------------------------------------------------------------------------- admission

    def refusal(self, transaction: Transaction, stream: str, zone: str, size: int) -> StoreFull | None:
        """Why an append of a zone to a stream, of `size` bytes, must be refused now; None if it fits, perhaps after the
        oldest facts were released."""
        if not self.room.is_tight:
            return None
        if self.room.has_no_room_for_wal():
            return StoreFull(
                f"the disk is full ({self.room.space.disk_free:,} bytes are left)",
                "free space; facts are served and confirmed meanwhile, and appends continue without a restart",
            )
        catalog = transaction.catalog
        known = catalog.streams.get(stream) or StreamState(0, stream)
        write = Write(catalog.names.zone if zone in catalog.names.own_zones else zone, size)
        if self.room.full(transaction.catalog, known, write) is None:
            return None
        # Release and delete before deciding: an append is refused only if nothing more may be released (decision 0025).
        may_drop = self._make_room(transaction, known, write)
        nearest = self.room.full(transaction.catalog, transaction.catalog.streams.get(stream, known), write)
        self._delete_at_once(transaction)
        if nearest is None or may_drop:
            return None
        if nearest.share is not None:
            why = f"{zone} has {nearest.share.used:,} bytes here, its share is {nearest.share.limit:,}, and the rest of"
            why += f" {nearest.what} ({stream}) is kept for other zones"
            return StoreFull(why, ShareFull.hint) if write.zone == catalog.names.zone else ShareFull(why)
        return StoreFull(
            f"{nearest.what} is full ({stream}: {nearest.used:,} of {nearest.limit:,} bytes)",
            f"see which consumer is behind (bsfg consumer list), free space, or {nearest.remedy}",
        )

    def _make_room(self, transaction: Transaction, stream: StreamState, write: Write) -> bool:
        """Make room for an append to a full stream: release confirmed facts of this stream, and of the others those
        with most facts of zones beyond their share first; then drop the oldest unconfirmed facts of this stream, if its
        settings allow that. Returns whether they do. A zone beyond its share touches no facts of another one, except
        confirmed ones in this stream, and another zone than this one drops none."""
        catalog = transaction.catalog
        full = self.room.full(catalog, stream, write)
        assert full is not None
        room = next(limit for limit in self.room.limits_of(stream) if limit.what == full.what)
        over = excess_bytes(
            self.room.shares(catalog, room, stream), self.room.uses(catalog, stream if room.is_of_stream else None)
        )
        uses = {state.name: self.room.uses(catalog, state) for state in catalog.streams.values()}
        others = [] if room.is_of_stream else [name for name in uses if name != stream.name]
        others.sort(key=lambda name: -sum(uses[name].get(zone, 0) for zone in over))
        if full.share is not None:
            others = [name for name in others if uses[name].keys() <= over.keys()]
        for name in (stream.name, *others):
            self.releaser.release(transaction, catalog.streams.get(name, stream), full, may_drop=False)
            full = self.room.full(catalog, catalog.streams.get(stream.name, stream), write)
            if full is None:
                return False
        is_own = write.zone == catalog.names.zone and uses.get(stream.name, {}).keys() <= over.keys()
        if (full.share is not None and not is_own) or self.limits.policy(stream.name).on_full != "drop_oldest":
            return False
        self.releaser.release(transaction, catalog.streams.get(stream.name, stream), full, may_drop=True)
        return True

    def _delete_at_once(self, transaction: Transaction) -> None:
        """Delete rows just released before the append is stored, so that it reuses their pages instead of the last free
        space of the disk."""
        self._reclaimer.delete_pending(transaction, ROWS_WHEN_IDLE)
        self.room.measure()

    # ------------------------------------------------------------------------------------------------------------- work

    def start(self, now_ns: int) -> None:
        """Make the ballast and set the first alarm. Called when the writer starts, because a store that is busy until
        its disk is full is never idle."""
        self.room.measure()
        self._ballast.make(self.room.space.disk_free, self.limits.settings.disk_free_bytes_min)
        self.alarm_ns = now_ns + LOOK_EVERY_NS

    def is_due(self, now_ns: int) -> bool:
        """Whether `work` is due without other writes."""
        return now_ns >= self.alarm_ns

    def work(self, transaction: Transaction, now_ns: int, *, is_idle: bool) -> None:
        """Release and delete what fits into this commit."""
        # If there is little room, a confirmation releases facts at once; otherwise the next check does.
        moved = self.releaser.frontiers_moved(transaction.catalog) if self.room.is_tight else set[str]()
        dropping = set[str]()
        if now_ns - self._looked_ns >= LOOK_EVERY_NS:
            self._looked_ns = now_ns
            moved = {*transaction.catalog.streams}
            dropping = {name for name in moved if self.limits.policy(name).on_full == "drop_oldest"}
            self.room.log_near(transaction.catalog)
        # Confirmed facts of all streams are released before any unconfirmed fact is dropped.
        for names in (moved, dropping):
            for name in names:
                if (stream := transaction.catalog.streams.get(name)) is not None:
                    full = self.room.full(transaction.catalog, stream)
                    self.releaser.release(transaction, stream, full, may_drop=names is dropping)
        rows_max = ROWS_WHEN_IDLE if is_idle else ROWS_WITH_COMMIT + 2 * transaction.batches_added
        left = self._reclaimer.delete(transaction, rows_max)
        if is_idle and not left:
            self._ballast.make(self.room.space.disk_free, self.limits.settings.disk_free_bytes_min)
            left = self.room.has_free_pages
            if left:
                self._reclaimer.vacuum()
                self.room.measure()
                self._is_shrinking = True
                left = self.room.has_free_pages
        self.alarm_ns = now_ns + (DELETE_AGAIN_NS if left else LOOK_EVERY_NS)

    def look(self, catalog: Catalog, now_ns: int) -> None:
        """Measure the room between transactions; checkpoint the WAL after the file was made smaller."""
        self.room.look(catalog, now_ns, is_urgent=self._is_shrinking)
        if self._is_shrinking and not self.room.has_free_pages:
            self._is_shrinking = False
            self._execute(QUERIES["checkpoint"]).fetchall()

    def rolled_back(self, now_ns: int) -> None:
        """Forget the deletions of a transaction that failed: its rows are there again. Work again later and not at
        once, because it failed perhaps before `work`."""
        self._reclaimer.rolled_back()
        self.releaser.rolled_back()
        self.alarm_ns = now_ns + LOOK_EVERY_NS

    def free_ballast(self) -> None:
        """Delete the ballast after a commit found no room on the disk, so that the next commit can delete rows."""
        if self._ballast.delete():
            log.warning("ballast_given_up", extra={"store": str(self.room.path)})
