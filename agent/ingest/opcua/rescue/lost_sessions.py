"""Closes the sessions of the connections that broke, with the subscriptions that are left in them.

A server keeps such a session until its time-out, and its subscriptions for two minutes: also one whose number never
came, since the connection broke ahead of the answer, and one that it hands over to no other session. Where there is
room for few, they shut this source out. So each lost session is activated on a short connection of its own and closed
with its subscriptions, once what they hold was taken over (`rescue`): beside the live values, or as soon as the server
has no room.

What a server refuses costs nothing but that connection. A server that ends the session with values for it is not asked
again. One that was started again does not have these sessions: their tokens may be another client's by now, or the
present session's (asyncua counts from 1,001 at each start).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agent.ingest.errors import SourceError
from agent.ingest.opcua.security.client import SessionKey
from agent.ingest.opcua.session import Session

log = logging.getLogger(__name__)

CLOSE_S = 5.0  # for each session
SESSIONS_MAX = 4  # the newest: a server keeps a dead session for half a minute
STABLE_S = 10.0  # a session that lives on for so long was not ended for another one
VAIN_LIVES_MAX = 3  # in a row that did not live on


class LostSessions:
    """The sessions of one source. Outlives them. `close` closes one over a connection of its own."""

    def __init__(self, close: Callable[[SessionKey], Awaitable[None]]) -> None:
        self._close_one = close
        self._present: Session | None = None
        self._started: object = None
        self._lost: list[SessionKey] = []
        self._vain_lives, self._has_asked = 0, False
        self._closing = asyncio.Lock()

    def begin(self, session: Session, started: object) -> None:
        """A session was opened at a server that was started then, in its own words; None if it does not say. The one
        before it is lost, unless it was closed."""
        if self._present is not None and (key := self._present.key) is not None:
            self._lost = [*self._lost, key][-SESSIONS_MAX:]
        if started is None or started != self._started:
            self._lost.clear()
        self._present, self._started, self._has_asked = session, started, False

    async def close(self) -> None:
        """Close those that are lost. What is wanted of them was taken over."""
        async with self._closing:
            if self._vain_lives == VAIN_LIVES_MAX:
                self._lost.clear()
            if self._lost and not self._has_asked:
                self._vain_lives, self._has_asked = self._vain_lives + 1, True
            while self._lost:
                try:
                    async with asyncio.timeout(CLOSE_S):
                        await self._close_one(self._lost[-1])
                except (SourceError, TimeoutError) as error:
                    extra = {"action": "session_not_closed", "why": str(error)}
                    log.debug("a lost session is left to its time-out", extra=extra)
                self._lost.pop()  # a life that ends meanwhile leaves it to the next one

    async def run(self) -> None:
        """Close them beside the live values, and see whether these go on."""
        await self.close()
        await asyncio.sleep(STABLE_S)
        if self._has_asked:
            self._vain_lives = 0
