"""The share of the room that each zone has which writes here. Core: no IO.

Zones write by appending, or by being pulled. A quarter of the room belongs to them in equal shares, less what an
operator gave to some; the rest to whoever needs it. A zone within its share may use all of the room; one beyond it
leaves free what the others have not used of theirs. So no zone is refused, and no fact is released, because of what
another one writes.
"""

from __future__ import annotations

from collections.abc import Mapping

DIVIDED = 4
"""One part in so many of the room is divided. More would leave room unused above a zone that writes nothing."""


def file_bytes_of(sealed_bytes: int) -> int:
    """The room that sealed bytes take at most, with their rows and indexes."""
    return sealed_bytes * 5 // 4


def shares_of(given: Mapping[str, int], room_bytes: int) -> dict[str, int]:
    """The share of each zone that writes, in bytes. `given`: what the operator gave it; 0 for an equal part of a
    quarter of what is left."""
    equal = [zone for zone, size in given.items() if not size]
    left = max(0, room_bytes - sum(given.values()))
    part = left // DIVIDED // max(1, len(equal))
    return {zone: size or part for zone, size in given.items()}


def reserved_bytes(shares: Mapping[str, int], uses: Mapping[str, int], zone: str = "") -> int:
    """What is kept free for other zones than this one: what they have not used of their shares."""
    return file_bytes_of(sum(max(0, share - uses.get(name, 0)) for name, share in shares.items() if name != zone))


def limit_for(zone: str, size: int, shares: Mapping[str, int], uses: Mapping[str, int], limit_bytes: int) -> int:
    """The part of a limit up to which a zone may fill the room with an append of `size` bytes."""
    if uses.get(zone, 0) + size <= shares.get(zone, 0):
        return limit_bytes
    return max(1, limit_bytes - reserved_bytes(shares, uses, zone))


def excess_bytes(shares: Mapping[str, int], uses: Mapping[str, int]) -> dict[str, int]:
    """The zones beyond their share, and by how much."""
    return {zone: over for zone, use in uses.items() if (over := use - shares.get(zone, 0)) > 0}
