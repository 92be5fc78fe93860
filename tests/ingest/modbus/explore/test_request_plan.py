"""Why requests end where they do: each reason is checked by asking what would happen without it."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.explore.request_plan import Cut, explained, planned_reads
from agent.ingest.modbus.plan import Limits, Read
from agent.ingest.settings import ModbusSourceSettings

KINDS = {1: value_type("uint16", "ABCD"), 2: value_type("uint32", "ABCD"), 4: value_type("uint64", "ABCD")}
SETTINGS = ModbusSourceSettings("meter", "meter", Path("t.csv"), 0)

registers = st.lists(
    st.builds(
        lambda unit, table, address, count: Register(unit, table, address, count, KINDS[count]),
        st.integers(1, 2),
        st.sampled_from([Table.INPUT, Table.HOLDING]),
        st.integers(0, 60),
        st.sampled_from([1, 2, 4]),
    ),
    min_size=1,
    max_size=20,
    unique=True,
)


@given(registers, st.integers(4, 20), st.integers(0, 12))
def test_each_reason_is_the_one_that_holds(wanted: list[Register], longest: int, hole_max: int) -> None:
    """Without the limit of a hole the two requests would have no hole between them that is too wide; without the limit
    of length they would be one. No other reason is given to a device that has taught nothing."""
    settings = replace(SETTINGS, registers_per_read_max=longest, hole_max=hole_max)
    found = planned_reads(settings, wanted)
    for one, after in zip(found, [*found[1:], None], strict=True):
        is_last = after is None or (after.read.unit_id, after.read.table) != (one.read.unit_id, one.read.table)
        assert (one.cut is Cut.LAST) == is_last
        if after is not None and not is_last:
            assert (one.cut is Cut.HOLE) == (after.read.address - one.read.end > hole_max)
            assert one.cut in (Cut.HOLE, Cut.LIMIT)
            if one.cut is Cut.LIMIT:
                assert after.read.registers[0].end - one.read.address > longest
        used = {place for register in one.read.registers for place in range(register.address, register.end)}
        assert one.used == len(used) <= one.read.count


def test_what_neither_rule_parts_was_taught_by_the_device() -> None:
    """Two requests side by side that fit into one are apart because the device refused them together."""
    reads = [Read(1, Table.INPUT, n, 1, (Register(1, Table.INPUT, n, 1, KINDS[1]),)) for n in (5, 7)]
    first, last = explained(reads, Limits(125, 16))
    assert (first.cut, first.hole, last.cut) == (Cut.REFUSED, 1, Cut.LAST)
    assert "refuses" in first.why
