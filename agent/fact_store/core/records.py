"""Frozen records that the store takes and returns. Core: no IO.

Offsets are positions in this store's stream, sequences are positions at the origin; both start at 1, and 0 means "none
yet".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent.batch import Origin
from agent.fact_store.core.frontier import Confirmed
from agent.fact_store.core.lifecycle import Lifecycle
from agent.lease import NO_LEASE, Lease


class Appended(NamedTuple):
    """The offsets of the samples of one append; they are durable here."""

    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A registered consumer. `seen_unix_ms` is the stored time of activity; the last activity may be newer."""

    id: int
    name: str
    zone: str
    stream: str
    lifecycle: Lifecycle
    start_offset: int
    confirmed: Confirmed
    registered_unix_ms: int = 0
    seen_unix_ms: int | None = None
    lease: Lease = NO_LEASE

    @property
    def frontier(self) -> int:
        """All offsets up to this one are confirmed."""
        return self.confirmed.frontier


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream: facts `first_offset` to `end_offset` in sealed batches of `bytes` bytes."""

    name: str
    first_offset: int
    end_offset: int
    bytes: int


class BatchSummary(NamedTuple):
    """The columns of a batch in the table, without its body. Times are nanoseconds since 1970. `definition` is the id
    of the last tag definition that it needs; None for messages."""

    first_offset: int
    last_offset: int
    origin: Origin
    first_sequence: int
    time_min_ns: int
    time_max_ns: int
    kind: int
    definition: int | None
    body_bytes: int


NO_CONSUMER = "no consumer was registered"


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident for the operator: what was lost or refused, how often, and when first and last (ms since 1970)."""

    kind: str
    subject: str
    detail: str
    count: int
    first_unix_ms: int
    last_unix_ms: int

    def declines(self, zone: str) -> bool:
        """Whether facts of a zone that a peer brought were not stored."""
        return self.kind == "declined" and f" of {zone}/" in self.subject

    @property
    def is_loss(self) -> bool:
        """Whether facts were released that a consumer lacks."""
        return self.kind == "facts_expired" and not self.detail.endswith(NO_CONSUMER)

    @property
    def is_told_by_peer(self) -> bool:
        """Whether a peer tells it, and not what this store has found."""
        return self.subject.startswith("peer ")


@dataclass(frozen=True, slots=True)
class Integrity:
    """The integrity of the store: damaged places found in this life and not repaired, batches scrubbed, when a pass was
    last complete, quarantined files (name, bytes), and the number of incidents of the last day in which an opening
    found facts missing."""

    damages: int
    batches_verified: int
    last_full_pass_unix_ms: int | None
    quarantined: tuple[tuple[str, int], ...]
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of durations by the bounds of `agent.telemetry`, as in `SpanStatistics`."""

    counts: tuple[int, ...]
    sum_s: float


class AppendRefusal(NamedTuple):
    """Why appends to a stream or of a zone are refused, what to do, since when, when the last one was, how many."""

    why: str
    hint: str
    since_unix_ms: int
    last_ns: int
    appends: int


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters since the store was opened, and the present content of the queue."""

    state: Literal["open", "failed", "closed"]
    facts_appended: int
    facts_received: int
    facts_duplicate: int
    appends: int
    appends_failed: int
    appends_full: int  # of the failed ones, those refused for want of room
    confirms: int
    commits: int
    append_latency: Histogram
    commit_s: float
    """For how long the commit under way has lasted; 0 if there is none."""
    queue_facts: int
    queue_facts_max: int
    queue_bytes: int
    queue_bytes_max: int
    file_bytes: int
    wal_bytes: int
    appends_refused: str
    """Why appends are refused now; empty if they are stored."""
    refused_remedy: str
    refused_since_unix_ms: int | None
    shares_used_up: Mapping[str, str]
    """Why facts of a zone are refused now, by zone: its share of the room is used up."""
