"""How full is too full, and what it means for an append. Core: values in, a verdict out, no IO.

Three limits, each below the one that would hurt: what a stream may hold (sealed bytes), what the store's file may hold, and
what must stay free on the disk. Near a limit is said once, at the limit appends are refused or the oldest facts make room, as
the stream is told; confirmations, deletions and what the store says of itself go on, for they are what ends it.
"""

from __future__ import annotations

from dataclasses import dataclass

WARN_PERCENT = 80
PIECES = 100
PIECE_BYTES_MAX = 8 * 1024 * 1024  # some hundreds of batches: what one commit can release without being felt


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that fills up: `used` of `limit` bytes. `what` names it to people, `remedy` is the change that gives it room."""

    what: str
    remedy: str
    used: int
    limit: int

    @property
    def percent(self) -> float:
        """How full, in percent; may pass 100 for a moment."""
        return 100 * self.used / self.limit

    @property
    def is_full(self) -> bool:
        return self.used >= self.limit

    @property
    def is_near(self) -> bool:
        return self.percent >= WARN_PERCENT


@dataclass(frozen=True, slots=True)
class Space:
    """What is used and what is left: bytes of the file in use, of the disk, and of the file's pages that nothing uses."""

    store_used: int
    disk_free: int | None  # None where the disk does not say
    store_free: int = 0


def limits(
    stream_bytes: int, stream_bytes_max: int, space: Space, store_bytes_max: int, disk_free_min: int
) -> list[Limit]:
    """The limits that hold for an append to one stream; those that are not set are left out."""
    found = list[Limit]()
    if stream_bytes_max:
        found.append(Limit("the stream", "raise its bytes_max", stream_bytes, stream_bytes_max))
    if store_bytes_max:
        found.append(Limit("the store", "raise [store] bytes_max", space.store_used, store_bytes_max))
    if disk_free_min and space.disk_free is not None:
        # What the store may still hold: its own bytes, pages it has and does not use but for a piece, and what is free above the
        # floor. A disk that others have filled below the floor takes nothing from that, or dropping the oldest would go on to
        # the last fact and never find the disk any emptier. The piece is for the commit that comes before rows are deleted.
        above_floor = max(0, space.disk_free - disk_free_min)
        room = max(1, space.store_used + space.store_free + above_floor - piece_bytes(space.store_used))
        found.append(Limit("the disk", "lower [store] disk_free_bytes_min", space.store_used, room))
    return found


def fullest(found: list[Limit]) -> Limit | None:
    """The limit that is nearest; None where there is none."""
    return max(found, key=lambda limit: limit.percent, default=None)


def piece_bytes(limit: int) -> int:
    """How much below a limit dropping the oldest goes, so that not every append drops again."""
    return max(1, min(limit // PIECES, PIECE_BYTES_MAX))
