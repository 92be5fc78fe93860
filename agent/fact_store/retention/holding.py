"""Limits what a zone may hold back. Core: no IO.

Facts wait for the slowest consumer, so a zone that never confirms would use up the room of all others. Two limits
prevent that. A zone with a `ZoneLimit` forfeits what it holds back beyond the limit. When room runs out, a zone that
alone holds back more than half of it forfeits what exceeds the half, with or without a `ZoneLimit`. Forfeited facts are
released only when all other zones have confirmed them, so no other zone loses a fact.

Forfeiting moves no frontier. Facts are forfeited in pieces, because each loss writes a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PIECES = 100
ALONE_SHARE = 2
"""One zone alone may hold back this fraction of the room: 1/2."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a zone has not confirmed of a stream: the facts after `frontier`, the sealed bytes of the stream up to
    there, and the bytes after it."""

    frontier: int
    bytes_before: int
    bytes: int


def bytes_forfeited(backlogs: Mapping[str, Backlog], bytes_max: int) -> dict[str, int]:
    """The bytes that a zone forfeits of each stream, so that it holds back a piece less than `bytes_max` in all streams
    together. It forfeits first of the streams of which it holds back most. Empty within the limit."""
    held = sum(backlog.bytes for backlog in backlogs.values())
    if not bytes_max or held <= bytes_max:
        return {}
    surplus, found = held - bytes_max + bytes_max // PIECES, dict[str, int]()
    for stream, backlog in sorted(backlogs.items(), key=lambda item: -item[1].bytes):
        found[stream] = min(surplus, backlog.bytes)
        surplus -= found[stream]
        if surplus <= 0:
            break
    return found


def alone_forfeited(zones: Mapping[str, Backlog], room_bytes: int) -> tuple[str, int] | None:
    """The zone that alone holds back more than its share of a stream's room, and the bytes that it forfeits; None if
    there is no such zone. `zones`: the backlog of each zone."""
    if len(zones) < 2:
        return None
    zone, next_zone = sorted(zones, key=lambda name: zones[name].bytes_before)[:2]
    share = room_bytes // ALONE_SHARE
    alone = zones[next_zone].bytes_before - zones[zone].bytes_before
    return None if alone <= share else (zone, alone - share + room_bytes // PIECES)
