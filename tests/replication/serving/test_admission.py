"""The serving side's decisions, as tables: who may ask, what waits, what goes into a page."""

from collections.abc import Sequence

import pytest
from agent.replication.serving.sender import (
    Admit,
    Answer,
    Arrival,
    AskStore,
    Caller,
    ConsumerView,
    Drop,
    DropReason,
    LogView,
    Park,
)
from hypothesis import given
from hypothesis import strategies as st

from agent.lease import NO_LEASE, Lease, Shown
from agent.replication.protocol.messages import Confirm, ConfirmReceipt, FetchFacts
from agent.replication.serving import sender
from agent.replication.serving.page import (
    ANSWER_OVERHEAD_BYTES,
    BATCH_OVERHEAD_BYTES,
    Gone,
    Piece,
    ReadPlan,
    Refuse,
    Row,
    Selection,
    select_page,
)

STREAM = "facts.telemetry"
NAME = "idmz.facts.telemetry"
EXPORTS = frozenset({STREAM})
PEERS = frozenset({"idmz"})
TOPIC = "bsfg/1/plant-a/idmz/req"
ANSWER_TO = "bsfg/1/plant-a/idmz/rsp/one"
OWN = ConsumerView("idmz", STREAM, 10)
PACKET = 1_000_000


@pytest.mark.parametrize(
    "arrival, outcome",
    [
        (Arrival(TOPIC, ANSWER_TO, b"12345678", is_retained=False), Caller("idmz", "one", b"12345678")),
        (Arrival(TOPIC, ANSWER_TO, b"12345678", is_retained=True), Drop(DropReason.RETAINED)),
        (Arrival("bsfg/1/plant-b/idmz/req", ANSWER_TO, b"12345678", is_retained=False), Drop(DropReason.BAD_TOPIC)),
        (Arrival("bsfg/1/plant-a/idmz/rsp/x", ANSWER_TO, b"12345678", is_retained=False), Drop(DropReason.BAD_TOPIC)),
        (
            Arrival("bsfg/1/plant-a/stranger/req", "bsfg/1/plant-a/stranger/rsp/x", b"12345678", is_retained=False),
            Drop(DropReason.NOT_A_PEER),
        ),
        (Arrival(TOPIC, None, b"12345678", is_retained=False), Drop(DropReason.NO_RESPONSE_TOPIC)),
        (
            Arrival(TOPIC, "bsfg/1/plant-a/enterprise/rsp/x", b"12345678", is_retained=False),
            Drop(DropReason.FOREIGN_RESPONSE_TOPIC),
        ),
        (Arrival(TOPIC, ANSWER_TO, None, is_retained=False), Drop(DropReason.BAD_CORRELATION)),
        (Arrival(TOPIC, ANSWER_TO, b"short", is_retained=False), Drop(DropReason.BAD_CORRELATION)),
        (Arrival(TOPIC, ANSWER_TO, b"x" * 33, is_retained=False), Drop(DropReason.BAD_CORRELATION)),
    ],
)
def test_who_asks(arrival: Arrival, outcome: Caller | Drop) -> None:
    """Only the request topic says who asks, and only his own response topic gets an answer."""
    assert sender.check_arrival(arrival, "plant-a", PEERS) == outcome


def fetch(**fields: object) -> FetchFacts:
    """A fetch of idmz."""
    return FetchFacts(**{"consumer_name": NAME, "limit": 100, **fields})


@pytest.mark.parametrize(
    "request_, consumer, owned, code",
    [
        (fetch(), None, 0, "unknown_consumer"),
        (fetch(stream="facts.audit"), None, 0, "stream_not_exported"),
        (fetch(stream=STREAM), None, sender.CONSUMERS_PER_ZONE_MAX, "too_many_consumers"),
        (fetch(), ConsumerView("enterprise", STREAM, 0), 0, "consumer_not_yours"),
        (fetch(stream="facts.audit"), OWN, 1, "consumer_stream_mismatch"),
        (fetch(), ConsumerView("idmz", "facts.audit", 0), 1, "stream_not_exported"),
    ],
)
def test_fetch_is_refused(request_: FetchFacts, consumer: ConsumerView | None, owned: int, code: str) -> None:
    """Each thing that stands against a fetch has its code; a consumer of another zone is not told its stream."""
    refused = sender.admit_fetch(request_, "idmz", EXPORTS, consumer, owned)
    assert isinstance(refused, Refuse)
    assert refused.code == code


def test_fetch_is_admitted() -> None:
    """A known consumer goes on; an unknown one that names an exported stream is registered first."""
    confirm = Confirm(last_offset=5)
    assert sender.admit_fetch(fetch(confirm=confirm), "idmz", EXPORTS, OWN, 1) == Admit(STREAM, False, confirm)
    assert sender.admit_fetch(fetch(stream=STREAM), "idmz", EXPORTS, None, 0) == Admit(STREAM, True, None)


def test_confirm_is_admitted_or_refused() -> None:
    """A confirmation needs a consumer of one's own."""
    request = ConfirmReceipt(consumer_name=NAME, offset=7, first_offset=3)
    admitted = sender.admit_confirm(request, "idmz", EXPORTS, OWN)
    assert admitted == Admit(STREAM, False, Confirm(last_offset=7, first_offset=3))
    for consumer, code in ((None, "unknown_consumer"), (ConsumerView("x", STREAM, 0), "consumer_not_yours")):
        refused = sender.admit_confirm(request, "idmz", EXPORTS, consumer)
        assert isinstance(refused, Refuse)
        assert refused.code == code


@pytest.mark.parametrize(
    "epoch, after_offset, confirm, code",
    [
        ("other", 0, None, "epoch_changed"),
        ("other", 99, Confirm(last_offset=99), "epoch_changed"),
        ("this", 0, Confirm(last_offset=21), "confirm_beyond_log"),
        ("this", 21, None, "offset_beyond_log"),
        (None, 21, None, "offset_beyond_log"),
        ("this", 20, Confirm(last_offset=20), None),
        (None, None, None, None),
    ],
)
def test_offsets(epoch: str | None, after_offset: int | None, confirm: Confirm | None, code: str | None) -> None:
    """Offsets of another epoch, or beyond the end, are named, not obeyed."""
    refused = sender.check_offsets(LogView("this", 20), epoch, after_offset, confirm)
    assert (refused.code if refused else None) == code


@pytest.mark.parametrize(
    "end_offset, parked, until_ms, now_ms, decision",
    [
        (11, 0, 500, 0, Answer(ReadPlan(STREAM, 10, 100, 262_144))),
        (10, 0, 500, 0, Park(500, 10)),
        (10, 0, 500, 500, Answer(ReadPlan(STREAM, 10, 100, 262_144))),
        (10, 0, 0, 0, Answer(ReadPlan(STREAM, 10, 100, 262_144))),
        (10, sender.PARKED_PER_ZONE_MAX, 500, 0, Refuse("busy", "32 fetches of your zone are waiting already")),
    ],
)
def test_waiting(end_offset: int, parked: int, until_ms: int, now_ms: int, decision: object) -> None:
    """A fetch is answered as soon as there is something or its patience ends; how many wait is bounded."""
    assert sender.decide_fetch(fetch(), STREAM, 10, end_offset, parked, until_ms, now_ms) == decision


# --- pages


def row(first: int, last: int, size: int = 100, zone: str = "plant-a", definitions: int = 0) -> Row:
    """A batch as read from the log."""
    return Row(first, last, size, zone, f"{zone}/e", definitions)


def page(
    plan: ReadPlan,
    rows: list[Row],
    offered: dict[str, list[int]] | None = None,
    packet: int = PACKET,
    gone: Sequence[Gone] = (),
) -> Selection:
    """The page chosen for idmz."""
    chosen = select_page(plan, rows, gone, "idmz", offered or {}, {}, packet)
    assert isinstance(chosen, Selection), chosen
    return chosen


def whole(*pieces: tuple[int, int, int]) -> tuple[Piece, ...]:
    """Whole batches, by row and offsets."""
    return tuple(Piece(index, first, last, is_whole=True) for index, first, last in pieces)


ROWS = [row(1, 10), row(11, 20), row(21, 30)]


@pytest.mark.parametrize(
    "after, limit, pieces",
    [
        (0, 30, whole((0, 1, 10), (1, 11, 20), (2, 21, 30))),
        (0, 29, whole((0, 1, 10), (1, 11, 20))),
        (0, 10, whole((0, 1, 10))),
        (0, 4, (Piece(0, 1, 4, is_whole=False),)),
        (4, 4, (Piece(0, 5, 8, is_whole=False),)),
        (4, 16, (Piece(0, 5, 10, is_whole=False), Piece(1, 11, 20, is_whole=True))),
    ],
)
def test_limit(after: int, limit: int, pieces: tuple[Piece, ...]) -> None:
    """Whole batches up to the limit; only the first is ever sliced; facts before the position are not sent again."""
    chosen = page(ReadPlan(STREAM, after, limit, 10_000), ROWS)
    assert chosen.pieces == pieces
    assert chosen.last_offset == pieces[-1].last_offset


def test_bytes() -> None:
    """A page ends before the batch that would make it too large, but holds one batch however large."""
    two = 2 * (100 + BATCH_OVERHEAD_BYTES)
    assert len(page(ReadPlan(STREAM, 0, 30, two), ROWS).pieces) == 2
    assert len(page(ReadPlan(STREAM, 0, 30, two - 1), ROWS).pieces) == 1
    assert len(page(ReadPlan(STREAM, 0, 30, 1), ROWS).pieces) == 1
    assert len(page(ReadPlan(STREAM, 0, 30, 10_000), ROWS, packet=ANSWER_OVERHEAD_BYTES + two).pieces) == 2


def test_batch_larger_than_a_packet() -> None:
    """What can never be sent is said, not tried."""
    refused = select_page(ReadPlan(STREAM, 0, 30, 10_000), [row(1, 10, 5_000)], (), "idmz", {}, {}, 4_000)
    assert isinstance(refused, Refuse)
    assert refused.code == "batch_exceeds_packet"


def test_own_facts_are_omitted() -> None:
    """Nobody is sent his own facts; their offsets are named, neighbours joined."""
    rows = [row(1, 10, zone="idmz"), row(11, 20, zone="idmz"), row(21, 30), row(31, 40, zone="idmz")]
    chosen = page(ReadPlan(STREAM, 5, 100, 10_000), rows)
    assert chosen.omitted == ((6, 20), (31, 40))
    assert chosen.pieces == whole((2, 21, 30))
    assert chosen.last_offset == 40


def test_holes_go_along_in_their_place() -> None:
    """What is gone before, between and behind the batches is named in order, as far as the page goes and no further: behind a
    batch that found no room nothing is said, for the next page begins there."""
    rows, gone = [row(6, 10), row(21, 30)], [Gone(1, 5, "expired"), Gone(11, 20, "damaged"), Gone(31, 40, "expired")]
    chosen = page(ReadPlan(STREAM, 0, 100, 10_000), rows, gone=gone)
    assert (chosen.gone, chosen.last_offset) == (tuple(gone), 40)
    chosen = page(ReadPlan(STREAM, 0, 7, 10_000), rows, gone=gone)
    assert (len(chosen.pieces), chosen.gone, chosen.last_offset) == (1, tuple(gone[:2]), 20)
    chosen = page(ReadPlan(STREAM, 0, 3, 10_000), rows, gone=gone)
    assert (chosen.gone, chosen.last_offset) == (tuple(gone[:1]), 8)
    chosen = page(ReadPlan(STREAM, 0, 100, 10_000), [], gone=gone[:1])
    assert (chosen.pieces, chosen.gone, chosen.last_offset) == ((), tuple(gone[:1]), 5)


def test_holes_take_room() -> None:
    """A batch that fits into a packet, but not beside the holes before it, comes in the page after them."""
    size = 4_000 - ANSWER_OVERHEAD_BYTES - BATCH_OVERHEAD_BYTES
    gone = [Gone(1, 5, "expired"), Gone(6, 9, "damaged")]
    chosen = page(ReadPlan(STREAM, 0, 100, 10_000), [row(10, 20, size)], packet=4_000, gone=gone)
    assert (chosen.pieces, chosen.gone, chosen.last_offset) == ((), tuple(gone), 9)
    assert len(page(ReadPlan(STREAM, 9, 100, 10_000), [row(10, 20, size)], packet=4_000).pieces) == 1


def test_definitions_go_first() -> None:
    """A batch waits until all definitions it needs are known or beside it; those alone make a page, too."""
    rows = [row(1, 10, definitions=3), row(11, 20, definitions=4)]
    plan = ReadPlan(STREAM, 0, 100, 800)
    chosen = page(plan, rows, {"plant-a/e": [300, 300, 300, 300]})
    assert (dict(chosen.definitions), chosen.pieces, chosen.last_offset) == ({"plant-a/e": 1}, (), 0)
    chosen = page(ReadPlan(STREAM, 0, 100, 3_000), rows, {"plant-a/e": [300, 300, 300, 300]})
    assert (dict(chosen.definitions), len(chosen.pieces)) == ({"plant-a/e": 4}, 2)


def test_definitions_go_with_their_batches() -> None:
    """A page that ends before the batch that needs more definitions, or that tells ranges only, does not bring them: nothing in
    it would vouch for them, and the asker would believe he has them."""
    rows = [row(1, 10, definitions=2), row(11, 20, 900, definitions=4)]
    plan = ReadPlan(STREAM, 0, 100, 1_000)
    chosen = page(plan, rows, {"plant-a/e": [10, 10, 10, 10]})
    assert (len(chosen.pieces), dict(chosen.definitions)) == (1, {"plant-a/e": 2})
    later = [row(11, 20, 900, definitions=9)]
    for ranges in ({"rows": later, "gone": [Gone(1, 10, "expired")]}, {"rows": [row(1, 10, zone="idmz"), *later]}):
        chosen = page(plan, offered={"plant-a/e": [200] * 9}, **ranges)  # type: ignore[arg-type]
        assert (chosen.pieces, dict(chosen.definitions), chosen.last_offset) == ((), {}, 10)


def test_missing_definitions_are_an_error() -> None:
    """A store that lacks what its own batches need says so, instead of an empty page that would be asked for for ever."""
    refused = select_page(ReadPlan(STREAM, 0, 100, 800), [row(1, 10, definitions=3)], (), "idmz", {}, {}, PACKET)
    assert isinstance(refused, Refuse)
    assert refused.code == "store_unavailable"


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50), st.integers(1, 3_000), st.sampled_from(["plant-a", "idmz", "gone"]), st.integers(0, 3)
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 200),
    st.integers(1_024, 20_000),
    st.data(),
)
def test_pages_always_move(
    batches: list[tuple[int, int, str, int]], limit: int, bytes_max: int, data: st.DataObject
) -> None:
    """Page after page, every fact of others that is there is sent exactly once, in order, within the limits, with the definitions
    of its batch and no others; every hole is named exactly once, and all ends are reached."""
    rows: list[Row] = []
    for count, size, zone, definitions in batches:
        last = rows[-1].last_offset if rows else 0
        most = max([definitions, *(each.definition_count for each in rows)])
        rows.append(row(last + 1, last + count, size, zone, most))
    bodies = {"plant-a/e": [data.draw(st.integers(1, 2_000)) for _ in range(3)], "idmz/e": []}
    position, known, sent, named = 0, 0, [], []
    for _ in range(1_000):
        behind = [each for each in rows if each.last_offset > position]
        if not behind:
            break
        left = [each for each in behind if each.origin_zone != "gone"]
        gone = [
            Gone(max(each.first_offset, position + 1), each.last_offset, "damaged")
            for each in behind
            if each.origin_zone == "gone"
        ]
        offered = {"plant-a/e": bodies["plant-a/e"][known:]}
        chosen = select_page(
            ReadPlan(STREAM, position, limit, bytes_max), left, gone, "idmz", offered, {"plant-a/e": known}, PACKET
        )
        assert isinstance(chosen, Selection)
        runs = sorted(
            [(one.first_offset, one.last_offset) for one in (*chosen.pieces, *chosen.gone)] + list(chosen.omitted)
        )
        for (first, last), after in zip(runs, [position, *(last for _, last in runs)], strict=False):
            assert first == after + 1
            assert first <= last <= chosen.last_offset
        assert runs or chosen.definitions
        if runs and chosen.definitions:
            needed = max(left[piece.row].definition_count for piece in chosen.pieces)
            assert known + chosen.definitions["plant-a/e"] == needed
        assert sum(piece.last_offset - piece.first_offset + 1 for piece in chosen.pieces) <= limit
        known += chosen.definitions.get("plant-a/e", 0)
        for piece in chosen.pieces:
            assert left[piece.row].definition_count <= known
            sent += range(piece.first_offset, piece.last_offset + 1)
        for one in chosen.gone:
            named += range(one.first_offset, one.last_offset + 1)
        position = chosen.last_offset
    for zone, offsets in (("plant-a", sent), ("gone", named)):
        assert offsets == [
            offset
            for each in rows
            if each.origin_zone == zone
            for offset in range(each.first_offset, each.last_offset + 1)
        ]


@pytest.mark.parametrize(
    "held, epoch, outcome",
    [
        (NO_LEASE, None, NO_LEASE),
        (NO_LEASE, 0, AskStore(Shown("one", 0))),
        (Lease(2, "one"), 2, Lease(2, "one")),
        (Lease(2, "one"), 0, Lease(2, "one")),
        (Lease(3, "two"), 2, AskStore(Shown("one", 2))),
        (Lease(3, "two"), None, AskStore(Shown("one", None))),
        (Lease(3, "two"), 4, AskStore(Shown("one", 4))),
    ],
)
def test_leases(held: Lease, epoch: int | None, outcome: Lease | AskStore) -> None:
    """Who holds the lease goes on without a word to the store; whatever would change it or fence somebody, the store decides."""
    consumer = ConsumerView("idmz", STREAM, 10, held)
    assert sender.check_lease(consumer, Caller("idmz", "one", b"12345678"), epoch) == outcome


@pytest.mark.parametrize(
    "after, outcome", [(2, Lease(3, "two")), (3, AskStore(Shown("one", 0, 3))), (None, AskStore(Shown("one", 0)))]
)
def test_who_asks_after_another_lease_is_told_which_is_in_force(after: int | None, outcome: Lease | AskStore) -> None:
    """Without a word to the store, and whatever is in force by then: he asks again."""
    consumer = ConsumerView("idmz", STREAM, 10, Lease(3, "two"))
    assert sender.check_lease(consumer, Caller("idmz", "one", b"12345678"), 0, after) == outcome
