"""The catalog: the writer's state in memory (ends, frontiers, trails), of which each commit copies what it changes.

It mirrors the tables except for those that grow with the years (batches, definitions, origins, held ranges, lives), of
which rows are read when they are needed, and holds the newest batches of each stream (tail_cache.py). A transaction
changes a draft of it. When the commit is durable, the draft replaces the catalog in one assignment, so other threads
read a consistent state without a lock; when the commit fails, the draft is dropped. Opening rebuilds it from the tables
(recovery.py), with empty tail caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.batch import Definitions, Origin
from agent.fact_store.log.records import ConsumerState, Reseal, StreamInfo
from agent.fact_store.log.shards import Shards
from agent.fact_store.log.tail_cache import TailCache
from agent.positions import LifeRow, LifeRows, LogLives, Trail


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
    """The state of the whole store. Values are immutable."""

    origin: Origin
    streams: dict[str, StreamState] = field(default_factory=dict)
    consumers: dict[str, ConsumerState] = field(default_factory=dict)
    zone_uses: Shards[tuple[int, str], int] = field(default_factory=Shards)
    """Sealed bytes here by number of stream and the zone that wrote them, of other zones than this one."""
    trails: Shards[tuple[str, str], Trail] = field(default_factory=Shards)
    """By peer and stream: how far the peer's log is stored here."""
    peer_epochs: Shards[tuple[str, str], bytes] = field(default_factory=Shards)
    life: bytes = b""
    """The life of this process; in `newest_lives` of each stream in which it has stored a fact."""
    newest_lives: Mapping[str, LifeRow] = field(default_factory=dict)
    """By stream. The mapping is replaced."""
    read_again: frozenset[tuple[str, str]] = frozenset()
    """Peers and streams where, since the first read, the peer has begun another epoch or its log was read again from
    before."""
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
    proven_zones: frozenset[str] = frozenset()
    """Zones of which a record was verified."""
    own_origin: int = 1  # number of `origin` in the table; each new epoch has its own
    own_definitions: Definitions = field(default_factory=Definitions)
    """The tag definitions with which own samples are sealed; the id of the newest."""
    own_definition_id: int | None = None
    tails: dict[int, TailCache] = field(default_factory=dict, compare=False)  # by number of stream; not in any table

    def draft(self) -> Catalog:
        """A copy that may be changed."""
        return Catalog(
            self.origin, self.streams.copy(), self.consumers.copy(), self.zone_uses.copy(), self.trails.copy(),
            self.peer_epochs.copy(), self.life, self.newest_lives, self.read_again, self.unproven, self.contradicted,
            self.reseals, self.renamed, self.leases, self.proven_zones, self.own_origin, self.own_definitions,
            self.own_definition_id, self.tails.copy(),
        )  # fmt: skip

    @property
    def age_ms(self) -> int:
        """The store's age in milliseconds when the newest mark was set (store_age.py)."""
        return max((stream.mark_ms or 0 for stream in self.streams.values()), default=0)

    def log(self, stream: str, rows: LifeRows) -> LogLives:
        """The lives of a stream's log, in which positions are resolved; `rows` reads those before the newest."""
        known = self.streams.get(stream)
        end_offset = known.end_offset if known else 0
        return LogLives(rows, end_offset, self.life, newest=self.newest_lives.get(stream))
