from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.plan import Limits, Read, plan_reads, refine

KINDS = {1: value_type("uint16", "ABCD"), 2: value_type("uint32", "ABCD"), 4: value_type("uint64", "ABCD")}


def register(address: int, count: int = 1, unit_id: int = 1, table: Table = Table.HOLDING) -> Register:
    """A register of one, two or four words."""
    return Register(unit_id, table, address, count, KINDS[count])


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


@settings(max_examples=300, deadline=None)
@given(registers, limits)
def test_no_plan_has_fewer_reads(wanted: list[Register], bounds: Limits) -> None:
    """The plan is as short as the best of all partitions, found by trying every one."""
    best = min(len(parts) for parts in partitions(wanted) if all(is_allowed(part, wanted, bounds) for part in parts))
    assert len(plan_reads(wanted, bounds)) == best


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


def test_units_and_tables_are_never_mixed() -> None:
    """A request goes to one unit and one table, whatever the addresses."""
    wanted = [register(5, unit_id=u, table=t) for u in (1, 2) for t in (Table.HOLDING, Table.INPUT)]
    assert len(plan_reads(wanted, Limits(125, 125))) == 4


def test_a_thousand_neighbours_take_eight_reads() -> None:
    """1000 registers at 125 a read are eight requests, the optimum."""
    assert len(plan_reads([register(a) for a in range(1000)], Limits(125, 0))) == 8


@given(registers, limits, st.sets(st.integers(0, 50)))
def test_refining_ends_with_every_value_read(wanted: list[Register], bounds: Limits, missing: set[int]) -> None:
    """A device that lacks addresses is understood after finitely many refusals: what exists is read, what does not is
    known, and the holes learned keep the next plan from asking again."""
    missing -= {address for r in wanted for address in range(r.address, r.end)}  # only holes are missing

    def refuses(read: Read) -> bool:
        return any(address in missing for address in range(read.address, read.end))

    barriers: frozenset[tuple[int, Table, int]] = frozenset()
    queue, accepted, asked = plan_reads(wanted, bounds), [], 0
    while queue:
        read = queue.pop()
        asked += 1
        if not refuses(read):
            accepted.append(read)
            continue
        parts, learned = refine(read)
        assert parts, "a single value has no hole in it"
        queue += parts
        barriers |= learned
    assert sorted((r.address, r.count) for read in accepted for r in read.registers) == sorted(
        (r.address, r.count) for r in wanted
    )
    assert asked <= 4 * len(wanted) + 4


def test_a_refused_value_among_neighbours_is_found_by_halving() -> None:
    """Without holes to blame, halves are tried until the culprit stands alone; all others are read on the way."""
    bad, good = register(37), set[Register]()
    queue, found = plan_reads([register(a) for a in range(64)], Limits(125, 0)), []
    for _ in range(20):
        if not queue:
            break
        read = queue.pop()
        if bad not in read.registers:
            good.update(read.registers)
            continue
        parts, learned = refine(read)
        assert not learned
        if not parts:
            found.append(read)
        queue += parts
    assert [read.registers for read in found] == [(bad,)]
    assert good == {register(a) for a in range(64)} - {bad}


def test_learned_holes_are_not_crossed_again() -> None:
    """After one refusal across a hole the next plan stops before it."""
    wanted = [register(0), register(5)]
    (read,) = plan_reads(wanted, Limits(125, 10))
    parts, learned = refine(read)
    assert parts == plan_reads(wanted, Limits(125, 10), learned)
    assert [part.count for part in parts] == [1, 1]
