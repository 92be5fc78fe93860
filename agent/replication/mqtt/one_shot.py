"""One question to one peer, for a command that asks and leaves: connect, ask, ask again where that may help.

A connection of its own, with a client id and an answer topic of its own, so it works beside a running node of the same zone and
disturbs nobody. What may be asked so is what may be asked twice: an answer that was lost is asked for again, and the peer
cannot know that it had answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.link import Link
from agent.replication.mqtt.requester import Asker, Reply
from agent.replication.protocol import PeerRefused, Request, TransportError, delay_ms

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
        await asyncio.sleep(delay_ms(RETRY_MS_MIN, RETRY_MS_MAX, attempt, chance()) / 1000)
    raise AssertionError("the last attempt returns or raises")


@asynccontextmanager
async def visiting(access: Access, peer_zone: str) -> AsyncIterator[Asker]:
    """One connection for several questions, for the length of the block. Raises TransportError where there is none."""
    link = Link(access)
    asker = Asker(link, peer_zone)
    async with link.visit():
        yield asker


async def _ask(access: Access, peer_zone: str, request: Request, answer_s: float) -> Reply:
    async with visiting(access, peer_zone) as asker:
        return await asker.ask(request, answer_s)
