from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.plan import Limits
from agent.ingest.modbus.units import Unit

WORD = value_type("uint16", "ABCD")


def unit(*addresses: int) -> Unit:
    """A unit with one word at each of these addresses."""
    points = {n: Register(1, Table.HOLDING, a, 1, WORD) for n, a in enumerate(addresses, 1)}
    return Unit(1, points, Limits(125, 10), retry_ns=100, retry_max_ns=350)


def test_a_silent_unit_is_asked_ever_more_rarely() -> None:
    """The pause doubles up to its limit, silence is news once, and an answer makes it start over."""
    one = unit(0)
    assert one.fell_silent(1000)
    assert one.probe_at_ns() == 1100
    assert not one.fell_silent(1100)
    assert one.probe_at_ns() == 1300
    assert not one.fell_silent(1300)
    assert one.probe_at_ns() == 1300 + 350
    assert one.answered()
    assert not one.answered()
    assert one.probe_at_ns() is None
    one.fell_silent(2000)
    assert one.probe_at_ns() == 2100


def test_a_parked_value_leaves_the_plan_and_returns() -> None:
    """A value its device refuses is asked for alone; the others keep being read without it, in as few reads as
    possible."""
    one = unit(0, 1, 2, 3)
    (read,) = one.reads
    assert not one.refused(read, 0)  # four neighbours: halves are tried
    left, right = one.reads
    assert not one.refused(left, 0)
    zero = one.reads[0]
    assert one.refused(zero, 0)
    assert [r.count for r in one.reads] == [3]
    assert one.parked_count == 1
    assert list(one.due_parked(99)) == []
    (again,) = one.due_parked(100)
    assert not one.refused(again, 100)  # no news the second time
    assert list(one.due_parked(250)) == []
    one.returned(again)
    assert [r.count for r in one.reads] == [4]
    assert right.count == 2


def test_another_wish_keeps_what_the_unit_has_taught() -> None:
    """Silence, holes and refusals outlast a new tag map; a refused value that is wanted no more is forgotten, its hole
    not."""
    one = unit(0, 2, 4)
    (read,) = one.reads
    assert not one.refused(read, 0)  # learns the holes at 1 and 3
    assert [r.count for r in one.reads] == [1, 1, 1]
    assert one.refused(one.reads[1], 0)
    one.fell_silent(0)
    one.want({7: Register(1, Table.HOLDING, 0, 1, WORD), 8: Register(1, Table.HOLDING, 4, 1, WORD)})
    assert [(r.address, r.count) for r in one.reads] == [(0, 1), (4, 1)]
    assert one.parked_count == 0
    assert one.is_silent
    assert one.all_tags() == [7, 8]
    one.want({7: Register(1, Table.HOLDING, 10, 1, WORD), 9: Register(1, Table.HOLDING, 12, 1, WORD)})
    assert [(r.address, r.count) for r in one.reads] == [(10, 3)]
