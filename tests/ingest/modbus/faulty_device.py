"""A Modbus gateway of three units with random faults until it `recovers`: it answers late, over another connection and
with another number, refuses, is silent, holds its line, and closes connections. All is drawn from one seed.

A register says in its high byte which it is, and in its low byte when it was read.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from agent.ingest.modbus.address import Table
from agent.ingest.modbus.line.frames import checksum

UNITS = (1, 2, 3)
TABLES = (Table.HOLDING, Table.INPUT)
FUNCTIONS = {1: Table.COIL, 2: Table.DISCRETE, 3: Table.HOLDING, 4: Table.INPUT}
REGISTERS = 40  # of each table
EPOCH_S = 0.2  # until the low bytes change
EXCEPTIONS = (1, 2, 3, 4, 5, 6, 10, 11)
SILENCE = 0  # in the place of an exception


def place(unit: int, table: Table, address: int) -> int:
    """The high byte of a register."""
    return (UNITS.index(unit) * len(TABLES) + TABLES.index(table)) * REGISTERS + address


def epoch(time_s: float) -> int:
    """The low byte at that time."""
    return int(time_s / EPOCH_S) % 256


class FaultyDevice:
    """`is_rtu`: it speaks RTU over TCP. `level`: how often a request meets a fault. `exceptions`: those of a fault."""

    def __init__(self, random: Random) -> None:
        self.random, self.is_faulty = random, True
        self.is_rtu = random.random() < 0.25
        self.connections: list[Connection] = []
        self._connections_max = random.choice([1, 2, 9])
        self._closes_idle_s = random.choice([0.0, 0.0, 0.5])
        self._numbers = random.choice(["right", "right", "zero", "one more", "newest"])
        self._is_serial = random.random() < 0.4  # behind it, requests queue
        self._hold_s = random.choice([0.3, 1.0, 3.0])  # how long a silent unit holds its line
        self._free_s = 0.0  # when its line is free
        self._keeps_late = random.random() < 0.5  # answers of an ended connection go to the newest
        self._answered_s: dict[int, float] = defaultdict(float)  # by unit: when its newest answer is due
        self.level, self.exceptions = random.choice([0.0, 0.02, 0.1, 0.3]), EXCEPTIONS
        self._dead = set[int]()
        self._refused: dict[tuple[int, Table, int], int] = {}
        self._longest: dict[int, int] = {}
        self._borders: list[int] = []  # no read runs across one
        self._is_closed = False

    def happens(self, probability: float) -> bool:
        """Whether a fault of this probability happens now."""
        return self.is_faulty and self.random.random() < probability

    def disturb(self) -> None:
        """Something changes for a while."""
        act, choice = self.random.random(), self.random.choice
        if act < 0.08:
            self._dead = set(self.random.sample(UNITS, self.random.randint(0, 3)))
        elif act < 0.2:
            unit, table = choice(UNITS), choice(TABLES)
            for _ in range(self.random.randint(1, 6)):
                self._refused[unit, table, self.random.randrange(REGISTERS)] = choice([SILENCE, 2, 2, 2, *EXCEPTIONS])
        elif act < 0.28:
            self._refused = {where: code for where, code in self._refused.items() if self.random.random() < 0.4}
        elif act < 0.32:
            self._longest[choice(UNITS)] = choice([1, 2, 5, 10])
        elif act < 0.34:
            self._longest = {}
        elif act < 0.37:
            self._borders = self.random.sample(range(1, REGISTERS), self.random.randint(0, 3))
        elif act < 0.41:
            self.break_all()
        elif act < 0.46:
            self._is_closed = act < 0.43
        elif act < 0.49:
            self.level = choice([0.0, 0.02, 0.1, 0.3, 0.6])

    def break_all(self) -> None:
        """All connections are reset."""
        for connection in list(self.connections):
            connection.end(ConnectionResetError("reset"))

    def recover(self) -> None:
        """From now on all is well; a last time, the connections break."""
        self.is_faulty, self._is_closed, self._free_s, self._closes_idle_s = False, False, 0.0, 0.0
        self._dead, self._refused, self._longest, self._borders = set(), {}, {}, []
        self.break_all()

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Every connection that the event loop makes in the block leads to it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "create_connection", self._connect, raising=False)
            yield

    async def _connect(self, factory: Any, *_: object, **__: object) -> tuple[Connection, Any]:
        if self.is_faulty:
            await asyncio.sleep(self.random.choice([0, 0.01, 0.3]))  # tidy: virtual time
        if self._is_closed or self.happens(0.03):
            raise ConnectionRefusedError("refused")
        if self.happens(0.01):
            await asyncio.sleep(1_000)  # tidy: virtual time
        connection = Connection(self, factory())
        self.connections.append(connection)
        connection.protocol.connection_made(connection)
        if len(self.connections) > self._connections_max:
            connection.is_deaf = self.random.random() < 0.5
            if not connection.is_deaf:
                asyncio.get_running_loop().call_later(0.01, connection.end, None)
        return connection, connection.protocol

    def take_request(self, connection: Connection, request: bytes) -> None:
        """One of our requests arrives."""
        now_s = time.monotonic()
        if self._closes_idle_s and connection.asked_s and now_s - connection.asked_s > self._closes_idle_s:
            connection.is_deaf = self.random.random() < 0.5
            if not connection.is_deaf:
                asyncio.get_running_loop().call_soon(connection.end, ConnectionResetError("reset"))
        connection.asked_s = now_s
        connection.number = 0 if self.is_rtu else int.from_bytes(request[:2], "big")
        if not connection.is_deaf:
            self._treat(connection, request[:-2] if self.is_rtu else request[6:], now_s)

    def _treat(self, connection: Connection, request: bytes, now_s: float) -> None:
        """Answer, late or not at all, with or without a fault."""
        start_s = max(now_s, self._free_s) if self._is_serial else now_s
        at_s = start_s + self.random.choice([0.001, 0.005, 0.02])
        if request[0] in self._dead or self.happens(self.level / 3):
            if self._is_serial:
                self._free_s = min(start_s + self._hold_s, now_s + 6)
            return
        fault = self.random.random() if self.happens(self.level) else 1.0
        if fault < 0.45:
            at_s = start_s + self.random.choice([0.1, 0.35, 0.6, 1.2, 3.0])
        elif fault < 0.65:
            asyncio.get_running_loop().call_later(0.01, connection.end, ConnectionResetError("reset"))
            return
        if self._is_serial:
            self._free_s = at_s
        self._answered_s[request[0]] = at_s = max(at_s, self._answered_s[request[0]] + 1e-4)  # in order
        exception = self.random.choice(self.exceptions) if 0.65 <= fault < 0.8 else 0
        is_short = 0.8 <= fault < 1
        number = connection.number
        asyncio.get_running_loop().call_at(at_s, self._answer, connection, request, number, exception, is_short)

    def _answer(self, connection: Connection, request: bytes, number: int, exception: int, is_short: bool) -> None:
        unit, function, address, count = struct.unpack(">BBHH", request)
        code = exception or self._refusal(unit, FUNCTIONS[function], address, count)
        if code == SILENCE:
            return
        if connection.is_closed:
            later = [each for each in self.connections if each.opened_s >= connection.closed_s]
            if not self._keeps_late or not later:
                return
            connection = later[-1]
        body = bytes([unit, function | 0x80, code or 0])
        if code is None:
            high, low = place(unit, FUNCTIONS[function], address), epoch(time.monotonic())
            words = bytes(byte for n in range(count) for byte in (high + n, low))
            body = bytes([unit, function, 2 * count]) + words[: -2 if is_short else None]
        if self.is_rtu:
            connection.send(self.random.choice([b"", b"", b"\0", b"\xff"]) + body + checksum(body))
            return
        shown = {"right": number, "zero": 0, "one more": number % 65_535 + 1, "newest": connection.number}
        connection.send(struct.pack(">HHH", shown[self._numbers], 0, len(body)) + body)

    def _refusal(self, unit: int, table: Table, address: int, count: int) -> int | None:
        """The exception for a read; None: it has values."""
        is_beyond = table not in TABLES or address + count > REGISTERS or count > self._longest.get(unit, 125)
        if is_beyond or any(address < border < address + count for border in self._borders):
            return 2
        codes = (self._refused.get((unit, table, at)) for at in range(address, address + count))
        return next((code for code in codes if code is not None), None)


class Connection(asyncio.Transport):
    """One connection with it. `number` and `asked_s`: of the newest request. `is_deaf`: it reads nothing."""

    def __init__(self, device: FaultyDevice, protocol: Any) -> None:
        super().__init__()
        self.device, self.protocol = device, protocol
        self.is_closed = self.is_deaf = False
        self.opened_s, self.closed_s = time.monotonic(), 0.0
        self.asked_s, self.number = 0.0, 0

    def write(self, data: Any) -> None:
        if not self.is_closed:
            self.device.take_request(self, bytes(data))

    def send(self, frame: bytes) -> None:
        """A frame arrives in pieces."""
        while frame and not self.is_closed:
            size = self.device.random.choice([len(frame), len(frame), self.device.random.randint(1, len(frame))])
            self.protocol.data_received(frame[:size])
            frame = frame[size:]
        if self.device.happens(0.003):
            self.end(None)

    def end(self, why: Exception | None) -> None:
        """The device ends it."""
        if not self.is_closed:
            self.close()
            self.protocol.connection_lost(why)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed, self.closed_s = True, time.monotonic()
            self.device.connections.remove(self)

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed
