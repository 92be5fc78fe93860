"""The fast paths of packing and checking give the same results as the simple ones; `verify` and `open_*` accept and
refuse the same batches, with the same errors."""

import math
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from agent import batch, columns
from agent.message import Json, Value
from tests.batch.making import LINK, MANY_DEFINITIONS, VALUES, bits, forged, packed

STEADY = st.lists(st.sampled_from([1] * 20 + [-499, 300, 0]), min_size=1, max_size=200)
WILD = st.lists(st.integers(-128, 127), min_size=1, max_size=60)
TYPECODES = {1: "b", 2: "h", 4: "i", 8: "q"}
UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}


def planes_of(column: array) -> bytes:
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
    turns, tags = columns._turns(first, column, planes_of(column)), list(accumulate(steps, initial=first))
    assert (min(turns), max(turns)) == (min(tags), max(tags))


def test_steady_scans_have_few_turns() -> None:
    """Two scans of 500 tags have one turn, and are not checked tag by tag."""
    steps = array("h", [*[1] * 499, -499] * 2)
    assert len(columns._turns(1, steps, planes_of(steps))) < 10


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
    unpacked = columns.unpack(content, columns.HeaderFields(count, 1, earliest, latest))
    assert unpacked.times_ns_at(places) == [times[place] for place in places]
    assert unpacked.qualities_at(places) == [qualities[place] for place in places]
    assert [*map(bits, unpacked.values_at(places))] == [bits(values[place]) for place in places]


@given(st.lists(VALUES, min_size=1, max_size=30))
def test_values_lie_in_the_documented_columns(values: list[Value]) -> None:
    """Each kind is in its column; an integer above int64 is among the others."""
    count = len(values)
    content, *_ = columns.pack(([1] * count, [5] * count, values, [0] * count), 1)
    unpacked = columns.unpack(content, columns.HeaderFields(count, 1, 5, 5))
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


def planes(byte: st.SearchStrategy[int], width: int) -> st.SearchStrategy[tuple[int, bytes]]:
    """A width, and bytes that may be as many as three integers of it need."""
    return st.tuples(st.just(width), st.lists(byte, min_size=0, max_size=3 * width).map(bytes))


SMALL = st.integers(0, 3) | st.integers(0, 255)
PLANES = st.sampled_from([0, 1, 1, 1, 2, 3, 8]).flatmap(lambda width: planes(SMALL, width))
EXACT = st.lists(SMALL, min_size=3, max_size=3).map(lambda data: (1, bytes(data)))
ABOVE = st.one_of(st.just((0, b"")), EXACT, PLANES)
STEPS = st.one_of(st.just((0, b"")), st.lists(SMALL, min_size=2, max_size=2).map(lambda data: (1, bytes(data))), PLANES)
OTHER = st.one_of(
    st.none(),
    st.integers(2**63 - 1, 2**63),
    st.text(max_size=3),
    st.builds(Ext, st.integers(0, 3), st.sampled_from([b"1", b"{", b""])),
)
CONTENT = st.tuples(
    st.builds(lambda first, step, rest: (first, step, *rest), st.integers(-1, 3), st.integers(-1, 1), STEPS),
    st.builds(lambda least, unit, rest: (least, unit, *rest), st.sampled_from([9, 10, 10]), st.integers(0, 10), ABOVE),
    st.lists(st.integers(0, 4), max_size=3).map(bytes),
    st.lists(st.floats(), max_size=4).map(lambda floats: struct.pack(f"<{len(floats)}d", *floats)),
    st.builds(lambda least, rest: (least, *rest), st.integers(-1, 2) | st.just(2**63 - 2), ABOVE),
    st.lists(st.integers(0, 2), max_size=3).map(bytes),
    st.lists(OTHER, max_size=4),
    st.builds(lambda least, rest: (least, *rest), st.integers(-1, 2) | st.just(2**32 - 2), ABOVE),
)
NEARLY = st.lists(st.tuples(st.integers(0, 7), CONTENT), max_size=2)  # honest facts, but for a column or two


def refusal(check: Any, sealed: bytes) -> str:
    """Why `check` refuses the batch; empty where it does not."""
    try:
        check(batch.parse(sealed))
    except batch.BatchError as error:
        return str(error)
    return ""


def check_agreement(content: Sequence[Any], *, compress: bool) -> None:
    """`verify` and opening have the same result, with the same text."""
    sealed = forged(list(content), compress=compress)
    why = refusal(batch.verify, sealed)
    assert refusal(batch.open_samples, sealed) == why


@given(content=CONTENT, compress=st.booleans())
@example(content=tuple(packed()), compress=True)
@example(content=tuple(packed(tags=[1, 0, 1, b"\x01\x00"], times=[10, 1, 1, b"\x14\x00\x05"])), compress=True)
def test_verify_refuses_what_opening_refuses(content: tuple[Any, ...], *, compress: bool) -> None:
    """Whatever is in the columns, `verify` and `open_*` agree."""
    check_agreement(content, compress=compress)


@given(NEARLY)
def test_verify_refuses_what_opening_refuses_of_nearly_honest_facts(changes: list[tuple[int, tuple[Any, ...]]]) -> None:
    """As above where all but one or two columns are valid, so that every check is the first to fail."""
    content = packed()
    for column, strange in changes:
        content[column] = strange[column]
    check_agreement(content, compress=False)


WIDE = {
    "a kind for each": {"kinds": bytes(3)},
    "one float for all": {"floats": bytes(8)},
    "wide steps": {"tags": [3, 0, 8, b"\xff\x01" + b"\xff\x00" * 7]},
    "wide times": {"times": [10, 5, 2, b"\x04\x02\x00" + bytes(3)]},
    "wide times of one plane more": {"times": [10, 1, 4, b"\x00\x14\x05" + bytes(9)]},
    "wide qualities": {"qualities": [7, 4, b"\x00\x01\x02" + bytes(9)]},
    "ints": {"kinds": b"\x01", "floats": b"", "ints": [-5, 2, b"\x01\x00\x00\x00\x00\x01"]},
    "a width without ints": {"ints": [5, 8, b""]},
    "one bool for all": {"kinds": b"\x02", "floats": b"", "bools": b"\x01"},
    "one other for all": {"kinds": b"\x03", "floats": b"", "others": ["x"]},
    "others": {"kinds": b"\x03", "floats": b"", "others": [Ext(1, b"[1]"), 2**64 - 1, None]},
}


@pytest.mark.parametrize("name", WIDE)
def test_a_reader_accepts_forms_that_no_writer_makes(name: str) -> None:
    """Wider integers than needed, or full columns where one entry would do, are read to the same facts."""
    parsed = batch.parse(forged(packed(**WIDE[name])))
    batch.verify(parsed)
    columns = batch.open_samples(parsed)
    again = batch.seal_columns(LINK, columns, MANY_DEFINITIONS)
    assert batch.open_samples(again) == columns


def test_wide_forms_hold_the_listed_facts() -> None:
    """The facts of some of these forms, written out."""

    def opened(name: str) -> batch.SampleColumns:
        return batch.open_samples(batch.parse(forged(packed(**WIDE[name]))))

    assert opened("wide steps").tags == [3, 2, 3]
    assert opened("wide times").source_times_ns == [30, 20, 10]
    assert opened("wide times of one plane more").source_times_ns == [10, 30, 15]
    assert opened("wide qualities").qualities == [7, 8, 9]
    assert opened("ints").values == [-4, -5, 251]
    assert opened("one bool for all").values == [True, True, True]
    assert opened("others").values == [Json(b"[1]"), 2**64 - 1, None]
