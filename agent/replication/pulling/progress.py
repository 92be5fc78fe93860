"""How a pull catches up with its peer: from where it came, where it is, where the peer's log ends, how fast it closes in. A core.

A new zone that begins at the oldest fact, or one that comes back after an outage, may be hours behind. It takes what it lacks page by
page, in order, each durable before the next is confirmed, so there is nothing special about it but that somebody wants to know
how long it will take. What counts is how fast the distance shrinks, not how fast facts arrive: the peer's log grows meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

BEHIND_FACTS_MIN = 100_000
"""More than a page holds, and than a busy stream has on its way: who is closer is there before anybody has asked."""
NEAR_FACTS = 10_000
"""Where the rest is a page of live facts, which never ends."""
SAMPLE_MS, SAMPLES_MAX = 1_000, 20
"""Speed is that of the last 20 s: long enough for pages of any size, short enough to see a line that has become slow."""
TOLD_EVERY_MS = 30_000


class Said(Enum):
    """Worth a line in the log."""

    BEGUN = "catch_up_started"
    GOES_ON = "catch_up_progress"
    DONE = "catch_up_finished"


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Where it stands: offsets of the peer's stream. `facts_per_s` is how many arrive, `seconds_left` until both ends meet, None
    while that cannot be said, or where the peer's log grows faster."""

    from_offset: int
    offset: int
    end_offset: int
    facts_per_s: float | None = None
    seconds_left: float | None = None

    @property
    def percent(self) -> float:
        """How much of the way from where it began is behind it."""
        return 100 * (self.offset - self.from_offset) / max(1, self.end_offset - self.from_offset)

    @property
    def closes_in(self) -> bool:
        """The end comes nearer, as far as is known."""
        return self.facts_per_s is None or self.seconds_left is not None


class Progress:
    """One pull. Tell it where the pull stands, as often as that changes."""

    def __init__(self) -> None:
        self.now: CatchUp | None = None
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES_MAX)  # time in ms, offset, end
        self._told_ms = 0

    @property
    def takes_backlog(self) -> bool:
        """What comes now is history. Where the end comes no nearer, it comes as fast as the peer's facts do, which is their pace."""
        return self.now is not None and self.now.closes_in

    def look(self, now_ms: int, offset: int, end_offset: int) -> Said | None:
        """Where the pull stands now, and whether that is worth telling."""
        if self.now is None:
            if end_offset - offset < BEHIND_FACTS_MIN:
                return None
            self.now = CatchUp(offset, offset, end_offset)
            self._samples.clear()
            self._samples.append((now_ms, offset, end_offset))
            self._told_ms = now_ms
            return Said.BEGUN
        if offset < self.now.offset:  # the peer's store was replaced, and is read from its beginning
            self.now = None
            return self.look(now_ms, offset, end_offset)
        if now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, offset, end_offset))
        self.now = self._measured(now_ms, offset, end_offset)
        if end_offset - offset <= NEAR_FACTS:
            return Said.DONE
        if now_ms - self._told_ms >= TOLD_EVERY_MS:
            self._told_ms = now_ms
            return Said.GOES_ON
        return None

    def forget(self) -> None:
        """It has caught up, and that was told."""
        self.now = None

    def _measured(self, now_ms: int, offset: int, end_offset: int) -> CatchUp:
        assert self.now is not None
        then_ms, then_offset, then_end = self._samples[0]
        took_s = (now_ms - then_ms) / 1000
        if took_s <= 0:
            return CatchUp(self.now.from_offset, offset, end_offset)
        closing = ((then_end - then_offset) - (end_offset - offset)) / took_s
        left = (end_offset - offset) / closing if closing > 0 else None
        return CatchUp(self.now.from_offset, offset, end_offset, (offset - then_offset) / took_s, left)
