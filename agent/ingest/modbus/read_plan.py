"""Plans the fewest reads that fetch a set of registers within the limits of the device.

A read covers neighbouring registers of one unit and table, at most `registers_per_read_max` of them. It may include
registers without a tag if no such hole is wider than `hole_max`. It covers no span that the device is known to refuse.
Within these limits the plan is optimal: each part of an allowed read is allowed too, so the register with the lowest
address is best read by a read that starts there and goes as far as it may. This is repeated with the rest. Core.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from agent.ingest.modbus.address import Register, Table

BITS_PER_READ_MAX = 2_000  # Modbus Application Protocol 6.1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one read."""

    registers_per_read_max: int
    hole_max: int

    def count_max(self, table: Table) -> int:
        """The most entries of a table in one read. A limit of registers limits the bits to as many as fit into
        those."""
        return (
            min(BITS_PER_READ_MAX, self.registers_per_read_max * 16) if table.is_bits else self.registers_per_read_max
        )


class RegisterSpan(NamedTuple):
    """A range of addresses in a table of a unit; `end` is excluded."""

    unit_id: int
    table: Table
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Read:
    """One request: `count` entries from `address`, and the registers that it reads, in the order of addresses."""

    unit_id: int
    table: Table
    address: int
    count: int
    registers: tuple[Register, ...]

    @property
    def end(self) -> int:
        """The first address after the read."""
        return self.address + self.count

    @property
    def span(self) -> RegisterSpan:
        """The addresses that it covers."""
        return RegisterSpan(self.unit_id, self.table, self.address, self.end)


def plan_reads(registers: Iterable[Register], limits: Limits, refused: Iterable[RegisterSpan] = ()) -> list[Read]:
    """The fewest reads for these registers. Only a read of a single register may cover a refused span, or be longer
    than the limit: the line reads it in parts."""
    groups: dict[tuple[int, str], list[Register]] = {}
    for register in registers:
        groups.setdefault((register.unit_id, register.table.value), []).append(register)
    spans: dict[tuple[int, str], list[RegisterSpan]] = {}
    for span in refused:
        spans.setdefault((span.unit_id, span.table.value), []).append(span)
    reads: list[Read] = []
    for key in sorted(groups):
        fence = _Fence(spans.get(key, ()))
        for cluster in _clusters(groups[key], limits.hole_max):
            reads += _cover(cluster, limits, fence)
    return reads


def read_of(registers: Sequence[Register]) -> Read:
    """The read of these registers, which are in the order of addresses."""
    first = registers[0]
    end = max(register.end for register in registers)
    return Read(first.unit_id, first.table, first.address, end - first.address, tuple(registers))


class _Fence:
    """The refused spans of one table, and how far a read may go before it covers one."""

    def __init__(self, spans: Iterable[RegisterSpan]) -> None:
        ordered = sorted(spans, key=lambda span: span.first)
        self._firsts = [span.first for span in ordered]
        # By place: the lowest end of the spans from there on.
        self._ends = list(accumulate((span.end for span in reversed(ordered)), min))[::-1]

    def reach(self, address: int) -> int:
        """The largest end that a read from this address may have."""
        place = bisect_left(self._firsts, address)
        return self._ends[place] - 1 if place < len(self._ends) else 2**17


def _clusters(registers: list[Register], hole_max: int) -> Iterable[list[Register]]:
    """The registers in the order of addresses, split at holes that are too wide."""
    cluster: list[Register] = []
    end = 0
    for register in sorted(registers, key=lambda r: (r.address, r.count)):
        if cluster and register.address - end > hole_max:
            yield cluster
            cluster = []
        end = max(end, register.end) if cluster else register.end
        cluster.append(register)
    if cluster:
        yield cluster


def _cover(cluster: list[Register], limits: Limits, fence: _Fence) -> Iterable[Read]:
    """Repeatedly read from the lowest address left as far as possible."""
    left = cluster
    while left:
        first = left[0]
        reach = first.address + limits.count_max(first.table)
        reach = max(first.end, min(reach, fence.reach(first.address)))
        yield read_of([register for register in left if register.end <= reach])
        left = [register for register in left if register.end > reach]
