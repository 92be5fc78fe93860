"""The catalog: the writer's state in memory (ends, frontiers, held ranges), small enough to copy for every commit.

It mirrors the tables except for the batches, and holds the newest batches of each stream (tail_cache.py). A transaction
changes a draft of it. When the commit is durable, the draft replaces the catalog in one assignment, so other threads
read a consistent state without a lock; when the commit fails, the draft is dropped. Opening rebuilds it from the tables
(recovery.py), with empty tail caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.batch import Definitions, Link, Origin
from agent.fact_store.log.records import ConsumerState, Reseal, StreamInfo
from agent.fact_store.log.tail_cache import TailCache
from agent.pages import HeldRange, PeerPosition


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of one stream. Rows up to the released offset may be deleted. Bytes are sealed bytes since the stream
    began."""

    id: int
    name: str
    end_offset: int = 0
    bytes_total: int = 0
    released_offset: int = 0
    released_bytes: int = 0
    mark_ms: int | None = None  # store age when the newest mark was set
    mark_unix_ms: int = 0  # wall clock when it was set
    is_backlog: bool = False  # whether facts after that mark are a peer's backlog

    def info(self) -> StreamInfo:
        """The public record of this stream."""
        first_offset = self.released_offset + 1
        return StreamInfo(self.name, first_offset, self.end_offset, self.bytes_total - self.released_bytes)


@dataclass(slots=True)
class Catalog:
    """The state of the whole store. Keys of `held` are stream and origin numbers; values are immutable."""

    origin: Origin
    streams: dict[str, StreamState] = field(default_factory=dict)
    origins: dict[Origin, int] = field(default_factory=dict)
    held: dict[tuple[int, int], tuple[HeldRange, ...]] = field(default_factory=dict)
    consumers: dict[str, ConsumerState] = field(default_factory=dict)
    peers: dict[tuple[str, str], PeerPosition] = field(default_factory=dict)
    zone_uses: dict[tuple[int, str], int] = field(default_factory=dict)
    """Sealed bytes here by number of stream and the zone that wrote them, of other zones than this one."""
    timeline: bytes = b""
    """The timeline of this life; in `timelines` for each stream that is served."""
    timelines: Mapping[str, Mapping[bytes, int | None]] = field(default_factory=dict)
    """By stream: each timeline on which it was served, oldest first, with the offset up to which the stream is the same
    as then; None for the timeline of this life. The mappings are replaced."""
    read_again: frozenset[tuple[str, str]] = frozenset()
    """Peers and streams where, since the first read, the peer has begun another epoch or its log was read again from
    the beginning."""
    unproven: frozenset[tuple[int, int]] = frozenset()
    """Numbers of streams and origins whose released facts were received again and could not be compared."""
    contradicted: frozenset[tuple[int, int]] = frozenset()
    """Numbers of streams and origins that have two histories, according to another zone's notice."""
    reseals: tuple[Reseal, ...] = ()
    """In the order in which the facts were resealed."""
    renamed: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    """For facts known under two epochs of a zone: by stream, older and newer origin, how much higher the sequences of
    the older origin are. The mapping is replaced."""
    leases: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Lease epochs by stream and producer; the mapping is replaced, so no commit copies it."""
    proven: frozenset[int] = frozenset()
    """Numbers of the origins of which a record was verified."""
    own_origin: int = 1  # number of `origin` in the table; each new epoch has its own
    own_definitions: Definitions = field(default_factory=Definitions)
    """The tag definitions with which own samples are sealed; the id of the newest."""
    own_definition_id: int | None = None
    tails: dict[int, TailCache] = field(default_factory=dict, compare=False)  # by number of stream; not in any table

    def draft(self) -> Catalog:
        """A copy that may be changed."""
        return Catalog(
            self.origin, self.streams.copy(), self.origins.copy(), self.held.copy(), self.consumers.copy(),
            self.peers.copy(), self.zone_uses.copy(), self.timeline, self.timelines, self.read_again, self.unproven,
            self.contradicted, self.reseals, self.renamed, self.leases, self.proven, self.own_origin,
            self.own_definitions, self.own_definition_id, self.tails.copy(),
        )  # fmt: skip

    @property
    def age_ms(self) -> int:
        """The store's age in milliseconds when the newest mark was set (store_age.py)."""
        return max((stream.mark_ms or 0 for stream in self.streams.values()), default=0)

    def link(self, stream: str) -> Link:
        """The link that the next batch of own facts continues."""
        known = self.streams.get(stream)
        held = self.held.get((known.id, self.own_origin), ()) if known else ()
        if not held:
            return Link(stream, self.origin)
        return Link(stream, self.origin, held[-1].last_sequence + 1, held[-1].last_digest)
