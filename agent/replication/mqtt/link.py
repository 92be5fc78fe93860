"""The standing relation to one broker: connects, connects again after any loss, and hands messages to who serves their topic.

A node has one `Link` per broker, shared by all who serve or ask there.  Routes are fixed before `run` starts; a route is
one exact topic and a handler that only takes note.  Nobody is told twice: one log line when the broker goes, one when it is
back, however often it was tried in between.

A new identity is shown to the broker beside the connection that stands.  Only when the broker has accepted it the old connection
is closed, which costs what any reconnect does: answers under way are asked for again.  If the broker turns it away, nothing else happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.transport import Connection
from agent.replication.pki import Identity, PkiError
from agent.replication.protocol.errors import ConnectionLost, ConnectionRefused, ReplicationError
from agent.replication.protocol.pacing import backoff_ms

RETRY_MS_MIN, RETRY_MS_MAX = 500, 5_000
"""Between two attempts.  A broker that returns should be found within seconds.  500 nodes without one make 130 attempts a second, a
SYN and its refusal each; when it is back, they come over two and a half seconds, half of the delay being chance."""
ROUTES_MAX = 1024
REASONS_TOLD_MAX = 16
"""Of one outage.  There are fewer; a peer or library that finds new words each time shall not fill the log."""
UNACCEPTED_TOLD = 3
"""Connections in a row that never saw CONNACK, until that is told on its own: waiting will not help."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What happened on this link so far.  `down_reason` is None while it is up."""

    is_up: bool
    connects: int
    failures: int
    strangers: int
    """Messages that nobody here had asked for."""
    down_reason: str | None
    needs_person: bool = False
    """It is down for what waiting does not mend: our identity cannot be used, or the broker refuses it again and again."""
    identity_trouble: str = ""
    identity_ends: datetime | None = None


class Link:
    """One broker, as long as the node runs."""

    def __init__(
        self, access: Access, chance: Callable[[], float] = random.random, identity: Identity | None = None
    ) -> None:
        self.access = access
        self._identity = identity
        if identity is not None:
            identity.on_offer = self._wake
        self._news = asyncio.Event()  # the connection ended, or a new identity is offered
        self._ready: Connection | None = None  # with a new identity, accepted by the broker, not yet in use
        self._unaccepted = 0
        self._told = set[str]()  # reasons of this outage, which may take turns
        self._cannot_enter = False  # there is no identity that could be shown
        self.connection: Connection | None = None
        self._chance = chance
        self._routes: dict[str, Callable[[Incoming], None]] = {}
        self._watchers: list[tuple[Callable[[], None], Callable[[str], None]]] = []
        self._up = asyncio.Event()
        self._connects = 0
        self._failures = 0
        self._strangers = 0
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

    def count_unsolicited(self) -> None:
        """A message came that nobody here had asked for, or not any more."""
        self._strangers += 1

    def statistics(self) -> LinkStatistics:
        identity = self._identity
        return LinkStatistics(
            self.connection is not None,
            self._connects,
            self._failures,
            self._strangers,
            self._down_reason,
            self.connection is None and (self._cannot_enter or self._unaccepted >= UNACCEPTED_TOLD),
            "" if identity is None else identity.trouble,
            None if identity is None else identity.ends,
        )

    async def run(self) -> None:
        """Connect, and again after each loss, until cancelled."""
        self._is_running = True
        tries = 0
        while True:
            connection, self._ready = self._ready, None
            try:
                if connection is None:
                    connection = await self._open()
                await connection.subscribe(list(self._routes))
                tries = 0
                self._note_up(connection)
                await self._stand(connection)
            except ReplicationError as error:  # not connected, or lost while subscribing
                self._note_failure(error)
            finally:
                self.connection = None
                self._up.clear()
                if connection is not None:
                    await connection.close()
            if self._ready is None:
                await asyncio.sleep(self._delay_s(tries))
                tries += 1

    @contextlib.asynccontextmanager
    async def visit(self) -> AsyncIterator[None]:
        """Stand once, for the length of the block, in place of `run`: for who asks a question and leaves.  TransportError says why
        there is no connection."""
        self._is_running = True
        connection = await Connection.open(self.access, self._dispatch)
        try:
            await connection.subscribe(list(self._routes))
            self.connection = connection
            yield
        finally:
            self.connection = None
            await connection.close()

    async def _open(self) -> Connection:
        """A connection that the broker accepted, with the identity that is to be tried now."""
        try:
            connection = await Connection.open(self.access, self._dispatch)
        except ConnectionRefused as error:
            if self._identity is not None:
                self._identity.refused(str(error))
            raise
        if self._identity is not None:
            self._identity.accepted()
        return connection

    async def _stand(self, connection: Connection) -> None:
        """Return when the connection has ended, or when another with a new identity is `_ready` in its place."""
        connection.closed.add_done_callback(lambda _: self._wake())
        while not connection.closed.done():
            self._news.clear()
            if self._identity is not None and self._identity.is_offered:
                try:
                    self._ready = await self._open()
                except ReplicationError as error:  # the connection that stands is not touched by it
                    _log.debug("identity_not_taken_over", extra={"broker": self.access.name, "reason": str(error)})
                else:
                    self._note_down(None)
                    return
            await self._news.wait()
        self._note_down(connection.closed.result())

    def _wake(self) -> None:
        self._news.set()

    def _delay_s(self, tries: int) -> float:
        return backoff_ms(RETRY_MS_MIN, RETRY_MS_MAX, tries, self._chance()) / 1000

    def _dispatch(self, message: Incoming) -> None:
        handler = self._routes.get(message.topic)
        if handler is None:
            self.count_unsolicited()
        else:
            handler(message)

    def _note_up(self, connection: Connection) -> None:
        _log.info("broker_connected", extra={"broker": self.access.name, "after": self._down_reason})
        self._connects += 1
        self._unaccepted = 0
        self._told.clear()
        self._down_reason = None
        self.connection = connection
        self._up.set()
        for on_up, _ in self._watchers:
            on_up()

    def _note_down(self, reason: ReplicationError | None) -> None:
        """Tell that the connection is over; without a reason it was given up for the one that is ready."""
        if reason is not None:
            _log.warning("broker_lost", extra={"broker": self.access.name, "reason": str(reason)})
        self._down_reason = "a new identity is being taken over" if reason is None else str(reason)
        self.connection = None
        for _, on_down in self._watchers:
            on_down(self._down_reason)

    def _note_failure(self, error: ReplicationError) -> None:
        self._failures += 1
        # One may be a broker that stops; several in a row are meant for us.
        self._unaccepted = self._unaccepted + 1 if isinstance(error, ConnectionRefused) else 0
        if self._unaccepted == UNACCEPTED_TOLD:
            extra = {"broker": self.access.name, "times": self._unaccepted, "reason": str(error)}
            _log.error("broker_refuses_us", extra=extra)
        self._cannot_enter = isinstance(error, PkiError)
        words = _words(str(error))
        if words not in self._told and len(self._told) < REASONS_TOLD_MAX:
            self._told.add(words)
            _log.warning("broker_unreachable", extra={"broker": self.access.name, "reason": str(error)})
        self._down_reason = str(error)


def _words(reason: str) -> str:
    """A reason without its figures: an identity that has ended names the clock, and each new second is no news."""
    return re.sub(r"\d+", "", reason)
