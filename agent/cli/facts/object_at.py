"""Artifacts put to another node, or got from it: chunk after chunk over one connection, which is made again when it was lost.

A module of its own, imported when somebody asks a peer, so that what lies here need not wait for what speaks MQTT to load.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from agent.cli.ask_peer import access_to
from agent.config import NodeSettings
from agent.replication.mqtt import ATTEMPTS, RETRY_MS_MAX, RETRY_MS_MIN, Requester, open_requester
from agent.replication.protocol.errors import MalformedMessage, PeerRefused, TransportError
from agent.replication.protocol.messages import (
    CHUNK_BYTES_MAX,
    PUT_BYTES_MAX,
    GetObject,
    ObjectAnswer,
    PutAnswer,
    PutObject,
)
from agent.replication.protocol.pacing import backoff_ms

Feed = Callable[[Callable[[int, bytes], Awaitable[tuple[int, bool]]], int], Awaitable[None]]
"""Sends a file by a way to send chunks of so many bytes at most."""


def put_at(settings: NodeSettings, zone: str, feed: Feed, digest: str, size: int, answer_s: float) -> None:
    """Put an artifact to the node of `zone`. Raises PeerRefused, MalformedMessage or TransportError."""

    async def talk(asker: Requester, progress: Callable[[], None]) -> None:
        async def send(offset: int, data: bytes) -> tuple[int, bool]:
            request = PutObject(digest=digest, size=size, offset=offset, data=data)
            answer = (await asker.ask(request, answer_s)).answer
            if not isinstance(answer, PutAnswer):
                raise MalformedMessage(f"{zone} gave another answer than to PutObject")
            if data:
                progress()
            return answer.received, answer.is_complete

        await feed(send, PUT_BYTES_MAX)

    asyncio.run(_persistently(settings, zone, talk))


def get_from(settings: NodeSettings, zone: str, digest: str, write: Callable[[bytes], int], answer_s: float) -> int:
    """Write the bytes that the node of `zone` has; how many. Raises PeerRefused, MalformedMessage or TransportError."""
    offset, size = 0, 1

    async def talk(asker: Requester, progress: Callable[[], None]) -> None:
        nonlocal offset, size
        while offset < size:
            reply = await asker.ask(GetObject(digest=digest, offset=offset, bytes_max=CHUNK_BYTES_MAX), answer_s)
            answer = reply.answer
            if not isinstance(answer, ObjectAnswer) or answer.offset != offset or not reply.batches:
                raise MalformedMessage(f"{zone} answered no bytes at {offset}")
            size = answer.size
            offset += write(b"".join(reply.batches))
            progress()

    asyncio.run(_persistently(settings, zone, talk))
    return offset


async def _persistently(
    settings: NodeSettings,
    zone: str,
    talk: Callable[[Requester, Callable[[], None]], Awaitable[None]],
    chance: Callable[[], float] = random.random,
) -> None:
    """Talk, and when that broke off talk again, until it comes to nothing several times in a row."""
    access, failures = access_to(settings, zone), 0

    def progress() -> None:
        nonlocal failures
        failures = 0

    while True:
        try:
            async with open_requester(access, zone) as asker:
                return await talk(asker, progress)
        except (PeerRefused, TransportError) as error:
            failures += 1
            if not error.retryable or failures == ATTEMPTS:
                raise
        await asyncio.sleep(backoff_ms(RETRY_MS_MIN, RETRY_MS_MAX, failures - 1, chance()) / 1000)
