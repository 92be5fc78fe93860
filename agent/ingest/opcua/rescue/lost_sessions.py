"""Closes the sessions of broken connections, with the subscriptions that are left in them.

A server keeps such a session until its time-out, and its subscriptions for two minutes. That includes a subscription
whose number is not known, because the connection broke before the answer, and one that the server transfers to no other
session. If the server has little room, they keep this source out. So each lost session is activated over a short
connection of its own and closed with its subscriptions, after what they hold was taken over (`rescue`): beside the live
values, or as soon as the server has no room.

A refusal costs only that connection. If the server ends the session with the values because of it, it is not asked
again. A server that was restarted does not have these sessions: their tokens may be those of another client by now, or
of the present session (asyncua counts from 1,001 at each start).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agent.concurrency import timeout
from agent.ingest.errors import SourceError
from agent.ingest.opcua.security.client import SessionKey
from agent.ingest.opcua.session import Session

log = logging.getLogger(__name__)

CLOSE_S = 5.0  # for each session
SESSIONS_MAX = 4  # the newest: a server keeps a dead session for half a minute
STABLE_S = 10.0  # if the present session lasts this long, closing did not end it
VAIN_LIVES_MAX = 3  # lives in a row that ended earlier after closing


class LostSessions:
    """The lost sessions of one source. `close` closes one over a connection of its own."""

    def __init__(self, close: Callable[[SessionKey], Awaitable[None]]) -> None:
        self._close_one = close
        self._present: Session | None = None
        self._started: object = None
        self._lost: list[SessionKey] = []
        self._vain_lives, self._has_asked = 0, False
        self._closing = asyncio.Lock()

    def begin(self, session: Session, started: object) -> None:
        """A session was opened at a server with this StartTime (None if it gives none). The previous one is lost,
        unless it was closed."""
        if self._present is not None and (key := self._present.key) is not None:
            self._lost = [*self._lost, key][-SESSIONS_MAX:]
        if started is None or started != self._started:
            self._lost.clear()
        self._present, self._started, self._has_asked = session, started, False

    async def close(self) -> None:
        """Close the lost sessions. What they hold was taken over before."""
        async with self._closing:
            if self._vain_lives == VAIN_LIVES_MAX:
                self._lost.clear()
            if self._lost and not self._has_asked:
                self._vain_lives, self._has_asked = self._vain_lives + 1, True
            while self._lost:
                try:
                    async with timeout(CLOSE_S):
                        await self._close_one(self._lost[-1])
                except (SourceError, TimeoutError) as error:
                    extra = {"action": "session_not_closed", "why": str(error)}
                    log.debug("a lost session is left to its time-out", extra=extra)
                self._lost.pop()  # not before, so that the next life closes it if this one ends here

    async def run(self) -> None:
        """Close the lost sessions alongside the live values, and watch whether the present session lasts."""
        await self.close()
        await asyncio.sleep(STABLE_S)
        if self._has_asked:
            self._vain_lives = 0
