"""The requests of a tag file, and why each ends where it does. Core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest

from agent.ingest.modbus.address import Register
from agent.ingest.modbus.plan import Limits, Read, plan_reads
from agent.ingest.settings import ModbusSourceSettings


class Cut(Enum):
    """Why a request ends where it does."""

    LAST = "last"
    HOLE = "hole"
    LIMIT = "limit"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """One request. `used` of its entries are needed by tags; `hole` are the entries between it and the next one; `why`
    is the cut in words."""

    read: Read
    used: int
    cut: Cut
    hole: int
    why: str


def planned_reads(settings: ModbusSourceSettings, registers: Iterable[Register]) -> list[PlannedRead]:
    """The requests for these registers in the order in which they are made, each with the reason for its end."""
    limits = Limits(settings.registers_per_read_max, settings.hole_max)
    return explained(plan_reads(registers, limits), limits)


def explained(reads: Sequence[Read], limits: Limits) -> list[PlannedRead]:
    """The requests of a plan, in its order, each with the reason for its end."""
    return [_explained(read, after, limits) for read, after in zip_longest(reads, reads[1:])]


def _explained(read: Read, after: Read | None, limits: Limits) -> PlannedRead:
    used = len({address for one in read.registers for address in range(one.address, one.end)})
    if after is None or (after.unit_id, after.table) != (read.unit_id, read.table):
        return PlannedRead(read, used, Cut.LAST, 0, "no tag follows in this table of the unit")
    hole, count_max = max(0, after.address - read.end), limits.count_max(read.table)
    if hole > limits.hole_max:
        cut, why = Cut.HOLE, f"the next tag is {hole:,} registers on, and hole_max is {limits.hole_max}"
    elif after.registers[0].end - read.address > count_max:
        cut, why = Cut.LIMIT, f"with the next tag it would be longer than {count_max}, the longest read"
    else:  # neither rule of the plan parts them, so what the device has taught does
        cut, why = Cut.REFUSED, "the device refuses a read that goes on to the next tag"
    return PlannedRead(read, used, cut, hole, why)
