"""One TCP connection to a Modbus device, through pymodbus. The only module that knows pymodbus.

pymodbus sends one request at a time on a connection, retries and reconnects by itself, and closes the connection when
one unit is silent. All of that is switched off here (`retries=0`, `reconnect_delay=0`, no limit on silence): a request
is sent once, is answered or not within `timeout_ms`, and a broken connection is dropped. A new connection is a new
object.

    SourceLost      the connection is gone; no unit behind it can be read
    UnitSilent      this unit gave no answer in time; others may
    ReadRefused     the unit answered that it will not; `quality` says why as an OPC UA status
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from pymodbus.client import AsyncModbusTcpClient
from pymodbus.exceptions import ConnectionException, ModbusException, ModbusIOException

from agent.ingest import quality
from agent.ingest.errors import IngestError, SourceLost
from agent.ingest.modbus.address import Table
from agent.ingest.modbus.plan import Read
from agent.ingest.settings import ModbusSourceSettings

if TYPE_CHECKING:
    from pymodbus.pdu import ModbusPDU

SILENCE_COUNT_NEVER = 2**31  # pymodbus closes the line after this many unanswered requests; we count per unit

_QUALITY_OF_EXCEPTION = {  # Modbus Application Protocol 7
    1: quality.BAD_NOT_SUPPORTED,
    2: quality.BAD_NODE_ID_UNKNOWN,
    3: quality.BAD_OUT_OF_RANGE,
    4: quality.BAD_DEVICE_FAILURE,
    5: quality.BAD_RESOURCE_UNAVAILABLE,
    6: quality.BAD_RESOURCE_UNAVAILABLE,
}
_GATEWAY_EXCEPTIONS = (10, 11)  # the gateway lives, the unit behind it does not answer
_BUSY_EXCEPTIONS = (4, 5, 6)  # about the moment or the device, not about the addresses


class UnitSilent(IngestError):
    """A unit gave no answer."""


class ReadRefused(IngestError):
    """A unit refuses a read. `is_about_address` tells whether a smaller read could succeed."""

    def __init__(self, read: Read, code: int) -> None:
        where = f"unit {read.unit_id} {read.table.value} {read.address}..{read.end - 1} (wire addresses)"
        super().__init__(f"{where} refused with Modbus exception {code}")
        self.code = code
        self.quality = _QUALITY_OF_EXCEPTION.get(code, quality.BAD_DEVICE_FAILURE)
        self.is_about_address = code not in _BUSY_EXCEPTIONS


def quiet_library() -> None:
    """pymodbus logs each unanswered request as an error. The supervisor logs what matters, once."""
    logging.getLogger("pymodbus").setLevel(logging.CRITICAL + 1)


@asynccontextmanager
async def open_line(settings: ModbusSourceSettings) -> AsyncIterator[Line]:
    """A connection to the device or gateway of a source, for the length of a block. Raises SourceLost."""
    async with Line(settings.host, settings.port, settings.timeout_ms) as line:
        yield line


class Line:
    """An open connection. Use as `async with Line(...) as line`; entering connects, leaving hangs up."""

    def __init__(self, host: str, port: int, timeout_ms: int) -> None:
        self._where = f"{host}:{port}"
        self._client = AsyncModbusTcpClient(
            host, port=port, timeout=timeout_ms / 1000, retries=0, reconnect_delay=0, name=self._where
        )
        self._client.set_max_no_responses(SILENCE_COUNT_NEVER)

    async def __aenter__(self) -> Self:
        if not await self._client.connect():
            self._client.close()
            raise SourceLost(f"no connection to {self._where}; is the device on, the address right, the port open?")
        self._client.ctx.count_until_disconnect = SILENCE_COUNT_NEVER
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection stands as far as this side knows."""
        return bool(self._client.connected)

    async def read(self, read: Read) -> Sequence[int]:
        """The registers (or bits as 0 and 1) of a read."""
        try:
            answer = await self._ask(read)
        except ConnectionException as error:
            raise SourceLost(f"connection to {self._where} is gone") from error
        except ModbusIOException as error:
            if not self.is_open:
                raise SourceLost(f"connection to {self._where} broke while unit {read.unit_id} was asked") from error
            raise UnitSilent(f"unit {read.unit_id} at {self._where} does not answer") from error
        except (ModbusException, OSError, asyncio.InvalidStateError) as error:
            raise SourceLost(f"{self._where} answers nonsense: {error}") from error
        if answer.isError():
            if answer.exception_code in _GATEWAY_EXCEPTIONS:
                raise UnitSilent(f"gateway {self._where} reports that unit {read.unit_id} does not answer")
            raise ReadRefused(read, answer.exception_code)
        found: Sequence[int] = answer.bits[: read.count] if read.table.is_bits else answer.registers
        if len(found) != read.count:
            raise SourceLost(f"unit {read.unit_id} at {self._where} sent {len(found)} values for {read.count}")
        return found

    async def _ask(self, read: Read) -> ModbusPDU:
        ask = {
            Table.COIL: self._client.read_coils,
            Table.DISCRETE: self._client.read_discrete_inputs,
            Table.INPUT: self._client.read_input_registers,
            Table.HOLDING: self._client.read_holding_registers,
        }[read.table]
        return await ask(read.address, count=read.count, device_id=read.unit_id)


def end_if_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled and the library lost that.

    pymodbus waits with asyncio.wait_for: that of Python 3.11 drops a cancellation that arrives together with the answer
    or the error, and pymodbus turns another into an error of its own. A loop that goes on after either could not be
    stopped. Only for tasks that only their own TaskGroup cancels and that hold no TaskGroup themselves.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
