from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.read_plan import Limits, RegisterSpan, plan_reads
from tests.ingest.modbus.devices import register

registers = st.lists(
    st.builds(register, st.integers(0, 40), st.sampled_from([1, 2, 4])), min_size=1, max_size=7, unique=True
)
limits = st.builds(Limits, st.integers(4, 20), st.integers(0, 12))


def partitions(items: list[Register]) -> Iterator[list[list[Register]]]:
    """Every way to part a list into groups."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for parts in partitions(rest):
        yield [[first], *parts]
        for index, part in enumerate(parts):
            yield [*parts[:index], [first, *part], *parts[index + 1 :]]


def is_allowed(group: list[Register], everything: list[Register], bounds: Limits) -> bool:
    """Whether one read may serve a group: short enough, and no hole in what is known to exist is too wide."""
    start, end = min(r.address for r in group), max(r.end for r in group)
    if end - start > bounds.registers_per_read_max:
        return False
    known = {address for r in everything for address in range(r.address, r.end)}
    hole = 0
    for address in range(start, end):
        hole = 0 if address in known else hole + 1
        if hole > bounds.hole_max:
            return False
    return True


@given(registers, limits)
def test_a_plan_serves_everything_once_within_the_limits(wanted: list[Register], bounds: Limits) -> None:
    """Each register is in exactly one read, inside it, and no read is longer or has a wider hole than allowed."""
    reads = plan_reads(wanted, bounds)
    served = [r for read in reads for r in read.registers]
    assert sorted(served, key=lambda r: (r.address, r.count)) == sorted(wanted, key=lambda r: (r.address, r.count))
    for read in reads:
        assert is_allowed(list(read.registers), wanted, bounds)
        assert all(read.address <= r.address and r.end <= read.end for r in read.registers)
        assert read.address == read.registers[0].address
        assert read.end == max(r.end for r in read.registers)


@settings(max_examples=200)
@given(registers, limits, st.lists(st.tuples(st.integers(0, 44), st.integers(1, 6)), max_size=5))
def test_no_plan_has_fewer_reads(wanted: list[Register], bounds: Limits, refused: list[tuple[int, int]]) -> None:
    """The plan is as short as the best of all partitions, found by trying every one. A read covers a refused span only
    if its first value does."""
    spans = [RegisterSpan(1, Table.HOLDING, first, first + count) for first, count in refused]

    def is_free(group: list[Register]) -> bool:
        start, end = min(r.address for r in group), max(r.end for r in group)
        alone = min((r.address, r.end) for r in group) == (start, end)
        return alone or not any(start <= span.first and span.end <= end for span in spans)

    reads = plan_reads(wanted, bounds, spans)
    assert sorted(r.address for read in reads for r in read.registers) == sorted(r.address for r in wanted)
    best = min(
        len(parts)
        for parts in partitions(wanted)
        if all(is_allowed(part, wanted, bounds) and is_free(part) for part in parts)
    )
    assert len(reads) == best
