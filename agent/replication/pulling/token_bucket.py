"""How many bytes a second are taken from one peer, by all the streams that are pulled from it together.

A core: a token bucket that may be overdrawn. What a page weighs is known only when it has come, so it is paid for afterwards:
the next one is asked for when the debt is gone, and over any time no more comes than the rate, a quarter of a second's worth that
was saved up before, and what was under way. Pages are asked for in the size of a quarter of a second, as far as batches, which are never cut, allow.

A stream that has come to the end of its log goes first: it may ask while there is debt of up to two seconds, which a stream that
is being drained has to wait off. So what is live is not held up by a backlog beside it. What it brings is paid for all the same, by the
backlog: the rate holds for both together, also where the live facts alone exceed it.

What repairs goes last: it asks when half of what may be saved up is there, which is when nobody else wants it. Behind a backlog that takes days
it would wait as long, so each of its requests waits half a minute at most, and then goes as if it were live.
"""

from __future__ import annotations

from enum import Enum

from agent.replication.protocol.pacing import BYTES_PER_SECOND_MIN

PAGE_MS = 250
"""One page's worth of time: what a backlog's page may delay a live one on a conduit of just this rate."""
SAVED_MS_MAX = 250
"""What may be saved up while nothing comes."""
OVERDRAWN_MS_MAX = 2_000
"""How far a stream at the end of its log may overdraw: beyond any page of PAGE_MS, at the least rate and the least page."""
PAGE_BYTES_MIN = 16 * 1024
"""Smaller pages would cost more in requests than they give in smoothness."""

REPAIR_SAVED_MS = 125
"""What must be saved up before a repair asks: a backlog, which asks when nothing is owed, never leaves that much for long."""
REPAIR_WAITS_MS_MAX = 30_000


class Share(Enum):
    """Who may ask, first to last."""

    LIVE = "a stream at the end of its log"
    BACKLOG = "a stream that is drained, and artifacts that hold one up"
    REPAIR = "comparisons, and what they bring"


_LEAST_MS = {Share.LIVE: -OVERDRAWN_MS_MAX, Share.BACKLOG: 0, Share.REPAIR: REPAIR_SAVED_MS}


class Bandwidth:
    """The allowance of one peer. Times are in ms of one monotonic clock and never go back."""

    def __init__(self, bytes_per_second_max: int) -> None:
        assert bytes_per_second_max >= BYTES_PER_SECOND_MIN, bytes_per_second_max
        self._rate = (
            bytes_per_second_max  # bytes a second, which are thousandths of a byte a ms: all below are whole numbers
        )
        self._saved = bytes_per_second_max * SAVED_MS_MAX
        self._now_ms: int | None = None
        self._waited_off = 0

    @property
    def bytes_per_second_max(self) -> int:
        """The limit."""
        return self._rate

    @property
    def bytes_waited_off(self) -> int:
        """Bytes that came before they were due, and were paid for by waiting since."""
        return self._waited_off // 1000

    def page_bytes(self, bytes_max: int) -> int:
        """How large a page to ask for, where without a limit it would be `bytes_max`."""
        return min(bytes_max, max(PAGE_BYTES_MIN, self._rate * PAGE_MS // 1000))

    def pages_ahead(self, size: int, pages_max: int) -> int:
        """How many pages of `size` to have under way at once: as many as are together still one page's worth of time."""
        return max(1, min(pages_max, self._rate * PAGE_MS // 1000 // size))

    def bytes_owed(self, now_ms: int) -> int:
        """Bytes that have come before they were due."""
        self._catch_up(now_ms)
        return max(0, -self._saved // 1000)

    def spend(self, size: int, now_ms: int) -> None:
        """So many bytes have come."""
        self._catch_up(now_ms)
        self._saved -= size * 1000

    def ready_ms(self, now_ms: int, share: Share, waited_ms: int = 0) -> int:
        """When the next page may be asked for by one who has waited for `waited_ms`; `now_ms` for at once. Whoever is early asks again:
        others spend meanwhile."""
        self._catch_up(now_ms)
        ready_ms = now_ms + max(0, -((self._saved - self._rate * _LEAST_MS[share]) // self._rate))
        if share is Share.REPAIR and ready_ms - now_ms > REPAIR_WAITS_MS_MAX - waited_ms:
            overdue_ms = now_ms + max(0, REPAIR_WAITS_MS_MAX - waited_ms)
            return max(overdue_ms, self.ready_ms(now_ms, Share.LIVE))
        return ready_ms

    def _catch_up(self, now_ms: int) -> None:
        passed_ms = 0 if self._now_ms is None else max(0, now_ms - self._now_ms)
        self._now_ms = now_ms
        self._waited_off += min(max(0, -self._saved), passed_ms * self._rate)
        self._saved = min(self._saved + passed_ms * self._rate, self._rate * SAVED_MS_MAX)
