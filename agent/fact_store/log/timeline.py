"""Timelines: identify which copy of a log a peer has read. Core: no IO.

Each life of a store, from its opening on, is a timeline of its log with a unique id: a number, which orders the
timelines of one store, and random bits. Later lives share the log of a life up to its end. So a position on a timeline
is valid in this log if this store had that life and the position is not beyond its end. A copy of the store's file has
the lives of the original up to the time of the copy, and none of the later ones (decision 0054).
"""

from __future__ import annotations

from collections.abc import Mapping

TIMELINE_BYTES, NUMBER_BYTES = 16, 8
TIMELINES_MAX = 1_000
"""Timelines kept of one stream, the newest ones. An older position of a peer cannot be checked and is accepted."""


def number_of(timeline: bytes) -> int:
    """The number of a timeline; each life has a higher number than those before it."""
    return int.from_bytes(timeline[:NUMBER_BYTES])


def why_other_timeline(known: Mapping[bytes, int | None], timeline: bytes, offset: int) -> str | None:
    """The reason why a position on a timeline is not valid in this log; None if it is. `known`: the timelines on which
    this log was served, oldest first, with the offset up to which each is shared; None: shared to its end."""
    if timeline in known:
        until_offset = known[timeline]
        if until_offset is None or offset <= until_offset:
            return None
        return f"which is this store's up to {until_offset}"
    if len(known) >= TIMELINES_MAX and number_of(timeline) < number_of(next(iter(known))):
        return None  # of a life older than those kept
    return "which this store never had"
