"""Timelines: which copy of a log a peer has read. Core: no IO.

Each life of a store, from its opening on, is a timeline of its log, with an id that no other life has: a number, which
orders those of one store, and chance. Up to where a life ended, the log of all later lives is the same. So a position
on a timeline is one in this log if this store had that life, and the position is not beyond its end. A copy of the
store's file has the lives of the original up to the moment at which it was made, and none of those after it, whatever
both recorded since (decision 0054).
"""

from __future__ import annotations

from collections.abc import Mapping

TIMELINE_BYTES, NUMBER_BYTES = 16, 8
TIMELINES_MAX = 1_000
"""Of one stream, the newest: lives of the store in which it was served. A peer that was away for longer is believed."""


def number_of(timeline: bytes) -> int:
    """The number of a timeline: each life has a higher one than those before it."""
    return int.from_bytes(timeline[:NUMBER_BYTES])


def why_other_timeline(known: Mapping[bytes, int | None], timeline: bytes, offset: int) -> str | None:
    """Why a position on a timeline is none in this log; None where it is. `known`: the timelines on which this log was
    served before this life, oldest first, and up to where each is its history; None: to its end."""
    if timeline in known:
        until_offset = known[timeline]
        if until_offset is None or offset <= until_offset:
            return None
        return f"which is this store's up to {until_offset}"
    if len(known) >= TIMELINES_MAX and number_of(timeline) < number_of(next(iter(known))):
        return None  # of a life that is forgotten
    return "which this store never had"
