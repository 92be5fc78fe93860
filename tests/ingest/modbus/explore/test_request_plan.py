"""Why requests end where they do: each reason is checked by asking what would happen without it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.explore.request_plan import Cut, explained, request_plan
from agent.ingest.modbus.plan import Limits, Read
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags.tag_map import Tag
from agent.message import TagDefinition
from agent.settings.sources import ModbusSourceSettings

KINDS = {1: value_type("uint16", "ABCD"), 2: value_type("uint32", "ABCD"), 4: value_type("uint64", "ABCD")}
SETTINGS = ModbusSourceSettings("meter", Path("t.csv"), 0)

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


def tag(point: Register, row: int = 2) -> Tag:
    """A tag that reads this."""
    return Tag(row, "facts.telemetry", TagDefinition(f"tag:a/{row}", "value_sampled"), SamplingRule(), point)


@given(registers, st.integers(4, 20), st.integers(0, 12))
def test_each_reason_is_the_one_that_holds(wanted: list[Register], longest: int, hole_max: int) -> None:
    """Without the limit of a hole the two requests would have no hole between them that is too wide; without the limit
    of length they would be one. No other reason is given to a device that has taught nothing."""
    settings = replace(SETTINGS, registers_per_read_max=longest, hole_max=hole_max)
    found = request_plan(settings, [tag(one) for one in wanted]).reads
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


def test_what_the_source_has_learned_shapes_the_plan() -> None:
    """A span that the device refuses parts the requests around it, and a tag that it refuses alone is in none; a file
    that is no such document is an error, not an empty one."""
    points = [Register(1, Table.HOLDING, n, 1, KINDS[1], 1_000 if n < 8 else 5_000) for n in (3, 5, 8, 9)]
    tags = [tag(point, row) for row, point in enumerate(points)]
    learned = b'{"version": 1, "refused": [[1, "holding", 3, 6, 2], [1, "holding", 9, 10, 4]]}'
    found = request_plan(SETTINGS, tags, learned)
    assert [(planned.read.address, planned.read.count, planned.cut) for planned in found.reads] == [
        (3, 1, Cut.REFUSED),
        (5, 4, Cut.LAST),
    ]
    assert [(one.tag, one.why) for one in found.parked] == [("a/3", "server device failure (4)")]
    assert [(one.interval_ms, one.tags, one.requests) for one in found.intervals] == [(1_000, 2, 2), (5_000, 1, 1)]
    with pytest.raises(ValueError, match="refused spans"):
        request_plan(SETTINGS, tags, b"[]")
