"""The catalog: the writer's state in memory (ends, frontiers, trails), of which each commit copies what it changes.

It mirrors the tables except for those that grow with the years (batches, definitions, origins, held ranges, lives), of
which rows are read when they are needed, and holds the newest batches of each stream (tail_cache.py). A transaction
changes a draft of it. When the commit is durable, the draft replaces the catalog in one assignment, so other threads
read a consistent state without a lock; when the commit fails, the draft is dropped. Opening rebuilds it from the tables
(recovery.py), with empty tail caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.batch import NO_DIGEST, Definitions, Link, Origin
from agent.fact_store.log.records import ConsumerState, StreamInfo
from agent.fact_store.log.shards import Shards
from agent.fact_store.log.tail_cache import TailCache
from agent.message import HEALTH_STREAM
from agent.pages import BatchEnd
from agent.positions import LifeRow, LifeRows, LogLives, Trail


class StreamState(NamedTuple):
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


class OwnDefinitions(NamedTuple):
    """The tag definitions with which own samples are sealed; the id of the newest."""

    definitions: Definitions = Definitions()
    id: int | None = None


@dataclass
class Catalog:
    """The state of the whole store. Values are immutable."""

    zone: str
    node: str = ""
    """The zone of what the node records about itself; if it is empty, the zone."""
    streams: dict[str, StreamState] = field(default_factory=dict)
    consumers: dict[str, ConsumerState] = field(default_factory=dict)
    zone_uses: Shards[tuple[int, str], int] = field(default_factory=Shards)
    """Sealed bytes here by number of stream and the zone that wrote them, of other zones than this one."""
    trails: Shards[tuple[str, str], Trail] = field(default_factory=Shards)
    """By peer and stream: how far the peer's log is stored here."""
    life: bytes = b""
    """The life of this process; in `newest_lives` of each stream in which it has stored a fact."""
    newest_lives: Mapping[str, LifeRow] = field(default_factory=dict)
    """By stream. The mapping is replaced."""
    forked: frozenset[bytes] = frozenset()
    """Own lives that ran twice, or during which the clock jumped."""
    tips: dict[tuple[str, str], BatchEnd] = field(default_factory=dict)
    """By own zone and stream, the end of the last batch that this store has sealed, or took the lead after: its chain
    runs on from there."""
    kept_tips: frozenset[tuple[str, str]] = frozenset()
    """Those of the tips that are rows of their own (`Transaction.keep_tip`)."""
    leases: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Lease epochs by stream and producer; the mapping is replaced, so no commit copies it."""
    proven_zones: frozenset[str] = frozenset()
    """Zones of which a record was verified."""
    own_definitions: Mapping[str, OwnDefinitions] = field(default_factory=dict)
    """By own zone; the mapping is replaced."""
    tails: dict[int, TailCache] = field(default_factory=dict, compare=False)  # by number of stream; not in any table

    def __post_init__(self) -> None:
        """Without a name the node is named like its zone."""
        self.node = self.node or self.zone

    def draft(self) -> Catalog:
        """A copy that may be changed."""
        draft = copy(self)
        draft.streams, draft.consumers, draft.tips = self.streams.copy(), self.consumers.copy(), self.tips.copy()
        draft.zone_uses, draft.trails, draft.tails = self.zone_uses.copy(), self.trails.copy(), self.tails.copy()
        return draft

    @property
    def origin(self) -> Origin:
        """The origin of what is recorded now."""
        return Origin(self.zone, self.life)

    @property
    def own_zones(self) -> frozenset[str]:
        """The zones of what this store seals."""
        return frozenset((self.zone, self.node))

    def sealing_zone(self, stream: str, sender: str = "") -> str:
        """The zone under which facts are sealed here: two nodes may record for one zone, but each speaks for itself in
        a zone of its own. `sender`: of messages."""
        return self.node if stream == HEALTH_STREAM or sender == self.node else self.zone

    def definitions_of(self, zone: str) -> OwnDefinitions:
        """The tag definitions with which samples of an own zone are sealed."""
        return self.own_definitions.get(zone, OwnDefinitions())

    @property
    def highest_life(self) -> bytes:
        """The highest of the store's own lives, as far as a stream has grown in them, and the present one."""
        return max([self.life, *(life for life, _ in self.newest_lives.values())])

    @property
    def age_ms(self) -> int:
        """The store's age in milliseconds when the newest mark was set (store_age.py)."""
        return max((stream.mark_ms or 0 for stream in self.streams.values()), default=0)

    def log(self, stream: str, rows: LifeRows) -> LogLives:
        """The lives of a stream's log, in which positions are resolved; `rows` reads those before the newest."""
        known = self.streams.get(stream)
        end_offset = known.end_offset if known else 0
        return LogLives(rows, end_offset, self.life, self.forked, newest=self.newest_lives.get(stream))

    def link(self, stream: str, zone: str) -> Link:
        """The link that the next batch of an own zone continues."""
        tip = self.tips.get((zone, stream), BatchEnd(0, NO_DIGEST))
        return Link(stream, Origin(zone, self.life), tip.last_sequence + 1, tip.digest)
