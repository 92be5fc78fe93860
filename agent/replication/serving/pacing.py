"""Limits the rates of each zone: requests, bytes of answers, time of searches, confirmations. A core: no IO, no clock.

The cost of a request is known only afterwards. So a token bucket may be overdrawn by one request, and the next request
of the zone waits until the debt is paid off. No other zone waits.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.limits import CHANGES_PER_SECOND_MAX, CONFIRM_COMMITS_PER_SECOND, SEARCH_MS_PER_SECOND
from agent.settings.peers import PeerLimits


class Pacer:
    """The token buckets of the zones. Times are in ms of one monotonic clock."""

    def __init__(self, limits_of: Callable[[str], PeerLimits]) -> None:
        self._limits_of = limits_of
        self._requests: dict[str, TokenBucket] = {}
        self._bytes: dict[str, TokenBucket | None] = {}
        self._searches: dict[str, TokenBucket] = {}
        self._confirms: dict[str, TokenBucket] = {}

    def request_ready_ms(self, zone: str, now_ms: int) -> int:
        """When the next request of a zone may begin; `now_ms` for at once."""
        return self._requests_of(zone).ready_ms(now_ms, Priority.BACKLOG)

    def request_begins(self, zone: str, now_ms: int) -> None:
        """Count a request of a zone that begins."""
        self._requests_of(zone).spend(1, now_ms)

    def changed(self, zone: str, now_ms: int) -> None:
        """Count a commit without a fact for a request of a zone. It costs as many requests as limit the zone to
        CHANGES_PER_SECOND_MAX such commits."""
        bucket = self._requests_of(zone)
        bucket.spend(max(1, bucket.bytes_per_second_max // CHANGES_PER_SECOND_MAX), now_ms)

    def confirm_ready_ms(self, zone: str, now_ms: int) -> int:
        """When a confirmation for which a zone waits may be committed at once."""
        return self._confirms_of(zone).ready_ms(now_ms, Priority.BACKLOG)

    def confirms(self, zone: str, now_ms: int) -> None:
        """Count a confirmation of a zone that is committed at once."""
        self._confirms_of(zone).spend(1, now_ms)

    def answer_ready_ms(self, zone: str, now_ms: int) -> int:
        """When the next answer may be read for a zone."""
        bucket = self._bytes_of(zone)
        return now_ms if bucket is None else bucket.ready_ms(now_ms, Priority.BACKLOG)

    def answered(self, zone: str, size: int, now_ms: int) -> None:
        """Count an answer of `size` bytes to a zone."""
        if (bucket := self._bytes_of(zone)) is not None:
            bucket.spend(size, now_ms)

    def search_ready_ms(self, zone: str, now_ms: int) -> int:
        """When the next search for latest values may begin for a zone."""
        return self._searches_of(zone).ready_ms(now_ms, Priority.BACKLOG)

    def searched(self, zone: str, took_ms: int, now_ms: int) -> None:
        """Count the time of a search for a zone."""
        self._searches_of(zone).spend(took_ms, now_ms)

    def _requests_of(self, zone: str) -> TokenBucket:
        if (known := self._requests.get(zone)) is None:
            known = self._requests[zone] = TokenBucket(self._limits_of(zone).requests_per_second_max)
        return known

    def _bytes_of(self, zone: str) -> TokenBucket | None:
        if zone not in self._bytes:
            rate = self._limits_of(zone).answer_bytes_per_second_max
            self._bytes[zone] = TokenBucket(rate) if rate else None
        return self._bytes[zone]

    def _searches_of(self, zone: str) -> TokenBucket:
        if (known := self._searches.get(zone)) is None:
            known = self._searches[zone] = TokenBucket(SEARCH_MS_PER_SECOND)
        return known

    def _confirms_of(self, zone: str) -> TokenBucket:
        if (known := self._confirms.get(zone)) is None:
            known = self._confirms[zone] = TokenBucket(CONFIRM_COMMITS_PER_SECOND)
        return known
