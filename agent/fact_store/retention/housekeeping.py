"""Keeping the store within its limits: releases, deletes and gives space back, in small pieces inside the writer's commits.

Releasing and deleting are two things. A release moves one number, durably and together with what is said of a loss, and from
then on nobody is served what lies below. The rows themselves go later, some with each commit, sharing its fsync: as many as came
in and a few more, so that deleting keeps pace with any inflow and no commit waits for a big one. When the writer is idle it goes
on in commits of its own, and then gives free pages back to the file system, as far as appends will not soon reuse them.

Belongs to the writer's thread. What to release is decided in retention.py, how full is too full in fullness.py.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.fact_store.append import append_notice
from agent.fact_store.log import (
    HOUR_MS,
    Catalog,
    StoreFull,
    StoreSettings,
    StreamSettings,
    StreamState,
    last_offset_before,
    stream_fact,
)
from agent.fact_store.retention.ballast import Ballast, disk_free
from agent.fact_store.retention.fullness import WARN_PERCENT, Limit, Space, fullest, limits, piece_bytes
from agent.fact_store.retention.retention import TTL_PIECES, Reason, Release, StreamOffsets, decide_release
from agent.fact_store.sqlite import QUERIES, Transaction

log = logging.getLogger(__name__)

LOOK_EVERY_NS = 1_000_000_000  # ages and free space change slowly
SOON_NS = 20_000_000  # while rows wait to be deleted: at once, but not more often than a disk likes
GLANCE_EVERY_NS = 100_000_000  # at how full the disk is, where no limit is near
MARKS_READ = 1000  # the oldest; sixteen hours of them, and the next look sees further
ROWS_WITH_COMMIT = 16  # deleted besides twice as many as the commit put in
ROWS_WHEN_IDLE = 128  # about a millisecond
MESSAGE_ROWS_WITH_COMMIT = 64
VACUUM_PAGES = 256  # moved at once when idle: a megabyte
FREE_SHARE_MAX = 8  # free pages beyond an eighth of the file are given back...
FREE_BYTES_MIN = 32 * 1024 * 1024  # ...and never the last of these: appends reuse them
LOG_BYTES = 4 * 1024 * 1024  # what SQLite's log grows to before it is folded into the file
LITTLE_BYTES = 64 * 1024 * 1024  # more than any source writes between two looks
NEVER_NS = 2**63 - 1


@dataclass(slots=True)
class _Deleted:
    """How far a stream's released rows are gone: sealed bytes before the first that is still there."""

    bytes: int
    is_done: bool = False


class Housekeeping:
    """The writer's hands for retention. `policy` gives a stream's settings."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        settings: StoreSettings,
        policy: Callable[[str], StreamSettings],
        age_ms: Callable[[], int],
    ) -> None:
        self._path = path
        self._execute = connection.execute
        self._settings = settings
        self._policy = policy
        self.age_ms = age_ms
        self._deleted: dict[int, _Deleted] = {}
        self._waiting_bytes: dict[int, int] = {}  # released and not yet deleted, by stream
        self._frontiers: dict[str, int] = {}
        self._looked_ns = -NEVER_NS
        self._ballast = Ballast(path, settings.ballast_bytes)
        self._near = set[str]()
        self._loss_logged_ms: dict[str, int] = {}
        self._has_free_pages = False
        self._is_tight = self._is_little_left = True  # until it is known better
        self._seen_ns = -NEVER_NS
        self.page_bytes: int = self._execute(QUERIES["page_size"]).fetchone()[0]
        self._disk_free: int | None = None
        self.space = Space(0, None)
        self.alarm_ns = NEVER_NS
        """When `work` is due although nothing else is written."""
        self._is_shrinking = False

    # ---------------------------------------------------------------------------------------------------------- admission

    def refusal(self, transaction: Transaction, stream: str) -> StoreFull | None:
        """Why an append to a stream cannot be taken now; None where it can, perhaps because the oldest facts make room."""
        if not self._is_tight:
            return None
        if self._has_no_room_for_the_log():
            return StoreFull(
                f"the disk is full ({self._disk_free:,} bytes are left)",
                "free space; facts are served and confirmed meanwhile, and appends go on by themselves",
            )
        known = transaction.catalog.streams.get(stream) or StreamState(0, stream)
        nearest = fullest(self._limits(known))
        if nearest is None or not nearest.is_full:
            return None
        self._make_room(transaction, known)
        nearest = fullest(self._limits(transaction.catalog.streams.get(stream, known)))
        self._delete_at_once(transaction)
        if nearest is None or not nearest.is_full or self._policy(stream).on_full == "drop_oldest":
            return None
        return StoreFull(
            f"{nearest.what} is full ({stream}: {nearest.used:,} of {nearest.limit:,} bytes)",
            f"see which consumer is behind (bsfg consumer list), free space, or {nearest.remedy}",
        )

    def _make_room(self, transaction: Transaction, stream: StreamState) -> None:
        """For an append to a full stream. Confirmed facts go first, and where streams share what is full, those of every stream,
        before one is lost; then the oldest of this stream, if it may drop them."""
        others = [one for one in transaction.catalog.streams.values() if one.name != stream.name]
        for one in (stream, *others):
            self._release(transaction, one, may_drop=False)
            nearest = fullest(self._limits(transaction.catalog.streams.get(stream.name, stream)))
            if nearest is None or not nearest.is_full:
                return
        self._release(transaction, transaction.catalog.streams.get(stream.name, stream), may_drop=True)

    def _delete_at_once(self, transaction: Transaction) -> None:
        """Rows just released go before the append comes, which takes their pages and not the disk's last ones."""
        for stream in transaction.catalog.streams.values():
            if self._waiting_bytes.get(stream.id):
                self._delete_batches(stream, self._deleted_of(stream), ROWS_WHEN_IDLE)
        self._look()

    def _has_no_room_for_the_log(self) -> bool:
        """An append into pages that are free needs no more disk, but room in the log; what little is left, such as the ballast
        that was given up, is for what makes room."""
        return self._disk_free is not None and self._disk_free < min(LOG_BYTES, self._settings.disk_free_bytes_min)

    def _limits(self, stream: StreamState) -> list[Limit]:
        """What is released counts as gone, though its rows may still be there for a moment."""
        held = stream.bytes_total - stream.released_bytes
        waiting = sum(self._waiting_bytes.values())
        used = max(0, self.space.store_used - waiting)
        space = Space(used, self.space.disk_free, self.space.store_free + waiting)
        settings = self._settings
        return limits(
            held, self._policy(stream.name).bytes_max, space, settings.bytes_max, settings.disk_free_bytes_min
        )

    # --------------------------------------------------------------------------------------------------------------- work

    def start(self, now_ns: int) -> None:
        """The writer begins. The ballast is made now, for a store that is busy until its disk is full has no idle moment."""
        self._look()
        self._ballast.make(self._disk_free, self._settings.disk_free_bytes_min)
        self.alarm_ns = now_ns + LOOK_EVERY_NS

    def is_due(self, now_ns: int) -> bool:
        """Whether there is something to do even if nothing is written."""
        return now_ns >= self.alarm_ns

    def work(self, transaction: Transaction, now_ns: int, *, is_idle: bool) -> None:
        """What fits into this commit."""
        # What a confirmation frees matters at once where there is little room; elsewhere it can wait for the next look.
        moved = self._frontiers_moved(transaction.catalog) if self._is_tight else set[str]()
        dropping = set[str]()
        if now_ns - self._looked_ns >= LOOK_EVERY_NS:
            self._looked_ns = now_ns
            moved = {*transaction.catalog.streams}
            dropping = {name for name in moved if self._policy(name).on_full == "drop_oldest"}
            self._tell_near(transaction.catalog)
        for names in (moved, dropping):  # nothing is dropped before all that is confirmed has given way
            for name in names:
                if (stream := transaction.catalog.streams.get(name)) is not None:
                    self._release(transaction, stream, may_drop=names is dropping)
        rows_max = ROWS_WHEN_IDLE if is_idle else ROWS_WITH_COMMIT + 2 * transaction.batches_added
        left = self._delete(transaction, rows_max)
        if is_idle and not left:
            self._ballast.make(self.space.disk_free, self._settings.disk_free_bytes_min)
            left = self._vacuum()
        self.alarm_ns = now_ns + (SOON_NS if left else LOOK_EVERY_NS)

    def look(self, catalog: Catalog, now_ns: int) -> None:
        """Between transactions, when everybody has been answered: how full it is now, and the log folded in where the file is to
        become smaller. With every commit where there is little room, for a fast source fills a small disk within a second;
        where there is much, as often as that could matter, for asking takes as long as sealing a fact."""
        is_stream_near = any(self._is_stream_near(stream) for stream in catalog.streams.values())
        if not self._is_little_left and not self._is_shrinking and now_ns - self._seen_ns < GLANCE_EVERY_NS:
            self._is_tight = is_stream_near
            return
        self._seen_ns = now_ns
        self._look()
        shared = limits(0, 0, self.space, self._settings.bytes_max, self._settings.disk_free_bytes_min)
        self._is_little_left = self._has_no_room_for_the_log() or any(
            limit.is_near or limit.limit - limit.used < LITTLE_BYTES for limit in shared
        )
        self._is_tight = self._is_little_left or is_stream_near
        if self._is_shrinking and not self._has_free_pages:
            self._is_shrinking = False
            self._execute(QUERIES["checkpoint"]).fetchall()

    def _is_stream_near(self, stream: StreamState) -> bool:
        bytes_max = self._policy(stream.name).bytes_max
        return bytes_max > 0 and 100 * (stream.bytes_total - stream.released_bytes) >= WARN_PERCENT * bytes_max

    def settle(self, *, is_durable: bool) -> None:
        """The transaction has ended; after a rollback what was deleted is there again."""
        if not is_durable:
            self._deleted.clear()
            self._waiting_bytes.clear()
            self._frontiers.clear()

    def put_off(self, now_ns: int) -> None:
        """A transaction failed, perhaps before `work`: what is due by itself is tried again after a while and not at once."""
        self.alarm_ns = now_ns + LOOK_EVERY_NS

    def is_out_of_space(self) -> None:
        """A commit found no room on the disk: give up the ballast, so that the next can delete."""
        if self._ballast.give_up():
            log.warning("ballast_given_up", extra={"store": str(self._path)})

    def _look(self) -> None:
        """Pages in use and pages free, and what the disk has left."""
        self._disk_free = disk_free(self._path.parent)
        pages = self._execute(QUERIES["page_count"]).fetchone()[0]
        free = self._execute(QUERIES["freelist_count"]).fetchone()[0]
        self.space = Space((pages - free) * self.page_bytes, self._disk_free, free * self.page_bytes)
        spare = max(FREE_BYTES_MIN // self.page_bytes, pages // FREE_SHARE_MAX)
        self._has_free_pages = free > spare

    def _tell_near(self, catalog: Catalog) -> None:
        """One line when a stream comes near a limit, one when it is well again."""
        for name, stream in catalog.streams.items():
            nearest = fullest(self._limits(stream))
            if nearest is not None and nearest.is_near and name not in self._near:
                self._near.add(name)
                log.warning(
                    "store_near_limit", extra={"stream": name, "limit": nearest.what, "percent": nearest.percent}
                )
            elif name in self._near and (nearest is None or not nearest.is_near):
                self._near.discard(name)
                log.info("store_has_room", extra={"stream": name})

    # ------------------------------------------------------------------------------------------------------------ release

    def _release(self, transaction: Transaction, stream: StreamState, *, may_drop: bool) -> None:
        """Release what the policy says may go, and say what is lost by it; without `may_drop` nothing goes for want of room."""
        decision = decide_release(self._view(transaction.catalog, stream, may_drop=may_drop))
        if decision is None:
            return
        after = transaction.release(stream, decision.until)
        if after.released_offset == stream.released_offset:
            return
        deleted = self._deleted_of(stream)
        deleted.is_done = False
        self._waiting_bytes[stream.id] = after.released_bytes - deleted.bytes
        if decision.lost_from is not None and decision.lost_from <= after.released_offset:
            _say_loss(transaction, stream, after.released_offset, decision)
            self._log_loss(stream.name, decision)

    def _log_loss(self, stream: str, decision: Release) -> None:
        """One line when losses begin; as long as they go on, one an hour. Each piece has its fact, and the incident counts them."""
        now_ms = self.age_ms()
        if now_ms - self._loss_logged_ms.get(stream, -HOUR_MS) >= HOUR_MS:
            self._loss_logged_ms[stream] = now_ms
            log.warning(
                "facts_expired", extra={"stream": stream, "reason": decision.reason.value, "until": decision.until}
            )

    def _view(self, catalog: Catalog, stream: StreamState, *, may_drop: bool) -> StreamOffsets:
        policy = self._policy(stream.name)
        frontiers = [one.frontier for one in catalog.consumers.values() if one.stream == stream.name]
        kept_ms, ttl_ms = policy.keep_hours * HOUR_MS, policy.ttl_hours * HOUR_MS
        marks = self._execute(QUERIES["select_marks"], (stream.id, MARKS_READ)).fetchall()

        def before(age_ms: float) -> int:
            wanted_ms = int(self.age_ms() - age_ms)
            return last_offset_before(marks, wanted_ms, stream.mark_ms, stream.end_offset, stream.released_offset)

        return StreamOffsets(
            released=stream.released_offset,
            end=stream.end_offset,
            confirmed=min(frontiers) if frontiers else None,
            kept=before(kept_ms) if kept_ms else stream.end_offset,
            expired=before(ttl_ms) if ttl_ms else None,
            overdue=before(ttl_ms + ttl_ms / TTL_PIECES) if ttl_ms else None,
            excess=self._excess(stream),
            may_drop=may_drop and policy.on_full == "drop_oldest",
        )

    def _excess(self, stream: StreamState) -> int | None:
        """How far the oldest must go for the stream to come below its nearest limit by a piece; None below it."""
        nearest = fullest(self._limits(stream))
        if nearest is None or not nearest.is_full:
            return None
        bytes_total = stream.released_bytes + nearest.used - nearest.limit + piece_bytes(nearest.limit)
        values = (stream.id, stream.released_offset, min(bytes_total, stream.bytes_total))
        row = self._execute(QUERIES["select_offset_at_bytes"], values).fetchone()
        return None if row is None else row[0]

    def _frontiers_moved(self, catalog: Catalog) -> set[str]:
        """Streams whose slowest consumer has moved since last time, and those that have lost or gained one."""
        slowest: dict[str, int] = {}
        for one in catalog.consumers.values():
            slowest[one.stream] = min(slowest.get(one.stream, NEVER_NS), one.frontier)
        before, self._frontiers = self._frontiers, slowest
        return {name for name in {*before, *slowest} if before.get(name) != slowest.get(name)}

    # ------------------------------------------------------------------------------------------------- delete, give back

    def _delete(self, transaction: Transaction, rows_max: int) -> bool:
        """Delete rows that are released; True when some are left."""
        left = False
        for stream in transaction.catalog.streams.values():
            if stream.released_offset == 0:
                continue
            deleted = self._deleted_of(stream)
            if not deleted.is_done:
                rows_max -= self._delete_batches(stream, deleted, rows_max)
            if deleted.is_done and transaction.index.release(
                stream.id, stream.released_offset, MESSAGE_ROWS_WITH_COMMIT
            ):
                left = True
            left = left or not deleted.is_done
        return left

    def _delete_batches(self, stream: StreamState, deleted: _Deleted, rows_max: int) -> int:
        """Delete the oldest released batches of a stream; returns how many."""
        if rows_max <= 0:
            return 0
        values = (stream.id, stream.released_offset, rows_max)
        rows = self._execute(QUERIES["select_released_rows"], values).fetchall()
        for number, _ in rows:
            self._execute(QUERIES["delete_batch"], (number,))
        if rows:
            deleted.bytes = rows[-1][1]
        if len(rows) < rows_max:
            deleted.is_done = True
            deleted.bytes = stream.released_bytes
            values_of_marks = {"stream": stream.id, "released_offset": stream.released_offset}
            self._execute(QUERIES["delete_marks"], values_of_marks)
            self._execute(QUERIES["delete_repaired"], (stream.id, stream.released_offset))
        self._waiting_bytes[stream.id] = stream.released_bytes - deleted.bytes
        return len(rows)

    def _deleted_of(self, stream: StreamState) -> _Deleted:
        """How far a stream's rows are gone; asked of the table the first time."""
        if (known := self._deleted.get(stream.id)) is None:
            row = self._execute(QUERIES["select_deleted_bytes"], (stream.id,)).fetchone()
            known = self._deleted[stream.id] = _Deleted(row[0] if row else stream.released_bytes)
            self._waiting_bytes[stream.id] = max(0, stream.released_bytes - known.bytes)
        return known

    def _vacuum(self) -> bool:
        """Give some free pages back to the file system; True when there are more than appends will reuse."""
        if self._has_free_pages:
            for _ in range(VACUUM_PAGES):  # Python steps a statement without columns once, and each step frees one page
                self._execute(QUERIES["vacuum_page"])
            self._look()
            self._is_shrinking = True
        return self._has_free_pages


def _say_loss(transaction: Transaction, stream: StreamState, until: int, decision: Release) -> None:
    """A fact in the log and an incident, in the transaction that forgets."""
    first = stream.released_offset + 1
    assert decision.lost_from is not None
    consumers = [
        {"name": one.name, "from_offset": max(first, one.frontier + 1)}
        for one in transaction.catalog.consumers.values()
        if one.stream == stream.name and one.frontier < until
    ]
    about = {
        "reason": decision.reason.value,
        "first_offset": max(first, decision.lost_from),
        "last_offset": until,
        "count": until - max(first, decision.lost_from) + 1,
        "consumers": consumers,
        "origins": transaction.origins_between(stream, max(first, decision.lost_from) - 1, until),
    }
    key = f"{stream.name}:{about['first_offset']}-{until}"
    origin, now_unix_ms = transaction.catalog.origin, transaction.now_unix_ms
    append_notice(transaction, stream.name, stream_fact(origin, stream.name, "facts_expired", about, key, now_unix_ms))
    who = ", ".join(str(one["name"]) for one in consumers) or "nobody was registered"
    why = "their time to live was over" if decision.reason is Reason.TTL else "the store was full"
    transaction.add_incident(
        "facts_expired",
        stream.name,
        f"offsets {about['first_offset']} to {until} went unconfirmed, {why}; not confirmed by: {who}",
    )
