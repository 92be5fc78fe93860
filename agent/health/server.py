"""Shell around page.py: a small HTTP server on the node's own event loop.

One request per connection, with limits on bytes, time and connections, so that a stuck or hostile client costs little
and never delays the node. It listens on loopback by default and has no authentication: `listen_host` decides who can
reach it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agent.errors import BsfgError
from agent.health.page import END_OF_REQUEST, REQUEST_BYTES_MAX, answer
from agent.health.snapshot import NodeSnapshot

CONNECTIONS_MAX = 16  # a scraper, a load balancer and a few operators
REQUEST_TIMEOUT_S = 5.0
BACKLOG_MAX = 16

log = logging.getLogger(__name__)


class HealthPageUnavailable(BsfgError):
    """The page cannot be served where the settings ask for it."""


async def serve(
    listen_host: str, port: int, snapshot: Callable[[], NodeSnapshot], ready: Callable[[int], None] | None = None
) -> None:
    """Serve until cancelled. `ready` is called with the port once it listens (port 0 takes a free one). Raises
    HealthPageUnavailable."""
    open_connections: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(open_connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        open_connections.add(writer)
        try:
            await _exchange(reader, writer, snapshot)
        finally:
            open_connections.discard(writer)
            writer.close()

    try:
        server = await asyncio.start_server(
            connected, listen_host, port, limit=REQUEST_BYTES_MAX, backlog=BACKLOG_MAX, reuse_address=True
        )
    except (OSError, OverflowError) as error:
        raise HealthPageUnavailable(f"health page: cannot listen on {listen_host} port {port}: {error}") from error
    listening = server.sockets[0].getsockname()[1]
    log.info("health_page_listening", extra={"host": listen_host, "port": listening})
    try:
        if ready:
            ready(listening)
        await asyncio.get_running_loop().create_future()  # until cancelled; it serves already
    finally:
        server.close()  # not by `async with server`: from Python 3.12 on that waits for clients
        for writer in open_connections:
            writer.transport.abort()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, snapshot: Callable[[], NodeSnapshot]
) -> None:
    """One request and its answer. A client that leaves, stalls or sends too much affects only its own connection."""
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            try:
                request = await reader.readuntil(END_OF_REQUEST)
            except asyncio.IncompleteReadError as error:
                request = error.partial
            except asyncio.LimitOverrunError:
                # Above the limit, so the answer says that it is too long.
                request = await reader.read(REQUEST_BYTES_MAX) + bytes(REQUEST_BYTES_MAX)
            if request:
                writer.write(answer(request, snapshot))
                await writer.drain()
    except (TimeoutError, OSError) as error:
        log.debug("health_page_client_gone", extra={"why": repr(error)})
