"""The permanent link to one broker: connects, reconnects after any loss, and routes messages by topic.

A node has one `BrokerLink` per broker, shared by its servers and requesters. Routes are fixed before `run` starts; a
route is one exact topic and a handler that must not block. Subscribed are the few filters that bring these topics of
all peers, and answers to other instances with the same slot, which are ignored. A lost broker is logged once, and once
more when it is back, however many attempts failed in between.

A new certificate is tried on a second connection. The old connection is closed only after the broker has accepted the
new one, which costs one reconnect: pending answers are requested again. If the broker refuses the new certificate, the
old connection stays (docs/decisions/0035).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime

from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.pki import Identity, PkiError
from agent.replication.protocol.errors import (
    BrokerUntrusted,
    ConnectionLost,
    ConnectionRefused,
    ReplicationError,
)
from agent.replication.protocol.pacing import backoff_ms
from agent.replication.protocol.topics import subscription_to

RETRY_MS_MIN, RETRY_MS_MAX = 500, 5_000
"""Wait between two attempts in ms. A returned broker is found within seconds. 500 nodes without a broker make 130
attempts a second, one SYN and its refusal each; because half of the wait is random, they reconnect over two and a half
seconds."""
REASONS_LOGGED_MAX = 16
"""Different reasons logged during one outage, so that a library that words each error differently cannot fill the
log."""
REFUSALS_UNTIL_ERROR = 3
"""Refused connections in a row after which an error is logged: waiting will not help."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """Counters and state of a link since it was created. `down_reason` is None while it is up."""

    is_up: bool
    connects: int
    failures: int
    unsolicited: int
    """Messages that belong to no route or to no open request."""
    down_reason: str | None
    needs_person: bool = False
    """The link is down for a reason that does not pass by itself: the identity is unusable, or the broker keeps
    refusing it."""
    identity_trouble: str = ""
    identity_ends: datetime | None = None


class LinkHistory:
    """What has become of a link: its losses, logged once each, and its counters."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self.down_reason: str | None = "not connected yet"
        self.connects = 0
        self.failures = 0
        self.unsolicited = 0
        self._refusals = 0  # in a row
        self._reasons_logged = set[str]()  # during this outage
        self._is_identity_unusable = False

    @property
    def needs_person(self) -> bool:
        """Whether the link is down for a reason that does not pass by itself."""
        return self._is_identity_unusable or self._refusals >= REFUSALS_UNTIL_ERROR

    def connected(self) -> None:
        _log.info("broker_connected", extra={"broker": self._broker, "after": self.down_reason})
        self.connects += 1
        self._refusals = 0
        self._is_identity_unusable = False
        self._reasons_logged.clear()
        self.down_reason = None

    def lost(self, reason: ReplicationError | None) -> None:
        """Without a reason the connection is replaced by one with a new identity."""
        if reason is not None:
            _log.warning("broker_lost", extra={"broker": self._broker, "reason": str(reason)})
        self.down_reason = "a new identity is being taken over" if reason is None else str(reason)

    def failed(self, error: ReplicationError) -> None:
        """There is no connection."""
        self.failures += 1
        # A single refusal may be a broker that is stopping; several in a row mean that it refuses this certificate.
        self._refusals = self._refusals + 1 if isinstance(error, ConnectionRefused) else 0
        if self._refusals == REFUSALS_UNTIL_ERROR:
            extra = {"broker": self._broker, "times": self._refusals, "reason": str(error)}
            _log.error("broker_refuses_us", extra=extra)
        self._is_identity_unusable = isinstance(error, PkiError)
        reason = re.sub(r"\d+", "", str(error))  # the text about an expired certificate has the time in it
        if reason not in self._reasons_logged and len(self._reasons_logged) < REASONS_LOGGED_MAX:
            self._reasons_logged.add(reason)
            _log.warning("broker_unreachable", extra={"broker": self._broker, "reason": str(error)})
        self.down_reason = str(error)


class BrokerLink:
    """The link to one broker for the lifetime of a node."""

    def __init__(
        self, access: Access, chance: Callable[[], float] = random.random, identity: Identity | None = None
    ) -> None:
        self.access = access
        self._identity = identity
        if identity is not None:
            identity.on_offer = self._wake
        self._changed = asyncio.Event()  # the connection ended, or a new identity is offered
        self._replacement: MqttConnection | None = None  # accepted by the broker with a new identity, not yet in use
        self._history = LinkHistory(access.name)
        self.connection: MqttConnection | None = None
        self._chance = chance
        self.instance = secrets.token_hex(8)  # of this node, for the answers of all peers
        self._routes: dict[str, Callable[[Incoming], None]] = {}
        self._watchers: list[tuple[Callable[[], None], Callable[[str], None]]] = []
        self._up = asyncio.Event()
        self._is_running = False

    def route(self, topic: str, handler: Callable[[Incoming], None]) -> None:
        """Call `handler` with each message on `topic`. The handler must neither block nor raise."""
        assert not self._is_running, "routes are fixed before the link runs"
        assert topic not in self._routes, topic
        self._routes[topic] = handler

    def watch(self, on_up: Callable[[], None], on_down: Callable[[str], None]) -> None:
        """Call `on_up` after each connect, when all topics are subscribed, and `on_down` with the reason when it is
        lost."""
        self._watchers.append((on_up, on_down))
        if self.connection is not None:
            on_up()

    async def wait_up(self) -> None:
        """Return when the link is up."""
        await self._up.wait()

    def require(self) -> MqttConnection:
        """The present connection. Raises ConnectionLost if there is none."""
        if self.connection is None:
            raise ConnectionLost(str(self.access), self._history.down_reason or "not connected")
        return self.connection

    def is_behind(self) -> bool:
        """Whether messages have arrived that were not read yet."""
        return self.connection is not None and self.connection.is_behind()

    def count_unsolicited(self) -> None:
        """Count a message that belongs to no open request."""
        self._history.unsolicited += 1

    def statistics(self) -> LinkStatistics:
        """Counters and state."""
        identity, history = self._identity, self._history
        return LinkStatistics(
            self.connection is not None,
            history.connects,
            history.failures,
            history.unsolicited,
            history.down_reason,
            history.needs_person,
            "" if identity is None else identity.problem,
            None if identity is None else identity.expires,
        )

    async def run(self) -> None:
        """Connect, and reconnect after each loss, until cancelled."""
        self._is_running = True
        tries = 0
        while True:
            connection, self._replacement = self._replacement, None
            try:
                if connection is None:
                    connection = await self._open()
                refused = await connection.subscribe(sorted({subscription_to(topic) for topic in self._routes}))
                tries = 0
                self._begin_use(connection)
                for topic in refused:
                    _log.warning("subscription_refused", extra={"broker": self.access.name, "topic": topic})
                await self._wait_until_over(connection)
            except ReplicationError as error:  # not connected, or lost while subscribing
                self._history.failed(error)
            finally:
                self.connection = None
                self._up.clear()
                if connection is not None:
                    await connection.close()
            if self._replacement is None:
                await asyncio.sleep(backoff_ms(RETRY_MS_MIN, RETRY_MS_MAX, tries, self._chance()) / 1000)
                tries += 1

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect once for the duration of the block, instead of `run`: for commands. Raises TransportError."""
        self._is_running = True
        connection = await MqttConnection.open(self.access, self._dispatch)
        try:
            await connection.subscribe(sorted({subscription_to(topic) for topic in self._routes}))
            self.connection = connection
            yield
        finally:
            self.connection = None
            await connection.close()

    async def _open(self) -> MqttConnection:
        """Connect with the identity to try now, and report to it whether broker and node accept each other."""
        try:
            connection = await MqttConnection.open(self.access, self._dispatch)
        except (ConnectionRefused, BrokerUntrusted) as error:
            if self._identity is not None:
                self._identity.refused(str(error))
            raise
        if self._identity is not None:
            self._identity.accepted()
        return connection

    async def _wait_until_over(self, connection: MqttConnection) -> None:
        """Return when the connection has ended, or when a connection with a new identity is ready to replace it."""
        connection.closed.add_done_callback(lambda _: self._wake())
        while not connection.closed.done():
            self._changed.clear()
            if self._identity is not None and self._identity.is_offered:
                # The present connection carries traffic until the broker has accepted the new identity
                # (docs/decisions/0035).
                try:
                    self._replacement = await self._open()
                except ReplicationError as error:  # the present connection stays
                    _log.debug("identity_not_taken_over", extra={"broker": self.access.name, "reason": str(error)})
                else:
                    self._end_use(None)
                    return
            await self._changed.wait()
        self._end_use(connection.closed.result())

    def _wake(self) -> None:
        self._changed.set()

    def _dispatch(self, message: Incoming) -> None:
        handler = self._routes.get(message.topic)
        if handler is None:
            self.count_unsolicited()
        else:
            handler(message)

    def _begin_use(self, connection: MqttConnection) -> None:
        self._history.connected()
        self.connection = connection
        self._up.set()
        for on_up, _ in self._watchers:
            on_up()

    def _end_use(self, reason: ReplicationError | None) -> None:
        self._history.lost(reason)
        self.connection = None
        for _, on_down in self._watchers:
            on_down(self._history.down_reason or "")
