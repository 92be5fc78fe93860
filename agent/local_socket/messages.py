"""What programs of this machine ask a node for besides `agent.replication.protocol`: its consumers, sources and status.

The socket carries the replication protocol; its connections have these operations more. They are encoded in the same
way, with bytes as base64.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from agent.message import LOCAL_ZONE
from agent.pages import Start
from agent.replication.protocol.codec import decoders


class RegisterConsumer(msgspec.Struct, frozen=True, tag="RegisterConsumer", tag_field="operation"):
    """Register a consumer before its first FetchFacts, durably. One that exists on the same stream is left as it
    is."""

    consumer_name: str
    stream: str
    start: Start = "oldest"
    zone: str = LOCAL_ZONE


class ListConsumers(msgspec.Struct, frozen=True, tag="ListConsumers", tag_field="operation"):
    """List the consumers of all zones."""


class RemoveConsumer(msgspec.Struct, frozen=True, tag="RemoveConsumer", tag_field="operation"):
    """Start the deletion of a consumer, or with `now` delete it at once. One that was active lately needs `force`."""

    consumer_name: str
    force: bool = False
    now: bool = False


class ComparePeer(msgspec.Struct, frozen=True, tag="ComparePeer", tag_field="operation"):
    """Compare every stream pulled from a peer with that peer. `repair`: fetch what differs. `scan`: verify all batches
    here first."""

    node: str
    repair: bool = False
    scan: bool = False


class RetrySource(msgspec.Struct, frozen=True, tag="RetrySource", tag_field="operation"):
    """Connect to a source at once instead of waiting for the next attempt."""

    source: str


class Reload(msgspec.Struct, frozen=True, tag="Reload", tag_field="operation"):
    """Read node.toml again and take over what can be while the node runs."""


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


class SwitchPair(msgspec.Struct, frozen=True, tag="SwitchPair", tag_field="operation"):
    """Hand the lead of the zone over to its other node."""


class ReadStatus(msgspec.Struct, frozen=True, tag="ReadStatus", tag_field="operation"):
    """The status of the node: the worst parts of each kind, or everything."""

    everything: bool = False


class Registered(msgspec.Struct, frozen=True, tag="RegisterConsumer", tag_field="operation"):
    """The consumer's stream and confirmed frontier."""

    stream: str
    frontier: int


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
    """What was taken over (`peer plant-a`, `store.bytes_max`), what only a restart takes over, and the problems of tag
    files, which are not in force."""

    applied: list[str]
    needs_restart: list[str]
    tag_file_problems: list[str] = []


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


class PairSwitched(msgspec.Struct, frozen=True, tag="SwitchPair", tag_field="operation"):
    """The node that leads now."""

    leader: str


class NodeStatus(msgspec.Struct, frozen=True, tag="ReadStatus", tag_field="operation"):
    """The verdict and the snapshot (`agent/health/brief.py`)."""

    health: msgspec.Raw


Request = (
    RegisterConsumer
    | ListConsumers
    | RemoveConsumer
    | ComparePeer
    | Reload
    | RetrySource
    | ReadSource
    | BackfillSource
    | SwitchPair
    | ReadStatus
)
NODE_REQUESTS = (Reload, RetrySource, ReadSource, BackfillSource, SwitchPair, ReadStatus)
"""Only a running node can answer these. The others can be answered from the store too."""
LOOKING_REQUESTS = (ListConsumers, ReadStatus)
"""These change nothing, so members of the node's group may make them, as all of the protocol that change nothing. The
others are for its user and root."""
Answer = (
    Registered
    | Consumers
    | Removed
    | Compared
    | Reloaded
    | SourceRetried
    | SourceRead
    | BackfillQueued
    | PairSwitched
    | NodeStatus
)


REQUEST_DECODERS, ANSWER_DECODERS = decoders(get_args(Request)), decoders(get_args(Answer))
