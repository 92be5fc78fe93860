"""Opens a connection over TCP, TLS or a serial line, and exchanges one request at a time over it.

pymodbus's transport carries the bytes; its client, which decides what an answer is, is not used (decision 0008). A
connection that ends is noticed at once, during a request or between two. Nothing is repeated and nothing reconnects
here. `Receive` is called with all bytes that arrive, also between requests.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import termios
from collections.abc import Callable
from functools import partial

from pymodbus.transport import CommParams, CommType, ModbusProtocol

from agent.concurrency import timeout
from agent.ingest.dial import dial, look_up
from agent.ingest.errors import SourceLost, SourceRefused
from agent.ingest.modbus.line.frames import AnswerFrame
from agent.settings.sources import ModbusSourceSettings

Receive = Callable[[bytes], AnswerFrame | None]
CHUNK_BYTES_MAX = 256 * 1024  # asyncio's largest; the transport would drop a larger one without a word
_PARITIES = {"none": "N", "even": "E", "odd": "O"}


class ConnectionEnded(Exception):
    """The connection ended before an answer."""


class ModbusConnection(ModbusProtocol):
    """One connection. `receive` returns the answer that is waited for, when it is complete."""

    def __init__(self, params: CommParams, receive: Receive) -> None:
        super().__init__(params, is_server=False)
        self.max_buffer_size = CHUNK_BYTES_MAX
        self._opened_s = self.loop.time()
        self.answers_total = 0
        self.answered_s = 0.0  # when the last answer came
        self.ended_s = 0.0  # when the device ended it
        self.is_open = False
        self._receive = receive
        self._opened = self.loop.create_future()
        self._answer: asyncio.Future[AnswerFrame | None] | None = None

    @property
    def age_s(self) -> float:
        """How long ago it was opened."""
        return self.loop.time() - self._opened_s

    async def open(self) -> None:
        """Connect. Raises OSError and termios.error with the reason, which `connect` of the transport only logs."""
        await self.call_create()
        await self._opened

    async def exchange(self, request: bytes, timeout_s: float) -> AnswerFrame | None:
        """The answer to a request; None if there is none in time. Raises ConnectionEnded."""
        if not self.is_open:
            raise ConnectionEnded("closed by the device")
        answer = self._answer = self.loop.create_future()
        deadline = self.loop.call_later(timeout_s, _end_wait, answer)
        frame: AnswerFrame | None
        try:
            self.send(request)
            frame = await answer
        finally:
            deadline.cancel()
            self._answer = None
        if frame is not None:
            self.answers_total += 1
            self.answered_s = self.loop.time()
        return frame

    def abort(self) -> None:
        """End the connection. What is not sent yet is dropped."""
        self.is_open = False
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()
        self.close()

    # --- called by the transport --------------------------------------------------------------------------------------

    def callback_connected(self) -> None:
        if self._opened.cancelled():  # a serial port, which is open before it says so: nothing waits for it any more
            self.abort()
            return
        self.is_open = True
        if not self._opened.done():
            self._opened.set_result(None)

    def callback_data(self, data: bytes, addr: tuple[object, ...] | None = None) -> int:  # noqa: ARG002 UDP only
        frame = self._receive(data)
        if frame is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)
        return len(data)

    def callback_disconnected(self, exc: Exception | None) -> None:
        self.is_open = False
        self.ended_s = self.loop.time()
        if self._answer is not None and not self._answer.done():
            reason = f" ({getattr(exc, 'strerror', None) or exc})" if exc else ""
            self._answer.set_exception(ConnectionEnded(f"closed by the device{reason}"))

    def callback_new_connection(self) -> ModbusProtocol:
        raise AssertionError("a client accepts no connections")


def _reason(error: OSError | ValueError) -> str:
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    if isinstance(error, OSError) and error.errno and text.startswith("Connect call failed"):
        return os.strerror(error.errno)  # asyncio says only where to, which the sentence says already
    return text


def _end_wait(answer: asyncio.Future[AnswerFrame | None]) -> None:
    if not answer.done():
        answer.set_result(None)


async def open_connection(settings: ModbusSourceSettings, receive: Receive) -> ModbusConnection:
    """Connect. Raises SourceLost and SourceRefused."""
    connection = ModbusConnection(_parameters(settings), receive)
    where, limit_s = settings.where, settings.timeout_ms / 1000
    try:
        if settings.transport != "rtu":
            addresses = await look_up(settings.host, settings.port)
            context = connection.comm_params.sslctx
            tls = {"ssl": context, "server_hostname": settings.server_name or settings.host} if context else {}
            connection.call_create = partial(
                dial, connection.handle_new_connection, addresses, settings.port, limit_s, **tls
            )
        async with timeout(limit_s):
            await connection.open()
    except asyncio.CancelledError:
        connection.abort()
        raise
    except TimeoutError as error:
        connection.abort()
        raise SourceLost(f"no connection to {where}: no connection within {settings.timeout_ms} ms") from error
    except (OSError, ValueError) as error:
        raise SourceLost(f"no connection to {where}: {_reason(error)}") from error
    except termios.error as error:  # no OSError, and without the name of the port
        given = f"baud_rate = {settings.baud_rate}, parity = {settings.parity}, stop_bits = {settings.stop_bits}"
        raise SourceLost(f"no connection to {where}: it refuses {given}: {error.args[-1]}") from error
    return connection


def _parameters(settings: ModbusSourceSettings) -> CommParams:
    if settings.transport == "rtu":
        return CommParams(
            comm_type=CommType.SERIAL,
            host=settings.serial_port,
            baudrate=settings.baud_rate,
            bytesize=8,
            parity=_PARITIES[settings.parity],
            stopbits=settings.stop_bits,
        )
    is_tls = settings.transport == "tls"
    return CommParams(
        comm_type=CommType.TLS if is_tls else CommType.TCP,
        host=settings.host,
        port=settings.port,
        sslctx=_tls_context(settings) if is_tls else None,
    )


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
