"""The requests of a tag file, and why each ends where it does. Core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from agent.ingest.modbus.plan import Limits, Read


class Cut(Enum):
    """Why a request ends where it does."""

    LAST = "last"
    HOLE = "hole"
    LIMIT = "limit"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """One request. `used` of its entries are needed by tags; `hole` are the entries between it and the next one."""

    read: Read
    used: int
    cut: Cut
    hole: int = 0

    def why(self, limits: Limits) -> str:
        """The cut in words."""
        match self.cut:
            case Cut.LAST:
                return "no tag follows in this table of the unit"
            case Cut.HOLE:
                return f"the next tag is {self.hole:,} registers on, and hole_max is {limits.hole_max}"
            case Cut.LIMIT:
                return f"the next tag would make it longer than {limits.count_max(self.read.table)}, the longest read"
            case Cut.REFUSED:
                return "the device refuses a read that goes on to the next tag"


def explained(reads: Sequence[Read], limits: Limits) -> list[PlannedRead]:
    """The requests of a plan, in its order, each with the reason for its end."""
    found = []
    for place, read in enumerate(reads):
        used = len({address for one in read.registers for address in range(one.address, one.end)})
        after = reads[place + 1] if place + 1 < len(reads) else None
        if after is None or (after.unit_id, after.table) != (read.unit_id, read.table):
            found.append(PlannedRead(read, used, Cut.LAST))
            continue
        hole = max(0, after.address - read.end)
        if hole > limits.hole_max:
            cut = Cut.HOLE
        elif after.registers[0].end - read.address > limits.count_max(read.table):
            cut = Cut.LIMIT
        else:
            cut = Cut.REFUSED  # neither rule of the plan parts them, so what the device taught does
        found.append(PlannedRead(read, used, cut, hole))
    return found
