"""The settings of the store and of its streams, with their defaults and the reason for each.

Only values that differ between gateways are settings; synchronous=FULL, WAL and the single writer are fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agent.columns import FACTS_MAX
from agent.message import STREAM

Acks = Literal["none", "local", "quorum", "all"]
WriteClass = Literal["local", "append_only", "queued", "strong"]
HOURS_MAX = 876_000  # a century; 0 means forever


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """[store]: interval of the group commit, and the limits of the queue, the file and the artifacts."""

    # Interval of commits for samples that no caller awaits; a power cut loses the samples of this time. Four commits a
    # second write 10 GB a day besides the facts, which an 8 GB eMMC endures for three years.
    commit_interval_ms: int = 250
    # The most facts of a batch; so many of one stream are committed at once, also before the interval is over. Smaller
    # batches take more bytes a fact (2 % at 8192, 11 % at 2000), larger ones more time to cut a small page from (3 ms).
    batch_facts_target: int = FACTS_MAX
    # Limits of the writer's queue, in facts and in bytes; one append may go beyond. A full queue raises StoreBusy: the
    # source slows down.
    queue_facts_max: int = 200_000
    queue_bytes_max: int = 64 * 1024 * 1024
    # Limit of the store's file, all streams together; 0: only the disk limits it. It must be below the disk's size: on
    # a full disk SQLite cannot even delete.
    bytes_max: int = 0
    # Space on the disk that appends leave free, for the WAL, for deleting, and for other programs.
    disk_free_bytes_min: int = 256 * 1024 * 1024
    # A file that is deleted when the disk is full all the same, so that the store can be opened, served from and
    # emptied.
    ballast_bytes: int = 16 * 1024 * 1024
    # The largest artifact, and all together (0: only the disk limits them): a gateway's disk has 16 to 64 GB.
    artifact_bytes_max: int = 256 * 1024 * 1024
    artifacts_total_bytes_max: int = 4 * 1024 * 1024 * 1024
    # What artifacts leave free of the disk beyond disk_free_bytes_min: they are refused long before facts are.
    artifact_disk_spare_bytes: int = 768 * 1024 * 1024
    # What one zone (a peer that puts or that is pulled from, or this one) may have here of incomplete artifacts and of
    # those that no fact refers to yet.
    artifact_unreferenced_bytes_max: int = 512 * 1024 * 1024
    # How long those are kept: a producer appends the fact within seconds, or after a restart on the next shift.
    artifact_orphan_hours: float = 4.0
    # How long an artifact is kept whose facts were released: an operator who restores a quarantined file needs it.
    artifact_released_hours: float = 168.0

    def problems(self) -> Iterator[tuple[str, str]]:
        """(field, why) for each rule that does not hold."""
        if not 0 <= self.commit_interval_ms <= 60_000:
            yield "commit_interval_ms", "0 (at once) to 60000; until the commit a sample is in memory only"
        if not 1 <= self.batch_facts_target <= FACTS_MAX:
            yield "batch_facts_target", f"1 to {FACTS_MAX}, the most a batch holds"
        if self.queue_facts_max < self.batch_facts_target:
            yield "queue_facts_max", "must hold at least one batch (batch_facts_target)"
        if self.queue_bytes_max < 1024 * 1024:
            yield "queue_bytes_max", "at least 1048576: one page of a peer must fit"
        if self.bytes_max and self.bytes_max < 1024 * 1024:
            yield "bytes_max", "0 (as much as the disk allows) or at least 1048576"
        for name in ("artifact_orphan_hours", "artifact_released_hours"):
            if not 0 < getattr(self, name) <= HOURS_MAX:
                yield name, f"above 0, to {HOURS_MAX}"
        quota, total = "artifact_unreferenced_bytes_max", "artifacts_total_bytes_max"
        for name in (
            *("disk_free_bytes_min", "ballast_bytes"),
            *("artifact_bytes_max", total, "artifact_disk_spare_bytes", quota),
        ):
            if getattr(self, name) < 0:
                yield name, "must not be negative; 0 does without it"
        for name in (quota, total):
            if 0 < getattr(self, name) < self.artifact_bytes_max:
                yield name, f"below artifact_bytes_max ({self.artifact_bytes_max}), so the largest artifact has no room"


@dataclass(frozen=True, slots=True)
class ZoneLimit:
    """What one zone may hold back from being released, of all streams together: sealed bytes, and hours since they were
    recorded. 0 for no limit. Beyond it the zone loses its oldest facts, as soon as all others have confirmed them.

    `writes` are the streams that get facts from it, `share_bytes` the room that is kept for these in the store; 0 for
    an equal part (agent/fact_store/retention/shares.py). `zone`: for which the node of that name records."""

    bytes_max: int = 0
    hours_max: float = 0.0
    share_bytes: int = 0
    writes: frozenset[str] = frozenset()
    zone: str = ""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """[[stream]]: the settings of one stream. A stream that is not configured has these defaults."""

    name: str
    # When an append is answered: none, as soon as it is in the queue; local, durable here; quorum and all, confirmed
    # also by consumers in sync, at least min_in_sync of them. After acks_timeout_ms the answer is `queued`: the fact is
    # durable here and replication continues.
    acks: Acks = "local"
    min_in_sync: int = 1
    acks_timeout_ms: int = 5000
    # A consumer is in sync while its last fetch that reached the end of the log is younger than this.
    in_sync_lag_ms: int = 15_000
    # Confirmed facts are kept this long for local readers; unconfirmed ones until ttl_hours are over (0: forever).
    # Only hours in which the node ran count, because only then consumers could fetch (decision 0024).
    keep_hours: float = 24.0
    ttl_hours: float = 168.0
    # Sealed bytes the stream may hold, 0 for no limit of its own, and what happens at the limit.
    bytes_max: int = 0
    on_full: Literal["refuse", "drop_oldest"] = "refuse"
    # local: never leaves this node; append_only: replicated asynchronously; queued: waits for consumers in sync, and
    # not at all where there are none; strong: waits for them.
    write_class: WriteClass = "append_only"

    def problems(self) -> Iterator[tuple[str, str]]:
        """(field, why) for each rule that does not hold."""
        if not STREAM.fullmatch(self.name):
            yield "name", "a stream name is 1 to 64 of a-z, 0-9, . _ and -"
        if not 1 <= self.min_in_sync <= 64:
            yield "min_in_sync", "1 to 64"
        for name, least in (("acks_timeout_ms", 1), ("in_sync_lag_ms", 1000)):
            if not least <= getattr(self, name) <= 3_600_000:
                yield name, f"{least} to 3600000"
        if not 0 <= self.keep_hours <= HOURS_MAX:
            yield "keep_hours", f"0 (until confirmed) to {HOURS_MAX}"
        if not 0 <= self.ttl_hours <= HOURS_MAX:
            yield "ttl_hours", f"0 (forever) to {HOURS_MAX}"
        if self.ttl_hours and self.keep_hours > self.ttl_hours:
            yield "keep_hours", f"longer than ttl_hours ({self.ttl_hours:g}), after which facts go in any case"
        if self.bytes_max and self.bytes_max < 1024 * 1024:
            yield "bytes_max", "0 (no limit of its own) or at least 1048576"
        if self.write_class == "strong" and self.acks in {"none", "local"}:
            yield "acks", "a strong stream waits for others: quorum or all"
        if self.write_class == "local" and self.acks in {"quorum", "all"}:
            yield "acks", "a local stream has no consumers in other zones: none or local"
