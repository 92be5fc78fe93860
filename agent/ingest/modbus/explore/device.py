"""Explores a device over a connection: reads the words around a register, finds units and registers, reads values.

A refused read is halved down to single values, so that each has its own reason. Nothing is written.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby

from agent.ingest import quality
from agent.ingest.errors import SourceLost
from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.explore.interpretation import ranges_to_try
from agent.ingest.modbus.explore.register_scan import RegisterScan
from agent.ingest.modbus.line import Line, ReadRefused, UnitGarbled, UnitSilent
from agent.ingest.modbus.read_plan import Limits, Read, plan_reads
from agent.ingest.modbus.refusal import SILENT, quality_of, reason
from agent.ingest.probe_result import TagReading
from agent.ingest.tags.tag_map import Tag
from agent.message import Value
from agent.settings.sources import ModbusSourceSettings

UNITS_ASKED = (Table.HOLDING, 0)  # the read with which a unit is asked; a refusal is an answer too
PAUSE_MS = 10  # between two reads, by default: the device also has a plant to run
NETWORK_HINT = "is the device on, are address and port right, is there a firewall in between? Some devices accept only one connection"
SERIAL_HINT = (
    "is it the right port, may this user open it (usually the group dialout), and does no other program, such as a running "
    "node, use it?"
)
UNIT_HINT = "which units are there: bsfg modbus scan DEVICE; a slow line needs a longer time-out"
SILENT_AT_FIRST_MAX = 3  # reads without an answer before a scan takes the unit for absent
Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class RefusedRange:
    """A range that the device refuses, and the reason."""

    first: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    """The result for one register: its words and value, or the reason why there is none and the status of a sample."""

    register: Register
    words: tuple[int, ...] = ()
    value: Value = None
    quality: int = quality.GOOD
    why: str = ""


@dataclass(frozen=True, slots=True)
class FoundUnit:
    """A unit that answers, and how it answers. `is_garbled`: with bytes that are no answer."""

    unit_id: int
    how: str
    is_garbled: bool = False


@asynccontextmanager
async def open_device(settings: ModbusSourceSettings) -> AsyncIterator[Line]:
    """Connect as a source with these settings would. Raises SourceLost and SourceRefused. SourceLost, and UnitSilent
    from the block, get a hint."""
    async with AsyncExitStack() as stack:
        try:
            line = await stack.enter_async_context(Line(settings))
        except SourceLost as error:
            error.hint = SERIAL_HINT if settings.transport == "rtu" else NETWORK_HINT
            raise
        try:
            yield line
        except UnitSilent as error:
            error.hint = UNIT_HINT
            raise
        except SourceLost as error:
            error.hint = NETWORK_HINT
            raise


async def read_around(
    line: Line, unit_id: int, table: Table, address: int, count: int
) -> tuple[dict[int, int], list[RefusedRange]]:
    """The words at `count` addresses and around them that the device gives, and the refused ranges. Raises SourceLost
    and UnitSilent."""
    words: dict[int, int] = {}
    refused: dict[tuple[int, int], str] = {}
    for first, length in ranges_to_try(address, count):
        span = range(first, first + length)
        if (first, length) in refused or all(place in words for place in span):
            continue
        try:
            found = await line.read(Read(unit_id, table, first, length, ()))
        except ReadRefused as error:
            refused[first, length] = reason(error.code)
        else:
            words.update(zip(span, found, strict=True))
    return words, list(_lacking(words, refused))


def _lacking(words: Mapping[int, int], refused: Mapping[tuple[int, int], str]) -> Iterator[RefusedRange]:
    """The addresses that no read gave. Neighbours with the same reason are one range; the reason of the shortest read
    counts."""
    whys: dict[int, str] = {}
    for (first, length), why in sorted(refused.items(), key=lambda item: -item[0][1]):
        whys |= {place: why for place in range(first, first + length) if place not in words}
    numbered = enumerate(sorted(whys))  # the difference of address and number is the same for neighbours
    for (_, why), part in groupby(numbered, key=lambda pair: (pair[1] - pair[0], whys[pair[1]])):
        places = [place for _, place in part]
        yield RefusedRange(places[0], places[-1] + 1, why)


async def find_units(settings: ModbusSourceSettings, unit_ids: Sequence[int], progress: Progress) -> list[FoundUnit]:
    """The units that answer, rightly or not. If the device closes the connection at a unit that it does not have, a new
    one is opened. Raises SourceLost if there is no connection."""
    found: list[FoundUnit] = []
    left = list(unit_ids)
    while left:
        async with open_device(settings) as line:
            is_first = True
            while left:
                unit_id = left.pop(0)
                try:
                    await line.read(Read(unit_id, *UNITS_ASKED, 1, ()))
                    found.append(FoundUnit(unit_id, "answers"))
                except ReadRefused as error:
                    found.append(
                        FoundUnit(unit_id, f"answers, and refuses the first holding register ({reason(error.code)})")
                    )
                except UnitGarbled as error:
                    found.append(FoundUnit(unit_id, error.sent, is_garbled=True))
                except UnitSilent:
                    pass
                except SourceLost:
                    if is_first:
                        raise
                    break
                finally:
                    is_first = False
                    progress("units asked", len(unit_ids) - len(left))
    return found


async def scan_registers(line: Line, unit_id: int, table: Table, scan: RegisterScan, progress: Progress) -> None:
    """Make the reads of a scan. Raises SourceLost, and UnitSilent if the unit answers none of the first reads."""
    answers, silences = 0, 0
    while (span := scan.next_range()) is not None:
        first, end = span
        try:
            await line.read(Read(unit_id, table, first, end - first, ()))
        except ReadRefused as error:
            answers += 1
            scan.refused(reason(error.code))
        except UnitSilent:
            silences += 1
            if not answers and silences >= SILENT_AT_FIRST_MAX:
                raise
            scan.refused(reason(SILENT))  # some devices do not answer for addresses that they do not have
        else:
            answers += 1
            scan.answered()
        progress("addresses to look at", scan.addresses_left)


async def read_registers(
    line: Line, settings: ModbusSourceSettings, registers: Iterable[Register]
) -> list[RegisterAnswer]:
    """The value of each register, decoded as a source does. A refused read is halved down to single registers. A unit
    that did not answer is not asked again. Raises SourceLost."""
    answers: list[RegisterAnswer] = []
    silent: dict[int, str] = {}
    limits = Limits(settings.registers_per_read_max, settings.hole_max)
    pending = deque(plan_reads(registers, limits))  # bounded by the registers
    while pending:
        read = pending.popleft()
        if read.unit_id not in silent:
            try:
                answers += _answers(read, await line.read_bytes(read))
            except UnitSilent as error:
                silent[read.unit_id] = str(error)
            except ReadRefused as error:
                if len(read.registers) > 1:
                    middle = len(read.registers) // 2
                    halves = read.registers[:middle], read.registers[middle:]
                    pending.extendleft(reversed([part for half in halves for part in plan_reads(half, limits)]))
                else:
                    why = f"unit {read.unit_id} refuses it: {reason(error.code)}"
                    answers.append(RegisterAnswer(read.registers[0], quality=error.quality, why=why))
        if read.unit_id in silent:
            why = silent[read.unit_id]
            answers += [RegisterAnswer(register, quality=quality_of(SILENT), why=why) for register in read.registers]
    return answers


def _answers(read: Read, data: bytes) -> Iterator[RegisterAnswer]:
    """Decode the registers of a read from the bytes of its answer."""
    decoded = BlockDecoder(read, range(len(read.registers))).decode(data, 0)
    for register, value, status in zip(read.registers, decoded.values, decoded.qualities, strict=True):
        start = 2 * (register.address - read.address)
        own = b"" if read.table.is_bits else data[start : start + 2 * register.count]
        why = ""
        if status == quality.BAD_DECODING_ERROR:
            is_text = bool(register.kind.encoding)
            why = f"it is no {register.kind.encoding} text" if is_text else "its digits are no decimal number"
        elif status == quality.BAD_NO_DATA_AVAILABLE:
            why = "the device says that it has no value (no_value)"
        yield RegisterAnswer(register, struct.unpack(f">{len(own) // 2}H", own), value, status, why)


async def read_tags(settings: ModbusSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """Read tags over a new connection. The readings are in the order of `tags`. Raises SourceLost."""
    async with open_device(settings) as line:
        return await read_tags_over(line, settings, tags)


async def read_tags_over(line: Line, settings: ModbusSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """Read tags over an open connection. The readings are in the order of `tags`. Raises SourceLost."""
    answers = await read_registers(line, settings, dict.fromkeys(tag.point for tag in tags))
    found = {answer.register: (answer.value, answer.quality, answer.why) for answer in answers}
    return [TagReading.of(tag, *found[tag.point]) for tag in tags]
