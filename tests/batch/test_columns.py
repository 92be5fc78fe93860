"""The fast paths of packing and checking give the same results as the simple ones."""

import math
from array import array
from itertools import accumulate

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent import columns
from agent.message import Value
from tests.batch.making import VALUES, bits

STEADY = st.lists(st.sampled_from([1] * 20 + [-499, 300, 0]), min_size=1, max_size=200)
WILD = st.lists(st.integers(-128, 127), min_size=1, max_size=60)
TYPECODES = {1: "b", 2: "h", 4: "i", 8: "q"}
UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}


def planes(column: array) -> bytes:
    """Bytes of integers by plane, the plain way."""
    data = column.tobytes()
    return bytes(data[at] for plane in range(column.itemsize) for at in range(plane, len(data), column.itemsize))


@given(st.integers(-5, 10**6), STEADY | WILD, st.sampled_from([1, 2, 4, 8]))
@example(1, [1] * 9 + [-8] + [1] * 9, 1)
@example(1, [256] * 30 + [1] + [256] * 9, 2)
@example(500, [1, *[2] * 60], 2)
def test_the_turns_include_the_least_and_the_greatest_tag(first: int, steps: list[int], width: int) -> None:
    """The least and the greatest of the turns are those of all tags, however often the step changes."""
    if width == 1:
        steps = [max(-128, min(127, step)) for step in steps]
    column = array(TYPECODES[width], steps)
    turns, tags = columns._turns(first, column, planes(column)), list(accumulate(steps, initial=first))
    assert (min(turns), max(turns)) == (min(tags), max(tags))


def test_steady_scans_have_few_turns() -> None:
    """Two scans of 500 tags have one turn, and are not checked tag by tag."""
    steps = array("h", [*[1] * 499, -499] * 2)
    assert len(columns._turns(1, steps, planes(steps))) < 10


@st.composite
def unsigned(draw: st.DrawFn) -> array:
    """Integers of some width, the ends of their range often among them."""
    width = draw(st.sampled_from([1, 2, 4, 8]))
    top = 2 ** (8 * width) - 1
    numbers = st.sampled_from([0, 1, 255, 256, top - 1, top]) | st.integers(0, top)
    return array(UNSIGNED[width], draw(st.lists(numbers.map(lambda number: min(number, top)), min_size=1, max_size=20)))


@given(unsigned(), st.data())
def test_spans_is_minimum_and_maximum(above: array, data: st.DataObject) -> None:
    """For any width, number of integers and supposed greatest, also one that is among them but not the greatest."""
    tops = [*above, max(above) + 1, max(above) - 1, 0, 2**64, 2 ** (8 * above.itemsize) - 1]
    top = data.draw(st.sampled_from([top for top in tops if top >= 0]))
    assert columns._spans(above, top) == ((min(above), max(above)) == (0, top))


@pytest.mark.parametrize("width", [2, 4, 8])
def test_numbers_are_found_at_whole_integers_only(width: int) -> None:
    """Bytes that would be the number across two integers do not count as it."""
    data = array(UNSIGNED[width], [1, 1 << 8 * (width - 1), 5])
    assert bytes(width) in data.tobytes()
    assert not columns._holds(data.tobytes(), width, 0)
    assert columns._holds(data.tobytes(), width, 5)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=80), st.sampled_from([1, 7, 100, 10**9]), st.integers(0, 10**18)
)
@example([0] * 79 + [6], 100, 0)
@example([0, 12] * 20 + [8] * 3, 1, 5)
@example([0, 12] * 20 + [8] * 2, 1, 5)
@example([0] * 40 + [2, 3], 1, 5)
def test_unit_is_the_largest_that_divides(parts: list[int], unit: int, earliest: int) -> None:
    """However few times it is first computed from."""
    times = [earliest + unit * part for part in parts]
    count = len(times)
    content, *_ = columns.pack(([1] * count, times, [0.5] * count, [0] * count), 1)
    assert msgspec.msgpack.decode(content)[1][:2] == [min(times), math.gcd(*(time - min(times) for time in times)) or 1]


@given(st.lists(VALUES, min_size=20, max_size=60), st.sampled_from([1, 1000]), st.data())
@example([True, False] * 20, 1000, None)
def test_a_few_facts_are_read_as_in_the_whole_column(
    values: list[Value], unit: int, data: st.DataObject | None
) -> None:
    """Times, values and qualities of a few facts, read one by one, are those of the whole columns, to the bit."""
    count = len(values)
    places = [3, 17] if data is None else data.draw(st.lists(st.integers(0, count - 1), max_size=count // 8))
    times, qualities = [unit * (n * n % 7) for n in range(count)], [n * n % 5 for n in range(count)]
    content, earliest, latest = columns.pack(([1] * count, times, values, qualities), 1)
    unpacked = columns.unpack(content, columns.Frame(count, 1, earliest, latest))
    assert unpacked.times_ns_at(places) == [times[place] for place in places]
    assert unpacked.qualities_at(places) == [qualities[place] for place in places]
    assert [*map(bits, unpacked.values_at(places))] == [bits(values[place]) for place in places]


@given(st.lists(VALUES, min_size=1, max_size=30))
def test_values_lie_in_the_documented_columns(values: list[Value]) -> None:
    """Each kind is in its column; an integer above int64 is among the others."""
    count = len(values)
    content, *_ = columns.pack(([1] * count, [5] * count, values, [0] * count), 1)
    unpacked = columns.unpack(content, columns.Frame(count, 1, 5, 5))
    kinds = [
        columns.FLOAT if isinstance(value, float)
        else columns.BOOL if isinstance(value, bool)
        else columns.INT if isinstance(value, int) and value < 2**63
        else columns.OTHER
        for value in values
    ]  # fmt: skip
    assert list(unpacked.kinds) == kinds
    others = [value for value, kind in zip(values, kinds, strict=True) if kind == columns.OTHER]
    found = [value for value, kind in zip(unpacked.all_values(), kinds, strict=True) if kind == columns.OTHER]
    assert [bits(other) for other in found] == [bits(other) for other in others]
