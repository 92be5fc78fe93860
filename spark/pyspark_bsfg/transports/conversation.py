"""Shell: requests to one node from a thread that may block, as Spark's is, answered one after another.

The connection has a thread and an event loop of its own, so that keep-alives are sent and the next page arrives while
Spark's thread decodes. It is made with the first request and made again after a loss; a request without an answer is
sent again, so only requests that may be carried out twice belong here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading  # tidy: the event loop of MQTT stands beside the thread that Spark calls
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from agent.replication.mqtt import Access, Reply, Requester, converse
from agent.replication.protocol.errors import MalformedMessage, PeerRefused, ReplicationError
from agent.replication.protocol.messages import Request

REQUESTS_WAITING_MAX = 4  # a page is fetched ahead of the one that is decoded
CLOSE_S_MAX = 10.0


class _Asked(NamedTuple):
    request: Request
    answered: Future[Reply]


class Conversation:
    """Requests to `peer`. Each is tried `attempts` times in a row, with a pause that grows to 2 s, and waits
    `timeout_s` for its answer each time."""

    def __init__(self, access: Access, peer: str, timeout_s: float, attempts: int) -> None:
        self._access, self._peer, self._timeout_s, self._attempts = access, peer, timeout_s, attempts
        self._loop = asyncio.new_event_loop()
        self._waiting: asyncio.Queue[_Asked] = asyncio.Queue(REQUESTS_WAITING_MAX)
        self._now: _Asked | None = None
        self._task: Future[None] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="bsfg-mqtt", daemon=True)
        self._thread.start()

    def ask(self, request: Request) -> Future[Reply]:
        """Send a request when those before it are answered. The future raises PeerRefused, MalformedMessage or
        TransportError, which ends the conversation for all that follow."""
        asked = _Asked(request, Future())
        if self._task is None or self._task.done():
            self._task = asyncio.run_coroutine_threadsafe(self._converse(), self._loop)
        asyncio.run_coroutine_threadsafe(self._waiting.put(asked), self._loop).result()
        return asked.answered

    def close(self) -> None:
        """End the connection; requests that wait are dropped."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(CancelledError, ReplicationError, TimeoutError):
                asyncio.run_coroutine_threadsafe(_ended(self._loop), self._loop).result(CLOSE_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S_MAX)
        if not self._loop.is_running():
            self._loop.close()

    async def _converse(self) -> None:
        """Answer requests until one fails for good; that one, and those that wait, get its error."""
        try:
            await converse(self._access, self._peer, self._answer_all, attempts=self._attempts)
        except ReplicationError as error:
            if self._now is not None:
                self._now.answered.set_exception(error)
            while not self._waiting.empty():
                self._waiting.get_nowait().answered.set_exception(error)
            self._now = None

    async def _answer_all(self, requester: Requester, progress: Callable[[], None]) -> None:
        while True:
            if self._now is None:
                self._now = await self._waiting.get()
            try:
                reply = await requester.ask(self._now.request, self._timeout_s)
            except (PeerRefused, MalformedMessage) as error:
                if isinstance(error, PeerRefused) and error.retryable and error.code != "epoch_changed":
                    raise
                self._now.answered.set_exception(error)
            else:
                self._now.answered.set_result(reply)
            progress()
            self._now = None


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until what was cancelled has ended, its connection closed."""
    others = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    await asyncio.wait(others) if others else None
