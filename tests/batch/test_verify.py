"""`verify` and `open_*` accept and refuse the same batches, with the same errors."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from agent import batch
from agent.message import Json
from tests.batch.making import LINK, MANY_DEFINITIONS, forged, packed


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
