"""The read requests of a poll for the tags of a tag file, and why each request ends where it does. Core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.plan import Limits, Read, Span, plan_reads
from agent.ingest.modbus.refusal import reason
from agent.ingest.modbus.refused_spans import parse_refused
from agent.ingest.tags.tag_map import Tag
from agent.settings.sources import ModbusSourceSettings


class Cut(Enum):
    """Why a request ends where it does."""

    LAST = "last"
    HOLE = "hole"
    LIMIT = "limit"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """One request. Tags need `used` of its entries. `hole` is the number of entries up to the next request. `why`
    explains the cut."""

    read: Read
    used: int
    cut: Cut
    hole: int
    why: str


@dataclass(frozen=True, slots=True)
class Parked:
    """A tag that is in no request, because the device refuses it. The source requests it separately, after pauses."""

    tag: str
    address: str
    why: str


@dataclass(frozen=True, slots=True)
class Interval:
    """The requests of a poll in which only the tags of one interval are due."""

    interval_ms: int
    tags: int
    requests: int


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The requests of a poll in which all tags are due, in their order."""

    reads: list[PlannedRead]
    parked: list[Parked]
    intervals: list[Interval]


def request_plan(settings: ModbusSourceSettings, tags: Sequence[Tag], learned: bytes | None = None) -> RequestPlan:
    """The requests for these tags. `learned` is the document of refused spans that the source keeps. Raises ValueError
    if it is damaged."""
    refused = {} if learned is None else parse_refused(learned)
    limits = Limits(settings.registers_per_read_max, settings.hole_max)
    parked: list[Parked] = []
    registers: dict[int, list[Register]] = {}
    for tag in tags:
        point: Register = tag.point
        code = refused.get(Span(point.unit_id, point.table, point.address, point.end))
        if code is None:
            registers.setdefault(point.poll_interval_ms, []).append(point)
        else:
            parked.append(Parked(tag.name, tag.definition.address, reason(code)))
    everything = [register for part in registers.values() for register in part]
    intervals = [
        Interval(interval_ms, len(part), len(plan_reads(part, limits, refused)))
        for interval_ms, part in sorted(registers.items())
    ]
    return RequestPlan(explained(plan_reads(everything, limits, refused), limits), parked, intervals)


def explained(reads: Sequence[Read], limits: Limits) -> list[PlannedRead]:
    """The requests of a plan in its order, each with the reason why it ends."""
    return [_explained(read, after, limits) for read, after in zip_longest(reads, reads[1:])]


def _explained(read: Read, after: Read | None, limits: Limits) -> PlannedRead:
    used = len({address for register in read.registers for address in range(register.address, register.end)})
    if after is None or (after.unit_id, after.table) != (read.unit_id, read.table):
        return PlannedRead(read, used, Cut.LAST, 0, "no tag follows in this table of the unit")
    hole, count_max = max(0, after.address - read.end), limits.count_max(read.table)
    if hole > limits.hole_max:
        cut, why = Cut.HOLE, f"the next tag is {hole:,} registers on, and hole_max is {limits.hole_max}"
    elif after.registers[0].end - read.address > count_max:
        cut, why = Cut.LIMIT, f"with the next tag it would be longer than {count_max}, the longest read"
    else:  # no rule of the plan separates them, so a refused span does
        cut, why = Cut.REFUSED, "the device refuses a read that goes on to the next tag"
    return PlannedRead(read, used, cut, hole, why)
