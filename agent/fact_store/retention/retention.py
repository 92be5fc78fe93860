"""Decides which facts may be released and for which reason. Core: no IO.

A fact is released for one of four reasons:

    confirmed   every consumer has confirmed it, and `keep_hours` are over or its room is needed. No loss
    ttl         its time to live is over. A loss for each consumer that has not confirmed it
    held        as confirmed, except for zones that have held back more than they may (holding.py). A loss for these
    full        the stream is at its limit, no confirmed fact is left to release, and `on_full` is drop_oldest. A loss

Without a registered consumer no fact is confirmed: facts wait for one until their time to live is over. Whether an
append is refused instead is decided in housekeeping.py by the limits of fullness.py.

Each loss writes a fact, so losses come in pieces of a certain size: a hundredth of the time to live, or of the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

TTL_PIECES = 100


class ReleaseReason(Enum):
    """Why facts are released."""

    CONFIRMED = "confirmed"
    TTL = "ttl"
    HELD = "held"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The offsets of one stream on which a release depends; each is the last one for which its statement holds.

    `confirmed`: confirmed by every consumer (None without consumers). `kept`: recorded longer ago than `keep_hours`.
    `expired`: recorded longer ago than the time to live (None: forever). `overdue`: longer ago than that by a piece.
    `excess`: must be released for the stream to be below its limit by a piece (None: it is not full). `may_drop`:
    unconfirmed facts may be released for that. `forfeited`: confirmed, or forfeited, by every consumer; at least
    `confirmed`.
    """

    released: int
    end: int
    confirmed: int | None
    kept: int
    expired: int | None = None
    overdue: int | None = None
    excess: int | None = None
    may_drop: bool = False
    forfeited: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """Release all facts up to `until`. `lost_from` is the first offset that some consumer had not confirmed, None
    without a loss."""

    until: int
    reason: ReleaseReason
    lost_from: int | None = None


def decide_release(offsets: StreamOffsets) -> Release | None:
    """What to release now; None for nothing."""
    assert 0 <= offsets.released <= offsets.end
    confirmed = offsets.released if offsets.confirmed is None else max(offsets.confirmed, offsets.released)
    harmless = min(confirmed, max(offsets.kept, offsets.excess or 0))
    if offsets.overdue is not None and offsets.expired is not None and offsets.overdue > offsets.released:
        return _release(offsets.expired, ReleaseReason.TTL, confirmed, harmless)
    forfeited = min(offsets.forfeited, max(offsets.kept, offsets.excess or 0))
    if forfeited > max(offsets.released, confirmed):
        return _release(forfeited, ReleaseReason.HELD, confirmed, harmless)
    if offsets.may_drop and offsets.excess is not None and offsets.excess > max(offsets.released, harmless):
        return _release(offsets.excess, ReleaseReason.FULL, confirmed, harmless)
    if harmless > offsets.released:
        return Release(harmless, ReleaseReason.CONFIRMED)
    return None


def _release(until: int, reason: ReleaseReason, confirmed: int, harmless: int) -> Release:
    """A release that may be a loss. It includes confirmed facts that may be released anyway."""
    if until <= confirmed:
        return Release(max(until, harmless), reason)
    return Release(until, reason, confirmed + 1)
