"""Requests to one peer over a link: sends them, and delivers each answer to its request.

An answer belongs to a request if it arrives on the requester's own response topic, where the broker lets only the peer
publish, and carries the request's correlation: sixteen random bytes that only this node, the broker and the peer have
seen. Each answer is delivered once. A request that timed out stays known for a while, because its answer may still be
useful to the caller (see `receiver`); when too many are open, the oldest are forgotten first.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from agent.concurrency import timeout
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import BrokerLink
from agent.replication.protocol.codec import (
    ArrivedAnswer,
    RefusesMessage,
    accept_every_message,
    decode_heartbeat,
    encode_request,
)
from agent.replication.protocol.errors import MalformedMessage, PeerRefused, TransportError, UnprovenAnswer
from agent.replication.protocol.messages import CHANGING, Answer, ErrorAnswer, FetchFacts, Request
from agent.replication.protocol.pacing import backoff_ms
from agent.replication.protocol.topics import request_topic, response_topic
from agent.signing.messages import MessagePlace, MessageProof, sign_request

REQUESTS_KNOWN_MAX = 256
"""Open requests that are remembered: a few dozen for each stream that is pulled."""
CORRELATION_BYTES = 16
ATTEMPTS = 3
RETRY_MS_MIN, RETRY_MS_MAX = 250, 2_000

OnAnswer = Callable[[ArrivedAnswer], None]
_T = TypeVar("_T")


class _OpenRequest(NamedTuple):
    on_answer: OnAnswer
    on_heartbeat: Callable[[], None]


class PeerReply(NamedTuple):
    """A good answer, its batches, and the size of both on the wire in bytes."""

    answer: Answer
    batches: list[bytes]
    bytes: int = 0


class Requester:
    """Sends requests of the link's node to `peer_node`. Must be created before the link runs. `refuses_answer` says
    why an answer is not proven to be the peer's."""

    def __init__(self, link: BrokerLink, peer_node: str, refuses_answer: RefusesMessage = accept_every_message) -> None:
        self.peer_node = peer_node
        self._refuses_answer = refuses_answer
        self.link = link
        own_node = link.access.node
        self._request_topic = request_topic(peer_node, own_node)
        self._response_topic = response_topic(peer_node, own_node, link.instance)
        self._open: OrderedDict[bytes, _OpenRequest] = OrderedDict()
        link.route(self._response_topic, self._answered)

    def send(
        self, request: Request, on_answer: OnAnswer, expiry_s: int, on_heartbeat: Callable[[], None] = lambda: None
    ) -> asyncio.Future[None]:
        """Send a request that the broker drops after `expiry_s` seconds. `on_answer` is called with the answer, once,
        and before that with any answer that turns out to be unproven when opened; `on_heartbeat` whenever the peer says
        that the request waits there.

        The future completes when the broker has acknowledged the request, or fails with a TransportError.
        """
        correlation = secrets.token_bytes(CORRELATION_BYTES)
        payload, signer = encode_request(request), self.link.access.signer()
        if signer is not None and type(request) in CHANGING:
            payload = sign_request(signer, self._place(correlation), payload)
        acknowledged = self.link.require().publish_request(
            self._request_topic, payload, self._response_topic, correlation, expiry_s
        )
        self._open[correlation] = _OpenRequest(on_answer, on_heartbeat)
        if len(self._open) > REQUESTS_KNOWN_MAX:
            self._open.popitem(last=False)
        return acknowledged

    async def ask(self, request: Request, timeout_s: float) -> PeerReply:
        """Send a request and wait for its answer. Raises PeerRefused, MalformedMessage or TransportError."""
        answered: asyncio.Future[PeerReply | PeerRefused | MalformedMessage] = (
            asyncio.get_running_loop().create_future()
        )
        unproven: UnprovenAnswer | None = None

        def on_answer(arrived: ArrivedAnswer) -> None:
            nonlocal unproven
            if answered.done():  # a late answer finds the future cancelled by the time-out
                return
            try:
                answered.set_result(_opened(arrived))
            except UnprovenAnswer as error:
                unproven = error

        wait_s = request.wait_ms / 1000 if isinstance(request, FetchFacts) else 0.0
        try:
            async with timeout(wait_s + timeout_s):
                await self.send(request, on_answer, int(wait_s + timeout_s) + 1)
                found = await answered
        except TimeoutError as error:
            if unproven is not None:
                raise unproven from error
            raise TransportError(self.peer_node, f"no answer in {timeout_s:g} s", "Is the peer overloaded?") from error
        if isinstance(found, PeerReply):
            return found
        raise found

    def _answered(self, incoming: Incoming) -> None:
        # A retained message is not an answer to anything: the broker repeats it at each subscription.
        correlation = incoming.correlation or b""
        found = None if incoming.is_retained else self._open.pop(correlation, None)
        if found is not None:
            refuses = partial(self._refuses, found)
            found.on_answer(ArrivedAnswer(incoming.payload, self._place(correlation), refuses))
        elif correlation or incoming.is_retained or not (named := decode_heartbeat(incoming.payload)):
            self.link.count_unsolicited()
        else:
            for waiting in (self._open[name] for name in named if name in self._open):
                waiting.on_heartbeat()

    def _refuses(
        self, request: _OpenRequest, place: MessagePlace, answer: bytes | memoryview, proof: MessageProof | None
    ) -> str | None:
        why = self._refuses_answer(place, answer, proof)
        if why is not None:
            self._open[place.correlation] = request  # the peer's own answer may still come (0052)
        return why

    def _place(self, correlation: bytes) -> MessagePlace:
        return MessagePlace(self.peer_node, self.link.access.node, self.link.instance, correlation)


def _opened(arrived: ArrivedAnswer) -> PeerReply | PeerRefused | MalformedMessage:
    """An answer, or the exception to raise for it. Raises UnprovenAnswer."""
    try:
        answer, batches = arrived.open()
    except MalformedMessage as error:
        return error
    if isinstance(answer, ErrorAnswer):
        return peer_refused(arrived.place.serving_node, answer)
    return PeerReply(answer, batches, len(arrived.payload))


def peer_refused(node: str, answer: ErrorAnswer) -> PeerRefused:
    """An error answer as an exception."""
    error = answer.error
    return PeerRefused(node, error.code, error.message, error.hint, retryable=error.retryable)


@asynccontextmanager
async def open_requester(
    access: Access, peer_node: str, refuses_answer: RefusesMessage = accept_every_message
) -> AsyncIterator[Requester]:
    """A requester with a connection of its own, for commands. Raises TransportError if the broker cannot be reached.

    Client id and response topic are random, so the running node is not disturbed.
    """
    link = BrokerLink(access)
    requester = Requester(link, peer_node, refuses_answer)
    async with link.connected():
        yield requester


async def converse(
    access: Access,
    peer_node: str,
    conversation: Callable[[Requester, Callable[[], None]], Awaitable[_T]],
    chance: Callable[[], float] = random.random,
    attempts: int = ATTEMPTS,
    refuses_answer: RefusesMessage = accept_every_message,
) -> _T:
    """Connect, carry out the conversation, disconnect; again after a retryable error, until `attempts` fail in a row
    without progress, which the conversation reports by calling its second argument.

    Raises the last error: PeerRefused, MalformedMessage or TransportError. Only for requests that may be carried out
    twice, because an answer may be lost after the peer has acted."""
    failures = 0

    def progress() -> None:
        nonlocal failures
        failures = 0

    while True:
        try:
            async with open_requester(access, peer_node, refuses_answer) as requester:
                return await conversation(requester, progress)
        except (PeerRefused, TransportError) as error:
            failures += 1
            if not error.retryable or failures == attempts:
                raise
        await asyncio.sleep(backoff_ms(RETRY_MS_MIN, RETRY_MS_MAX, failures - 1, chance()) / 1000)


async def ask_once(
    access: Access,
    peer_node: str,
    request: Request,
    answer_s: float,
    refuses_answer: RefusesMessage = accept_every_message,
) -> PeerReply:
    """Ask `peer_node` on a connection of its own, as `converse`; each attempt waits `answer_s` seconds."""
    return await converse(
        access, peer_node, lambda requester, _: requester.ask(request, answer_s), refuses_answer=refuses_answer
    )
