"""Sends requests to a peer within its bandwidth limit, except a pull's fetches, which the receiver itself times.

Comparisons, artifacts and latest values wait here until the token bucket admits their priority. Their tokens are taken
when the answer has arrived.
"""

from __future__ import annotations

import asyncio
import time

from agent.replication.mqtt import PeerReply, Requester
from agent.replication.protocol.errors import ReplicationError
from agent.replication.protocol.messages import Request, operation_of
from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.telemetry import Span, Telemetry


class ThrottledRequester:
    """Sends requests over `requester`. `bandwidth` is shared by all requests to this peer; None if it is not
    limited."""

    def __init__(
        self,
        requester: Requester,
        bandwidth: TokenBucket | None = None,
        priority: Priority = Priority.BACKLOG,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._requester = requester
        self._bandwidth = bandwidth
        self._priority = priority

    @property
    def peer_node(self) -> str:
        """The zone that receives the requests."""
        return self._requester.peer_node

    def page_bytes(self, bytes_max: int) -> int:
        """How many bytes to request at once, at most `bytes_max`."""
        return bytes_max if self._bandwidth is None else self._bandwidth.page_bytes(bytes_max)

    def pages_ahead(self, size: int, pages_max: int) -> int:
        """How many pages of `size` bytes to have under way at once, at most `pages_max`."""
        return pages_max if self._bandwidth is None else self._bandwidth.pages_ahead(size, pages_max)

    async def wait_up(self) -> None:
        """Return when the link is up."""
        await self._requester.link.wait_up()

    async def ask(self, request: Request, timeout_s: float) -> PeerReply:
        """As `Requester.ask`; `timeout_s` starts after the wait for bandwidth."""
        await self._wait_for_bandwidth()
        span = self._telemetry.start(Span.ASK, operation_of(request), peer=self.peer_node)
        try:
            reply = await self._requester.ask(request, timeout_s)
        except ReplicationError as error:
            self._telemetry.fail(span, str(error))
            raise
        except asyncio.CancelledError:
            self._telemetry.discard(span, "the request was cancelled")
            raise
        self._telemetry.stop(span)
        if self._bandwidth is not None:
            self._bandwidth.spend(reply.bytes, _now_ms())
        return reply

    async def _wait_for_bandwidth(self) -> None:
        began_ms = _now_ms()
        while self._bandwidth is not None:
            now_ms = _now_ms()
            ready_ms = self._bandwidth.ready_ms(now_ms, self._priority, now_ms - began_ms)
            if ready_ms <= now_ms:
                return
            await asyncio.sleep((ready_ms - now_ms) / 1000)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
