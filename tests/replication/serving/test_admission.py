"""The serving side's decisions, as tables: which zone may ask, which fetch waits, what goes into a page."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import Origin
from agent.pages import Hole, Page, StoredBatch
from agent.replication.mqtt.carrier import Incoming
from agent.replication.protocol.messages import FetchFacts
from agent.replication.serving import admission
from agent.replication.serving.admission import Caller
from agent.replication.serving.outcomes import Drop, DropReason, Refuse
from agent.replication.serving.page import (
    ANSWER_OVERHEAD_BYTES,
    BATCH_OVERHEAD_BYTES,
    HeldThere,
    ReadPlan,
    Selection,
    select_page,
)
from tests.replication.serving.support import Registered, stored

STREAM = "facts.telemetry"
NAME = "idmz.facts.telemetry"
EXPORTS = frozenset({STREAM})
PEERS = frozenset({"idmz"})
TOPIC = "bsfg/1/plant-a/idmz/req"
ANSWER_TO = "bsfg/1/plant-a/idmz/rsp/0/one"
OWN = Registered("idmz", STREAM, 10)
PACKET = 1_000_000
FOREIGN = Drop(DropReason.FOREIGN_RESPONSE_TOPIC)
PLANT = Origin("plant-a", bytes(16))


def arrived(topic: str, response_topic: str | None, correlation: bytes | None, *, is_retained: bool) -> Incoming:
    """A message that the broker delivered."""
    return Incoming(topic, b"", response_topic, correlation, 5, is_retained)


@pytest.mark.parametrize(
    "arrival, outcome",
    [
        (arrived(TOPIC, ANSWER_TO, b"12345678", is_retained=False), Caller("idmz", "one", b"12345678", ANSWER_TO)),
        (arrived(TOPIC, ANSWER_TO, b"12345678", is_retained=True), Drop(DropReason.RETAINED)),
        (arrived("bsfg/1/plant-b/idmz/req", ANSWER_TO, b"12345678", is_retained=False), Drop(DropReason.BAD_TOPIC)),
        (arrived("bsfg/1/plant-a/idmz/rsp/0/x", ANSWER_TO, b"12345678", is_retained=False), Drop(DropReason.BAD_TOPIC)),
        (
            arrived("bsfg/1/plant-a/stranger/req", "bsfg/1/plant-a/stranger/rsp/0/x", b"12345678", is_retained=False),
            Drop(DropReason.NOT_A_PEER),
        ),
        (arrived(TOPIC, None, b"12345678", is_retained=False), Drop(DropReason.NO_RESPONSE_TOPIC)),
        (arrived(TOPIC, "bsfg/1/plant-a/enterprise/rsp/0/x", b"12345678", is_retained=False), FOREIGN),
        (arrived(TOPIC, "#", b"12345678", is_retained=False), FOREIGN),
        *(
            (arrived(TOPIC, f"bsfg/1/plant-a/idmz/rsp/0/{instance}", b"12345678", is_retained=False), FOREIGN)
            for instance in ("", "+", "one\0", "one\n", "one/two", "a" * 65_000)
        ),
        (arrived(TOPIC, ANSWER_TO, None, is_retained=False), Drop(DropReason.BAD_CORRELATION)),
        (arrived(TOPIC, ANSWER_TO, b"short", is_retained=False), Drop(DropReason.BAD_CORRELATION)),
        (arrived(TOPIC, ANSWER_TO, b"x" * 33, is_retained=False), Drop(DropReason.BAD_CORRELATION)),
    ],
)
def test_the_request_topic_names_the_requester(arrival: Incoming, outcome: Caller | Drop) -> None:
    """The request topic names the requesting zone, and only that zone's own response topic gets the answer."""
    assert admission.check_arrival(arrival, "plant-a", PEERS) == outcome


def fetch(**fields: object) -> FetchFacts:
    """A fetch of idmz."""
    return FetchFacts(**{"consumer_name": NAME, "limit": 100, **fields})


@pytest.mark.parametrize(
    "request_, consumer, code",
    [
        (fetch(), None, "unknown_consumer"),
        (fetch(stream="facts.audit"), None, "stream_not_exported"),
        (fetch(stream=STREAM, consumer_name="enterprise.facts.telemetry"), None, "consumer_not_yours"),
        (fetch(), Registered("enterprise", STREAM, 0), "consumer_not_yours"),
        (fetch(stream="facts.audit"), OWN, "consumer_stream_mismatch"),
        (fetch(), Registered("idmz", "facts.audit", 0), "stream_not_exported"),
    ],
)
def test_fetch_is_refused(request_: FetchFacts, consumer: Registered | None, code: str) -> None:
    """Each reason against a fetch has its code; the stream of another zone's consumer is not revealed."""
    refused = admission.admit_fetch(request_, "idmz", EXPORTS, consumer)
    assert isinstance(refused, Refuse)
    assert refused.code == code


def test_a_consumer_is_used_by_its_own_zone_alone() -> None:
    """A confirmation and a cursor need a consumer of the zone's own, of a stream that is still exported."""
    assert admission.check_consumer(NAME, "idmz", EXPORTS, OWN) is OWN
    for consumer, code in (
        (None, "unknown_consumer"),
        (Registered("x", STREAM, 0), "consumer_not_yours"),
        (Registered("idmz", "facts.audit", 0), "stream_not_exported"),
    ):
        refused = admission.check_consumer(NAME, "idmz", EXPORTS, consumer)
        assert isinstance(refused, Refuse)
        assert refused.code == code


@pytest.mark.parametrize(
    "end_offset, parked, until_ms, now_ms, decision",
    [
        (11, 0, 500, 0, ReadPlan(STREAM, 10, 100, 262_144)),
        (10, 0, 500, 0, None),
        (10, 0, 500, 500, ReadPlan(STREAM, 10, 100, 262_144)),
        (10, 0, 0, 0, ReadPlan(STREAM, 10, 100, 262_144)),
        (10, admission.PARKED_PER_NODE_MAX, 500, 0, Refuse("busy", "32 of your fetches are waiting already")),
    ],
)
def test_when_a_fetch_waits(end_offset: int, parked: int, until_ms: int, now_ms: int, decision: object) -> None:
    """A fetch is answered as soon as there are facts or its wait is over; the number of waiting fetches is bounded."""
    assert admission.decide_fetch(fetch(), STREAM, 10, end_offset, parked, until_ms, now_ms) == decision


# --- pages


def batch(first: int, last: int, size: int = 100, zone: str = "plant-a") -> StoredBatch:
    """A batch as read from the log."""
    return stored(first, last, size, Origin(zone, bytes(16)))


def page(
    plan: ReadPlan,
    batches: list[StoredBatch],
    packet: int = PACKET,
    holes: Sequence[Hole] = (),
) -> Selection:
    """The page selected for idmz."""
    chosen = select_page(plan, Page(batches, 1_000, tuple(holes)), HeldThere(frozenset({"idmz"})), packet)
    assert isinstance(chosen, Selection), chosen
    return chosen


def pieces_of(selection: Selection) -> list[tuple[int, int, int, bool]]:
    """Of each batch: its first offset, the offsets sent, whether it is whole."""
    return [
        (piece.batch.first_offset, piece.first_offset, piece.last_offset, piece.is_whole) for piece in selection.pieces
    ]


BATCHES = [batch(1, 10), batch(11, 20), batch(21, 30)]
WHOLE = [(1, 1, 10, True), (11, 11, 20, True), (21, 21, 30, True)]


@pytest.mark.parametrize(
    "after, limit, pieces",
    [
        (0, 30, WHOLE),
        (0, 29, WHOLE[:2]),
        (0, 10, WHOLE[:1]),
        (0, 4, [(1, 1, 4, False)]),
        (4, 4, [(1, 5, 8, False)]),
        (4, 16, [(1, 5, 10, False), WHOLE[1]]),
    ],
)
def test_a_page_keeps_to_its_limit_in_facts(after: int, limit: int, pieces: list[tuple[int, int, int, bool]]) -> None:
    """Whole batches up to the limit; only the first is ever sliced; facts before the position are not sent again."""
    chosen = page(ReadPlan(STREAM, after, limit, 10_000), BATCHES)
    assert pieces_of(chosen) == pieces
    assert chosen.last_offset == pieces[-1][2]


def test_a_page_keeps_to_its_limit_in_bytes() -> None:
    """A page ends before the batch that would make it too large, but holds at least one batch of any size."""
    two = 2 * (100 + BATCH_OVERHEAD_BYTES)
    assert len(page(ReadPlan(STREAM, 0, 30, two), BATCHES).pieces) == 2
    assert len(page(ReadPlan(STREAM, 0, 30, two - 1), BATCHES).pieces) == 1
    assert len(page(ReadPlan(STREAM, 0, 30, 1), BATCHES).pieces) == 1
    assert len(page(ReadPlan(STREAM, 0, 30, 10_000), BATCHES, packet=ANSWER_OVERHEAD_BYTES + two).pieces) == 2


def test_batch_larger_than_a_packet() -> None:
    """A batch that can never be sent is an error, and is not tried."""
    refused = select_page(
        ReadPlan(STREAM, 0, 30, 10_000), Page([batch(1, 10, 5_000)], 10), HeldThere(frozenset({"idmz"})), 4_000
    )
    assert isinstance(refused, Refuse)
    assert refused.code == "batch_exceeds_packet"


def test_own_facts_are_omitted() -> None:
    """No zone is sent its own facts; their offsets are listed, neighbours joined."""
    rows = [batch(1, 10, zone="idmz"), batch(11, 20, zone="idmz"), batch(21, 30), batch(31, 40, zone="idmz")]
    chosen = page(ReadPlan(STREAM, 5, 100, 10_000), rows)
    assert chosen.omitted == ((6, 20), (31, 40))
    assert pieces_of(chosen) == [(21, 21, 30, True)]
    assert chosen.last_offset == 40


def test_whole_batches_that_the_requester_holds_are_omitted() -> None:
    """A batch within a named range is left out, also if it is too large for a packet; one that is only partly within
    it, of another life or of another zone is sent."""
    rows = [batch(1, 10), batch(11, 20), batch(21, 30, zone="mill"), batch(31, 40, 50_000)]
    life = rows[0].origin.life.hex()
    first = [row.batch.header.first_sequence for row in rows]

    def sent(*spans: tuple[str, str, int, int]) -> list[int]:
        plan, held = ReadPlan(STREAM, 0, 100, 10_000), HeldThere(frozenset({"idmz"}), spans)
        chosen = select_page(plan, Page(rows[:3], 1_000), held, 20_000)
        assert isinstance(chosen, Selection)
        assert chosen.last_offset == 30
        return [piece.first_offset for piece in chosen.pieces]

    whole = ("plant-a", life, first[0], first[1] + 9)
    assert sent() == [1, 11, 21]
    assert sent(whole) == [21]
    assert sent(("plant-a", life, first[0], first[1] + 8)) == [11, 21]
    assert sent(("plant-a", life, first[0] + 1, first[1] + 9)) == [1, 21]
    assert sent(("plant-a", "f" * 32, first[0], first[1] + 9)) == [1, 11, 21]
    assert sent(("mill", life, first[0], first[3] + 9), ("plant-a", life, first[1], first[1] + 9)) == [1]
    large = select_page(
        ReadPlan(STREAM, 30, 100, 10_000), Page(rows[3:], 40), HeldThere(spans=[("plant-a", life, 1, 10**6)]), 20_000
    )
    assert isinstance(large, Selection)
    assert (large.omitted, large.pieces) == (((31, 40),), ())


def test_holes_are_sent_in_their_order() -> None:
    """Holes before, between and after the batches are named in order, as far as the page goes: none after a batch that
    did not fit, because the next page begins there. One before a batch that no packet takes is sent."""
    batches, holes = (
        [batch(6, 10), batch(21, 30)],
        [Hole(1, 5, "expired"), Hole(11, 20, "damaged"), Hole(31, 40, "expired")],
    )
    chosen = page(ReadPlan(STREAM, 0, 100, 10_000), batches, holes=holes)
    assert (chosen.holes, chosen.last_offset) == (tuple(holes), 40)
    chosen = page(ReadPlan(STREAM, 0, 7, 10_000), batches, holes=holes)
    assert (len(chosen.pieces), chosen.holes, chosen.last_offset) == (1, tuple(holes[:2]), 20)
    chosen = page(ReadPlan(STREAM, 0, 3, 10_000), batches, holes=holes)
    assert (chosen.holes, chosen.last_offset) == (tuple(holes[:1]), 8)
    for rows in ([], [batch(6, 10, 50_000)]):
        chosen = page(ReadPlan(STREAM, 0, 100, 10_000), rows, 4_000, holes[:1])
        assert (chosen.pieces, chosen.holes, chosen.last_offset) == ((), tuple(holes[:1]), 5)


def test_holes_take_room() -> None:
    """A batch that fits into a packet, but not with the holes before it, comes in the next page."""
    size = 4_000 - ANSWER_OVERHEAD_BYTES - BATCH_OVERHEAD_BYTES
    holes = [Hole(1, 5, "expired"), Hole(6, 9, "damaged")]
    chosen = page(ReadPlan(STREAM, 0, 100, 10_000), [batch(10, 20, size)], packet=4_000, holes=holes)
    assert (chosen.pieces, chosen.holes, chosen.last_offset) == ((), tuple(holes), 9)
    assert len(page(ReadPlan(STREAM, 9, 100, 10_000), [batch(10, 20, size)], packet=4_000).pieces) == 1


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 3_000), st.sampled_from(["plant-a", "idmz", "gone"])),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 200),
    st.integers(1_024, 20_000),
    st.data(),
)
def test_page_after_page_sends_every_fact_of_a_range_once(
    parts: list[tuple[int, int, str]], limit: int, bytes_max: int, data: st.DataObject
) -> None:
    """Page after page, every held fact of others in any range is sent exactly once, in order, within the limits; every
    hole is named exactly once, and the end is reached."""
    batches: list[StoredBatch] = []
    for count, size, zone in parts:
        last = batches[-1].last_offset if batches else 0
        batches.append(batch(last + 1, last + count, size, zone))
    until = data.draw(st.integers(1, batches[-1].last_offset), "until")
    position = data.draw(st.integers(0, until - 1), "position")
    asked, sent, named = range(position + 1, until + 1), list[int](), list[int]()
    while position < until:
        left = [stored for stored in batches if stored.last_offset > position and stored.first_offset <= until]
        held = [stored for stored in left if stored.origin.zone != "gone"]
        holes = [  # as the store cuts them
            Hole(max(stored.first_offset, position + 1), min(stored.last_offset, until), "damaged")
            for stored in left
            if stored.origin.zone == "gone"
        ]
        plan = ReadPlan(STREAM, position, limit, bytes_max, until)
        chosen = page(plan, held, holes=holes)
        runs = sorted(
            [(part.first_offset, part.last_offset) for part in (*chosen.pieces, *chosen.holes)] + list(chosen.omitted)
        )
        assert runs
        for (first, last), after in zip(runs, [position, *(last for _, last in runs)], strict=False):
            assert first == after + 1
            assert first <= last <= chosen.last_offset
        assert sum(piece.last_offset - piece.first_offset + 1 for piece in chosen.pieces) <= limit
        for piece in chosen.pieces:
            sent += range(piece.first_offset, piece.last_offset + 1)
        for hole in chosen.holes:
            named += range(hole.first_offset, hole.last_offset + 1)
        position = chosen.last_offset
    for zone, offsets in (("plant-a", sent), ("gone", named)):
        of_zone = [stored for stored in batches if stored.origin.zone == zone]
        expected = [
            at for stored in of_zone for at in range(stored.first_offset, stored.last_offset + 1) if at in asked
        ]
        assert offsets == expected
