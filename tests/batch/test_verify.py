"""`verify` and `open_samples` are two ways through one door: what one lets pass, the other does, and both refuse alike."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from agent import batch
from tests.batch.making import forged

STEPS = st.one_of(st.integers(-3, 3), st.lists(st.integers(-3, 3), min_size=1, max_size=3))
VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=3),
    st.builds(Ext, st.integers(0, 3), st.sampled_from([b"1", b"{", b""])),
)
CONTENT = st.tuples(
    st.tuples(st.integers(-1, 3), STEPS),
    st.tuples(st.integers(8, 12), st.integers(-1, 10), STEPS),
    st.lists(VALUE, max_size=4),
    st.lists(st.integers(-1, 2), max_size=4),
)


def refusal(check: Any, sealed: bytes) -> str:
    """Why `check` refuses the batch, or nothing."""
    try:
        check(batch.parse(sealed))
    except batch.BatchError as error:
        return str(error)
    return ""


@given(st.tuples(CONTENT, st.booleans()))
@example((((1, 1), (10, 10, 1), [1.5, 2.5, 3.5], [0]), True))
@example((((1, [1, 0]), (10, 10, [2, -1]), [True, "x", None], [0, 1, 0]), True))
@example((((1, [1, 0]), (10, 0, [30, 20]), [Ext(1, b"1")], [0]), True))
def test_verify_refuses_what_opening_refuses(case: tuple[list[Any], bool]) -> None:
    """Whatever stands in the columns, honest or not, `verify` and `open_samples` agree, to the word."""
    content, compress = case
    sealed = forged(list(content), compress=compress)
    assert refusal(batch.verify, sealed) == refusal(batch.open_samples, sealed)


@pytest.mark.parametrize("values", [[1.5, 2.5, 3.5], ["a", "b", "c"], [Ext(1, b"[1]"), Ext(2, b"x"), None]])
def test_verify_lets_pass_what_can_be_opened(values: list[Any]) -> None:
    """The examples above are not all refused: plain and other values pass both ways."""
    sealed = forged([[1, 1], [10, 10, 1], values, [0]])
    assert refusal(batch.verify, sealed) == refusal(batch.open_samples, sealed) == ""
