"""A token bucket that may be overdrawn. It limits the bandwidth from one peer, shared by all pulls, and the requests,
bytes or milliseconds that one zone may use of a serving node. A core.

The size of a page is known only when it has arrived, so its tokens are spent afterwards, and the next page is requested
when the debt is paid off. A stream at the end of its log goes first: it may request while the debt is below two
seconds. A stream with a backlog waits until there is no debt, so it does not delay live facts. Repairs go last: they
wait until the bucket is half full, or for half a minute, and then have the priority of live facts. Over any period no
more arrives than the rate, the saved tokens of a quarter of a second, and what was under way.
"""

from __future__ import annotations

from enum import Enum

PAGE_MS = 250
"""Time of one page at the rate: how long a page of a backlog may delay a live one on a conduit of this rate."""
SAVED_MS_MAX = 250
"""Tokens that can be saved while nothing arrives."""
OVERDRAWN_MS_MAX = 2_000
"""How far a stream at the end of its log may overdraw: more than any page, also the smallest at the lowest rate."""
PAGE_BYTES_MIN = 16 * 1024
"""Smaller pages would cost more in requests than they give in smoothness."""

REPAIR_SAVED_MS = 125
"""What must be saved before a repair requests: a backlog, which requests as soon as there is no debt, never leaves this
much for long."""
REPAIR_WAITS_MS_MAX = 30_000


class Priority(Enum):
    """Priority of a request, highest first."""

    LIVE = "a stream at the end of its log"
    BACKLOG = "a stream with a backlog, and artifacts that its pages wait for"
    REPAIR = "comparisons with a peer, and the facts they fetch"


_LEAST_MS = {Priority.LIVE: -OVERDRAWN_MS_MAX, Priority.BACKLOG: 0, Priority.REPAIR: REPAIR_SAVED_MS}


class TokenBucket:
    """The bytes, or other tokens, that one peer may take in a second. Times are in ms of one monotonic clock and never
    go back."""

    def __init__(self, bytes_per_second_max: int) -> None:
        assert bytes_per_second_max > 0, bytes_per_second_max
        # In thousandths of a byte a ms, so that all values are integers.
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
        """Bytes that arrived before they were due, and have been paid off since."""
        return self._waited_off // 1000

    def page_bytes(self, bytes_max: int) -> int:
        """The size of the page to request; `bytes_max` is the size without a limit."""
        return min(bytes_max, max(PAGE_BYTES_MIN, self._rate * PAGE_MS // 1000))

    def pages_ahead(self, size: int, pages_max: int) -> int:
        """How many pages of `size` bytes may be under way at once: together at most PAGE_MS."""
        return max(1, min(pages_max, self._rate * PAGE_MS // 1000 // size))

    def bytes_owed(self, now_ms: int) -> int:
        """Bytes that arrived before they were due, and are not paid off yet."""
        self._catch_up(now_ms)
        return max(0, -self._saved // 1000)

    def spend(self, size: int, now_ms: int) -> None:
        """Take tokens for `size` bytes that have arrived."""
        self._catch_up(now_ms)
        self._saved -= size * 1000

    def ready_ms(self, now_ms: int, priority: Priority, waited_ms: int = 0) -> int:
        """When a request that has waited for `waited_ms` may be sent; `now_ms` for at once. The caller then asks again,
        because other requests may have spent tokens meanwhile."""
        self._catch_up(now_ms)
        ready_ms = now_ms + max(0, -((self._saved - self._rate * _LEAST_MS[priority]) // self._rate))
        if priority is Priority.REPAIR and ready_ms - now_ms > REPAIR_WAITS_MS_MAX - waited_ms:
            overdue_ms = now_ms + max(0, REPAIR_WAITS_MS_MAX - waited_ms)
            return max(overdue_ms, self.ready_ms(now_ms, Priority.LIVE))
        return ready_ms

    def _catch_up(self, now_ms: int) -> None:
        if now_ms == self._now_ms:
            return
        passed_ms = 0 if self._now_ms is None else max(0, now_ms - self._now_ms)
        self._now_ms = now_ms
        self._waited_off += min(max(0, -self._saved), passed_ms * self._rate)
        self._saved = min(self._saved + passed_ms * self._rate, self._rate * SAVED_MS_MAX)
