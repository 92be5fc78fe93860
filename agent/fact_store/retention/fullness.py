"""The limits of a stream, of the store and of the disk, and how near each is. Core: no IO.

A stream is limited in sealed bytes, the store in the bytes of its file, and the disk in the bytes that must stay free.
The node logs once when a stream comes near a limit. At the limit, the stream's `on_full` decides whether appends are
refused or the oldest facts are dropped. Confirmations, deletions and operational facts are still stored, because they
make room.
"""

from __future__ import annotations

from dataclasses import dataclass

WARN_PERCENT = 80
PIECES = 100
PIECE_BYTES_MAX = 8 * 1024 * 1024
"""Some hundreds of batches: one commit releases them without a delay that callers notice."""


@dataclass(frozen=True, slots=True)
class Write:
    """An append: the zone that writes, and its size in bytes."""

    zone: str
    size: int


@dataclass(frozen=True, slots=True)
class Share:
    """A zone's share of the room, and the bytes that it has used."""

    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: `used` of `limit` bytes. `what` names it in messages, `remedy` is the change that gives more room.
    `share`: that of the writing zone, if the limit is lowered because that is used up."""

    what: str
    remedy: str
    used: int
    limit: int
    is_of_stream: bool = False
    share: Share | None = None

    @property
    def percent(self) -> float:
        """How full it is, in percent; may exceed 100 for a moment."""
        return 100 * self.used / self.limit

    @property
    def is_full(self) -> bool:
        return self.used >= self.limit

    @property
    def is_near(self) -> bool:
        return self.percent >= WARN_PERCENT


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes of the file in use, free bytes of the disk, and bytes of the file's free pages."""

    store_used: int
    disk_free: int | None  # None if it cannot be read
    store_free: int = 0


def limits(
    stream_bytes: int, stream_bytes_max: int, space: Space, store_bytes_max: int, disk_free_min: int
) -> list[Limit]:
    """The limits of an append to one stream, without those that are not set."""
    found = list[Limit]()
    if stream_bytes_max:
        found.append(Limit("the stream", "raise its bytes_max", stream_bytes, stream_bytes_max, is_of_stream=True))
    if store_bytes_max:
        found.append(Limit("the store", "raise [store] bytes_max", space.store_used, store_bytes_max))
    if disk_free_min and space.disk_free is not None:
        # The store may use its present bytes, its free pages less a piece, and what is free above the floor. A disk
        # that other programs filled below the floor does not reduce this: otherwise the store would drop all its facts
        # and the disk would still be full. The piece is for the commit before rows are deleted.
        above_floor = max(0, space.disk_free - disk_free_min)
        room = max(1, space.store_used + space.store_free + above_floor - piece_bytes(space.store_used))
        found.append(Limit("the disk", "lower [store] disk_free_bytes_min", space.store_used, room))
    return found


def fullest(found: list[Limit]) -> Limit | None:
    """The limit with the highest percentage; None without limits."""
    return max(found, key=lambda limit: limit.percent, default=None)


def piece_bytes(limit: int) -> int:
    """How far below a limit the store drops facts, in bytes, so that not every append drops some."""
    return max(1, min(limit // PIECES, PIECE_BYTES_MAX))
