"""Releases facts that the settings of a stream allow to go, and records what is lost (decision 0025).

Belongs to the writer's thread and works inside its transactions. What to release is decided in retention.py, what a
zone may hold back in holding.py.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping

from agent.fact_store.append import append_notice
from agent.fact_store.core import HOUR_MS, NEVER_NS, NO_CONSUMER, Catalog, StoreLimits, StreamState, last_offset_before
from agent.fact_store.read import bytes_up_to
from agent.fact_store.retention.fullness import Limit, piece_bytes
from agent.fact_store.retention.holding import Backlog, alone_forfeited, bytes_forfeited
from agent.fact_store.retention.reclaim import Reclaimer
from agent.fact_store.retention.retention import TTL_PIECES, Release, ReleaseReason, StreamOffsets, decide_release
from agent.fact_store.sqlite import QUERIES, Transaction

log = logging.getLogger(__name__)

_WHY = {
    ReleaseReason.TTL: "their time to live was over",
    ReleaseReason.HELD: "a zone held back more than it may",
    ReleaseReason.FULL: "the store was full",
}
MARKS_READ = 1000  # the oldest ones, sixteen hours; the next check reads further


class Releaser:
    """Releases facts, whose rows `reclaimer` deletes. `age_ms` is the store's age."""

    def __init__(
        self, connection: sqlite3.Connection, limits: StoreLimits, age_ms: Callable[[], int], reclaimer: Reclaimer
    ) -> None:
        self._connection = connection
        self.limits = limits
        self._age_ms = age_ms
        self._reclaimer = reclaimer
        self._frontiers: dict[str, int] = {}
        self._loss_logged_ms: dict[str, int] = {}

    def rolled_back(self) -> None:
        """Look at all frontiers again: what was released with them is not."""
        self._frontiers.clear()

    def release(self, transaction: Transaction, stream: StreamState, full: Limit | None, *, may_drop: bool) -> None:
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
        now_ms = self._age_ms()
        if now_ms - self._loss_logged_ms.get(stream, -HOUR_MS) >= HOUR_MS:
            self._loss_logged_ms[stream] = now_ms
            log.warning(
                "facts_expired", extra={"stream": stream, "reason": decision.reason.value, "until": decision.until}
            )

    def _offsets(self, catalog: Catalog, stream: StreamState, full: Limit | None, *, may_drop: bool) -> StreamOffsets:
        policy = self.limits.policy(stream.name)
        frontiers = self._frontiers_of_zones(catalog, stream.name)
        kept_ms, ttl_ms = policy.keep_hours * HOUR_MS, policy.ttl_hours * HOUR_MS
        marks = self._connection.execute(QUERIES["select_marks"], (stream.id, MARKS_READ)).fetchall()

        def before(age_ms: float) -> int:
            wanted_ms = int(self._age_ms() - age_ms)
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
        row = self._connection.execute(QUERIES["select_offset_at_bytes"], values).fetchone()
        return None if row is None else row[0]

    @staticmethod
    def _frontiers_of_zones(catalog: Catalog, stream: str) -> dict[str, int]:
        """The frontier of the slowest consumer of each zone."""
        found = dict[str, int]()
        for consumer in catalog.consumers.values():
            if consumer.stream == stream:
                found[consumer.zone] = min(found.get(consumer.zone, NEVER_NS), consumer.frontier)
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
        for zone in frontiers.keys() & self.limits.holds.keys():
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
        limit, until = self.limits.holds[zone], 0
        frontier = self._frontiers_of_zones(catalog, stream.name)[zone]
        hold_ms = limit.hours_max * HOUR_MS
        if hold_ms and before(hold_ms + hold_ms / TTL_PIECES) > max(frontier, stream.released_offset):
            until = before(hold_ms)
        if limit.bytes_max:
            backlogs = {
                name: self._backlog(state, low)
                for name, state in catalog.streams.items()
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

    def frontiers_moved(self, catalog: Catalog) -> set[str]:
        """Streams whose slowest consumer has moved since the last call, or whose only consumer was registered or
        removed."""
        slowest: dict[str, int] = {}
        for consumer in catalog.consumers.values():
            slowest[consumer.stream] = min(slowest.get(consumer.stream, NEVER_NS), consumer.frontier)
        before, self._frontiers = self._frontiers, slowest
        return {name for name in {*before, *slowest} if before.get(name) != slowest.get(name)}


def _record_loss(transaction: Transaction, stream: StreamState, until: int, decision: Release) -> None:
    """Record a loss as a fact in the stream and as an incident, in the transaction that releases the facts."""
    first = stream.released_offset + 1
    assert decision.lost_from is not None
    consumers = [
        {"name": consumer.name, "from_offset": max(first, consumer.frontier + 1)}
        for consumer in transaction.catalog.consumers.values()
        if consumer.stream == stream.name and consumer.frontier < until
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
    who = ", ".join(str(consumer["name"]) for consumer in consumers) or NO_CONSUMER
    why = _WHY[decision.reason]
    transaction.add_incident(
        "facts_expired",
        stream.name,
        f"offsets {about['first_offset']} to {until} were released unconfirmed, {why}; not confirmed by: {who}",
    )
