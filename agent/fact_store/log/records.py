"""Frozen records that the store takes and returns. Core: no IO.

Offsets are positions in this store's stream, sequences are positions at the origin; both start at 1, and 0 means "none
yet".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent.batch import Origin
from agent.fact_store.log.frontier import Confirmed
from agent.fact_store.log.lifecycle import Lifecycle
from agent.lease import NO_LEASE, Lease


class Appended(NamedTuple):
    """The offsets of the samples of one append, durable here. `queued`: not confirmed as `acks` asks; `warning` says
    why."""

    first_offset: int
    last_offset: int
    outcome: Literal["acknowledged", "queued"] = "acknowledged"
    warning: str = ""


Outcome = Literal["applied", "noop_already_applied", "conflicting_duplicate", "superseded", "rejected_fenced", "queued"]


class AppendOutcome(NamedTuple):
    """The outcome of a message: see admission.py. `offset` is that of the message first stored under its id, 0 where it
    is not known (acks none). `queued`: durable here, unless acks is none, but not confirmed as `acks` asks; `warning`
    says why."""

    offset: int
    outcome: Outcome
    warning: str = ""
    lease_epoch: int = 0  # of rejected_fenced: the epoch in force


class Taken(NamedTuple):
    """The last batch taken of a peer's log: the offset there at which it ends, and its digest."""

    last_offset: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class PeerPosition:
    """How far a peer's stream has been stored here: an offset in one epoch of that peer, and the last batch at or
    before it that was taken; None where it is not known."""

    epoch: bytes
    offset: int
    taken: Taken | None = None


@dataclass(frozen=True, slots=True)
class ReceivedDefinition:
    """One tag definition of an origin, as a peer sent it: canonical JSON bytes."""

    origin: Origin
    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences of an origin that a peer did not have any more: the batch after them was stored, they are missing."""

    origin: Origin
    first_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a peer's page; all of it is durable."""

    stored_facts: int
    duplicate_facts: int
    end_offset: int
    gaps: tuple[Gap, ...] = ()
    refused: tuple[OriginRange, ...] = ()  # passed over: other facts than are held here under the same sequences
    uncompared: tuple[
        OriginRange, ...
    ] = ()  # of these some were released here, so whether the peer's are the same is unknown


class BatchEnd(NamedTuple):
    """The last sequence of a batch and the batch's digest, which vouches for everything before it."""

    last_sequence: int
    digest: bytes


class RepairedRange(NamedTuple):
    """Offsets whose facts are served again."""

    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A registered consumer. `seen_unix_ms` is the stored time, which may be older than its last activity."""

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


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A sealed batch and where it lies in its stream."""

    first_offset: int
    last_offset: int
    sealed: bytes
    origin: Origin
    definition_count: int


class BatchHead(NamedTuple):
    """The columns of a batch in the table, without its body. Times are nanoseconds since 1970."""

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
class Hole:
    """Offsets asked for that are no longer here: released before they were confirmed, or a batch the disk has
    damaged."""

    first_offset: int
    last_offset: int
    reason: Literal["expired", "damaged", "absent"]  # absent: never here, which only sequences can be


class OriginRange(NamedTuple):
    """Sequences of an origin."""

    zone: str
    epoch: bytes
    first_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class Page:
    """Whole batches, in order, and where the stream ended when they were read; `holes` are what was passed over on the
    way.

    Batches and holes together cover without a break what lies between the offset asked for and the last of them.
    """

    batches: list[StoredBatch]
    end_offset: int
    holes: tuple[Hole, ...] = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident for the operator: what was lost or refused, how often, and when first and last (ms since 1970)."""

    kind: str
    subject: str
    detail: str
    count: int
    first_unix_ms: int
    last_unix_ms: int


@dataclass(frozen=True, slots=True)
class Integrity:
    """Damaged places found in this life and not repaired, batches scrubbed and when a pass was last complete,
    quarantined files (name, bytes)."""

    damages: int
    batches_verified: int
    last_full_pass_unix_ms: int | None
    quarantined: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of durations: `counts[i]` took at most `bounds_s[i]`; the last count, one more than bounds, took
    longer."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters since the store was opened, and what waits in the queue now."""

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
