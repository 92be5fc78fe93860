"""The standing relation to one broker: connects, connects again after any loss, and hands messages to who serves their topic.

A node has one `Link` per broker, shared by all who serve or ask there.  Routes are fixed before `run` starts; a route is
one exact topic and a handler that only takes note.  Nobody is told twice: one log line when the broker goes, one when it is
back, however often it was tried in between.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from agent.replication.backoff import delay_ms
from agent.replication.carrier import Access, Incoming
from agent.replication.errors import ConnectionLost, ReplicationError
from agent.replication.transport import Connection

RETRY_MS_MIN, RETRY_MS_MAX = 500, 15_000
"""Between two attempts.  A broker that returns should be found within seconds."""
ROUTES_MAX = 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What happened on this link so far.  `down_reason` is None while it is up."""

    is_up: bool
    connects: int
    failures: int
    unrouted: int
    down_reason: str | None


class Link:
    """One broker, as long as the node runs."""

    def __init__(self, access: Access, chance: Callable[[], float] = random.random) -> None:
        self.access = access
        self.connection: Connection | None = None
        self._chance = chance
        self._routes: dict[str, Callable[[Incoming], None]] = {}
        self._watchers: list[tuple[Callable[[], None], Callable[[str], None]]] = []
        self._up = asyncio.Event()
        self._connects = 0
        self._failures = 0
        self._unrouted = 0
        self._down_reason: str | None = "not connected yet"
        self._is_running = False

    def route(self, topic: str, handler: Callable[[Incoming], None]) -> None:
        """Hand everything that arrives on `topic` to `handler`, which must neither block nor raise."""
        assert not self._is_running, "routes are fixed before the link runs"
        assert topic not in self._routes, topic
        assert len(self._routes) < ROUTES_MAX
        self._routes[topic] = handler

    def watch(self, on_up: Callable[[], None], on_down: Callable[[str], None]) -> None:
        """Tell of each connection that stands, subscriptions included, and of its end with the reason."""
        assert len(self._watchers) < ROUTES_MAX
        self._watchers.append((on_up, on_down))
        if self.connection is not None:
            on_up()

    async def wait_up(self) -> None:
        """Until the link is up for the first time, or now."""
        await self._up.wait()

    def require(self) -> Connection:
        """The connection that stands now; ConnectionLost when none does."""
        if self.connection is None:
            raise ConnectionLost(str(self.access), self._down_reason or "not connected")
        return self.connection

    def statistics(self) -> LinkStatistics:
        return LinkStatistics(
            self.connection is not None, self._connects, self._failures, self._unrouted, self._down_reason
        )

    async def run(self) -> None:
        """Connect, and again after each loss, until cancelled."""
        self._is_running = True
        tries = 0
        while True:
            try:
                connection = await Connection.open(self.access, self._dispatch)
            except ReplicationError as error:
                self._note_failure(error)
                await asyncio.sleep(self._delay_s(tries))
                tries += 1
                continue
            try:
                await connection.subscribe(list(self._routes))
                tries = 0
                self._note_up(connection)
                self._note_down(await asyncio.shield(connection.closed))
            except ReplicationError as error:  # lost while subscribing
                self._note_failure(error)
            finally:
                self.connection = None
                self._up.clear()
                await connection.close()
            await asyncio.sleep(self._delay_s(tries))
            tries += 1

    def _delay_s(self, tries: int) -> float:
        return delay_ms(RETRY_MS_MIN, RETRY_MS_MAX, tries, self._chance()) / 1000

    def _dispatch(self, message: Incoming) -> None:
        handler = self._routes.get(message.topic)
        if handler is None:
            self._unrouted += 1
        else:
            handler(message)

    def _note_up(self, connection: Connection) -> None:
        _log.info("broker_connected", extra={"broker": self.access.name, "after": self._down_reason})
        self._connects += 1
        self._down_reason = None
        self.connection = connection
        self._up.set()
        for on_up, _ in self._watchers:
            on_up()

    def _note_down(self, reason: ReplicationError) -> None:
        _log.warning("broker_lost", extra={"broker": self.access.name, "reason": str(reason)})
        self._down_reason = str(reason)
        self.connection = None
        for _, on_down in self._watchers:
            on_down(str(reason))

    def _note_failure(self, error: ReplicationError) -> None:
        self._failures += 1
        if str(error) != self._down_reason:
            _log.warning("broker_unreachable", extra={"broker": self.access.name, "reason": str(error)})
            self._down_reason = str(error)
