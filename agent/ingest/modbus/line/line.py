"""The line to a Modbus device or gateway: takes requests in turns and raises what came of each.

A request is sent once and is answered within `timeout_ms` or not. An answer is believed only if it can be that of no
other request (`answers`): after a time-out the unit is first asked for something whose answer has another length. On a
serial line nothing is sent before that for another `timeout_ms`; over TCP without right transaction numbers a new
connection is opened. A connection that the device has closed is opened again, and the request is repeated at once; only
if that fails, the source is lost.

    SourceLost      there is no connection; no unit behind it can be read
    SourceRefused   a file that the connection needs cannot be used; the text says which
    UnitSilent      the unit did not answer in time, or sent bytes that are not an answer; other units may answer
    ReadRefused     the unit answered with an exception
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from typing import Self

from agent.ingest.errors import IngestError, SourceLost
from agent.ingest.modbus.line.answers import NUMBERS, AnswerMatcher
from agent.ingest.modbus.line.connection import Connection, ConnectionEnded, open_connection
from agent.ingest.modbus.line.frames import Frame, shape_of
from agent.ingest.modbus.plan import Read
from agent.ingest.modbus.refusal import GATEWAY_CODES, quality_of, reason
from agent.settings.sources import ModbusSourceSettings

GARBAGE_BYTES_SHOWN = 16
REPEATS_MAX = 2  # of a request whose connection ended; each needs a connection that had answered something
ONE_ANSWER_ENDS = 2  # connections that ended after one answer, until each request gets its own
DOUBT_REQUESTS_MAX = 3  # until the unit counts as silent


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


class Line:
    """The line of a source, open for the length of `async with Line(...) as line`. Raises SourceLost and
    SourceRefused."""

    def __init__(self, settings: ModbusSourceSettings) -> None:
        self._settings, self._where = settings, settings.where
        self._is_serial = settings.transport == "rtu"
        is_rtu = settings.transport in ("rtu", "rtu_over_tcp")
        self._answers = AnswerMatcher(is_rtu=is_rtu, first_number=time.monotonic_ns() % NUMBERS)
        self._connection: Connection | None = None
        self._pause_ms = max(settings.request_pause_ms, frame_pause_ms(settings))
        self._turn = asyncio.Lock()
        self._quiet_until_s = 0.0
        self._ends_after_answer = 0  # connections in a row that ended after one answer

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    async def read(self, read: Read) -> Sequence[int]:
        """The values of the registers of a read, or its bits as 0 and 1."""
        data = await self.read_bytes(read)
        if read.table.is_bits:
            return [data[place // 8] >> place % 8 & 1 for place in range(read.count)]
        return struct.unpack(f">{read.count}H", data)

    async def read_bytes(self, read: Read) -> bytes:
        """The data bytes of the answer to a read: two bytes a register, or eight bits a byte, the lowest first."""
        async with self._turn:
            repeats = 0
            while True:
                try:
                    if self._answers.is_in_doubt(read.unit_id):
                        await self._end_doubt(read)
                    return self._data(read, await self._exchange(read))
                except ConnectionEnded as error:
                    repeats += 1
                    self._note_end()
                    if self._answered_nothing() or repeats > REPEATS_MAX:
                        why = f"connection to {self._where} ended during a request to unit {read.unit_id}: {error}"
                        raise SourceLost(why) from error

    @property
    def late_text(self) -> str:
        """That answers come late, and what to do; empty if they do not."""
        if not self._answers.late_ns:
            return ""
        longest_ms = max(self._answers.late_ns.values()) // 1_000_000
        return f"answers come late, after up to {longest_ms} ms: timeout_ms = {self._settings.timeout_ms} is too short"

    # --- one request --------------------------------------------------------------------------------------------------

    async def _exchange(self, read: Read) -> Frame:
        """Ask, and wait for the answer. Raises UnitSilent, SourceLost and ConnectionEnded."""
        await self._wait_quiet()
        connection = await self._ready()
        request = self._answers.ask(read, time.monotonic_ns())
        try:
            frame = await connection.exchange(request, self._settings.timeout_ms / 1000)
        except ConnectionEnded:
            self._answers.withdraw()
            raise
        finally:
            self._answers.give_up()
            self._keep_quiet(self._pause_ms)
        if frame is None:
            raise self._silent(read)
        return frame

    async def _end_doubt(self, read: Read) -> None:
        """Ask the unit for what distinguishes its answer from those that may still come."""
        for _ in range(DOUBT_REQUESTS_MAX):
            other = self._answers.distinct_read(read, time.monotonic_ns())
            if other is None:
                break
            frame = await self._exchange(other)
            if frame.exception in GATEWAY_CODES or not frame.fits(shape_of(other)):
                self._data(other, frame)  # raises the reason
            if not self._answers.is_in_doubt(read.unit_id):
                return
        raise self._silent(read)

    def _data(self, read: Read, frame: Frame) -> bytes:
        """The data in an answer to this read. Raises ReadRefused and UnitSilent."""
        if frame.exception in GATEWAY_CODES:
            raise UnitSilent(f"unit {read.unit_id} does not answer, {self._where}: {reason(frame.exception)}")
        if not frame.fits(shape_of(read)):
            self._keep_quiet(self._settings.timeout_ms)  # a gateway that mixes answers up drops what comes now
            raise self._silent(read)
        if frame.exception:
            raise ReadRefused(read, frame.exception)
        assert frame.data is not None, "it fits"
        self._answers.note_good(read)
        return frame.data

    def _silent(self, read: Read) -> UnitSilent:
        """The error for a read without an answer, or with bytes that are not an answer."""
        received, unit_id = self._answers.received, read.unit_id
        if self._is_serial:
            self._keep_quiet(self._settings.timeout_ms)
        if not received or received == self._answers.request:
            why = f"does not answer within {self._settings.timeout_ms} ms"
            if received:
                why += ": only our own request came back, which the adapter returns"
            elif unit_id in self._answers.late_ns:
                late_ms = self._answers.late_ns[unit_id] // 1_000_000
                why += f"; an answer came after {late_ms} ms: timeout_ms is too short"
            return UnitSilent(f"unit {unit_id} at {self._where} {why}")
        shown = received[:GARBAGE_BYTES_SHOWN].hex(" ")
        more = " ..." if len(received) > GARBAGE_BYTES_SHOWN else ""
        return UnitGarbled(
            f"unit {unit_id} at {self._where} is asked for {read.count} {read.table.value} values and sends "
            f"{len(received)} bytes that are no answer to that: {shown}{more}"
        )

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _ready(self) -> Connection:
        """The connection, opened again if it has ended or late answers may come over it."""
        connection = self._connection
        if connection is None or not connection.is_open:
            return await self._connect()
        is_used_up = connection.answers_total and self._ends_after_answer >= ONE_ANSWER_ENDS
        if is_used_up or (self._answers.needs_connection and not self._is_serial):
            return await self._connect()
        return connection

    def _note_end(self) -> None:
        """The connection ended during a request. Learn whether the device closes each after one answer."""
        is_after_one = self._connection is not None and self._connection.answers_total == 1
        self._ends_after_answer = self._ends_after_answer + 1 if is_after_one else 0

    async def _connect(self) -> Connection:
        self._close()
        self._connection = await open_connection(self._settings, self._receive)
        self._answers.connected()
        await asyncio.sleep(self._settings.connect_pause_ms / 1000)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.end()

    def _answered_nothing(self) -> bool:
        """Whether the connection ended before its first answer: the device does not want it."""
        return self._connection is None or not self._connection.answers_total

    def _receive(self, data: bytes) -> Frame | None:
        return self._answers.receive(data, time.monotonic_ns())

    # --- pauses -------------------------------------------------------------------------------------------------------

    def _keep_quiet(self, pause_ms: float) -> None:
        """Send nothing for this time."""
        if pause_ms:
            self._quiet_until_s = max(self._quiet_until_s, asyncio.get_running_loop().time() + pause_ms / 1000)

    async def _wait_quiet(self) -> None:
        if self._quiet_until_s:
            await asyncio.sleep(self._quiet_until_s - asyncio.get_running_loop().time())
            self._quiet_until_s = 0.0


def frame_pause_ms(settings: ModbusSourceSettings) -> float:
    """The silence that a serial line needs between two frames: 3.5 characters of 11 bits, or 1.75 ms above 19,200 baud
    (Modbus over Serial Line V1.02, 2.5.1.1)."""
    if settings.transport != "rtu":
        return 0.0
    return 1.75 if settings.baud_rate > 19_200 else 3.5 * 11 * 1_000 / settings.baud_rate
