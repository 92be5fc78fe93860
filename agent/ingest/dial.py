"""Connects to the host of a source, by its name or address.

A name server that does not answer blocks for half a minute, or answers after five seconds. This holds up no other
source, and is no part of the time in which the device must answer. A host with several addresses is tried at each of
them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from agent.concurrency import in_own_thread, timeout

LOOK_UP_S_MAX = 60.0
_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order in which to try them. Raises OSError."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = ask(flags=socket.AI_NUMERICHOST)  # which asks no name server
    except socket.gaierror:
        try:
            async with timeout(LOOK_UP_S_MAX):
                found = await in_own_thread(ask, name="bsfg-look-up")
        except TimeoutError as error:
            raise socket.gaierror(socket.EAI_AGAIN, "the name server does not answer") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def dial(
    make_protocol: Callable[[], _Protocol], addresses: Sequence[str], port: int, limit_s: float, **tls: Any
) -> tuple[asyncio.Transport, _Protocol]:
    """Connect to the first of the addresses that answers. Each has its share of the time that is left. Raises OSError,
    that of the last one, also for the time."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    for number, address in enumerate(addresses, 1):
        try:
            async with timeout((end_s - loop.time()) / (len(addresses) - number + 1)):
                return await loop.create_connection(make_protocol, address, port, **tls)
        except OSError:
            if number == len(addresses):
                raise
    raise AssertionError("a host has an address")
