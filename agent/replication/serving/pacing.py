"""Limits the rates of each node: requests, bytes of answers, time of searches, confirmations. A core: no IO, no clock.

The cost of a request is known only afterwards. So a token bucket may be overdrawn by one request, and the next request
of the node waits until the debt is paid off. No other node waits.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.limits import CHANGES_PER_SECOND_MAX, CONFIRM_COMMITS_PER_SECOND, SEARCH_MS_PER_SECOND
from agent.settings.peers import PeerLimits


class Pacer:
    """The token buckets of the nodes. Times are in ms of one monotonic clock."""

    def __init__(self, limits_of: Callable[[str], PeerLimits]) -> None:
        self._limits_of = limits_of
        self._requests: dict[str, TokenBucket] = {}
        self._bytes: dict[str, TokenBucket | None] = {}
        self._searches: dict[str, TokenBucket] = {}
        self._confirms: dict[str, TokenBucket] = {}

    def request_ready_ms(self, node: str, now_ms: int) -> int:
        """When the next request of a node may begin; `now_ms` for at once."""
        return self._requests_of(node).ready_ms(now_ms, Priority.BACKLOG)

    def request_begins(self, node: str, now_ms: int) -> None:
        """Count a request of a node that begins."""
        self._requests_of(node).spend(1, now_ms)

    def changed(self, node: str, now_ms: int) -> None:
        """Count a commit without a fact for a request of a node. It costs as many requests as limit the node to
        CHANGES_PER_SECOND_MAX such commits."""
        bucket = self._requests_of(node)
        bucket.spend(max(1, bucket.bytes_per_second_max // CHANGES_PER_SECOND_MAX), now_ms)

    def confirm_ready_ms(self, node: str, now_ms: int) -> int:
        """When a confirmation for which a node waits may be committed at once."""
        return self._confirms_of(node).ready_ms(now_ms, Priority.BACKLOG)

    def confirms(self, node: str, now_ms: int) -> None:
        """Count a confirmation of a node that is committed at once."""
        self._confirms_of(node).spend(1, now_ms)

    def answer_ready_ms(self, node: str, now_ms: int) -> int:
        """When the next answer may be read for a node."""
        bucket = self._bytes_of(node)
        return now_ms if bucket is None else bucket.ready_ms(now_ms, Priority.BACKLOG)

    def answered(self, node: str, size: int, now_ms: int) -> None:
        """Count an answer of `size` bytes to a node."""
        if (bucket := self._bytes_of(node)) is not None:
            bucket.spend(size, now_ms)

    def search_ready_ms(self, node: str, now_ms: int) -> int:
        """When the next search for latest values may begin for a node."""
        return self._searches_of(node).ready_ms(now_ms, Priority.BACKLOG)

    def searched(self, node: str, took_ms: int, now_ms: int) -> None:
        """Count the time of a search for a node."""
        self._searches_of(node).spend(took_ms, now_ms)

    def _requests_of(self, node: str) -> TokenBucket:
        if (known := self._requests.get(node)) is None:
            known = self._requests[node] = TokenBucket(self._limits_of(node).requests_per_second_max)
        return known

    def _bytes_of(self, node: str) -> TokenBucket | None:
        if node not in self._bytes:
            rate = self._limits_of(node).answer_bytes_per_second_max
            self._bytes[node] = TokenBucket(rate) if rate else None
        return self._bytes[node]

    def _searches_of(self, node: str) -> TokenBucket:
        if (known := self._searches.get(node)) is None:
            known = self._searches[node] = TokenBucket(SEARCH_MS_PER_SECOND)
        return known

    def _confirms_of(self, node: str) -> TokenBucket:
        if (known := self._confirms.get(node)) is None:
            known = self._confirms[node] = TokenBucket(CONFIRM_COMMITS_PER_SECOND)
        return known
