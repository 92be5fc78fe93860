"""Deduplicator: two subscriptions bring the same values, and each is recorded once, in whatever order they arrive."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agent.columns import SampleColumns
from agent.ingest.opcua.rescue.deduplicator import Deduplicator
from agent.message import Sample

NONE: frozenset[int] = frozenset()


def columns(*times: int, tag: int = 1) -> SampleColumns:
    """Values of a tag at these times."""
    return SampleColumns.of([Sample(tag, time, float(time)) for time in times])


def times(samples: SampleColumns) -> list[int]:
    """When they are."""
    return list(samples.source_times_ns)


def test_the_old_one_is_taken_until_the_new_one_begins() -> None:
    """Then only what the new one has not brought; what is older than that is late."""
    seam = Deduplicator()
    assert [times(part) for part in seam.of_old(columns(1, 2), NONE)] == [[1, 2], []]
    assert times(seam.of_new(columns(4, 5))) == [4, 5]
    assert [times(part) for part in seam.of_old(columns(3, 4, 5, 6), NONE)] == [[6], [3]]
    assert times(seam.of_new(columns(6, 7))) == [7]


def test_what_the_old_one_has_brought_is_left_out_of_the_new_one() -> None:
    """The new one begins behind it, and is whole from then on, also when its clock goes back."""
    seam = Deduplicator()
    seam.of_old(columns(11, 12, 13), NONE)
    assert not seam.is_closed
    assert times(seam.of_new(columns(12, 13))) == []
    assert not seam.is_closed
    assert times(seam.of_new(columns(1, 2))) == [1, 2]
    assert seam.is_closed


def test_nothing_is_kept_once_the_old_one_has_ended() -> None:
    """What the old one brought is still compared with what the new one repeats; the times of the new one serve nothing
    any more, and would take memory with each value."""
    seam = Deduplicator()
    seam.of_new(columns(4, 5))
    seam.of_old(columns(6), NONE)
    seam.end_old()
    assert times(seam.of_new(columns(6, 7, 8))) == [7, 8]
    assert not seam._new


def test_tags_go_each_its_way() -> None:
    """A tag that stands still has nothing in the old one; one that the server refuses now is not taken at all."""
    seam = Deduplicator()
    assert times(seam.of_new(columns(1, tag=2))) == [1]
    assert [times(part) for part in seam.of_old(columns(5, tag=3), {3})] == [[], []]
    assert seam.is_closed


def test_what_a_seam_before_has_brought_is_left_out() -> None:
    """The session was lost again before the new subscription had brought it: that is the old one now."""
    before = Deduplicator()
    before.of_old(columns(1, 2), NONE)
    assert [times(part) for part in Deduplicator(before).of_old(columns(2, 3), NONE)] == [[3], []]


@given(
    st.lists(st.integers(0, 40), unique=True, max_size=24),
    st.integers(0, 24),
    st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=30),
)
def test_each_value_once(server: list[int], begins: int, turns: list[tuple[bool, int]]) -> None:
    """The server has values at these times, in this order, whatever its clock does. The old subscription has every one,
    the new one all from one on; both end together, and arrive in parts of any size in any order."""
    old, new = list(server), server[begins:]
    seam, found = Deduplicator(), Counter[int]()
    for is_old, count in [*turns, (True, len(old)), (False, len(new))]:
        values = old if is_old else new
        part, values[:] = values[:count], values[count:]
        taken = seam.of_old(columns(*part), NONE) if is_old else [seam.of_new(columns(*part))]
        for samples in taken:
            found.update(times(samples))
    assert found == Counter(server)
