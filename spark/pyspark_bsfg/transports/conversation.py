"""Shell: requests to one node, answered one after another, from a thread that may block, as Spark's does.

The connection has a thread and an event loop of its own, so that keep-alives are sent and the next page arrives while
Spark's thread decodes. It is opened for the first request, opened again after a loss, and closed after a while without
requests. A request without an answer is sent again, so only requests that may be carried out twice are allowed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading  # tidy: the event loop of MQTT runs in a thread of its own, next to the one that Spark calls
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from agent.concurrency import timeout
from agent.replication.mqtt import Access, PeerReply, Requester, converse
from agent.replication.protocol.codec import RefusesMessage
from agent.replication.protocol.errors import MalformedMessage, PeerRefused, ReplicationError
from agent.replication.protocol.messages import Request

REQUESTS_WAITING_MAX = 4  # one page is fetched ahead of the one that is decoded
CLOSE_S_MAX = 10.0
IDLE_S_MAX = 5.0  # longer than between two micro-batches; then the connection is free for another worker


class _Asked(NamedTuple):
    request: Request
    answered: Future[PeerReply]


class Conversation:
    """Requests to `peer`. Each is tried up to `attempts` times, with pauses that grow to 2 s, and waits `timeout_s` for
    its answer each time."""

    def __init__(
        self, access: Access, peer: str, timeout_s: float, attempts: int, refuses_answer: RefusesMessage
    ) -> None:
        self._access, self._peer, self._timeout_s, self._attempts = access, peer, timeout_s, attempts
        self._refuses_answer = refuses_answer
        self._waiting: asyncio.Queue[_Asked] = asyncio.Queue(REQUESTS_WAITING_MAX)
        self._now: _Asked | None = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bsfg-mqtt", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it answers requests."""
        return self._thread.is_alive()

    def ask(self, request: Request) -> Future[PeerReply]:
        """Send a request when those before it are answered. The future raises PeerRefused, MalformedMessage or
        TransportError; requests that wait behind a failed connection fail with it."""
        asked = _Asked(request, Future())
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, asked)
        return asked.answered

    def close(self) -> None:
        """End the connection; requests that wait are cancelled."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        """Connect for the first request, and again for the next one after a failure."""
        main = asyncio.current_task()
        assert main is not None
        self._loop, self._main = asyncio.get_running_loop(), main
        self._is_ready.set()
        try:
            while True:
                self._now = await self._waiting.get()
                try:
                    await converse(
                        self._access,
                        self._peer,
                        self._answer_all,
                        attempts=self._attempts,
                        refuses_answer=self._refuses_answer,
                    )
                except ReplicationError as error:
                    for asked in self._unanswered():
                        asked.answered.set_exception(error)
        finally:
            for asked in self._unanswered():
                asked.answered.cancel()

    def _unanswered(self) -> Iterator[_Asked]:
        if self._now is not None:
            asked, self._now = self._now, None
            yield asked
        while not self._waiting.empty():
            yield self._waiting.get_nowait()

    async def _answer_all(self, requester: Requester, progress: Callable[[], None]) -> None:
        while True:
            if self._now is None:
                try:
                    async with timeout(IDLE_S_MAX):
                        self._now = await self._waiting.get()
                except TimeoutError:
                    return
            try:
                reply = await requester.ask(self._now.request, self._timeout_s)
            except (PeerRefused, MalformedMessage) as error:
                if isinstance(error, PeerRefused) and error.retryable and error.code != "life_unknown":
                    raise
                self._now.answered.set_exception(error)
            else:
                self._now.answered.set_result(reply)
            progress()
            self._now = None
