"""A mapping that shares with its copies what they do not change."""

from hypothesis import given
from hypothesis import strategies as st

from agent.fact_store.core.catalog import Shards

CHANGES = st.lists(st.tuples(st.integers(0, 200), st.none() | st.integers()))


@given(CHANGES, CHANGES)
def test_a_copy_is_a_dictionary_of_its_own(
    before: list[tuple[int, int | None]], after: list[tuple[int, int | None]]
) -> None:
    """Set and deleted like a dictionary; what is changed in a copy is not changed in the one that was copied."""
    first, expected = Shards[int, int](), dict[int, int]()
    changed(first, expected, before)
    second, kept = first.copy(), dict(expected)
    changed(second, expected, after)
    assert (first, second) == (kept, expected)
    assert (len(second), set(second), second.get(1)) == (len(expected), set(expected), expected.get(1))


def changed(shards: Shards[int, int], plain: dict[int, int], changes: list[tuple[int, int | None]]) -> None:
    """Carry out changes in both; None deletes."""
    for key, value in changes:
        if value is not None:
            shards[key] = plain[key] = value
        elif shards.pop(key, None) is not None:
            del plain[key]
