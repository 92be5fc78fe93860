"""Limits the rates of each node: requests, bytes of answers, time of searches, confirmations. A core: no IO, no clock.

The cost of a request is known only afterwards. So a token bucket may be overdrawn by one request, and the next request
of the node waits until the debt is paid off. No other node waits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.limits import CHANGES_PER_SECOND_MAX, CONFIRM_COMMITS_PER_SECOND, SEARCH_MS_PER_SECOND
from agent.settings.peers import PeerLimits


class Use(Enum):
    """What a node uses."""

    REQUESTS = "requests that begin"
    ANSWER_BYTES = "bytes of answers"
    SEARCH_MS = "time of searches for latest values"
    CONFIRMS = "confirmations for which it waits, each committed at once"


class Pacer:
    """The token buckets of the nodes. Times are in ms of one monotonic clock."""

    def __init__(self, limits_of: Callable[[str], PeerLimits]) -> None:
        self._limits_of = limits_of
        self._buckets: dict[tuple[Use, str], TokenBucket | None] = {}

    def ready_ms(self, use: Use, node: str, now_ms: int) -> int:
        """When a node may use it again; `now_ms` for at once."""
        bucket = self._bucket(use, node)
        return now_ms if bucket is None else bucket.ready_ms(now_ms, Priority.BACKLOG)

    def spend(self, use: Use, node: str, amount: int, now_ms: int) -> None:
        """Count what a node uses."""
        if (bucket := self._bucket(use, node)) is not None:
            bucket.spend(amount, now_ms)

    def changed(self, node: str, now_ms: int) -> None:
        """Count a commit without a fact for a request of a node. It costs as many requests as limit the node to
        CHANGES_PER_SECOND_MAX such commits."""
        cost = max(1, self._rate(Use.REQUESTS, node) // CHANGES_PER_SECOND_MAX)
        self.spend(Use.REQUESTS, node, cost, now_ms)

    def _bucket(self, use: Use, node: str) -> TokenBucket | None:
        if (use, node) not in self._buckets:
            rate = self._rate(use, node)
            self._buckets[use, node] = TokenBucket(rate) if rate else None
        return self._buckets[use, node]

    def _rate(self, use: Use, node: str) -> int:
        """So much in a second; 0 is no limit."""
        match use:
            case Use.REQUESTS:
                return self._limits_of(node).requests_per_second_max
            case Use.ANSWER_BYTES:
                return self._limits_of(node).answer_bytes_per_second_max
            case Use.SEARCH_MS:
                return SEARCH_MS_PER_SECOND
            case Use.CONFIRMS:
                return CONFIRM_COMMITS_PER_SECOND
