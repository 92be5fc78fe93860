"""Measures how a pull catches up with its peer: start, present position, end of the peer's log, time left. A core.

A zone that is new, or returns after an outage, may be hours behind. It reads the backlog like any other facts; this
module only measures it for operators. The time left is estimated from how fast the distance to the end shrinks, because
the peer's log grows meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

BEHIND_FACTS_MIN = 100_000
"""More than a page, and than a busy stream has under way. A smaller backlog is gone before it can be reported."""
NEAR_FACTS = 10_000
"""The catch-up ends at this distance: new facts keep a busy stream from ever reaching zero."""
SAMPLE_MS, SAMPLES_MAX = 1_000, 20
"""The rate is measured over 20 s: long enough for pages of any size, short enough to notice that a line has become
slow."""
LOG_EVERY_MS = 30_000


class CatchUpEvent(Enum):
    """The name of the log event."""

    STARTED = "catch_up_started"
    PROGRESS = "catch_up_progress"
    FINISHED = "catch_up_finished"


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Offsets in the peer's stream: start of the catch-up, present position, end of the log. `facts_per_s` is the rate
    of arrival. `seconds_left` is None while it cannot be estimated, or if the peer's log grows faster."""

    from_offset: int
    offset: int
    end_offset: int
    facts_per_s: float | None = None
    seconds_left: float | None = None

    @property
    def percent(self) -> float:
        """The part of the distance that is done."""
        return 100 * (self.offset - self.from_offset) / max(1, self.end_offset - self.from_offset)

    @property
    def is_gaining(self) -> bool:
        """Whether the distance to the end shrinks; true until it has been measured."""
        return self.facts_per_s is None or self.seconds_left is not None


class CatchUpTracker:
    """One pull. `now` is None unless it is far behind."""

    def __init__(self) -> None:
        self.now: CatchUp | None = None
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES_MAX)  # time in ms, offset, end
        self._logged_ms = 0

    @property
    def takes_backlog(self) -> bool:
        """Whether arriving facts are backlog. If the distance does not shrink, they arrive as fast as the peer records
        them."""
        return self.now is not None and self.now.is_gaining

    def update(self, now_ms: int, offset: int, end_offset: int) -> tuple[CatchUpEvent, CatchUp] | None:
        """Record the position of the pull; returns what to log, if anything."""
        if self.now is None:
            if end_offset - offset < BEHIND_FACTS_MIN:
                return None
            self.now = CatchUp(offset, offset, end_offset)
            self._samples.clear()
            self._samples.append((now_ms, offset, end_offset))
            self._logged_ms = now_ms
            return CatchUpEvent.STARTED, self.now
        if offset < self.now.offset:  # the peer's store was replaced, and is read from its beginning
            self.now = None
            return self.update(now_ms, offset, end_offset)
        if now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, offset, end_offset))
        measured = self.now = self._measure(self.now.from_offset, now_ms, offset, end_offset)
        if end_offset - offset <= NEAR_FACTS:
            self.now = None
            return CatchUpEvent.FINISHED, measured
        if now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = now_ms
            return CatchUpEvent.PROGRESS, measured
        return None

    def _measure(self, from_offset: int, now_ms: int, offset: int, end_offset: int) -> CatchUp:
        then_ms, then_offset, then_end = self._samples[0]
        took_s = (now_ms - then_ms) / 1000
        if took_s < SAMPLE_MS / 1000:  # the first page may still be on its way to the disk
            return CatchUp(from_offset, offset, end_offset)
        closing = ((then_end - then_offset) - (end_offset - offset)) / took_s
        left = (end_offset - offset) / closing if closing > 0 else None
        return CatchUp(from_offset, offset, end_offset, (offset - then_offset) / took_s, left)
