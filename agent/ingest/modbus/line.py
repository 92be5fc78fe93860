"""One connection to a Modbus device, through pymodbus. The only module that imports pymodbus.

pymodbus retries and reconnects by itself, and closes the connection when one unit is silent. That is switched off here
(`retries=0`, `reconnect_delay=0`, no limit on silence): a request is sent once and is answered within `timeout_ms` or
not, and a broken connection is dropped. A new connection is a new object. Answers are kept as the received bytes;
pymodbus would make a list of numbers.

An answer in RTU framing has no transaction number. After a time-out nothing is sent for another `timeout_ms`: otherwise
a late answer would be taken for the answer to the next request.

    SourceLost      the connection is gone; no unit behind it can be read
    SourceRefused   a file that the connection needs cannot be used; the text says which
    UnitSilent      the unit did not answer in time, or sent bytes that are not an answer; other units may answer
    ReadRefused     the unit answered with an exception
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pymodbus import FramerType
from pymodbus.client import AsyncModbusSerialClient, AsyncModbusTcpClient
from pymodbus.exceptions import ConnectionException, ModbusException, ModbusIOException
from pymodbus.pdu import ModbusPDU
from pymodbus.pdu.bit_message import ReadCoilsRequest, ReadDiscreteInputsRequest
from pymodbus.pdu.register_message import ReadHoldingRegistersRequest, ReadInputRegistersRequest

from agent.ingest.errors import IngestError, SourceLost, SourceRefused
from agent.ingest.modbus.address import Table
from agent.ingest.modbus.plan import Read
from agent.ingest.modbus.refusal import GATEWAY_CODES, quality_of, reason
from agent.settings.sources import ModbusSourceSettings

if TYPE_CHECKING:
    from pymodbus.client.base import ModbusBaseClient

# Unanswered requests after which pymodbus closes the connection; here silence is counted per unit.
SILENCE_COUNT_NEVER = 2**31
GARBAGE_BYTES_SHOWN = 16
_FUNCTION_BYTE = 7  # of a frame with an MBAP header
_REQUESTS: dict[Table, type[ModbusPDU]] = {
    Table.COIL: ReadCoilsRequest,
    Table.DISCRETE: ReadDiscreteInputsRequest,
    Table.HOLDING: ReadHoldingRegistersRequest,
    Table.INPUT: ReadInputRegistersRequest,
}
_PARITIES = {"none": "N", "even": "E", "odd": "O"}


class UnitSilent(IngestError):
    """A unit did not answer."""


class UnitGarbled(UnitSilent):
    """A unit sent bytes that are not an answer to the request."""


class ReadRefused(IngestError):
    """A unit refuses a read."""

    def __init__(self, read: Read, code: int) -> None:
        where = f"unit {read.unit_id} {read.table.value} {read.address}..{read.end - 1} (wire addresses)"
        super().__init__(f"{where} refused: {reason(code)}")
        self.code = code
        self.quality = quality_of(code)


def quiet_library() -> None:
    """Silence pymodbus, which logs each unanswered request as an error. The supervisor logs a loss once."""
    logging.getLogger("pymodbus").setLevel(logging.CRITICAL + 1)


class _Answer(ModbusPDU):
    """The answer to a read as the received bytes."""

    rtu_byte_count_pos = 2

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def decode(self, data: bytes) -> None:
        self.data = bytes(data)  # a byte count and the bytes

    def __str__(self) -> str:
        return "answer"  # pymodbus makes this text for each answer, even if nothing is logged


_ANSWERS = [
    type("_Answer", (_Answer,), {"function_code": request.function_code, "__doc__": _Answer.__doc__})
    for request in _REQUESTS.values()
]


class Line:
    """A connection to the device or gateway of a source, open for the length of `async with Line(...) as line`. Raises
    SourceLost and SourceRefused."""

    def __init__(self, settings: ModbusSourceSettings) -> None:
        self._settings, self._where = settings, settings.where
        self._is_rtu = settings.transport in ("rtu", "rtu_over_tcp")
        self._received = b""  # since the last request
        self._why_not = ""
        self._pause_ms = max(settings.request_pause_ms, frame_pause_ms(settings))
        self._turn = asyncio.Lock()
        self._quiet_until_s = 0.0
        self._client = self._make_client()
        for answer in _ANSWERS:
            self._client.register(answer)
        self._client.set_max_no_responses(SILENCE_COUNT_NEVER)

    async def __aenter__(self) -> Self:
        if not await self._client.connect():
            self._client.close()
            why = self._why_not or f"no connection within {self._settings.timeout_ms} ms"
            raise SourceLost(f"no connection to {self._where}: {why}")
        self._client.ctx.count_until_disconnect = SILENCE_COUNT_NEVER
        await asyncio.sleep(self._settings.connect_pause_ms / 1000)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection is open as far as is known here."""
        return bool(self._client.connected)

    async def read(self, read: Read) -> Sequence[int]:
        """The values of the registers of a read, or its bits as 0 and 1."""
        data = await self.read_bytes(read)
        if read.table.is_bits:
            return [data[place // 8] >> place % 8 & 1 for place in range(read.count)]
        return struct.unpack(f">{read.count}H", data)

    async def read_bytes(self, read: Read) -> bytes:
        """The data bytes of the answer to a read: two bytes a register, or eight bits a byte, the lowest first."""
        async with self._turn:
            if self._quiet_until_s:
                await asyncio.sleep(self._quiet_until_s - asyncio.get_running_loop().time())
                self._quiet_until_s = 0.0
            try:
                return self._data(read, await self._answer(read))
            finally:
                if self._pause_ms:
                    self._keep_quiet(self._pause_ms)

    def _keep_quiet(self, pause_ms: float) -> None:
        """Send nothing for this time."""
        self._quiet_until_s = max(self._quiet_until_s, asyncio.get_running_loop().time() + pause_ms / 1000)

    async def _answer(self, read: Read) -> ModbusPDU:
        self._received = b""
        try:
            return await self._ask(read)
        except ConnectionException as error:
            raise SourceLost(f"connection to {self._where} is gone") from error
        except ModbusIOException as error:
            if not self.is_open:
                raise SourceLost(
                    f"connection to {self._where} broke during a request to unit {read.unit_id}"
                ) from error
            raise self._silent(read) from error
        except (ModbusException, OSError, asyncio.InvalidStateError) as error:
            raise SourceLost(f"{self._where} sent an answer that cannot be decoded: {error}") from error

    def _data(self, read: Read, answer: ModbusPDU) -> bytes:
        """The data in an answer to this read. Raises ReadRefused and UnitSilent."""
        if answer.isError():
            if answer.exception_code in GATEWAY_CODES:
                raise UnitSilent(f"unit {read.unit_id} does not answer, {self._where}: {reason(answer.exception_code)}")
            raise ReadRefused(read, answer.exception_code)
        size = (read.count + 7) // 8 if read.table.is_bits else 2 * read.count
        data = getattr(answer, "data", b"")
        is_asked_for = answer.function_code == _REQUESTS[read.table].function_code
        if not is_asked_for or len(data) != size + 1 or data[0] != size:
            raise self._silent(read)
        return bytes(data[1:])

    def _silent(self, read: Read) -> UnitSilent:
        """The error for a read without an answer, or with bytes that are not an answer."""
        if self._is_rtu:
            self._keep_quiet(self._settings.timeout_ms)
        if not self._received:
            why = f"does not answer within {self._settings.timeout_ms} ms"
            return UnitSilent(f"unit {read.unit_id} at {self._where} {why}")
        shown = self._received[:GARBAGE_BYTES_SHOWN].hex(" ")
        more = " ..." if len(self._received) > GARBAGE_BYTES_SHOWN else ""
        return UnitGarbled(
            f"unit {read.unit_id} at {self._where} is asked for {read.count} {read.table.value} values and sends "
            f"{len(self._received)} bytes that are no answer to that: {shown}{more}"
        )

    async def _ask(self, read: Read) -> ModbusPDU:
        request = _REQUESTS[read.table](address=read.address, count=read.count, dev_id=read.unit_id)
        return await self._client.execute(False, request)  # type: ignore[no-any-return]

    def _make_client(self) -> ModbusBaseClient:
        settings = self._settings
        common: dict[str, Any] = {
            "timeout": settings.timeout_ms / 1000,
            "retries": 0,
            "reconnect_delay": 0,
            "name": self._where,
            "trace_packet": self._on_packet,
        }
        client: ModbusBaseClient
        if settings.transport == "rtu":
            client = AsyncModbusSerialClient(
                settings.serial_port,
                baudrate=settings.baud_rate,
                parity=_PARITIES[settings.parity],
                stopbits=settings.stop_bits,
                **common,
            )
        else:
            framer = FramerType.RTU if self._is_rtu else FramerType.SOCKET
            client = AsyncModbusTcpClient(settings.host, port=settings.port, framer=framer, **common)
        if settings.transport == "tls":
            # pymodbus's own TLS client sends no MBAP header, which the protocol keeps inside TLS (MB-TCP-Security, 4)
            context, name = _tls_context(settings), settings.server_name or settings.host
            client.ctx.call_create = partial(
                asyncio.get_running_loop().create_connection,
                *(client.ctx.handle_new_connection, settings.host, settings.port),
                ssl=context,
                server_hostname=name,
            )
        client.ctx.call_create = partial(self._connect, client.ctx.call_create)
        return client

    async def _connect(self, connect: Any) -> Any:
        """Connect, and keep the reason of a failure, which pymodbus only logs."""
        try:
            return await connect()
        except OSError as error:
            self._why_not = error.strerror or str(error)
            raise

    def _on_packet(self, is_sent: bool, data: bytes) -> bytes:  # noqa: FBT001 pymodbus calls it
        """Called by pymodbus with each packet that is sent and with all bytes received since. At an unknown function
        code pymodbus raises an exception into the event loop, which ends the connection. So such bytes are withheld
        from it."""
        if is_sent:
            return data
        self._received = data
        is_foreign = not self._is_rtu and len(data) > _FUNCTION_BYTE and data[_FUNCTION_BYTE] & 0x7F not in range(1, 5)
        return b"" if is_foreign else data


def frame_pause_ms(settings: ModbusSourceSettings) -> float:
    """The silence that a serial line needs between two frames: 3.5 characters of 11 bits, or 1.75 ms above 19,200 baud
    (Modbus over Serial Line V1.02, 2.5.1.1)."""
    if settings.transport != "rtu":
        return 0.0
    return 1.75 if settings.baud_rate > 19_200 else 3.5 * 11 * 1_000 / settings.baud_rate


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


def end_if_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled and the library lost that.

    pymodbus waits with asyncio.wait_for: that of Python 3.11 drops a cancellation that arrives together with the answer
    or the error, and pymodbus turns another into an error of its own. A loop that goes on after either could not be
    stopped. Only for tasks that only their own TaskGroup cancels and that hold no TaskGroup themselves.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
