"""Opens a connection over TCP, TLS or a serial line, and exchanges one request at a time over it.

A connection that ends is noticed at once, during a request or between two. Nothing is repeated and nothing reconnects
here. `Receive` is called with all bytes that arrive, also between requests.
"""

from __future__ import annotations

import asyncio
import ssl
import termios
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.concurrency import timeout
from agent.ingest.errors import SourceLost, SourceRefused
from agent.ingest.modbus.line.frames import Frame
from agent.settings.sources import ModbusSourceSettings

if TYPE_CHECKING:
    from serial import Serial

Receive = Callable[[bytes], Frame | None]
READ_BYTES = 1_024
_PARITIES = {"none": "N", "even": "E", "odd": "O"}


class ConnectionEnded(Exception):
    """The connection ended before an answer."""


class Connection(asyncio.Protocol):
    """One connection. `receive` returns the answer that is waited for, when it is complete."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Frame | None] | None = None
        self.answers_total = 0
        self.answered_s = 0.0  # when the last answer came
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream"
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        frame = self._receive(data)
        if frame is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            reason = f" ({getattr(exc, 'strerror', None) or exc})" if exc else ""
            self._answer.set_exception(ConnectionEnded(f"closed by the device{reason}"))

    async def exchange(self, request: bytes, timeout_s: float) -> Frame | None:
        """The answer to a request; None if there is none in time. Raises ConnectionEnded."""
        if self._transport is None or not self.is_open:
            raise ConnectionEnded("closed by the device")
        loop = asyncio.get_running_loop()
        answer = self._answer = loop.create_future()
        deadline = loop.call_later(timeout_s, _end_wait, answer)
        frame: Frame | None
        try:
            self._transport.write(request)
            frame = await answer
        finally:
            deadline.cancel()
            self._answer = None
        if frame is not None:
            self.answers_total += 1
            self.answered_s = loop.time()
        return frame

    def close(self) -> None:
        """End the connection. What is not sent yet is dropped."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


def _end_wait(answer: asyncio.Future[Frame | None]) -> None:
    if not answer.done():
        answer.set_result(None)


async def open_connection(settings: ModbusSourceSettings, receive: Receive) -> Connection:
    """Connect. Raises SourceLost and SourceRefused."""
    connection = Connection(receive)
    where = settings.where
    if settings.transport == "rtu":
        _open_serial(settings, connection)
        return connection
    tls: dict[str, Any] = {}
    if settings.transport == "tls":
        tls = {"ssl": _tls_context(settings), "server_hostname": settings.server_name or settings.host}
    loop = asyncio.get_running_loop()
    try:
        async with timeout(settings.timeout_ms / 1000):
            await loop.create_connection(lambda: connection, settings.host, settings.port, **tls)
    except TimeoutError as error:
        raise SourceLost(f"no connection to {where}: no connection within {settings.timeout_ms} ms") from error
    except OSError as error:
        raise SourceLost(f"no connection to {where}: {error.strerror or error}") from error
    return connection


def _open_serial(settings: ModbusSourceSettings, connection: Connection) -> None:
    from serial import Serial

    try:
        port = Serial(
            settings.serial_port,
            baudrate=settings.baud_rate,
            parity=_PARITIES[settings.parity],
            stopbits=settings.stop_bits,
            timeout=0,
            write_timeout=0,
            exclusive=True,
        )
    except (OSError, ValueError) as error:
        raise SourceLost(f"no connection to {settings.where}: {error}") from error
    except termios.error as error:  # no OSError, and without the name of the port
        given = f"baud_rate = {settings.baud_rate}, parity = {settings.parity}, stop_bits = {settings.stop_bits}"
        raise SourceLost(f"no connection to {settings.where}: it refuses {given}: {error.args[-1]}") from error
    connection.connection_made(_SerialTransport(port, connection))


class _SerialTransport(asyncio.Transport):
    """A serial port. A request is a few bytes, which the port's buffer takes at once."""

    def __init__(self, port: Serial, connection: Connection) -> None:
        super().__init__()
        self._port, self._connection = port, connection
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(port.fileno(), self._on_readable)

    def write(self, data: Any) -> None:
        try:
            self._port.write(data)
        except (OSError, termios.error) as error:
            self._lose(error)

    def abort(self) -> None:
        if self._port.is_open:
            self._loop.remove_reader(self._port.fileno())
            self._port.close()

    close = abort

    def _on_readable(self) -> None:
        try:
            data = self._port.read(READ_BYTES)
        except (OSError, termios.error) as error:  # unplugged
            self._lose(error)
            return
        if data:
            self._connection.data_received(data)

    def _lose(self, error: Exception) -> None:
        self.abort()
        self._connection.connection_lost(error)


def _tls_context(settings: ModbusSourceSettings) -> ssl.SSLContext:
    """A context that verifies the device's certificate and presents ours, if there is one. Raises SourceRefused."""
    file = settings.ca_file
    try:
        context = ssl.create_default_context(cafile=file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Python 3.13 asks for extensions that makers of devices leave out (an authority's key identifier); a device
        # must not be refused because the gateway has the next Debian. Signature, dates and name are verified as before.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if settings.cert_file is not None:
            file = settings.cert_file
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as error:
        raise SourceRefused(f"{file} cannot be used for {settings.where}: {error.strerror or error}") from error
    return context
