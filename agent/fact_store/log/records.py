"""What the store hands out and takes in: frozen records, no behaviour. Core: no IO.

Offsets are positions in this store's stream, sequences positions at the origin; both start at 1, 0 means "nothing yet".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent.batch import Origin
from agent.fact_store.log.frontier import Confirmed
from agent.fact_store.log.lifecycle import Lifecycle
from agent.lease import NO_LEASE, Lease


class Appended(NamedTuple):
    """The offsets of the samples of one append; they are durable here."""

    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A registered consumer. `confirmed.ranges` lie beyond `confirmed.frontier`; `seen_unix_ms` is what the table says."""

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
        """Everything up to this offset is confirmed."""
        return self.confirmed.frontier


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream: facts `first_offset` to `end_offset` in sealed batches of `bytes` bytes."""

    name: str
    first_offset: int
    end_offset: int
    bytes: int


class BatchHead(NamedTuple):
    """What the table says of a batch without its body: where it lies, whose it is, which times it spans."""

    first_offset: int
    last_offset: int
    origin: Origin
    first_sequence: int
    time_min_ns: int
    time_max_ns: int
    kind: int
    definition_count: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that was lost or refused, how often, first and last when."""

    kind: str
    subject: str
    detail: str
    count: int
    first_unix_ms: int
    last_unix_ms: int


@dataclass(frozen=True, slots=True)
class Integrity:
    """Damaged places found in this life, batches compared in the background and when all of them were last; files set aside
    (name, bytes)."""

    damages: int
    batches_verified: int
    last_full_pass_unix_ms: int | None
    set_aside: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of durations: `counts[i]` took at most `bounds_s[i]`, the last one (one more than bounds) longer."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters since the store was opened, and what waits now."""

    state: Literal["open", "failed", "closed"]
    facts_appended: int
    facts_received: int
    facts_duplicate: int
    appends: int
    appends_failed: int
    confirms: int
    commits: int
    append_latency: Histogram
    queue_facts: int
    queue_facts_max: int
    queue_bytes: int
    queue_bytes_max: int
    file_bytes: int
    wal_bytes: int
