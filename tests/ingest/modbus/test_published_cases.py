"""The optimisation cases that Telegraf publishes for its Modbus input
(plugins/inputs/modbus/configuration_request_test.go of influxdata/telegraf), as facts: which registers are wanted,
which may be read along, how many requests result there.

A run of registers is (first, count, step, width). Telegraf's "shrink" and "rearrange" may read along what the file
lists as omitted, and nothing else; a hole that it may not cross is a refused span here. Its "max_insert" reads holes of
five registers along.
"""

from dataclasses import dataclass

import pytest

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.plan import Limits, Span, plan_reads

KINDS = {width: value_type(f"uint{16 * width}", "ABCD") for width in (1, 2, 4)}
M = 125  # registers in a read, by the specification
ANY_HOLE = 125


@dataclass(frozen=True)
class Case:
    """What is wanted, under which limits, and Telegraf's number of requests."""

    name: str
    requests: int
    wanted: tuple[tuple[int, ...], ...]
    hole_max: int = ANY_HOLE
    blocked: tuple[int, ...] = ()  # first addresses of holes that may not be read along
    registers_per_read_max: int = M

    def registers(self) -> list[Register]:
        """Every register wanted."""
        found = []
        for first, count, *rest in self.wanted:
            step, width = (*rest, *(1, 1)[len(rest) :])
            found += [Register(1, Table.HOLDING, first + step * i, width, KINDS[width]) for i in range(count)]
        return found


BORDERS = ((0, 1), (M - 1, 2), (2 * M - 1, 1))
GAPS = ((18, 3), (M - 2, 5), (M + 42, 2))
FILLED = ((0, 1), *GAPS)

CASES = (
    Case("shrink: no omit", 2, ((0, 2 * M),)),
    Case("shrink: borders", 2, BORDERS),
    Case("shrink: borders with gap", 3, BORDERS, blocked=(M + 1,)),
    Case("shrink: large gaps", 3, GAPS, blocked=(21, M + 3)),
    Case("shrink: large gaps filled", 2, FILLED),
    Case("shrink: large gaps filled with offset", 2, GAPS),
    Case("shrink: worst case", 2, ((0, M, 2),)),
    Case("shrink: from PR 11106", 2, ((2, 1), (2 * M + 1, 1))),
    Case("rearrange: no omit", 2, ((0, 2 * M),)),
    Case("rearrange: borders", 2, BORDERS),
    Case("rearrange: borders with gap", 3, BORDERS, blocked=(M + 1,)),
    Case("rearrange: large gaps", 3, GAPS, blocked=(21, M + 3)),
    Case("rearrange: large gaps filled", 2, FILLED),
    Case("rearrange: large gaps filled with offset", 2, GAPS),
    Case("rearrange: from PR 11106", 2, ((2, 1), (2 * M + 1, 1))),
    Case("max_insert: large gaps", 3, GAPS, hole_max=5),
    Case("max_insert: large gaps filled", 4, FILLED, hole_max=5),
    Case("max_insert: overlapping fields", 1, ((1, 1, 1, 2), (3, 1, 1, 4), (5, 1, 1, 2), (7, 1, 1, 2)), hole_max=16),
    Case("none: neighbours", 4, ((1, 3), (5, 2), (10, 3), (14, 1)), hole_max=0),
    Case("workaround: eight registers a request", 5, ((0, 10, 4, 4),), registers_per_read_max=8),
    Case("workaround: one field a request", 5, ((1, 5),), registers_per_read_max=1),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_never_more_requests_than_telegraf(case: Case) -> None:
    """Under the limits of each published case our plan has at most as many requests as Telegraf's, serves every
    register, and crosses no hole that Telegraf may not cross."""
    wanted = case.registers()
    refused = [Span(1, Table.HOLDING, address, address + 1) for address in case.blocked]
    reads = plan_reads(wanted, Limits(case.registers_per_read_max, case.hole_max), refused)
    assert len(reads) <= case.requests
    assert sorted(r.address for read in reads for r in read.registers) == sorted(r.address for r in wanted)
    for read in reads:
        assert read.count <= case.registers_per_read_max
        assert not any(read.address <= address < read.end for address in case.blocked)


def test_a_blocked_hole_costs_a_request() -> None:
    """The cases can fail: a plan that ignored what may not be read along would have fewer requests."""
    for case in CASES:
        if case.blocked:
            assert len(plan_reads(case.registers(), Limits(M, ANY_HOLE))) < case.requests
