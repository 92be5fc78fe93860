"""Devices that answer from a description, for tests of cores that decide what to ask."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from agent.ingest.modbus.address import Register, Table, dialect
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.line import ReadRefused, UnitSilent
from agent.ingest.modbus.read_plan import Limits, Read, read_of
from agent.ingest.modbus.refusal import SILENT
from agent.ingest.modbus.sweep import Question, Sweep
from agent.ingest.modbus.units import Pauses, Unit
from agent.ingest.tags.tag_map import Cells
from agent.message import Value
from agent.settings.sources import ModbusSourceSettings

FORMATS = {
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "uint32": ">I",
    "int64": ">q",
    "uint64": ">Q",
    "float16": ">e",
    "float32": ">f",
    "float64": ">d",
}
KINDS = {1: value_type("uint16", "ABCD"), 2: value_type("uint32", "ABCD"), 4: value_type("uint64", "ABCD")}
S = 10**9


def register(address: int, count: int = 1, unit_id: int = 1, table: Table = Table.HOLDING) -> Register:
    """A register of one, two or four words."""
    return Register(unit_id, table, address, count, KINDS[count])


def register_of_row(settings: ModbusSourceSettings, **cells: str) -> Register:
    """The register of a row of a tag file with these cells."""
    found, _, _ = dialect(settings).read_point(Cells({"tag": "a/b", "table": "holding", **cells}))
    assert isinstance(found, Register)
    return found


def decoded(words: Sequence[int], *registers: Register) -> list[tuple[Value, int]]:
    """Value and status of each of these registers in one read; the first word is at the lowest of their addresses."""
    read = read_of(sorted(registers, key=lambda r: (r.address, r.count)))
    found = BlockDecoder(read, range(len(registers))).decode(struct.pack(f">{read.count}H", *words), 0)
    return list(zip(found.values, found.qualities, strict=True))


def words_on_the_wire(data: bytes, order: str) -> list[int]:
    """The words of a device for a value whose bytes are `data`, most significant first: letter by letter, as the name
    of the order is read."""
    wire = bytes(data["ABCDEFGH".index(letter)] for letter in order)
    return [int.from_bytes(wire[place : place + 2], "big") for place in range(0, len(wire), 2)]


@dataclass
class Device:
    """Refuses reads. `refused`: addresses with the exception of each read that covers them (SILENT: no answer).
    `borders`: no read runs across one of these addresses. `longest`: the longest read. `is_dead`: no answer at all."""

    refused: Mapping[int, int] = field(default_factory=dict)
    borders: Iterable[int] = ()
    longest: int = 125
    is_dead: bool = False
    asked: list[Read] = field(default_factory=list)
    bad: dict[Register, int] = field(default_factory=dict)  # whose last sample is bad, over all polls

    def outcome(self, read: Read) -> int | None:
        """The exception of a read, None for values."""
        self.asked.append(read)
        return self.judge(read.address, read.end)

    def judge(self, first: int, end: int) -> int | None:
        """The exception of a range."""
        if self.is_dead:
            return SILENT
        for address in range(first, end):
            if address in self.refused:
                return self.refused[address]
        if end - first > self.longest:
            return 3
        return 2 if any(first < border < end for border in self.borders) else None


class PlayedLine:
    """A line to units, or to one. `refused`: addresses with the exception of each read that covers them; `silent`:
    reads without an answer; `values`: of registers that do not hold their address."""

    late_text, is_shared = "", False
    hold_ms: Mapping[int, int] = {}

    def __init__(
        self,
        refused: Mapping[int, int] = MappingProxyType({}),
        *,
        silent: Callable[[Read], bool] = lambda _: False,
        values: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.refused, self.silent, self.values = refused, silent, values
        self.asked: list[Read] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""

    async def end_poll(self) -> None:
        """No request follows for a while."""

    async def read(self, read: Read) -> bytes:
        is_silent = self.silent(read)
        self.asked.append(read)
        if is_silent:
            raise UnitSilent("no answer")
        addresses = range(read.address, read.end)
        for address in filter(self.refused.__contains__, addresses):
            raise ReadRefused(read, self.refused[address])
        return struct.pack(f">{read.count}H", *(self.values.get(address, address) for address in addresses))

    read_bytes = read


class PlayedConnection:
    """What a line asks of its connection besides an exchange."""

    def __init__(self) -> None:
        self.is_open, self.answers_total, self.answered_s, self.ended_s = True, 0, math.inf, 0.0

    def abort(self) -> None:
        self.is_open = False


@dataclass
class Poll:
    """What one poll did. `marked`: the values whose last sample is bad after it, with the exception."""

    values: list[Register]
    marked: dict[Register, int]
    requests: int
    planned: int
    is_silent: bool = False


DUE = frozenset({1_000})


def poll(unit: Unit, device: Device, now_ns: int = 0, searches_max: int = 10_000) -> Poll:
    """One poll of a unit, as the source makes it."""
    sweep = Sweep(unit, DUE, now_ns)
    done = Poll([], device.bad, 0, 0)

    def ask(question: Question) -> bool:
        done.requests += 1
        code = device.outcome(question.read)
        if code is None:
            done.values += question.read.registers
            sweep.answered(question)
        elif code == SILENT:
            done.is_silent = sweep.unanswered()
        else:
            sweep.refused(code)
        return not done.is_silent

    while (question := sweep.planned()) is not None and ask(question):
        done.planned += 1
    while not done.is_silent and searches_max > 0 and (question := sweep.search()) is not None and ask(question):
        searches_max -= 1
    for value in done.values:
        done.marked.pop(value, None)
    for registers, code in sweep.marks():
        done.marked.update(dict.fromkeys(registers, code))
    done.marked = dict(done.marked)
    return done


def unit_of(registers: Iterable[Register], limits: Limits | None = None) -> Unit:
    """A unit that is wanted to give these registers."""
    return Unit(1, dict(enumerate(registers, 1)), limits or Limits(125, 16), Pauses(2 * S, 60 * S))


def fewest_reads(registers: Iterable[Register], limits: Limits, device: Device) -> int:
    """How many reads a device needs for these registers, each of which it gives: greedy, which is optimal, with the
    device itself asked."""
    left = sorted(registers, key=lambda r: (r.address, r.count))
    covered = {a for r in left for a in range(r.address, r.end)}
    count = 0
    while left:
        first = left[0].address
        reach = left[0].end
        for end in sorted({r.end for r in left}):
            if end - first > limits.registers_per_read_max or device.judge(first, end) is not None:
                break
            hole = widest = 0
            for address in range(first, end):
                hole = 0 if address in covered else hole + 1
                widest = max(widest, hole)
            if widest > limits.hole_max:
                break
            reach = max(reach, end)
        left = [r for r in left if r.end > reach]
        count += 1
    return count
