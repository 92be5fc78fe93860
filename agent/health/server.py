"""Shell around page.py: a small HTTP server on the node's own event loop.

One request per connection, with limits on bytes, time and connections, so that a stuck or hostile client costs little
and never delays the node. If it cannot listen where it should, it listens on a free port of loopback and tries again: a
health page keeps no node from its work. When an address has its share of connections, or all connections are in use, a
new client replaces the oldest one, so half-open requests cannot block other clients. It listens on loopback by default
and has no authentication: `listen_host` decides who can reach it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agent.concurrency import timeout
from agent.health.address import OPEN_HINT, PORT_FILE, is_open_to_others
from agent.health.page import END_OF_REQUEST, REQUEST_BYTES_MAX, answer
from agent.health.snapshot import NodeSnapshot

CONNECTIONS_MAX = 16  # a scraper, a load balancer and a few operators
CONNECTIONS_OF_ADDRESS_MAX = 4  # so that one address cannot take all connections
REQUEST_TIMEOUT_S = 3.0
MOVE_BACK_S = 30.0  # how soon its own address is tried again
BACKLOG_MAX = 128  # a full one costs a new client a second, until it repeats its first packet

log = logging.getLogger(__name__)


def note_port(state_dir: Path, port: int) -> None:
    """Write the port to the state folder, where commands find it. A failure is only logged; the log has the port
    too."""
    try:
        (state_dir / PORT_FILE).write_text(f"{port}\n")
        (state_dir / PORT_FILE).chmod(0o640)  # members of the node's group may ask for its state
    except OSError as error:
        log.warning("health_port_not_noted", extra={"file": str(state_dir / PORT_FILE), "why": str(error)})


async def serve(
    listen_host: str,
    port: int,
    snapshot: Callable[[], NodeSnapshot],
    ready: Callable[[int, str], None] = lambda *_: None,
) -> None:
    """Serve until cancelled. `ready` is called with the port once it listens (port 0 takes a free one), and with why
    that is another one than asked for."""
    open_connections: dict[asyncio.StreamWriter, str] = {}  # with their address, the oldest first

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("",))[0])
        # A complete request is answered at once, so a connection that is still open is silent or does not read.
        of_address = [one for one, theirs in open_connections.items() if theirs == address]
        for oldest, limit in ((of_address, CONNECTIONS_OF_ADDRESS_MAX), (list(open_connections), CONNECTIONS_MAX)):
            if len(oldest) >= limit:
                oldest[0].transport.abort()
                open_connections.pop(oldest[0], None)
        open_connections[writer] = address
        try:
            await _exchange(reader, writer, snapshot)
        finally:
            open_connections.pop(writer, None)
            writer.close()

    async def listen(host: str, port: int, why: str = "") -> asyncio.Server:
        server = await asyncio.start_server(
            connected, host, port, limit=REQUEST_BYTES_MAX, backlog=BACKLOG_MAX, reuse_address=True
        )
        listening = server.sockets[0].getsockname()[1]
        log.info("health_page_listening", extra={"host": host, "port": listening})
        if is_open_to_others(host):
            log.warning("health_page_open", extra={"host": host, "hint": OPEN_HINT})
        ready(listening, why and f"{why}; it is at {host} port {listening} meanwhile")
        return server

    why = ""
    try:
        server = await listen(listen_host, port)
    except (OSError, OverflowError) as error:
        why = f"cannot listen on {listen_host} port {port}: {_reason(error)}"
        log.error("health_page_moved", extra={"why": why})  # noqa: TRY400 no trace
        server = await listen("127.0.0.1", 0, why)
    try:
        while why:
            await asyncio.sleep(MOVE_BACK_S)
            with suppress(OSError, OverflowError):
                moved_back = await listen(listen_host, port)
                server.close()
                server, why = moved_back, ""
        await asyncio.get_running_loop().create_future()  # until cancelled; it serves already
    finally:
        server.close()  # not by `async with server`: from Python 3.12 on that waits for clients
        for writer in open_connections:
            writer.transport.abort()


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, snapshot: Callable[[], NodeSnapshot]
) -> None:
    """One request and its answer. A client that leaves, stalls or sends too much affects only its own connection."""
    try:
        async with timeout(REQUEST_TIMEOUT_S):
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
