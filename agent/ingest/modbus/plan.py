"""The fewest reads that fetch a set of registers, within what the device allows.

A read covers neighbouring registers of one unit and table, at most `registers_per_read_max` of them, and may run across
registers nobody asked for if no such hole is wider than `hole_max`. Within these limits the plan is optimal: the
register with the lowest address must be in some read, a read that starts there loses nothing against one that starts
earlier, and it is best filled as far as it goes; repeat with what is left.

Devices refuse reads that touch addresses they do not have. `refine` takes a refused read apart: first at its holes,
which are then never crossed again, and if it has none, in halves, down to single values. Core.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.ingest.modbus.address import Register, Table

BITS_PER_READ_MAX = 2_000  # Modbus Application Protocol 6.1


@dataclass(frozen=True, slots=True)
class Limits:
    """What one read may be."""

    registers_per_read_max: int
    hole_max: int

    def count_max(self, table: Table) -> int:
        """Most entries of a table in one read; a device that takes few registers takes as many bits as fit their
        bytes."""
        return (
            min(BITS_PER_READ_MAX, self.registers_per_read_max * 16) if table.is_bits else self.registers_per_read_max
        )


@dataclass(frozen=True, slots=True)
class Read:
    """One request: `count` entries from `address`, and the registers it serves, in order of address."""

    unit_id: int
    table: Table
    address: int
    count: int
    registers: tuple[Register, ...]

    @property
    def end(self) -> int:
        """The first address after the read."""
        return self.address + self.count


Barrier = tuple[int, Table, int]
"""(unit, table, address) that no read may cover unless a register asked for lies there."""


def plan_reads(registers: Iterable[Register], limits: Limits, barriers: frozenset[Barrier] = frozenset()) -> list[Read]:
    """The fewest reads for these registers. None of them may be longer than a read."""
    groups: dict[tuple[int, str], list[Register]] = {}
    for register in registers:
        groups.setdefault((register.unit_id, register.table.value), []).append(register)
    reads: list[Read] = []
    for key in sorted(groups):
        for cluster in _clusters(groups[key], limits.hole_max, barriers):
            reads += _cover(cluster, limits)
    return reads


def refine(read: Read) -> tuple[list[Read], frozenset[Barrier]]:
    """The reads to try after this one was refused, and the holes it has taught us. One value alone cannot be
    refined."""
    if len(read.registers) == 1:
        return [], frozenset()
    holes = list(_holes(read.registers))
    if holes:
        learned = frozenset((read.unit_id, read.table, first) for first, _ in holes)
        cuts = [first for first, _ in holes]
        parts = [[r for r in read.registers if low <= r.address < high] for low, high in _ranges(cuts)]
        return [_read(part) for part in parts if part], learned
    middle = len(read.registers) // 2
    return [_read(read.registers[:middle]), _read(read.registers[middle:])], frozenset()


def _ranges(cuts: Sequence[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise([-1, *cuts, 2**17]))


def _clusters(registers: list[Register], hole_max: int, barriers: frozenset[Barrier]) -> Iterable[list[Register]]:
    """Registers in order of address, parted where a read must not run on: at wide holes and at learned ones."""
    ordered = sorted(registers, key=lambda r: (r.address, r.count))
    cluster: list[Register] = []
    end = 0
    for register in ordered:
        hole = register.address - end
        if cluster and (hole > hole_max or (hole > 0 and (register.unit_id, register.table, end) in barriers)):
            yield cluster
            cluster = []
        cluster.append(register)
        end = max(end, register.end) if len(cluster) > 1 else register.end
    if cluster:
        yield cluster


def _cover(cluster: list[Register], limits: Limits) -> Iterable[Read]:
    """Greedy and optimal: start at the lowest address left, take all that end within reach."""
    left = cluster
    while left:
        reach = left[0].address + limits.count_max(left[0].table)
        assert left[0].end <= reach, "the tag map refuses values longer than a read"
        yield _read([register for register in left if register.end <= reach])
        left = [register for register in left if register.end > reach]


def _read(registers: Sequence[Register]) -> Read:
    first = registers[0]
    end = max(register.end for register in registers)
    return Read(first.unit_id, first.table, first.address, end - first.address, tuple(registers))


def _holes(registers: Sequence[Register]) -> Iterable[tuple[int, int]]:
    """(first, end) of the addresses inside a read that no tag needs."""
    end = registers[0].end
    for register in registers[1:]:
        if register.address > end:
            yield end, register.address
        end = max(end, register.end)
