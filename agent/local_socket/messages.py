"""Requests and answers of the local socket, as they go over it in JSON: `operation` and the fields here, bytes as
base64.

Requests that peers make too have the same names as in `agent.replication`. Those declare more: an asking zone, a store
epoch and a consumer's lease, none of which a program on this machine has.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent.lease import LeaseClaim
from agent.message import Envelope, Fact
from agent.pages import Hole, Start
from agent.replication.protocol.messages import AppendedEntry
from agent.settings.store import Acks


class AppendFact(msgspec.Struct, frozen=True, tag="AppendFact", tag_field="operation"):
    """Append one message to a stream. The same message_id with the same content is stored once and answered with its
    offset."""

    stream: str
    envelope: Envelope
    fact: Fact
    acks: Acks | None = None
    # Conditions: no newer lease is in force under this producer's name, and no fact about the subject is newer than
    # base_offset.
    producer: str | None = None
    lease_epoch: int | None = None
    base_offset: int | None = None
    known_stream: bool = False
    """Refuse a stream that the store does not have; otherwise the first fact begins it."""


class AcquireLease(msgspec.Struct, frozen=True, tag="AcquireLease", tag_field="operation"):
    """A new lease epoch for a producer, durable. Appends of the producer with a lower epoch are fenced from now on."""

    stream: str
    producer: str


class RegisterConsumer(msgspec.Struct, frozen=True, tag="RegisterConsumer", tag_field="operation"):
    """Register a consumer, durably. One that exists on the same stream is left as it is."""

    consumer_name: str
    stream: str
    start: Start = "oldest"
    zone: str | None = None  # None: this zone
    is_fetching: bool = False  # facts are read next, so the consumer counts as seen
    claim: LeaseClaim | None = None  # of the instance that reads; None: the name is enough


class ListConsumers(msgspec.Struct, frozen=True, tag="ListConsumers", tag_field="operation"):
    """List the consumers of all zones."""


class RemoveConsumer(msgspec.Struct, frozen=True, tag="RemoveConsumer", tag_field="operation"):
    """Start the deletion of a consumer, or with `now` delete it at once. One that was active lately needs `force`."""

    consumer_name: str
    force: bool = False
    now: bool = False


class BeginEpoch(msgspec.Struct, frozen=True, tag="BeginEpoch", tag_field="operation"):
    """Begin a new epoch of the store, because it was restored from an old copy."""

    because: str


class ComparePeer(msgspec.Struct, frozen=True, tag="ComparePeer", tag_field="operation"):
    """Compare every stream pulled from a peer with that peer. `repair`: fetch what differs. `scan`: verify all batches
    here first."""

    zone: str
    repair: bool = False
    scan: bool = False


class RetrySource(msgspec.Struct, frozen=True, tag="RetrySource", tag_field="operation"):
    """Connect to a source at once instead of waiting for the next attempt."""

    source: str


class Reload(msgspec.Struct, frozen=True, tag="Reload", tag_field="operation"):
    """Read node.toml again and take over what can be while the node runs."""


class ListSources(msgspec.Struct, frozen=True, tag="ListSources", tag_field="operation"):
    """The sources that the node reads, with their state."""


class ReadSource(msgspec.Struct, frozen=True, tag="ReadSource", tag_field="operation"):
    """Read tags over the connection that the node has to a Modbus device, which may take no other, without recording
    them."""

    source: str
    tags: list[str]


class BackfillSource(msgspec.Struct, frozen=True, tag="BackfillSource", tag_field="operation"):
    """Read what is missing of a source between two times, in ns since 1970, from its server's history."""

    source: str
    first_ns: int
    last_ns: int


class ReadStatus(msgspec.Struct, frozen=True, tag="ReadStatus", tag_field="operation"):
    """The status of the node: the worst parts of each kind, or everything."""

    everything: bool = False


class ReadLatest(msgspec.Struct, frozen=True, tag="ReadLatest", tag_field="operation"):
    """The latest value of each tag, from the row `first` on: as `bsfg latest` reads it."""

    tag_glob: str = "*"
    zone: str | None = None
    stream: str | None = None
    depth_facts: int = 0
    fresh_ms: int = 60_000
    first: int = 0


class ReadTail(msgspec.Struct, frozen=True, tag="ReadTail", tag_field="operation"):
    """At most `limit` facts of a stream after an offset; without one, the last."""

    stream: str
    after_offset: int | None = None
    limit: int = 10


class ConfirmReceipt(msgspec.Struct, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """Facts up to `offset` (from `first_offset`, if given) are durable at the consumer. `life`: that of the position at
    `offset` in the log that was read, 32 hex digits; what of it is not in this log is not confirmed."""

    consumer_name: str
    offset: int
    first_offset: int | None = None
    life: str | None = None
    claim: LeaseClaim | None = None


class PutObject(msgspec.Struct, frozen=True, tag="PutObject", tag_field="operation"):
    """The next bytes of an artifact of `size` bytes, at most 256 KiB. Without data: ask how many bytes are here."""

    digest: str
    size: int
    offset: int = 0
    data: bytes = b""


class Appended(AppendedEntry, frozen=True, omit_defaults=False, tag="AppendFact", tag_field="operation"):
    """The outcome: applied, noop_already_applied, conflicting_duplicate (nothing changed, `offset` is the other
    message's), superseded (nothing changed, `offset` is the newer fact's), rejected_fenced (nothing changed,
    `lease_epoch` is in force), or queued (not yet stored as `acks` asks; `warning` says why)."""


class LeaseAcquired(msgspec.Struct, frozen=True, tag="AcquireLease", tag_field="operation"):
    """The lease epoch to append with."""

    lease_epoch: int


class Registered(msgspec.Struct, frozen=True, tag="RegisterConsumer", tag_field="operation"):
    """The consumer's stream and confirmed frontier; the lease in force after the claim, and who holds it."""

    stream: str
    frontier: int
    lease_epoch: int = 0
    lease_holder: str = ""


class ConsumerEntry(msgspec.Struct, frozen=True):
    """A consumer. `held_bytes` counts whole batches from the first it has not confirmed; `held_hours` is the age of the
    newest fact in that batch."""

    name: str
    stream: str
    zone: str
    state: str
    in_sync: bool
    frontier: int
    behind_facts: int
    held_bytes: int
    held_hours: float | None
    seen_unix_ms: int | None
    lease_epoch: int = 0
    """In force; 0 if no instance ever asked for one."""
    lease_holder: str = ""
    """The instance that holds the lease."""


class Consumers(msgspec.Struct, frozen=True, tag="ListConsumers", tag_field="operation"):
    """All consumers, by name."""

    consumers: list[ConsumerEntry]


class Removed(msgspec.Struct, frozen=True, tag="RemoveConsumer", tag_field="operation"):
    """`state`: deletion started, or deleted. `was`: the consumer before."""

    state: str
    was: ConsumerEntry


class EpochBegan(msgspec.Struct, frozen=True, tag="BeginEpoch", tag_field="operation"):
    """The new epoch, 32 hex digits, and the one before it."""

    epoch: str
    previous_epoch: str


class ComparedStream(msgspec.Struct, frozen=True):
    """What comparing one stream found. `missing` and `damaged` here are (origin, first, last sequence),
    `damaged_definitions` (zone, the first so many), at most a thousand each. `refused`: what the peer offered as a
    repair and failed the checks."""

    stream: str
    compared_facts: int
    exchanges: int
    bytes: int
    divergent_ranges: int
    missing: list[tuple[str, int, int]]
    damaged: list[tuple[str, int, int]]
    forks: list[str]
    repaired_ranges: int
    repaired_facts: int
    unavailable_facts: int
    refused: list[str]
    missing_artifacts: int = 0
    repaired_artifacts: int = 0
    damaged_definitions: list[tuple[str, int]] = []
    repaired_definitions: int = 0


class Compared(msgspec.Struct, frozen=True, tag="ComparePeer", tag_field="operation"):
    """The streams pulled from the peer."""

    streams: list[ComparedStream]


class SourceRetried(msgspec.Struct, frozen=True, tag="RetrySource", tag_field="operation"):
    """`state`: the source's state before the request: waiting, connecting, connected, ..."""

    state: str


class Reloaded(msgspec.Struct, frozen=True, tag="Reload", tag_field="operation"):
    """What was taken over (`peer plant-a`, `store.bytes_max`), and what only a restart takes over."""

    applied: list[str]
    needs_restart: list[str]


class SourceEntry(msgspec.Struct, frozen=True):
    """A source. `service_level`: of its OPC UA server, 0 to 255. `trouble`: why it is not connected. `remarks`: what
    was learned about the device. `tags_problem`: why its tag file, as it stands, is not in force."""

    name: str
    kind: str
    state: str
    tags: int
    tags_bad: int
    tags_silent: int
    values_total: int
    last_value_unix_ms: int | None
    service_level: int | None
    trouble: str
    remarks: str
    tags_problem: str


class SourceEntries(msgspec.Struct, frozen=True, tag="ListSources", tag_field="operation"):
    """The sources, in the order of node.toml."""

    sources: list[SourceEntry]


class TagValue(msgspec.Struct, frozen=True):
    """A tag as read: its value as in messages, its OPC UA status, and what the device answered in place of a value."""

    tag: str
    value: Any
    quality: int
    why: str


class SourceRead(msgspec.Struct, frozen=True, tag="ReadSource", tag_field="operation"):
    """The tags that the source has, of those that were asked for."""

    values: list[TagValue]


class BackfillQueued(msgspec.Struct, frozen=True, tag="BackfillSource", tag_field="operation"):
    """The backfill is queued. The source has `gaps_open` gaps to fill; a fact reports each that is filled."""

    gaps_open: int


class NodeStatus(msgspec.Struct, frozen=True, tag="ReadStatus", tag_field="operation"):
    """The verdict and the snapshot (`agent/health/brief.py`)."""

    status: msgspec.Raw


class LatestRows(msgspec.Struct, frozen=True, tag="ReadLatest", tag_field="operation"):
    """The rows, as `bsfg latest --json` prints them, and whether more follow. `holes`: by stream."""

    rows: list[dict[str, Any]]
    more: bool
    holes: list[tuple[str, Hole]]


class Tail(msgspec.Struct, frozen=True, tag="ReadTail", tag_field="operation"):
    """The streams of the store, the end of the one asked for, and its facts as `bsfg tail` prints them. An entry with a
    `reason` is a hole, of `first_offset` to `last_offset`."""

    streams: list[str]
    end_offset: int
    entries: list[dict[str, Any]]


class Confirmed(msgspec.Struct, frozen=True, tag="ConfirmReceipt", tag_field="operation"):
    """The frontier after the confirmation, durable before it was answered."""

    cursor_advanced_to: int


class ObjectPut(msgspec.Struct, frozen=True, tag="PutObject", tag_field="operation"):
    """`received` bytes are here; send on from there. `is_complete`: all are here, match the digest and are durable."""

    received: int
    is_complete: bool


class Refused(msgspec.Struct, frozen=True, tag="error", tag_field="operation"):
    """The request was not carried out. `code`: that of the protocol, for a lease."""

    message: str
    hint: str = ""
    code: str = ""


Request = (
    AppendFact
    | AcquireLease
    | PutObject
    | RegisterConsumer
    | ListConsumers
    | RemoveConsumer
    | BeginEpoch
    | ComparePeer
    | Reload
    | RetrySource
    | ListSources
    | ReadSource
    | BackfillSource
    | ConfirmReceipt
    | ReadStatus
    | ReadLatest
    | ReadTail
)
NODE_REQUESTS = (Reload, RetrySource, ListSources, ReadSource, BackfillSource, ReadStatus, ReadLatest, ReadTail)
"""Only a running node can answer these. The others can be answered from the store too."""
LOOKING_REQUESTS = (ListSources, ListConsumers, ReadStatus, ReadLatest, ReadTail)
"""These change nothing, so members of the node's group may make them. The others are for its user and root."""
Answer = (
    Appended
    | LeaseAcquired
    | ObjectPut
    | Registered
    | Consumers
    | Removed
    | EpochBegan
    | Compared
    | Reloaded
    | SourceRetried
    | SourceEntries
    | SourceRead
    | BackfillQueued
    | Confirmed
    | NodeStatus
    | LatestRows
    | Tail
    | Refused
)
