"""FetchRange: any division of a log into ranges gives every fact once, with any limits, and changes nothing at the
server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import Origin
from agent.pages import Hole, Page, StoredBatch
from agent.replication.protocol.codec import decode_request, encode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import FetchRange
from agent.replication.serving.admission import admit_range
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import HeldThere, ReadPlan, select_page
from tests.replication.nodes import STREAM
from tests.replication.stored import stored

LIFE = "00" * 16


def test_a_range_of_a_stream_that_is_not_exported_is_refused() -> None:
    """One that is has a plan with an end."""
    request = FetchRange(stream=STREAM, first_offset=101, last_offset=200, life=LIFE, limit=7)
    assert admit_range(request, "idmz", frozenset({STREAM})) == ReadPlan(STREAM, 100, 7, 262_144, 200)
    refused = admit_range(request, "idmz", frozenset({"facts.other"}))
    assert isinstance(refused, Refuse)
    assert refused.code == "stream_not_exported"


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"first_offset": 3, "last_offset": 2, "limit": 1}, "bad_request"),
        ({"first_offset": 0, "last_offset": 2, "limit": 1}, "bad_request"),
        ({"first_offset": 1, "last_offset": 2, "limit": 0}, "limit_out_of_range"),
        ({"first_offset": 1, "last_offset": 2, "limit": 1, "bytes_max": 1}, "limit_out_of_range"),
    ],
)
def test_invalid_ranges_are_refused(fields: dict[str, int], code: str) -> None:
    """A reversed range, an offset below 1, and an invalid page size."""
    with pytest.raises(MalformedMessage) as refused:
        decode_request(encode_request(FetchRange(stream=STREAM, life=LIFE, **fields)))
    assert refused.value.code == code


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["facts", "own", "gone"])), min_size=1, max_size=8),
    st.data(),
)
def test_pages_of_a_range_cover_it_exactly(parts: list[tuple[int, str]], data: st.DataObject) -> None:
    """The pages of any range cover each of its offsets once, in order, and none outside it."""
    batches, gone, at = list[StoredBatch](), list[Hole](), 0
    for count, kind in parts:
        first, at = at + 1, at + count
        if kind == "gone":
            gone.append(Hole(first, at, "damaged"))
        else:
            zone = "idmz" if kind == "own" else "plant-a"
            batches.append(stored(first, at, origin=Origin(zone, bytes(16))))
    last = data.draw(st.integers(1, at))
    position = data.draw(st.integers(0, last - 1))
    covered, until = list[int](), range(position + 1, last + 1)
    while position < last:
        plan = ReadPlan(STREAM, position, data.draw(st.integers(1, 12)), data.draw(st.integers(1024, 3000)), last)
        left = [one for one in batches if one.last_offset > position and one.first_offset <= last]
        holes = [  # as the store cuts them
            Hole(max(one.first_offset, position + 1), min(one.last_offset, last), one.reason)
            for one in gone
            if one.last_offset > position and one.first_offset <= last
        ]
        page = select_page(plan, Page(left, at, tuple(holes)), HeldThere(frozenset({"idmz"})), 10_000)
        assert not isinstance(page, Refuse)
        runs = [(one.first_offset, one.last_offset) for one in (*page.pieces, *page.holes)] + list(page.omitted)
        for first, end in sorted(runs):
            covered += range(first, end + 1)
        for piece in page.pieces:
            is_all = (piece.first_offset, piece.last_offset) == (piece.batch.first_offset, piece.batch.last_offset)
            assert piece.is_whole == is_all
        assert page.last_offset > position
        position = page.last_offset
    assert covered == list(until)
