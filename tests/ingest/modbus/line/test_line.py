"""What comes of a request on a line: values, a refusal, silence, or the loss of the connection."""

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from agent.ingest.errors import SourceLost
from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.line import Endpoint, Endpoints, Line, ReadRefused, UnitGarbled, UnitSilent
from agent.ingest.modbus.line import line as line_module
from agent.ingest.modbus.line.connection import ConnectionEnded, open_connection
from agent.ingest.modbus.line.frames import AnswerFrame
from agent.ingest.modbus.line.line import FORGOTTEN_S, frame_pause_ms
from agent.ingest.modbus.read_plan import Read
from agent.ingest.modbus.refusal import is_about_address
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.devices import PlayedConnection
from tests.waiting import wait_until_async

READ = Read(1, Table.HOLDING, 10, 2, (Register(1, Table.HOLDING, 10, 2, value_type("int32", "ABCD")),))
SETTINGS = ModbusSourceSettings("meter", Path("t.csv"), 0, host="meter", timeout_ms=100)
HANG_UP, ECHO = "the device closes the connection", "our own request comes back"


def values(*registers: int, function: int = 3) -> bytes:
    """An answer with these registers."""
    return struct.pack(f">BB{len(registers)}H", function, 2 * len(registers), *registers)


class Answering:
    """Connections to a device that answers so, one after the other; the last answer is repeated. HANG_UP closes the
    connection instead, and ECHO returns the request. `is_dead`: it cannot be reached any more after its first
    connection."""

    def __init__(self, *answers: bytes | str, is_dead: bool = False) -> None:
        self.answers, self.is_dead = list(answers), is_dead
        self.connections: list[Any] = []
        self.asked: list[bytes] = []

    async def connect(self, _: object, receive: Any) -> Any:
        if self.connections and self.is_dead:
            raise SourceLost("refused")
        self.connections.append(AnsweringConnection(self, receive))
        return self.connections[-1]


class AnsweringConnection(PlayedConnection):
    """A connection to it."""

    def __init__(self, device: Answering, receive: Any) -> None:
        super().__init__()
        self.device, self.receive = device, receive

    async def exchange(self, request: bytes, _: float) -> AnswerFrame | None:
        self.device.asked.append(request)
        await asyncio.sleep(0)
        answers = self.device.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == HANG_UP:
            self.is_open = False
            raise ConnectionEnded("closed by the device")
        if answer and answer != ECHO:
            answer = request[:4] + struct.pack(">HB", len(answer) + 1, request[6]) + answer
        frame: AnswerFrame | None = self.receive(request if answer == ECHO else answer)
        self.answers_total += frame is not None
        return frame


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A line to a device that answers so."""

    def made(*answers: bytes | str, settings: ModbusSourceSettings = SETTINGS, is_dead: bool = False) -> Any:
        device = Answering(*answers, is_dead=is_dead)
        monkeypatch.setattr(line_module, "open_connection", device.connect)
        return device, Line(settings)

    return made


async def test_an_answer_is_as_long_as_asked(answering: Any) -> None:
    """Fewer or more registers than asked for, those of another table, or bytes that a count of the right size only
    announces or that have another count, are no answer, and never values."""
    _, line = answering(values(1, 2))
    assert list(await line.read(READ)) == [1, 2]
    cut, other_count = struct.pack(">BBH", 3, 4, 1), struct.pack(">BBHH", 3, 2, 1, 2)
    for found in (values(1), values(1, 2, 3), values(1, 2, function=4), cut, other_count):
        _, line = answering(found)
        with pytest.raises(UnitGarbled, match=f", {7 + len(found)} bytes that are no answer"):
            await line.read(READ)


async def test_refusals_are_distinguished(answering: Any) -> None:
    """Those about addresses are learned from, those about the moment are not. A gateway's say that a unit is silent,
    as no answer does, which keeps the connection."""
    for code in (1, 2, 3, 4, 5, 6):
        _, line = answering(bytes([0x83, code]))
        with pytest.raises(ReadRefused) as refused:
            await line.read(READ)
        assert (refused.value.code, is_about_address(code)) == (code, code <= 3)
    for found, said in ((b"\x83\x0a", "answer, "), (b"\x83\x0b", "answer, "), (b"", "answer within 100 ms")):
        _, line = answering(found)
        with pytest.raises(UnitSilent, match=f"does not {said}"):
            await line.read(READ)
        assert line.is_open


async def test_frames_on_a_serial_line_have_their_pause() -> None:
    """Three and a half characters, 4 ms at 9,600 baud; a constant at high speeds; nothing over TCP. A longer pause that
    is configured is kept as well."""
    serial = ModbusSourceSettings("m", Path("t.csv"), 0, transport="rtu", serial_port="/dev/ttyS1", baud_rate=9_600)
    assert 4 < frame_pause_ms(serial) < 4.1
    assert frame_pause_ms(replace(serial, baud_rate=115_200)) == 1.75
    assert frame_pause_ms(replace(serial, transport="rtu_over_tcp", host="h", serial_port="")) == 0
    assert Line(serial)._pause_ms == frame_pause_ms(serial)
    assert Line(replace(serial, request_pause_ms=50))._pause_ms == 50


async def test_a_line_that_is_stopped_while_it_opens_leaves_no_connection(answering: Any) -> None:
    """Many devices accept one only, and the next source may be another one."""
    device, line = answering(values(1, 2), settings=replace(SETTINGS, connect_pause_ms=60_000))
    opening = asyncio.create_task(line.__aenter__())
    await wait_until_async(lambda: device.connections, "the connection")
    opening.cancel()
    await asyncio.wait([opening])
    assert not device.connections[0].is_open


async def test_a_serial_port_that_opens_when_nobody_waits_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library opens it at once, and tells later. Until it is closed, this process has it for itself."""
    transport = Mock(spec=asyncio.Transport)

    async def opened(loop: asyncio.AbstractEventLoop, made: Any, *_: object, **__: object) -> None:
        loop.call_soon(loop.call_soon, made().connection_made, transport)

    monkeypatch.setattr("pymodbus.transport.transport.create_serial_connection", opened)
    serial = ModbusSourceSettings("m", Path("t.csv"), 0, transport="rtu", serial_port="/dev/ttyS1")
    for turns in (1, 3):  # before it tells, and at the same time
        opening = asyncio.create_task(open_connection(serial, lambda _: None))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        await wait_until_async(lambda: transport.abort.called, "the end of the connection")
        transport.abort.reset_mock()


async def test_a_connection_that_ends_between_two_polls_is_no_loss(answering: Any) -> None:
    """The device closes it when it has been idle, or during the next request: that is repeated at once over a new
    connection, after another one that ends the doubt which answer may come."""
    device, line = answering(values(1, 2), HANG_UP, values(1), values(3, 4))
    assert list(await line.read(READ)) == [1, 2]
    device.connections[0].is_open = False
    device.answers = [values(3, 4)]
    assert list(await line.read(READ)) == [3, 4]
    device.answers = [HANG_UP, values(5), values(5, 6)]
    assert list(await line.read(READ)) == [5, 6]
    assert len(device.connections) == 3


async def test_a_connection_that_ends_and_cannot_be_opened_is_a_loss(answering: Any) -> None:
    """And so is a new one that ends before its first answer, as with a device that takes one connection only."""
    device, line = answering(values(1, 2), HANG_UP, is_dead=True)
    await line.read(READ)
    with pytest.raises(SourceLost, match="refused"):
        await line.read(READ)
    device, line = answering(HANG_UP)
    with pytest.raises(SourceLost, match="closed by the device"):
        await line.read(READ)
    assert len(device.connections) == 1


async def test_the_silence_of_all_units_is_that_of_the_one_asked(
    answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway is off: the other unit, which is asked whether the line is free, does not answer for as long as an idle
    connection is taken for a forgotten one."""
    device, line = answering(values(1, 2))
    for unit_id in (1, 2):
        await line.read(replace(READ, unit_id=unit_id))
    device.answers = [b""]
    exchange, (connection,) = AnsweringConnection.exchange, device.connections
    connection.answered_s = asyncio.get_running_loop().time() - FORGOTTEN_S + 0.05

    async def slow(connection: AnsweringConnection, request: bytes, timeout_s: float) -> AnswerFrame | None:
        connection.answered_s -= timeout_s  # as much time passes
        return await exchange(connection, request, timeout_s)

    monkeypatch.setattr(AnsweringConnection, "exchange", slow)
    with pytest.raises(UnitSilent, match=r"unit 1 .* does not answer"):
        await line.read(READ)
    assert len(device.asked) == 4


async def test_only_our_own_request_is_silence(answering: Any) -> None:
    """An adapter that returns what is sent is no garbled unit. On a serial line, where an answer may still come,
    nothing is sent for another time-out."""
    _, line = answering(ECHO, settings=replace(SETTINGS, transport="rtu", serial_port="/dev/ttyS1", host=""))
    asked_s = asyncio.get_running_loop().time()
    with pytest.raises(UnitSilent, match="only our own request came back"):
        await line.read(READ)
    assert line._endpoint.quiet_until_s >= asked_s + SETTINGS.timeout_ms / 1_000


async def test_requests_on_a_line_take_turns(answering: Any) -> None:
    """Polls and probes of silent units share it. A second request before the first answer would take that for its own,
    or garble it."""
    _, line = answering(values(1, 2))
    steps = list[str]()
    exchange = AnsweringConnection.exchange

    async def slow(connection: AnsweringConnection, request: bytes, timeout_s: float) -> AnswerFrame | None:
        steps.append("asked")
        frame = await exchange(connection, request, timeout_s)
        steps.append("answered")
        return frame

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnsweringConnection, "exchange", slow)
        await asyncio.gather(line.read(READ), line.read(READ))
    assert steps == ["asked", "answered"] * 2


def test_a_hold_of_a_unit_that_answers_is_believed_the_third_time() -> None:
    """The unit that was asked instead may have been late itself. One that never answered is believed at once; a silence
    without a hold, or an answer, ends it."""
    endpoint = Endpoint(SETTINGS)
    endpoint.answers.note_good(READ)
    for hold_ms in (3_000, 3_000, 0):
        endpoint.note_hold(1, hold_ms)
    for hold_ms in (3_000, 3_000, 3_100):
        assert endpoint.hold_ms == {}
        endpoint.note_hold(1, hold_ms)
    endpoint.note_hold(2, 5_000)
    assert endpoint.hold_ms == {1: 3_100, 2: 5_000}
    endpoint.note_hold(1, 0)
    assert endpoint.hold_ms == {2: 5_000}


async def test_a_unit_that_cannot_be_asked_holds_no_line(answering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its requests are open, so none is made: how long ago the last one was says nothing of a gateway."""
    _, line = answering(values(1, 2))
    await line.read(READ)
    monkeypatch.setattr(line._answers, "is_in_doubt", lambda unit_id: unit_id == 2)
    monkeypatch.setattr(line._answers, "distinct_read", lambda *_: None)
    line._asked_s, line._answers.received = line._asked_s - 60.0, b""
    with pytest.raises(UnitSilent):
        await line.read(replace(READ, unit_id=2))
    assert line.hold_ms == {}


def test_a_source_with_another_transport_begins_anew() -> None:
    """After an edit of node.toml: answers are read with other framing."""
    endpoints = Endpoints()
    before = endpoints.of(SETTINGS)
    assert not before.answers.is_rtu
    assert endpoints.of(replace(SETTINGS, name="other", timeout_ms=900)) is before
    assert endpoints.of(replace(SETTINGS, transport="rtu_over_tcp")).answers.is_rtu


async def test_answers_that_the_time_out_allows_are_not_late(answering: Any) -> None:
    """After an edit of node.toml that gives them more time, nothing says that it is too short."""
    _, line = answering(b"", settings=replace(SETTINGS, timeout_ms=500))
    line._answers.late_ns[1] = 300 * 10**6
    assert line.late_text == ""
    with pytest.raises(UnitSilent, match=r"within 500 ms$"):
        await line.read(READ)
