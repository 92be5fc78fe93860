"""Shell: serves the page over HTTP or HTTPS, and limits what a visitor can cost.

uvicorn speaks HTTP. It waits without limit for a request that does not come, so `BoundedProtocol` ends a connection
whose request takes too long, and replaces the oldest one when all places are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agent.concurrency import TaskGroup
from agent.errors import BsfgError
from agent.health.notify import Notifier
from agent.page.access import Users
from agent.page.app import make_app
from agent.page.sender import Sender
from agent.page.watch import Watch
from agent.settings.host import host_and_port
from agent.settings.node import NodeSettings

CONNECTIONS_MAX = 128
CONNECTIONS_OF_ADDRESS_MAX = 48
"""Open pages of one browser, or of a proxy."""
REQUEST_S_MAX = 10.0
REQUESTS_MAX = 2 * CONNECTIONS_MAX
"""At work, also for visitors that have left; more are answered with 503. Each takes memory."""
BACKLOG_MAX = 128
STOP_S = 1

log = logging.getLogger(__name__)


class PageNotServed(BsfgError):
    """The page cannot be served (the operator corrects [page])."""

    hint = "see [page] in node.toml"


class BoundedProtocol(H11Protocol):
    """One connection, with a limit on the time for a request and on the number of connections."""

    places: dict[BoundedProtocol, str] = {}  # noqa: RUF012 the oldest first; one server to a process

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place."""
        super().connection_made(transport)
        address = str((transport.get_extra_info("peername") or ("",))[0])
        of_address = [protocol for protocol, theirs in self.places.items() if theirs == address]
        for oldest, limit in ((of_address, CONNECTIONS_OF_ADDRESS_MAX), (list(self.places), CONNECTIONS_MAX)):
            if len(oldest) >= limit:
                oldest[0].transport.abort()
                self.places.pop(oldest[0], None)
        self.places[self] = address
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_S_MAX, self._end_if_idle)

    def _end_if_idle(self) -> None:
        """A visitor that sends no whole request, or does not read its answer, leaves."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete or self.flow.write_paused:
            self.transport.abort()
        else:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._deadline.cancel()
        self.places.pop(self, None)
        super().connection_lost(exc)


async def serve(settings: NodeSettings, ready: Callable[[str], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called with the address. Raises PageNotServed."""
    page, watch = settings.page, Watch(settings.node)
    listening = _listen(page.listen_host, page.listen_port)
    port = listening.getsockname()[1]
    names = [*page.names, page.listen_host, "localhost", socket.gethostname()]
    app = make_app(watch, names, Users(page.users_file) if page.users_file else None)
    options: dict[str, Any] = {}
    if page.cert_file:
        options = {"ssl_certfile": str(page.cert_file), "ssl_keyfile": str(page.key_file)}
        if page.client_ca_file:
            options |= {"ssl_ca_certs": str(page.client_ca_file), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a visitor's mistakes, as many as it likes
    config = uvicorn.Config(
        app, http=BoundedProtocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, timeout_keep_alive=int(REQUEST_S_MAX), timeout_graceful_shutdown=STOP_S,
        backlog=BACKLOG_MAX, limit_concurrency=REQUESTS_MAX, h11_max_incomplete_event_size=16 * 1024, **options,
    )  # fmt: skip
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        listening.close()
        raise PageNotServed(f"the certificate of the page cannot be used: {error}") from error
    server, stop = _Server(config), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    address = f"{'https' if page.cert_file else 'http'}://{host_and_port(page.listen_host, port)}/"
    notifier = Notifier.from_environment(os.environ, os.getpid())
    async with TaskGroup() as group:
        await watch.look()
        looking = [group.create_task(watch.run(), name="watch")]
        senders = [Sender(notify, settings.node.name) for notify in settings.notify]
        looking += [group.create_task(sender.run(watch), name="notify") for sender in senders]
        serving = group.create_task(server.serve([listening]), name="serve")
        log.info("page_listening", extra={"address": address})
        notifier.ready()
        ready(address)
        await stop.wait()
        server.should_exit = True
        await asyncio.wait([serving])
        for task in looking:
            task.cancel()
    watch.facts.close()


class _Server(uvicorn.Server):
    """Leaves the signals to `serve`."""

    capture_signals = staticmethod(contextlib.nullcontext)  # type: ignore[assignment]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG_MAX)  # from now on, so that who is told `ready` is not refused
    except (OSError, OverflowError) as error:
        raise PageNotServed(f"cannot listen on {host} port {port}: {error}") from error
    return listening
