"""The catalog: the writer's state in memory (ends, frontiers, trails), of which each commit copies what it changes.

It mirrors the tables except for those that grow with the years (batches, definitions, origins, held ranges, lives), of
which rows are read when they are needed, and holds the newest batches of each stream. A transaction
changes a draft of it. When the commit is durable, the draft replaces the catalog in one assignment, so other threads
read a consistent state without a lock; when the commit fails, the draft is dropped. Opening rebuilds it from the tables
(recovery.py), with empty tail caches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from agent.batch import NO_DIGEST, Batch, Definitions, Link, Origin
from agent.fact_store.core.records import ConsumerState, StreamInfo
from agent.message import HEALTH_STREAM
from agent.pages import BatchEnd, Page, StoredBatch
from agent.positions import LifeRow, LifeRows, LogLives, Trail

TAIL_BYTES_MAX = 64 * 1024
"""Of each stream in memory: a tenth of a second at 100,000 facts/s. A reader that is further behind reads from the
file."""
SHARDS = 64
"""Dictionaries of one mapping. With two thousand entries a change copies thirty of them, and a copy 64 references."""

_K = TypeVar("_K")
_V = TypeVar("_V")


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
    newest_life: LifeRow | None = None  # the last life in which it has grown

    def info(self) -> StreamInfo:
        """The public record of this stream."""
        first_offset = self.released_offset + 1
        return StreamInfo(self.name, first_offset, self.end_offset, self.bytes_total - self.released_bytes)


class StoreNames(NamedTuple):
    """Whose store it is: the zone that its facts belong to, and the node that records them, which is the zone of what
    it says about itself."""

    zone: str
    node: str

    @property
    def own_zones(self) -> frozenset[str]:
        """The zones of what this store seals."""
        return frozenset(self)

    def sealing_zone(self, stream: str, sender: str = "") -> str:
        """The zone under which facts are sealed here: two nodes may record for one zone, but each speaks for itself in
        a zone of its own. `sender`: of messages."""
        return self.node if stream == HEALTH_STREAM or sender == self.node else self.zone


class Tip(NamedTuple):
    """The end of the last batch that this store has sealed, or took the lead after: its chain runs on from there.
    `is_row`: it is a row of its own (`Transaction.keep_tip`)."""

    end: BatchEnd = BatchEnd(0, NO_DIGEST)
    is_row: bool = False


class OwnDefinitions(NamedTuple):
    """The tag definitions with which own samples are sealed; the id of the newest."""

    definitions: Definitions = Definitions()
    id: int | None = None


class Shards(MutableMapping[_K, _V]):
    """A dictionary in parts by the hash of its keys, which copies share until they change them. A copy costs what is
    changed in it, not what is in it: a commit copies the catalog, and a node of a thousand plants changes a few
    entries."""

    def __init__(self, shared: list[dict[_K, _V]] | None = None) -> None:
        self._parts: list[dict[_K, _V]] = shared or [{} for _ in range(SHARDS)]
        self._own = set[int]() if shared else set(range(SHARDS))  # parts that no copy shares

    def copy(self) -> Shards[_K, _V]:
        """A copy; from now on either copies the part that it changes."""
        self._own = set()
        return Shards(self._parts.copy())

    def __getitem__(self, key: _K) -> _V:
        return self._parts[hash(key) % SHARDS][key]

    def __setitem__(self, key: _K, value: _V) -> None:
        self._own_part(key)[key] = value

    def __delitem__(self, key: _K) -> None:
        del self._own_part(key)[key]

    def __iter__(self) -> Iterator[_K]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def _own_part(self, key: _K) -> dict[_K, _V]:
        index = hash(key) % SHARDS
        if index not in self._own:
            self._parts[index] = self._parts[index].copy()
            self._own.add(index)
        return self._parts[index]


@dataclass(frozen=True, slots=True)
class TailCache:
    """The newest batches of one stream, in order, and their size: live readers are served from memory. A reader at the
    end of a stream fetches what was committed a moment ago; from the file that takes six statements and a digest for
    each batch, more than half of the cost of a live page.

    Whole consecutive batches that end at the end of their stream. Published with the catalog of the commit that made
    them durable, so a thread sees both or neither."""

    batches: tuple[StoredBatch, ...] = ()
    bytes: int = 0

    def extended(self, added: Sequence[Batch], end_offset: int) -> TailCache:
        """The cache after an append of batches, the last of which ends at `end_offset`. The oldest batches are
        dropped."""
        stored, size = list[StoredBatch](), self.bytes
        for batch in reversed(added):
            stored.append(StoredBatch(end_offset - batch.header.count + 1, batch))
            end_offset -= batch.header.count
            size += len(batch.sealed)
        batches, dropped = (*self.batches, *reversed(stored)), 0
        while size > TAIL_BYTES_MAX:
            size -= len(batches[dropped].sealed)
            dropped += 1
        return TailCache(batches[dropped:], size)

    def page(self, after_offset: int, facts_max: int, bytes_max: int, until_offset: int) -> Page | None:
        """The page that `StoreReader.read` would return; None if it begins before the cache, is empty, or has invalid
        limits."""
        batches = self.batches
        if not batches or min(facts_max, bytes_max) < 1:
            return None
        if not batches[0].first_offset <= after_offset + 1 <= min(batches[-1].last_offset, until_offset):
            return None
        first = bisect_right(batches, after_offset + 1, key=lambda stored: stored.first_offset) - 1
        taken = list[StoredBatch]()
        for stored in islice(batches, first, None):
            bytes_max -= len(stored.sealed)
            is_full = bytes_max < 0 or stored.first_offset - 1 - after_offset >= facts_max
            if stored.first_offset > until_offset or (taken and is_full):
                break
            taken.append(stored)
        return Page(taken, batches[-1].last_offset)


@dataclass
class Catalog:
    """The state of the whole store. Values are immutable."""

    names: StoreNames
    streams: dict[str, StreamState] = field(default_factory=dict)
    consumers: dict[str, ConsumerState] = field(default_factory=dict)
    zone_uses: Shards[tuple[int, str], int] = field(default_factory=Shards)
    """Sealed bytes here by number of stream and the zone that wrote them, of other zones than this one."""
    trails: Shards[tuple[str, str], Trail] = field(default_factory=Shards)
    """By peer and stream: how far the peer's log is stored here."""
    life: bytes = b""
    """The life of this process; the newest of each stream in which it has stored a fact."""
    forked: frozenset[bytes] = frozenset()
    """Own lives that ran twice, or during which the clock jumped."""
    tips: dict[tuple[str, str], Tip] = field(default_factory=dict)
    """By own zone and stream."""
    leases: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Lease epochs by stream and producer; the mapping is replaced, so no commit copies it."""
    proven_zones: frozenset[str] = frozenset()
    """Zones of which a record was verified."""
    own_definitions: Mapping[str, OwnDefinitions] = field(default_factory=dict)
    """By own zone; the mapping is replaced."""
    numbered: frozenset[str] = frozenset()
    """Own zones whose tags were numbered in this life: sources use the numbers."""
    tails: dict[int, TailCache] = field(default_factory=dict, compare=False)  # by number of stream; not in any table

    def draft(self) -> Catalog:
        """A copy that may be changed."""
        draft = copy(self)
        draft.streams, draft.consumers, draft.tips = self.streams.copy(), self.consumers.copy(), self.tips.copy()
        draft.zone_uses, draft.trails, draft.tails = self.zone_uses.copy(), self.trails.copy(), self.tails.copy()
        return draft

    @property
    def origin(self) -> Origin:
        """The origin of what is recorded now."""
        return Origin(self.names.zone, self.life)

    def definitions_of(self, zone: str) -> OwnDefinitions:
        """The tag definitions with which samples of an own zone are sealed."""
        return self.own_definitions.get(zone, OwnDefinitions())

    @property
    def highest_life(self) -> bytes:
        """The highest of the store's own lives, as far as a stream has grown in them, and the present one."""
        return max([self.life, *(stream.newest_life[0] for stream in self.streams.values() if stream.newest_life)])

    @property
    def age_ms(self) -> int:
        """The store's age in milliseconds when the newest mark was set (store_age.py)."""
        return max((stream.mark_ms or 0 for stream in self.streams.values()), default=0)

    def log(self, stream: str, rows: LifeRows) -> LogLives:
        """The lives of a stream's log, in which positions are resolved; `rows` reads those before the newest."""
        known = self.streams.get(stream) or StreamState(0, stream)
        return LogLives(rows, known.end_offset, self.life, self.forked, newest=known.newest_life)

    def link(self, stream: str, zone: str) -> Link:
        """The link that the next batch of an own zone continues."""
        end = self.tips.get((zone, stream), Tip()).end
        return Link(stream, Origin(zone, self.life), end.last_sequence + 1, end.digest)
