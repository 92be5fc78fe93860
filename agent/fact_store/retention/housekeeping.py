"""Keeps the store within its limits: releases facts, deletes their rows, and gives space back, in small pieces inside
the writer's commits.

Releasing and deleting are two steps (decision 0025). A release moves one number, durably and together with the record
of a loss; from then on no reader is served facts at or below it. The rows are deleted later, a few with each commit,
sharing its fsync: as many as were inserted and some more, so that deleting keeps up with any inflow and no commit waits
for a large deletion. When the writer is idle, the rest is deleted in commits of its own, and free pages that appends
will not reuse soon are given back to the file system.

Belongs to the writer's thread. What to release is decided in retention.py, the limits in fullness.py.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from agent.fact_store.append import append_notice
from agent.fact_store.log import HOUR_MS, NEVER_NS, Catalog, ShareFull, StoreFull, StreamState, last_offset_before
from agent.fact_store.read import bytes_up_to
from agent.fact_store.retention.ballast import Ballast
from agent.fact_store.retention.fullness import WARN_PERCENT, Limit, Share, Space, Write, fullest, limits, piece_bytes
from agent.fact_store.retention.holding import Backlog, alone_forfeited, bytes_forfeited
from agent.fact_store.retention.reclaim import Reclaimer
from agent.fact_store.retention.retention import TTL_PIECES, Reason, Release, StreamOffsets, decide_release
from agent.fact_store.retention.shares import excess_bytes, file_bytes_of, limit_for, reserved_bytes, shares_of
from agent.fact_store.sqlite import QUERIES, Transaction, disk_free
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit

log = logging.getLogger(__name__)

_WHY = {
    Reason.TTL: "their time to live was over",
    Reason.HELD: "a zone held back more than it may",
    Reason.FULL: "the store was full",
}
LOOK_EVERY_NS = 1_000_000_000  # between two checks of ages and limits: they change slowly
DELETE_AGAIN_NS = 20_000_000  # between two commits of deletions while the writer is idle: spares the disk
MEASURE_EVERY_NS = 100_000_000  # between two measurements of free space where no limit is near
MARKS_READ = 1000  # the oldest ones, sixteen hours; the next check reads further
ROWS_WITH_COMMIT = 16  # deleted with a commit, in addition to twice the number it inserted
ROWS_WHEN_IDLE = 128  # about a millisecond
FREE_SHARE_MAX = 8  # free pages beyond an eighth of the file are given back...
FREE_BYTES_MIN = 32 * 1024 * 1024  # ...but this much is always kept, because appends reuse it
WAL_BYTES = 4 * 1024 * 1024  # SQLite's log grows to this before a checkpoint
LITTLE_BYTES = 64 * 1024 * 1024  # more than any source writes between two measurements


class Housekeeping:
    """Retention for the writer. `policy` gives a stream's settings, `age_ms` the store's age, `holds` what each zone
    may hold back."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        settings: StoreSettings,
        policy: Callable[[str], StreamSettings],
        age_ms: Callable[[], int],
        holds: Mapping[str, ZoneLimit],
    ) -> None:
        self._path = path
        self.holds = holds
        self._connection = connection
        self._execute = connection.execute
        self.settings = settings
        self._policy = policy
        self.age_ms = age_ms
        self._reclaimer = Reclaimer(connection)
        self._frontiers: dict[str, int] = {}
        self._looked_ns = -NEVER_NS
        self._ballast = Ballast(path, settings.ballast_bytes)
        self._near = set[str]()
        self._loss_logged_ms: dict[str, int] = {}
        self._has_free_pages = False
        self._is_tight = self._is_little_left = True  # until it is measured
        self._measured_ns = -NEVER_NS
        self._page_bytes: int = self._execute(QUERIES["page_size"]).fetchone()[0]
        self.space = Space(0, None)
        self.alarm_ns = NEVER_NS
        """Monotonic time at which `work` is due without other writes, in nanoseconds."""
        self._is_shrinking = False

    # -------------------------------------------------------------------------------------------------------- admission

    def refusal(self, transaction: Transaction, stream: str, zone: str, size: int) -> StoreFull | None:
        """Why an append of a zone to a stream, of `size` bytes, must be refused now; None if it fits, perhaps after the
        oldest facts were released."""
        if not self._is_tight:
            return None
        if self._has_no_room_for_wal():
            return StoreFull(
                f"the disk is full ({self.space.disk_free:,} bytes are left)",
                "free space; facts are served and confirmed meanwhile, and appends continue without a restart",
            )
        known = transaction.catalog.streams.get(stream) or StreamState(0, stream)
        write = Write(zone, size)
        if self._full(transaction.catalog, known, write) is None:
            return None
        # Release and delete before deciding: an append is refused only if nothing more may be released (decision 0025).
        may_drop = self._make_room(transaction, known, write)
        nearest = self._full(transaction.catalog, transaction.catalog.streams.get(stream, known), write)
        self._delete_at_once(transaction)
        if nearest is None or may_drop:
            return None
        if nearest.share is not None:
            why = f"{zone} has {nearest.share.used:,} bytes here, its share is {nearest.share.limit:,}, and the rest of"
            why += f" {nearest.what} ({stream}) is kept for other zones"
            return StoreFull(why, ShareFull.hint) if zone == transaction.catalog.zone else ShareFull(why)
        return StoreFull(
            f"{nearest.what} is full ({stream}: {nearest.used:,} of {nearest.limit:,} bytes)",
            f"see which consumer is behind (bsfg consumer list), free space, or {nearest.remedy}",
        )

    def is_full(self, catalog: Catalog, stream: str) -> bool:
        """Whether an append to a stream would be refused, as far as is known without releasing anything."""
        nearest = fullest(self._limits(catalog.streams.get(stream) or StreamState(0, stream)))
        return self._has_no_room_for_wal() or (nearest is not None and nearest.is_full)

    def is_near(self, catalog: Catalog, stream: str) -> bool:
        """Whether a limit of a stream is nearly reached; rows that are still to be deleted count. May be called in any
        thread."""
        known, settings = catalog.streams.get(stream) or StreamState(0, stream), self.settings
        held = known.bytes_total - known.released_bytes
        bytes_max = self._policy(stream).bytes_max
        found = limits(held, bytes_max, self.space, settings.bytes_max, settings.disk_free_bytes_min)
        return any(one.is_near for one in found)

    def _make_room(self, transaction: Transaction, stream: StreamState, write: Write) -> bool:
        """Make room for an append to a full stream: release confirmed facts of this stream, and of the others those
        with most facts of zones beyond their share first; then drop the oldest unconfirmed facts of this stream, if its
        settings allow that. Returns whether they do. A zone beyond its share touches no facts of another one, except
        confirmed ones in this stream, and another zone than this one drops none."""
        catalog = transaction.catalog
        full = self._full(catalog, stream, write)
        assert full is not None
        room = next(one for one in self._limits(stream) if one.what == full.what)
        over = excess_bytes(
            self._shares(catalog, room, stream), self._uses(catalog, stream if room.is_of_stream else None)
        )
        uses = {one.name: self._uses(catalog, one) for one in catalog.streams.values()}
        others = [] if room.is_of_stream else [name for name in uses if name != stream.name]
        others.sort(key=lambda name: -sum(uses[name].get(zone, 0) for zone in over))
        if full.share is not None:
            others = [name for name in others if uses[name].keys() <= over.keys()]
        for name in (stream.name, *others):
            self._release(transaction, catalog.streams.get(name, stream), full, may_drop=False)
            full = self._full(catalog, catalog.streams.get(stream.name, stream), write)
            if full is None:
                return False
        is_own = write.zone == catalog.zone and uses.get(stream.name, {}).keys() <= over.keys()
        if (full.share is not None and not is_own) or self._policy(stream.name).on_full != "drop_oldest":
            return False
        self._release(transaction, catalog.streams.get(stream.name, stream), full, may_drop=True)
        return True

    def _delete_at_once(self, transaction: Transaction) -> None:
        """Delete rows just released before the append is stored, so that it reuses their pages instead of the last free
        space of the disk."""
        self._reclaimer.delete_pending(transaction, ROWS_WHEN_IDLE)
        self._measure()

    def _has_no_room_for_wal(self) -> bool:
        """Whether the disk has no room for the WAL. An append that reuses free pages still needs room there, and the
        last bytes of the disk, such as the ballast's, are reserved for transactions that make room."""
        return self.space.disk_free is not None and self.space.disk_free < min(
            WAL_BYTES, self.settings.disk_free_bytes_min
        )

    def _full(self, catalog: Catalog, stream: StreamState, write: Write | None = None) -> Limit | None:
        """The nearest limit of a stream, if it is reached; for a write, the one that its zone may not pass."""
        found = self._limits(stream)
        if write is not None and self.holds:
            found = [self._lowered(catalog, stream, limit, write) for limit in found]
        nearest = fullest(found)
        return nearest if nearest is not None and nearest.is_full else None

    def _lowered(self, catalog: Catalog, stream: StreamState, limit: Limit, write: Write) -> Limit:
        """A limit less what of it is kept for other zones than the writing one."""
        shares, uses = self._shares(catalog, limit, stream), self._uses(catalog, stream if limit.is_of_stream else None)
        up_to = limit_for(write.zone, write.size, shares, uses, limit.limit)
        if up_to == limit.limit:
            return limit
        share = Share(uses.get(write.zone, 0), shares.get(write.zone, 0))
        return replace(limit, used=limit.used + file_bytes_of(write.size), limit=up_to, share=share)

    def _shares(self, catalog: Catalog, limit: Limit, stream: StreamState | None) -> dict[str, int]:
        """The share of each zone that writes, of the room below a limit."""
        if limit.is_of_stream and stream is not None:
            given = {zone: 0 for zone, one in self.holds.items() if stream.name in one.writes}
        else:
            given = {zone: one.share_bytes for zone, one in self.holds.items() if one.writes}
        return shares_of({catalog.zone: 0, **given}, limit.limit)

    def _uses(self, catalog: Catalog, stream: StreamState | None) -> dict[str, int]:
        """Sealed bytes of each zone in a stream, or in all, with those of rows that are released and not yet
        deleted."""
        streams = catalog.streams.values() if stream is None else [stream]
        numbers, found = {one.id for one in streams}, Counter[str]()
        for (number, zone), size in catalog.zone_uses.items():
            if number in numbers and size:
                found[zone] += size
        own = sum(one.bytes_total - one.released_bytes + self._reclaimer.pending_of(one) for one in streams)
        own -= found.total()
        return {**found, catalog.zone: own} if own > 0 else dict(found)

    def _limits(self, stream: StreamState) -> list[Limit]:
        """The limits of a stream now. Released facts do not count, although their rows may not be deleted yet."""
        held = stream.bytes_total - stream.released_bytes
        pending = self._reclaimer.pending_bytes
        used = max(0, self.space.store_used - pending)
        space = Space(used, self.space.disk_free, self.space.store_free + pending)
        settings = self.settings
        return limits(
            held, self._policy(stream.name).bytes_max, space, settings.bytes_max, settings.disk_free_bytes_min
        )

    # ------------------------------------------------------------------------------------------------------------- work

    def start(self, now_ns: int) -> None:
        """Make the ballast and set the first alarm. Called when the writer starts, because a store that is busy until
        its disk is full is never idle."""
        self._measure()
        self._ballast.make(self.space.disk_free, self.settings.disk_free_bytes_min)
        self.alarm_ns = now_ns + LOOK_EVERY_NS

    def is_due(self, now_ns: int) -> bool:
        """Whether `work` is due without other writes."""
        return now_ns >= self.alarm_ns

    def work(self, transaction: Transaction, now_ns: int, *, is_idle: bool) -> None:
        """Release and delete what fits into this commit."""
        # If there is little room, a confirmation releases facts at once; otherwise the next check does.
        moved = self._frontiers_moved(transaction.catalog) if self._is_tight else set[str]()
        dropping = set[str]()
        if now_ns - self._looked_ns >= LOOK_EVERY_NS:
            self._looked_ns = now_ns
            moved = {*transaction.catalog.streams}
            dropping = {name for name in moved if self._policy(name).on_full == "drop_oldest"}
            self._log_near(transaction.catalog)
        # Confirmed facts of all streams are released before any unconfirmed fact is dropped.
        for names in (moved, dropping):
            for name in names:
                if (stream := transaction.catalog.streams.get(name)) is not None:
                    full = self._full(transaction.catalog, stream)
                    self._release(transaction, stream, full, may_drop=names is dropping)
        rows_max = ROWS_WHEN_IDLE if is_idle else ROWS_WITH_COMMIT + 2 * transaction.batches_added
        left = self._reclaimer.delete(transaction, rows_max)
        if is_idle and not left:
            self._ballast.make(self.space.disk_free, self.settings.disk_free_bytes_min)
            left = self._has_free_pages
            if left:
                self._reclaimer.vacuum()
                self._measure()
                self._is_shrinking = True
                left = self._has_free_pages
        self.alarm_ns = now_ns + (DELETE_AGAIN_NS if left else LOOK_EVERY_NS)

    def look(self, catalog: Catalog, now_ns: int) -> None:
        """Measure free space between transactions, after the answers; checkpoint the WAL after the file was made
        smaller.

        If there is little room, it measures after each commit, because a fast source fills a small disk within a
        second; otherwise rarely, because measuring takes as long as sealing a fact.
        """
        is_stream_near = any(self._is_stream_near(stream) for stream in catalog.streams.values())
        if not self._is_little_left and not self._is_shrinking and now_ns - self._measured_ns < MEASURE_EVERY_NS:
            self._is_tight = is_stream_near
            return
        self._measured_ns = now_ns
        self._measure()
        shared = limits(0, 0, self.space, self.settings.bytes_max, self.settings.disk_free_bytes_min)
        self._is_little_left = self._has_no_room_for_wal() or any(
            limit.is_near or limit.limit - limit.used - self._reserved(catalog, limit) < LITTLE_BYTES
            for limit in shared
        )
        self._is_tight = self._is_little_left or is_stream_near
        if self._is_shrinking and not self._has_free_pages:
            self._is_shrinking = False
            self._execute(QUERIES["checkpoint"]).fetchall()

    def _reserved(self, catalog: Catalog, limit: Limit) -> int:
        return reserved_bytes(self._shares(catalog, limit, None), self._uses(catalog, None)) if self.holds else 0

    def _is_stream_near(self, stream: StreamState) -> bool:
        bytes_max = self._policy(stream.name).bytes_max
        near_percent = WARN_PERCENT // 2 if self.holds else WARN_PERCENT
        return bytes_max > 0 and 100 * (stream.bytes_total - stream.released_bytes) >= near_percent * bytes_max

    def settle(self, *, is_durable: bool) -> None:
        """Forget deletions of a transaction that was rolled back: its rows are there again."""
        if not is_durable:
            self._reclaimer.rolled_back()
            self._frontiers.clear()

    def postpone(self, now_ns: int) -> None:
        """Work again later and not at once, because a transaction failed, perhaps before `work`."""
        self.alarm_ns = now_ns + LOOK_EVERY_NS

    def free_ballast(self) -> None:
        """Delete the ballast after a commit found no room on the disk, so that the next commit can delete rows."""
        if self._ballast.delete():
            log.warning("ballast_given_up", extra={"store": str(self._path)})

    def _measure(self) -> None:
        """Measure pages in use, free pages, and free space of the disk."""
        pages = self._execute(QUERIES["page_count"]).fetchone()[0]
        free = self._execute(QUERIES["freelist_count"]).fetchone()[0]
        self.space = Space((pages - free) * self._page_bytes, disk_free(self._path.parent), free * self._page_bytes)
        spare = max(FREE_BYTES_MIN // self._page_bytes, pages // FREE_SHARE_MAX)
        self._has_free_pages = free > spare

    def _log_near(self, catalog: Catalog) -> None:
        """Log when a stream comes near a limit, and when it has room again."""
        for name, stream in catalog.streams.items():
            nearest = fullest(self._limits(stream))
            if nearest is not None and nearest.is_near and name not in self._near:
                self._near.add(name)
                log.warning(
                    "store_near_limit",
                    extra={"stream": name, "limit": nearest.what, "percent": round(nearest.percent, 1)},
                )
            elif name in self._near and (nearest is None or not nearest.is_near):
                self._near.discard(name)
                log.info("store_has_room", extra={"stream": name})

    # ---------------------------------------------------------------------------------------------------------- release

    def _release(self, transaction: Transaction, stream: StreamState, full: Limit | None, *, may_drop: bool) -> None:
        """Release what the settings allow, and record a loss. `full`: the limit below which the room must fall. Without
        `may_drop`, no unconfirmed fact is dropped for that; callers give it only for streams that drop their oldest."""
        decision = decide_release(self._offsets(transaction.catalog, stream, full, may_drop=may_drop))
        if decision is None:
            return
        after = transaction.release(stream, decision.until)
        if after.released_offset == stream.released_offset:
            return
        self._reclaimer.released(stream, after)
        if decision.lost_from is not None and decision.lost_from <= after.released_offset:
            _record_loss(transaction, stream, after.released_offset, decision)
            self._log_loss(stream.name, decision)

    def _log_loss(self, stream: str, decision: Release) -> None:
        """Log the first loss of a stream, then at most one an hour. Each loss has its own fact, and the incident counts
        them."""
        now_ms = self.age_ms()
        if now_ms - self._loss_logged_ms.get(stream, -HOUR_MS) >= HOUR_MS:
            self._loss_logged_ms[stream] = now_ms
            log.warning(
                "facts_expired", extra={"stream": stream, "reason": decision.reason.value, "until": decision.until}
            )

    def _offsets(self, catalog: Catalog, stream: StreamState, full: Limit | None, *, may_drop: bool) -> StreamOffsets:
        policy = self._policy(stream.name)
        frontiers = self._frontiers_of_zones(catalog, stream.name)
        kept_ms, ttl_ms = policy.keep_hours * HOUR_MS, policy.ttl_hours * HOUR_MS
        marks = self._execute(QUERIES["select_marks"], (stream.id, MARKS_READ)).fetchall()

        def before(age_ms: float) -> int:
            wanted_ms = int(self.age_ms() - age_ms)
            return last_offset_before(marks, wanted_ms, stream.mark_ms, stream.end_offset, stream.released_offset)

        return StreamOffsets(
            released=stream.released_offset,
            end=stream.end_offset,
            confirmed=min(frontiers.values()) if frontiers else None,
            kept=before(kept_ms) if kept_ms else stream.end_offset,
            expired=before(ttl_ms) if ttl_ms else None,
            overdue=before(ttl_ms + ttl_ms / TTL_PIECES) if ttl_ms else None,
            excess=None if full is None else self._excess_offset(stream, full),
            may_drop=may_drop,
            forfeited=self._forfeited(catalog, stream, frontiers, full, before),
        )

    def _excess_offset(self, stream: StreamState, full: Limit) -> int | None:
        """The offset up to which facts must be released for the stream to be below a limit by a piece."""
        bytes_total = stream.released_bytes + full.used - full.limit + piece_bytes(full.limit)
        return self._offset_at(stream, stream.released_offset, bytes_total)

    def _offset_at(self, stream: StreamState, after_offset: int, bytes_total: int) -> int | None:
        """The end of the first batch after an offset at which the stream has this many bytes."""
        values = (stream.id, after_offset, min(bytes_total, stream.bytes_total))
        row = self._execute(QUERIES["select_offset_at_bytes"], values).fetchone()
        return None if row is None else row[0]

    # ---------------------------------------------------------------------------------------------------------- holding

    @staticmethod
    def _frontiers_of_zones(catalog: Catalog, stream: str) -> dict[str, int]:
        """The frontier of the slowest consumer of each zone."""
        found = dict[str, int]()
        for one in catalog.consumers.values():
            if one.stream == stream:
                found[one.zone] = min(found.get(one.zone, NEVER_NS), one.frontier)
        return found

    def _forfeited(
        self,
        catalog: Catalog,
        stream: StreamState,
        frontiers: Mapping[str, int],
        full: Limit | None,
        before: Callable[[float], int],
    ) -> int:
        """The offset up to which every zone has confirmed the stream or forfeited it (holding.py)."""
        if not frontiers:
            return 0
        lowest = dict(frontiers)
        for zone in frontiers.keys() & self.holds.keys():
            lowest[zone] = max(lowest[zone], self._forfeited_by(catalog, stream, zone, before))
        if full is not None:
            zones = {zone: self._backlog(stream, frontier) for zone, frontier in lowest.items()}
            if (alone := alone_forfeited(zones, full.limit)) is not None:
                zone, size = alone
                until = self._offset_at(stream, lowest[zone], zones[zone].bytes_before + size)
                lowest[zone] = max(lowest[zone], until or 0)
        return min(lowest.values())

    def _forfeited_by(self, catalog: Catalog, stream: StreamState, zone: str, before: Callable[[float], int]) -> int:
        """The offset up to which a zone forfeits the stream, because it has held back facts too long or too many of
        them."""
        limit, until = self.holds[zone], 0
        frontier = self._frontiers_of_zones(catalog, stream.name)[zone]
        hold_ms = limit.hours_max * HOUR_MS
        if hold_ms and before(hold_ms + hold_ms / TTL_PIECES) > max(frontier, stream.released_offset):
            until = before(hold_ms)
        if limit.bytes_max:
            backlogs = {
                name: self._backlog(other, low)
                for name, other in catalog.streams.items()
                if (low := self._frontiers_of_zones(catalog, name).get(zone)) is not None
            }
            if size := bytes_forfeited(backlogs, limit.bytes_max).get(stream.name):
                mine = backlogs[stream.name]
                until = max(until, self._offset_at(stream, mine.frontier, mine.bytes_before + size) or 0)
        return until

    def _backlog(self, stream: StreamState, frontier: int) -> Backlog:
        frontier = max(frontier, stream.released_offset)
        bytes_before = bytes_up_to(self._connection, stream, frontier)
        return Backlog(frontier, bytes_before, stream.bytes_total - bytes_before)

    def _frontiers_moved(self, catalog: Catalog) -> set[str]:
        """Streams whose slowest consumer has moved since the last call, or whose only consumer was registered or
        removed."""
        slowest: dict[str, int] = {}
        for one in catalog.consumers.values():
            slowest[one.stream] = min(slowest.get(one.stream, NEVER_NS), one.frontier)
        before, self._frontiers = self._frontiers, slowest
        return {name for name in {*before, *slowest} if before.get(name) != slowest.get(name)}


def _record_loss(transaction: Transaction, stream: StreamState, until: int, decision: Release) -> None:
    """Record a loss as a fact in the stream and as an incident, in the transaction that releases the facts."""
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
    append_notice(transaction, stream.name, "facts_expired", about, key)
    who = ", ".join(str(one["name"]) for one in consumers) or "no consumer was registered"
    why = _WHY[decision.reason]
    transaction.add_incident(
        "facts_expired",
        stream.name,
        f"offsets {about['first_offset']} to {until} were released unconfirmed, {why}; not confirmed by: {who}",
    )
