"""What was learned, written and read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import Table
from agent.ingest.modbus.plan import Span
from agent.ingest.modbus.refused_spans import parse_refused, refused_document

spans = st.builds(
    lambda unit, table, first, count: Span(unit, table, first, min(first + count, 65_536)),
    st.integers(0, 255),
    st.sampled_from(Table),
    st.integers(0, 65_535),
    st.integers(1, 125),
)


@given(st.dictionaries(spans, st.integers(0, 255), max_size=8))
def test_a_document_gives_what_was_learned(learned: dict[Span, int]) -> None:
    """Each span and its exception comes back, and the same spans make the same bytes."""
    document = refused_document(learned)
    assert parse_refused(document) == learned
    assert refused_document(parse_refused(document)) == document


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b"{", b"[]", b'{"version": 2, "refused": []}', b'{"version": 1}', b"\xff\xfe"),
        *(b'{"version": 1, "refused": [[1, "holding", 5, 5, 2]]}', b'{"version": 1, "refused": [[1, "x", 5, 6, 2]]}'),
        *(
            b'{"version": 1, "refused": [[1, "holding", 5, 6]]}',
            b'{"version": 1, "refused": [[1, "coil", 0, 65536, 2]]}',
        ),
        *(b'{"version": 1, "refused": 7}', b'{"version": 1, "refused": [[1, "holding", "5", 6, 2]]}', b"[" * 100_000),
    ],
)
def test_a_damaged_document_is_refused_as_a_whole(document: bytes) -> None:
    """Whatever is in the file, the error is a ValueError: the source then learns again."""
    with pytest.raises(ValueError, match=r"."):
        parse_refused(document)
