"""What room a store has: free space of file and disk as last measured, and the limits of each stream with the shares of
the zones that write.

Belongs to the writer's thread. The limits are decided in fullness.py and shares.py.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path

from agent.fact_store.core import NEVER_NS, Catalog, StoreLimits, StreamState
from agent.fact_store.retention.fullness import WARN_PERCENT, Limit, Share, Space, Write, fullest, limits
from agent.fact_store.retention.reclaim import Reclaimer
from agent.fact_store.retention.shares import file_bytes_of, limit_for, reserved_bytes, shares_of
from agent.fact_store.sqlite import QUERIES, disk_free

log = logging.getLogger(__name__)

MEASURE_EVERY_NS = 100_000_000  # between two measurements of free space where no limit is near
FREE_SHARE_MAX = 8  # free pages beyond an eighth of the file are given back...
FREE_BYTES_MIN = 32 * 1024 * 1024  # ...but this much is always kept, because appends reuse it
WAL_BYTES = 4 * 1024 * 1024  # SQLite's log grows to this before a checkpoint
LITTLE_BYTES = 64 * 1024 * 1024  # more than any source writes between two measurements


class Room:
    """The room of a store. What `reclaimer` has not deleted yet counts as free."""

    def __init__(self, path: Path, connection: sqlite3.Connection, limits: StoreLimits, reclaimer: Reclaimer) -> None:
        self.path = path
        self.limits = limits
        self._execute = connection.execute
        self._reclaimer = reclaimer
        self._page_bytes: int = self._execute(QUERIES["page_size"]).fetchone()[0]
        self._near = set[str]()
        self._is_little_left = True  # until it is measured
        self._measured_ns = -NEVER_NS
        self.is_tight = True
        """Whether an append may find no room, so that it has to be looked at."""
        self.has_free_pages = False
        self.space = Space(0, None)

    def look(self, catalog: Catalog, now_ns: int, *, is_urgent: bool) -> None:
        """Measure between transactions, after the answers.

        If there is little room, or `is_urgent`, after each commit, because a fast source fills a small disk within a
        second; otherwise rarely, because measuring takes as long as sealing a fact.
        """
        is_stream_near = any(self._is_stream_near(stream) for stream in catalog.streams.values())
        if not self._is_little_left and not is_urgent and now_ns - self._measured_ns < MEASURE_EVERY_NS:
            self.is_tight = is_stream_near
            return
        self._measured_ns = now_ns
        self.measure()
        settings = self.limits.settings
        shared = limits(0, 0, self.space, settings.bytes_max, settings.disk_free_bytes_min)
        self._is_little_left = self.has_no_room_for_wal() or any(
            limit.is_near or limit.limit - limit.used - self._reserved(catalog, limit) < LITTLE_BYTES
            for limit in shared
        )
        self.is_tight = self._is_little_left or is_stream_near

    def is_full(self, catalog: Catalog, stream: str) -> bool:
        """Whether an append to a stream would be refused, as far as is known without releasing anything."""
        nearest = fullest(self.limits_of(catalog.streams.get(stream) or StreamState(0, stream)))
        return self.has_no_room_for_wal() or (nearest is not None and nearest.is_full)

    def is_near(self, catalog: Catalog, stream: str) -> bool:
        """Whether a limit of a stream is nearly reached; rows that are still to be deleted count. May be called in any
        thread."""
        known, settings = catalog.streams.get(stream) or StreamState(0, stream), self.limits.settings
        held = known.bytes_total - known.released_bytes
        bytes_max = self.limits.policy(stream).bytes_max
        found = limits(held, bytes_max, self.space, settings.bytes_max, settings.disk_free_bytes_min)
        return any(use.is_near for use in found)

    def has_no_room_for_wal(self) -> bool:
        """Whether the disk has no room for the WAL. An append that reuses free pages still needs room there, and the
        last bytes of the disk, such as the ballast's, are reserved for transactions that make room."""
        return self.space.disk_free is not None and self.space.disk_free < min(
            WAL_BYTES, self.limits.settings.disk_free_bytes_min
        )

    def full(self, catalog: Catalog, stream: StreamState, write: Write | None = None) -> Limit | None:
        """The nearest limit of a stream, if it is reached; for a write, the one that its zone may not pass."""
        found = self.limits_of(stream)
        if write is not None and self.limits.holds:
            found = [self._lowered(catalog, stream, limit, write) for limit in found]
        nearest = fullest(found)
        return nearest if nearest is not None and nearest.is_full else None

    def _lowered(self, catalog: Catalog, stream: StreamState, limit: Limit, write: Write) -> Limit:
        """A limit less what of it is kept for other zones than the writing one."""
        shares, uses = self.shares(catalog, limit, stream), self.uses(catalog, stream if limit.is_of_stream else None)
        up_to = limit_for(write.zone, write.size, shares, uses, limit.limit)
        if up_to == limit.limit:
            return limit
        share = Share(uses.get(write.zone, 0), shares.get(write.zone, 0))
        return replace(limit, used=limit.used + file_bytes_of(write.size), limit=up_to, share=share)

    def shares(self, catalog: Catalog, limit: Limit, stream: StreamState | None) -> dict[str, int]:
        """The share of each zone that writes, of the room below a limit."""
        if limit.is_of_stream and stream is not None:
            given = {zone: 0 for zone, hold in self.limits.holds.items() if stream.name in hold.writes}
        else:
            given = {zone: hold.share_bytes for zone, hold in self.limits.holds.items() if hold.writes}
        return shares_of({**given, catalog.names.zone: 0}, limit.limit)

    def uses(self, catalog: Catalog, stream: StreamState | None) -> dict[str, int]:
        """Sealed bytes of each zone in a stream, or in all, with those of rows that are released and not yet
        deleted."""
        streams = catalog.streams.values() if stream is None else [stream]
        numbers, found = {state.id for state in streams}, Counter[str]()
        for (number, zone), size in catalog.zone_uses.items():
            if number in numbers and size:
                found[zone] += size
        own = sum(state.bytes_total - state.released_bytes + self._reclaimer.pending_of(state) for state in streams)
        own -= found.total()
        return {**found, catalog.names.zone: own} if own > 0 else dict(found)

    def limits_of(self, stream: StreamState) -> list[Limit]:
        """The limits of a stream now. Released facts do not count, although their rows may not be deleted yet."""
        held = stream.bytes_total - stream.released_bytes
        pending = self._reclaimer.pending_bytes
        used = max(0, self.space.store_used - pending)
        space = Space(used, self.space.disk_free, self.space.store_free + pending)
        settings = self.limits.settings
        return limits(
            held, self.limits.policy(stream.name).bytes_max, space, settings.bytes_max, settings.disk_free_bytes_min
        )

    def _reserved(self, catalog: Catalog, limit: Limit) -> int:
        return reserved_bytes(self.shares(catalog, limit, None), self.uses(catalog, None)) if self.limits.holds else 0

    def _is_stream_near(self, stream: StreamState) -> bool:
        bytes_max = self.limits.policy(stream.name).bytes_max
        near_percent = WARN_PERCENT // 2 if self.limits.holds else WARN_PERCENT
        return bytes_max > 0 and 100 * (stream.bytes_total - stream.released_bytes) >= near_percent * bytes_max

    def measure(self) -> None:
        """Measure pages in use, free pages, and free space of the disk."""
        pages = self._execute(QUERIES["page_count"]).fetchone()[0]
        free = self._execute(QUERIES["freelist_count"]).fetchone()[0]
        self.space = Space((pages - free) * self._page_bytes, disk_free(self.path.parent), free * self._page_bytes)
        spare = max(FREE_BYTES_MIN // self._page_bytes, pages // FREE_SHARE_MAX)
        self.has_free_pages = free > spare

    def log_near(self, catalog: Catalog) -> None:
        """Log when a stream comes near a limit, and when it has room again."""
        for name, stream in catalog.streams.items():
            nearest = fullest(self.limits_of(stream))
            if nearest is not None and nearest.is_near and name not in self._near:
                self._near.add(name)
                log.warning(
                    "store_near_limit",
                    extra={"stream": name, "limit": nearest.what, "percent": round(nearest.percent, 1)},
                )
            elif name in self._near and (nearest is None or not nearest.is_near):
                self._near.discard(name)
                log.info("store_has_room", extra={"stream": name})
