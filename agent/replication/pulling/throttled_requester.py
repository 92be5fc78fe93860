"""Asking a peer for what is no page of a pull, within the bytes a second that it may send.

A pull's own fetches are timed by its receiver, which must not wait. Whatever else is asked for (comparisons, artifacts, first values) can wait:
it is asked for when its share of the peer's bandwidth allows, and paid for when the answer has come.
"""

from __future__ import annotations

import asyncio
import time

from agent.replication.mqtt import Asker, Reply
from agent.replication.protocol import ReplicationError, Request, operation_of
from agent.replication.pulling.token_bucket import Bandwidth, Share
from agent.telemetry import Side, Span, Telemetry


class ThrottledRequester:
    """Asks as `asker` does. `bandwidth` is what all share who ask this peer; without one nothing waits."""

    def __init__(
        self,
        asker: Asker,
        bandwidth: Bandwidth | None = None,
        share: Share = Share.BACKLOG,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._asker = asker
        self._bandwidth = bandwidth
        self._share = share

    @property
    def peer_zone(self) -> str:
        """Who is asked."""
        return self._asker.peer_zone

    def page_bytes(self, bytes_max: int) -> int:
        """How much to ask for at once, where without a limit it would be `bytes_max`."""
        return bytes_max if self._bandwidth is None else self._bandwidth.page_bytes(bytes_max)

    def pages_ahead(self, size: int, pages_max: int) -> int:
        """How many pages of `size` to have under way at once, where without a limit it would be `pages_max`."""
        return pages_max if self._bandwidth is None else self._bandwidth.pages_ahead(size, pages_max)

    async def ask(self, request: Request, timeout_s: float) -> Reply:
        """As `Asker.ask`; `timeout_s` begins when the bandwidth has been waited for."""
        await self._turn()
        span = self._telemetry.start(Span.ASK, Side.ASKING, operation_of(request), peer=self.peer_zone)
        try:
            reply = await self._asker.ask(request, timeout_s)
        except ReplicationError as error:
            self._telemetry.fail(span, str(error))
            raise
        except asyncio.CancelledError:
            self._telemetry.discard(span, "nobody waits for the answer any more")
            raise
        self._telemetry.stop(span)
        if self._bandwidth is not None:
            self._bandwidth.spend(reply.bytes, _now_ms())
        return reply

    async def _turn(self) -> None:
        began_ms = _now_ms()
        while self._bandwidth is not None:
            now_ms = _now_ms()
            ready_ms = self._bandwidth.ready_ms(now_ms, self._share, now_ms - began_ms)
            if ready_ms <= now_ms:
                return
            await asyncio.sleep((ready_ms - now_ms) / 1000)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
