"""Pages that consist of whole runs: they end after a head, wherever a limit falls inside a run."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.batch import SEALED_BYTES_MAX, Origin
from agent.pages import BATCHES_MAX, CERTIFICATES_OF_KEY_MAX, Page
from agent.replication.protocol.codec import HEADER_BYTES_MAX
from agent.replication.protocol.messages import SIGNERS_MAX
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import (
    ANSWER_OVERHEAD_BYTES,
    BATCH_OVERHEAD_BYTES,
    DEFINITIONS_BYTES_MAX,
    HOLE_BYTES,
    SIGNERS_BYTES_MAX,
    ReadPlan,
    Selection,
    select_page,
)
from agent.signing.certificates import CERTIFICATE_BYTES_MAX
from agent.signing.heads import HEAD_BYTES
from tests.replication.stored import stored

PLANT, IDMZ = Origin("plant", bytes(16)), Origin("idmz", bytes(16))


def head(key: int = 1) -> bytes:
    """A record of some key."""
    return b"\x01\x00" + key.to_bytes(8, "big") + bytes(HEAD_BYTES - 10)


def log(*batches: tuple[int, Origin, bytes], definitions: int = 0) -> Page:
    """A page as read: batches of two facts, given by their size, origin and head."""
    found = [
        stored(2 * at + 1, 2 * at + 2, size, origin, definitions, record)
        for at, (size, origin, record) in enumerate(batches)
    ]
    return Page(found, 2 * len(found))


def select(
    page: Page,
    bytes_max: int = 1000,
    limit: int = 1000,
    packet: int = 100_000,
    signers: dict[bytes, int] | None = None,
    offered: dict[Origin, list[bytes]] | None = None,
    after: int = 0,
) -> Selection | Refuse:
    """The page for the enterprise."""
    plan = ReadPlan("facts", after, limit, bytes_max, whole_runs=True)
    return select_page(plan, page, "enterprise", offered or {}, {}, packet, signers)


def last(chosen: Selection | Refuse) -> int:
    """The end of the page."""
    assert isinstance(chosen, Selection), chosen
    return chosen.last_offset


RUN = [(400, PLANT, b""), (400, PLANT, b""), (400, PLANT, b""), (400, PLANT, head())]


@pytest.mark.parametrize("limits", [{}, {"bytes_max": 1}, {"limit": 1}, {"limit": 5}, {"bytes_max": 1700}])
def test_limits_do_not_end_a_page_inside_a_run(limits: dict[str, int]) -> None:
    """Bytes or facts run out inside a run: the page continues to its head, and not into the next run."""
    assert last(select(log(*RUN, *RUN), **limits)) == 8


def test_a_run_that_no_honest_zone_makes_stops_no_other() -> None:
    """A zone leaves a batch of the largest size without a head, and signs the next one, as large: together they fit
    into no packet. A batch further before a head than a run reaches is sent without it, and later facts flow."""
    large = SEALED_BYTES_MAX
    page = log((large, PLANT, b""), (large, PLANT, head()), (400, IDMZ, head(2)))
    assert last(select(page, bytes_max=256 * 1024, packet=1_048_576)) == 2
    rest = Page(page.batches[1:], page.end_offset)
    assert last(select(rest, bytes_max=256 * 1024, packet=1_048_576, after=2)) == 4


def test_a_run_without_room_in_the_packet_is_left_for_the_next_page() -> None:
    """The packet ends inside the second run: the page ends with the first."""
    assert last(select(log(*RUN, *RUN), bytes_max=90_000, packet=1024 + 3_000)) == 8


def test_a_run_that_no_packet_takes_is_named() -> None:
    """A run that is larger than the packet cannot be sent: the operator must raise the broker's limit."""
    refused = select(log(*RUN), packet=1024 + 1_200)
    assert isinstance(refused, Refuse)
    assert refused.code == "batch_exceeds_packet"
    assert "a packet takes 2224" in refused.message


def test_what_was_never_signed_is_sent_as_without_the_flag() -> None:
    """Batches without a later head end the page anywhere, and so do those before another origin's."""
    unsigned = [(400, PLANT, b"")] * 4
    assert last(select(log(*unsigned))) == 4
    assert last(select(log(*unsigned, *[(400, IDMZ, head())] * 2), bytes_max=10_000)) == 12


def test_definitions_that_do_not_fit_go_alone() -> None:
    """Definitions that end the page inside a run are sent without facts, and the run with the next page."""
    chosen = select(log(*RUN, definitions=3), bytes_max=1024, offered={PLANT: [bytes(500)] * 3})
    assert isinstance(chosen, Selection)
    assert (chosen.pieces, chosen.definitions) == ((), {PLANT: 1})


def test_a_part_of_a_batch_has_no_head() -> None:
    """A position inside a batch: its rest is a slice, which cannot be stored, and is sent without the head."""
    chosen = select(log((400, PLANT, head()), *RUN), bytes_max=3000, after=1)
    assert isinstance(chosen, Selection)
    assert [bool(piece.head) for piece in chosen.pieces] == [False, False, False, False, True]


def test_a_page_ends_before_the_head_that_needs_one_signer_too_many() -> None:
    """Certificates of SIGNERS_MAX keys fit into a page, if they are not larger than its header may be; known ones do
    not count."""
    batches = [(100, PLANT, head(number)) for number in range(SIGNERS_MAX + 5)]
    sizes = {number.to_bytes(8, "big"): 10 for number in range(SIGNERS_MAX + 5)}
    assert last(select(log(*batches), bytes_max=99_000, signers=sizes)) == 2 * SIGNERS_MAX
    large = dict.fromkeys(sizes, SIGNERS_BYTES_MAX // 3)
    assert last(select(log(*batches), bytes_max=999_000, packet=2_000_000, signers=large)) == 2 * 3
    del sizes[(3).to_bytes(8, "big")]
    assert last(select(log(*batches), bytes_max=99_000, signers=sizes)) == 2 * SIGNERS_MAX + 2


def test_the_largest_header_is_one_that_may_be_sent() -> None:
    """As many batches, holes, definitions and certificates as a page may have, all at their largest: encoding a larger
    header would end the process."""
    entries = BATCHES_MAX * (BATCH_OVERHEAD_BYTES + HOLE_BYTES) + ANSWER_OVERHEAD_BYTES
    assert entries + DEFINITIONS_BYTES_MAX + SIGNERS_BYTES_MAX <= HEADER_BYTES_MAX
    of_one_key = CERTIFICATES_OF_KEY_MAX * (CERTIFICATE_BYTES_MAX * 4 // 3 + 8)
    assert of_one_key <= SIGNERS_BYTES_MAX, "else its page would never be sent"


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(1, 900), st.sampled_from([PLANT, IDMZ]), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 4000),
    st.integers(1, 40),
    st.integers(2500, 9000),
)
def test_every_page_ends_a_run_or_has_none(
    batches: list[tuple[int, Origin, bool]], bytes_max: int, limit: int, packet: int
) -> None:
    """For any log and limits, a page fits the packet, makes progress, and its last batch has a head unless no head of
    its run follows; reading on from each page passes every batch once."""
    page = log(*[(size, origin, head() if signed else b"") for size, origin, signed in batches])
    after, rounds = 0, 0
    while after < page.end_offset:
        rest = Page([one for one in page.batches if one.last_offset > after], page.end_offset)
        chosen = select(rest, bytes_max, limit, packet, after=after)
        if isinstance(chosen, Refuse):
            assert chosen.code == "batch_exceeds_packet"
            return
        assert sum(len(one.batch.sealed) + 64 + len(one.head) for one in chosen.pieces) + 1024 <= packet
        assert all(left.last_offset + 1 == right.first_offset for left, right in pairwise(chosen.pieces))
        assert chosen.last_offset > after
        end = chosen.pieces[-1].batch
        for one in page.batches[page.batches.index(end) + 1 :] if not end.head else ():
            if one.origin != end.origin:
                break
            assert not one.head, "the page ends inside a run"
        after, rounds = chosen.last_offset, rounds + 1
    assert rounds <= len(batches)
