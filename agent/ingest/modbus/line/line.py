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
from collections.abc import Mapping, Sequence
from typing import Self

from agent.ingest.errors import IngestError, SourceLost
from agent.ingest.modbus.line.connection import ConnectionEnded, ModbusConnection, open_connection
from agent.ingest.modbus.line.endpoint import Endpoint
from agent.ingest.modbus.line.frames import AnswerFrame, shape_of
from agent.ingest.modbus.read_plan import Read
from agent.ingest.modbus.refusal import BUSY, GATEWAY_CODES, quality_of, reason
from agent.settings.sources import ModbusSourceSettings

GARBAGE_BYTES_SHOWN = 16
REPEATS_MAX = 2  # of a request whose connection ended; each needs a connection that had answered something
FORGOTTEN_S = 2.0  # a connection that was idle for so long may be forgotten by a firewall in between
HOLD_MS_MAX = 10_000  # how long a gateway may occupy the line for a silent unit; 3 s and 5 s are usual
HOLD_FACTOR = 1.2  # of the time-out, or the latest answer: one that comes sooner did not have to wait
PARTS_READ_MAX = 3  # times that the parts of one number are read, until two belong together
DOUBT_REQUESTS_MAX = 3  # until the unit counts as silent


class ConnectionForgotten(Exception):
    """A request over an idle connection has no answer. Another connection may help."""


class UnitSilent(IngestError):
    """A unit did not answer."""


class UnitUnheard(UnitSilent):
    """A unit sent nothing in time. A gateway may still wait for it."""


class UnitGarbled(UnitSilent):
    """A unit sent bytes that are not an answer to the request. `sent` says which."""

    def __init__(self, where: str, sent: str) -> None:
        super().__init__(f"{where} {sent}")
        self.sent = sent


class ReadRefused(IngestError):
    """A unit refuses a read."""

    def __init__(self, read: Read, code: int) -> None:
        where = f"unit {read.unit_id} {read.table.value} {read.address}..{read.end - 1} (wire addresses)"
        super().__init__(f"{where} refused: {reason(code)}")
        self.code = code
        self.quality = quality_of(code)


class Line:
    """The line of a source, open for the length of `async with Line(...) as line`. Raises SourceLost and
    SourceRefused. Without `endpoint` it has a connection of its own."""

    def __init__(self, settings: ModbusSourceSettings, endpoint: Endpoint | None = None) -> None:
        self._settings, self._where = settings, settings.where
        self._endpoint = endpoint or Endpoint(settings)
        self._answers = self._endpoint.answers
        self._is_serial = settings.transport == "rtu"
        self._pause_ms = max(settings.request_pause_ms, frame_pause_ms(settings))
        self._asked_s = 0.0  # when the last request was sent

    async def __aenter__(self) -> Self:
        async with self._endpoint.turn:
            try:
                await self._ready()
            except asyncio.CancelledError:  # in the pause after connecting
                if not self._endpoint.users:
                    self._endpoint.close()
                raise
        self._endpoint.users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._endpoint.users -= 1
        if not self._endpoint.users:
            self._endpoint.close()

    async def read(self, read: Read) -> Sequence[int]:
        """The values of the registers of a read, or its bits as 0 and 1."""
        data = await self.read_bytes(read)
        if read.table.is_bits:
            return [data[place // 8] >> place % 8 & 1 for place in range(read.count)]
        return struct.unpack(f">{read.count}H", data)

    async def read_bytes(self, read: Read) -> bytes:
        """The data bytes of the answer to a read: two bytes a register, or eight bits a byte, the lowest first."""
        async with self._endpoint.turn:
            try:
                if read.count > self._settings.registers_per_read_max and not read.table.is_bits:
                    return await self._in_parts(read)
                return await self._repeated(read)
            except UnitUnheard:
                await self._wait_free(read.unit_id)
                raise

    async def end_poll(self) -> None:
        """No request follows for a while. End the connection if it would not live until then."""
        if self._settings.close_after_poll or self._endpoint.forgets_idle:
            async with self._endpoint.turn:
                if self._endpoint.users <= 1:
                    self._endpoint.close()

    async def keep_open(self, age_s_max: float) -> None:
        """Nothing is asked for a while: open the connection again if it has ended, or is older than this. A serial port
        stays open."""
        async with self._endpoint.turn:
            opened = self._endpoint.connection
            if opened is not None and not self._is_serial and opened.age_s > age_s_max:
                self._endpoint.close()
            await self._ready()

    def forget_unit(self, unit_id: int) -> None:
        """A unit is not asked any more: what was learned of it alone has no end otherwise."""
        self._endpoint.note_hold(unit_id, 0)
        self._answers.late_ns.pop(unit_id, None)

    # --- what is known of the device ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return self._endpoint.connection is not None and self._endpoint.connection.is_open

    @property
    def is_shared(self) -> bool:
        """Whether other sources use it."""
        return self._endpoint.users > 1

    @property
    def hold_ms(self) -> Mapping[int, int]:
        """The units whose silence occupies the line, and for how long: a gateway waits for them."""
        return self._endpoint.hold_ms

    @property
    def late_text(self) -> str:
        """That answers come late, and what to do; empty if they do not."""
        if not self._late_ms:
            return ""
        longest_ms = max(self._late_ms.values())
        return f"answers come late, after up to {longest_ms} ms: timeout_ms = {self._settings.timeout_ms} is too short"

    @property
    def _late_ms(self) -> dict[int, int]:
        """By unit: how long its last late answer took, if that is more than the time-out, which may be longer now."""
        found = {unit_id: late_ns // 1_000_000 for unit_id, late_ns in self._answers.late_ns.items()}
        return {unit_id: late_ms for unit_id, late_ms in found.items() if late_ms >= self._settings.timeout_ms}

    @property
    def remarks(self) -> str:
        """What was learned about the device that an operator should know."""
        found = [
            f"unit {unit_id} does not answer and holds the line for {hold_ms} ms"
            for unit_id, hold_ms in sorted(self.hold_ms.items())
        ]
        found += [self.late_text] if self.late_text else []
        found += ["ends a connection after each answer"] if self._endpoint.closes_after_answer else []
        found += ["ends idle connections: one is opened for each poll"] if self._endpoint.closes_idle else []
        found += ["forgets idle connections: one is opened for each poll"] if self._endpoint.forgets_idle else []
        return "; ".join(found)

    # --- one request --------------------------------------------------------------------------------------------------

    async def _in_parts(self, read: Read) -> bytes:
        """Read a number that is longer than the device's longest read: its parts from the highest digits to the lowest,
        then all but the lowest again. If one of them has changed meanwhile, they do not belong together."""
        size = self._settings.registers_per_read_max
        # A search may read several overlapping numbers at once.
        numbers = (register.kind.order for register in read.registers if register.count == read.count)
        order = next(numbers, tuple(range(2 * read.count)))
        firsts = list(dict.fromkeys(place // 2 // size * size for place in order))
        parts = [
            Read(read.unit_id, read.table, read.address + first, min(size, read.count - first), ()) for first in firsts
        ]
        for _ in range(PARTS_READ_MAX):
            found = [await self._repeated(part) for part in parts]
            if [await self._repeated(part) for part in parts[:-1]] == found[:-1]:
                return b"".join(data for _, data in sorted(zip(firsts, found, strict=True)))
        raise ReadRefused(read, BUSY)

    async def _repeated(self, read: Read) -> bytes:
        """Read, and again over a new connection if the device has ended or forgotten this one."""
        repeats, is_forgotten = 0, False
        while True:
            try:
                if self._answers.is_in_doubt(read.unit_id):
                    await self._end_doubt(read)
                frame = await self._exchange(read, self._settings.timeout_ms)
                if is_forgotten:
                    self._endpoint.forgets_idle = True
                return self._data(read, frame)
            except ConnectionForgotten:
                is_forgotten = True
            except ConnectionEnded as error:
                repeats += 1
                if not self._endpoint.has_answered or repeats > REPEATS_MAX:
                    why = f"connection to {self._where} ended during a request to unit {read.unit_id}: {error}"
                    raise SourceLost(why) from error

    async def _exchange(self, read: Read, timeout_ms: int) -> AnswerFrame:
        """Ask, and wait for the answer. Raises UnitSilent, SourceLost and ConnectionEnded."""
        await self._wait_quiet()
        connection = await self._ready()
        idle_s = asyncio.get_running_loop().time() - connection.answered_s if connection.answers_total else 0.0
        request = self._answers.ask(read, time.monotonic_ns())
        self._asked_s = time.monotonic()
        try:
            frame = await connection.exchange(request, timeout_ms / 1000)
        except ConnectionEnded:
            self._endpoint.note_end(is_idle=False)
            raise
        finally:
            self._answers.give_up()
            self._keep_quiet(self._pause_ms)
        if frame is None:
            if idle_s >= FORGOTTEN_S and not self._answers.received and not self._is_serial:
                connection.abort()
                raise ConnectionForgotten
            raise self._silent(read)
        return frame

    async def _end_doubt(self, read: Read) -> None:
        """Ask the unit for what distinguishes its answer from those that may still come."""
        for _ in range(DOUBT_REQUESTS_MAX):
            distinct = self._answers.distinct_read(read, time.monotonic_ns())
            if distinct is None:  # nothing was asked, so that no gateway waits for the unit
                raise UnitSilent(f"unit {read.unit_id} at {self._where} has not answered any of its last requests")
            frame = await self._exchange(distinct, self._settings.timeout_ms)
            if frame.exception in GATEWAY_CODES or not frame.fits(shape_of(distinct)):
                self._data(distinct, frame)  # raises the reason
            if not self._answers.is_in_doubt(read.unit_id):
                return
        raise self._silent(read)

    async def _wait_free(self, unit_id: int) -> None:
        """A unit was silent: a gateway may go on waiting for it, and requests to other units queue meanwhile. Ask one
        that answers, and learn how long that takes."""
        asked_s = self._asked_s
        living = None if self._is_serial else self._answers.living_read()
        if living is None:
            return
        try:
            await self._exchange(living, HOLD_MS_MAX)
        except (UnitSilent, ConnectionEnded, ConnectionForgotten):
            return
        held_ms = round(1000 * (time.monotonic() - asked_s))
        usual_ms = max(
            self._settings.timeout_ms, *(late_ns // 1_000_000 for late_ns in self._answers.late_ns.values()), 0
        )
        self._endpoint.note_hold(unit_id, held_ms if held_ms > HOLD_FACTOR * usual_ms else 0)

    def _data(self, read: Read, frame: AnswerFrame) -> bytes:
        """The data in an answer to this read. Raises ReadRefused and UnitSilent."""
        if frame.exception in GATEWAY_CODES:
            raise UnitSilent(f"unit {read.unit_id} does not answer, {self._where}: {reason(frame.exception)}")
        if not frame.fits(shape_of(read)):
            self._keep_quiet(self._settings.timeout_ms)  # a gateway that mixes answers up drops what comes now
            raise self._silent(read)
        self._endpoint.note_hold(read.unit_id, 0)
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
            elif unit_id in self._late_ms:
                why += f"; an answer came after {self._late_ms[unit_id]} ms: timeout_ms is too short"
            return UnitUnheard(f"unit {unit_id} at {self._where} {why}")
        shown = received[:GARBAGE_BYTES_SHOWN].hex(" ")
        more = " ..." if len(received) > GARBAGE_BYTES_SHOWN else ""
        sent = f"sends {shown}{more}, {len(received)} bytes that are no answer to a read of {read.count}"
        return UnitGarbled(f"unit {unit_id} at {self._where}", f"{sent} {read.table.value} values")

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _ready(self) -> ModbusConnection:
        """The connection, opened again if it has ended or late answers may come over it."""
        endpoint = self._endpoint
        connection = endpoint.connection
        if connection is not None and connection.is_open:
            is_used_up = connection.answers_total and endpoint.closes_after_answer
            is_unclean = self._answers.needs_connection and not self._is_serial
            if not is_used_up and not is_unclean:
                return connection
        elif connection is not None and connection.ended_s:
            endpoint.note_end(is_idle=True)
        endpoint.close()
        endpoint.connection = connection = await open_connection(self._settings, self._receive)
        self._answers.connected()
        await asyncio.sleep(self._settings.connect_pause_ms / 1000)
        return connection

    def _receive(self, data: bytes) -> AnswerFrame | None:
        return self._answers.receive(data, time.monotonic_ns())

    # --- pauses -------------------------------------------------------------------------------------------------------

    def _keep_quiet(self, pause_ms: float) -> None:
        """Send nothing for this time."""
        if pause_ms:
            until_s = asyncio.get_running_loop().time() + pause_ms / 1000
            self._endpoint.quiet_until_s = max(self._endpoint.quiet_until_s, until_s)

    async def _wait_quiet(self) -> None:
        if self._endpoint.quiet_until_s:
            await asyncio.sleep(self._endpoint.quiet_until_s - asyncio.get_running_loop().time())
            self._endpoint.quiet_until_s = 0.0


def frame_pause_ms(settings: ModbusSourceSettings) -> float:
    """The silence that a serial line needs between two frames: 3.5 characters of 11 bits, or 1.75 ms above 19,200 baud
    (Modbus over Serial Line V1.02, 2.5.1.1)."""
    if settings.transport != "rtu":
        return 0.0
    return 1.75 if settings.baud_rate > 19_200 else 3.5 * 11 * 1_000 / settings.baud_rate
