"""What may be forgotten, and why. Core: values in, a decision out, no IO.

A fact goes for one of three reasons, looked at in this order:

    confirmed   every consumer has it, and the hours for which it is kept for local readers are over, or its room is needed.
                Nobody loses anything
    ttl         its time to live is over, whoever still wanted it. A loss, if somebody did
    full        the stream has reached its limit, nothing that is confirmed is left to give way, and it is told to drop the
                oldest. A loss

Where no consumer is registered nothing is confirmed: facts wait for one until their time to live is over. What is refused
instead of dropped is not decided here but where room is asked for (fullness.py).

A loss writes a fact, so losses come in pieces of a certain size: a hundredth of the time to live, or of the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

TTL_PIECES = 100


class Reason(Enum):
    """Why facts go."""

    CONFIRMED = "confirmed"
    TTL = "ttl"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """One stream as retention sees it; offsets up to and including which something holds.

    `confirmed`: every consumer has confirmed (None without consumers). `kept`: recorded longer ago than the hours to keep.
    `expired`: longer ago than the time to live (None: for ever). `overdue`: longer ago than that by a piece. `excess`: must go so
    that the stream is below its limit by a piece (None: it is not full); `may_drop`: even what is not confirmed.
    """

    released: int
    end: int
    confirmed: int | None
    kept: int
    expired: int | None = None
    overdue: int | None = None
    excess: int | None = None
    may_drop: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Forget everything up to an offset. `lost_from` is the first offset that somebody had not confirmed, None if all had."""

    until: int
    reason: Reason
    lost_from: int | None = None


def decide_release(view: StreamOffsets) -> Release | None:
    """What to release now, None for nothing."""
    assert 0 <= view.released <= view.end
    confirmed = view.released if view.confirmed is None else max(view.confirmed, view.released)
    harmless = min(confirmed, max(view.kept, _or_none(view.excess)))
    if view.overdue is not None and view.expired is not None and view.overdue > view.released:
        return _release(view.expired, Reason.TTL, confirmed, harmless)
    if view.may_drop and view.excess is not None and view.excess > max(view.released, harmless):
        return _release(view.excess, Reason.FULL, confirmed, harmless)
    if harmless > view.released:
        return Release(harmless, Reason.CONFIRMED)
    return None


def _release(until: int, reason: Reason, confirmed: int, harmless: int) -> Release:
    """A release that may be a loss; what is harmless goes along."""
    if until <= confirmed:
        return Release(max(until, harmless), reason)
    return Release(until, reason, confirmed + 1)


def _or_none(offset: int | None) -> int:
    return 0 if offset is None else offset
