"""Asking one peer over a link: sends requests, and finds for each answer the one who asked.

An answer is known by its correlation, sixteen random bytes that only the peer and the broker have seen, and by its topic,
on which the broker lets only that peer write.  Each is answered once.  A request that was given up stays known for a
while, as its answer may still be of use (`receiver`); the oldest are forgotten first.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import Link
from agent.replication.protocol.codec import decode_answer, encode_request
from agent.replication.protocol.errors import PeerRefused, TransportError
from agent.replication.protocol.messages import Answer, ErrorAnswer, FetchFacts, Request
from agent.replication.protocol.pacing import backoff_ms
from agent.replication.protocol.topics import request_topic, response_topic

REQUESTS_KNOWN_MAX = 256
"""Requests whose answers would still be recognised: a few dozen for each stream pulled."""
CORRELATION_BYTES = 16

OnAnswer = Callable[[bytes], None]


class Reply(NamedTuple):
    """A good answer, its batches, and how many bytes both had on the wire."""

    answer: Answer
    batches: list[bytes]
    bytes: int = 0


class Requester:
    """Asks `peer_zone` in the name of the link's own zone.  Made before the link runs."""

    def __init__(self, link: Link, peer_zone: str) -> None:
        self.peer_zone = peer_zone
        self.link = link
        own_zone = link.access.zone
        self._request_topic = request_topic(peer_zone, own_zone)
        self._response_topic = response_topic(peer_zone, own_zone, secrets.token_hex(8))
        self._open: OrderedDict[bytes, OnAnswer] = OrderedDict()
        link.route(self._response_topic, self._answered)

    def send(self, request: Request, on_answer: OnAnswer, expiry_s: int) -> asyncio.Future[None]:
        """Send a request; `on_answer` is called with the answer's bytes, at most once, perhaps never.

        The future ends when the broker has handed the request on, or with the TransportError that kept it from it.
        """
        correlation = secrets.token_bytes(CORRELATION_BYTES)
        acknowledged = self.link.require().publish_request(
            self._request_topic, encode_request(request), self._response_topic, correlation, expiry_s
        )
        self._open[correlation] = on_answer
        if len(self._open) > REQUESTS_KNOWN_MAX:
            self._open.popitem(last=False)
        return acknowledged

    async def ask(self, request: Request, timeout_s: float) -> Reply:
        """Send a request and wait for its answer.  PeerRefused, MalformedMessage or TransportError say why there is none."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_answer(payload: bytes) -> None:
            if not answered.done():
                answered.set_result(payload)

        wait_s = request.wait_ms / 1000 if isinstance(request, FetchFacts) else 0.0
        try:
            async with asyncio.timeout(wait_s + timeout_s):
                await self.send(request, on_answer, int(wait_s + timeout_s) + 1)
                payload = await answered
                answer, batches = decode_answer(payload)
        except TimeoutError as error:
            raise TransportError(self.peer_zone, f"no answer in {timeout_s:g} s", "Is the peer overloaded?") from error
        if isinstance(answer, ErrorAnswer):
            raise peer_refused(self.peer_zone, answer)
        return Reply(answer, batches, len(payload))

    def _answered(self, incoming: Incoming) -> None:
        on_answer = self._open.pop(incoming.correlation or b"", None)
        if on_answer is None or incoming.is_retained:
            self.link.count_unsolicited()
            return
        on_answer(incoming.payload)


def peer_refused(zone: str, answer: ErrorAnswer) -> PeerRefused:
    """An error answer as an exception."""
    error = answer.error
    return PeerRefused(zone, error.code, error.message, error.hint, retryable=error.retryable)


ATTEMPTS = 3
RETRY_MS_MIN, RETRY_MS_MAX = 250, 2_000


async def ask_once(
    access: Access,
    peer_zone: str,
    request: Request,
    answer_s: float,
    attempts: int = ATTEMPTS,
    chance: Callable[[], float] = random.random,
) -> Reply:
    """The answer of `peer_zone`, each attempt given `answer_s`. Raises PeerRefused, MalformedMessage or TransportError: the last of `attempts` where it may pass,
    else the first."""
    for attempt in range(attempts):
        try:
            return await _ask(access, peer_zone, request, answer_s)
        except (PeerRefused, TransportError) as error:
            if not error.retryable or attempt == attempts - 1:
                raise
        await asyncio.sleep(backoff_ms(RETRY_MS_MIN, RETRY_MS_MAX, attempt, chance()) / 1000)
    raise AssertionError("the last attempt returns or raises")


@asynccontextmanager
async def open_requester(access: Access, peer_zone: str) -> AsyncIterator[Requester]:
    """One connection for several questions, for the length of the block. Raises TransportError where there is none."""
    link = Link(access)
    asker = Requester(link, peer_zone)
    async with link.visit():
        yield asker


async def _ask(access: Access, peer_zone: str, request: Request, answer_s: float) -> Reply:
    async with open_requester(access, peer_zone) as asker:
        return await asker.ask(request, answer_s)
