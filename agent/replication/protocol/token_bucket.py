"""A token bucket that may be overdrawn: the bandwidth limit of one peer, shared by all pulls of it; and what one zone
may take of a serving node, in requests, bytes or milliseconds. A core.

The size of a page is known only when it has arrived, so its tokens are taken afterwards, and the next page is asked for
when the debt is gone. A stream at the end of its log goes first: it may ask while the debt is below two seconds, which
a stream with a backlog has to wait off, so a backlog does not delay live facts. Repairs go last: they ask when half of
what can be saved is there, or after half a minute with the priority of live facts. Over any period no more arrives than
the rate, a quarter of a second's worth that was saved, and what was under way.
"""

from __future__ import annotations

from enum import Enum

PAGE_MS = 250
"""One page's worth of time: what a backlog's page may delay a live one on a conduit of just this rate."""
SAVED_MS_MAX = 250
"""What can be saved while nothing arrives."""
OVERDRAWN_MS_MAX = 2_000
"""How far a stream at the end of its log may overdraw: beyond any page of PAGE_MS, at the least rate and the least
page."""
PAGE_BYTES_MIN = 16 * 1024
"""Smaller pages would cost more in requests than they give in smoothness."""

REPAIR_SAVED_MS = 125
"""What must be saved before a repair asks: a backlog, which asks as soon as there is no debt, never leaves that much
for long."""
REPAIR_WAITS_MS_MAX = 30_000


class Priority(Enum):
    """Of a request, highest first."""

    LIVE = "a stream at the end of its log"
    BACKLOG = "a stream with a backlog, and artifacts that its pages wait for"
    REPAIR = "comparisons with a peer, and the facts they fetch"


_LEAST_MS = {Priority.LIVE: -OVERDRAWN_MS_MAX, Priority.BACKLOG: 0, Priority.REPAIR: REPAIR_SAVED_MS}


class TokenBucket:
    """The bytes, or other tokens, that one peer may take in a second. Times are in ms of one monotonic clock and never
    go back."""

    def __init__(self, bytes_per_second_max: int) -> None:
        assert bytes_per_second_max > 0, bytes_per_second_max
        # Bytes a second, which are thousandths of a byte a ms: all below are whole numbers.
        self._rate = bytes_per_second_max
        self._saved = bytes_per_second_max * SAVED_MS_MAX
        self._now_ms: int | None = None
        self._waited_off = 0

    @property
    def bytes_per_second_max(self) -> int:
        """The limit."""
        return self._rate

    @property
    def bytes_waited_off(self) -> int:
        """Bytes that arrived before they were due, and were waited off since."""
        return self._waited_off // 1000

    def page_bytes(self, bytes_max: int) -> int:
        """How large a page to ask for, where without a limit it would be `bytes_max`."""
        return min(bytes_max, max(PAGE_BYTES_MIN, self._rate * PAGE_MS // 1000))

    def pages_ahead(self, size: int, pages_max: int) -> int:
        """How many pages of `size` bytes to have under way at once: together at most one page's worth of time."""
        return max(1, min(pages_max, self._rate * PAGE_MS // 1000 // size))

    def bytes_owed(self, now_ms: int) -> int:
        """Bytes that arrived before they were due, and are not waited off yet."""
        self._catch_up(now_ms)
        return max(0, -self._saved // 1000)

    def spend(self, size: int, now_ms: int) -> None:
        """Take tokens for `size` bytes that have arrived."""
        self._catch_up(now_ms)
        self._saved -= size * 1000

    def ready_ms(self, now_ms: int, priority: Priority, waited_ms: int = 0) -> int:
        """When a request that has waited for `waited_ms` may be sent; `now_ms` for at once. The caller asks again then,
        because others spend meanwhile."""
        self._catch_up(now_ms)
        ready_ms = now_ms + max(0, -((self._saved - self._rate * _LEAST_MS[priority]) // self._rate))
        if priority is Priority.REPAIR and ready_ms - now_ms > REPAIR_WAITS_MS_MAX - waited_ms:
            overdue_ms = now_ms + max(0, REPAIR_WAITS_MS_MAX - waited_ms)
            return max(overdue_ms, self.ready_ms(now_ms, Priority.LIVE))
        return ready_ms

    def _catch_up(self, now_ms: int) -> None:
        passed_ms = 0 if self._now_ms is None else max(0, now_ms - self._now_ms)
        self._now_ms = now_ms
        self._waited_off += min(max(0, -self._saved), passed_ms * self._rate)
        self._saved = min(self._saved + passed_ms * self._rate, self._rate * SAVED_MS_MAX)
