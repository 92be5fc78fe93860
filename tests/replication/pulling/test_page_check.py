"""The checks of a receiver on a page: a page that breaks a rule is refused by name, and nothing of it is stored."""

import hashlib
import re

import msgspec
import pytest

from agent.batch import Batch, Definitions, Link, Origin, cut, seal_samples
from agent.replication.protocol.messages import (
    CLAIM_MAX,
    CursorAnswer,
    DigestsAnswer,
    FetchAnswer,
    FetchSequences,
    GetDigests,
    LogPosition,
    SequencesAnswer,
)
from agent.replication.pulling.page_check import PageRefused, check_batches, check_digests, check_page, check_sequences

STREAM = "facts.telemetry"
LIFE = bytes(16)
DEFINITION = b'{"predicate":"value_sampled","subject":"tag:a"}'
ORIGINS = frozenset({"plant-a"})


def sealed(zone: str = "plant-a", stream: str = STREAM, count: int = 10, first: int = 1) -> Batch:
    """One batch of a plant."""
    rows = [(1, number, float(number), 0) for number in range(count)]
    return seal_samples(
        Link(stream, Origin(zone, LIFE), first, bytes([first > 1] * 16)), rows, Definitions().extended(DEFINITION)
    )


def answer(data: bytes, last: int = 10, **fields: object) -> FetchAnswer:
    """A page of one batch."""
    good = {
        "store_zone": "plant-a",
        "life": LIFE.hex(),
        "stream": STREAM,
        "frontier": 0,
        "end_offset": 99,
        "batches": [(1, last, len(data))],
        "more": True,
        "lives": [LogPosition(offset=last, life=LIFE.hex())],
    }
    return FetchAnswer(**{**good, **fields})


def flipped(data: bytes) -> bytes:
    """One bit changed in transit."""
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def check(page: FetchAnswer, data: bytes) -> None:
    """Run both steps."""
    content = check_page(page, [data], "plant-a", STREAM)[1]
    check_batches(content, STREAM, ORIGINS)


def lying(batch: Batch) -> bytes:
    """A batch with a right digest whose content contradicts its header."""
    sealed_bytes = bytearray(batch.sealed[:-16])
    sealed_bytes[36:44] = (-5).to_bytes(8, "little", signed=True)  # the earliest time
    return bytes(sealed_bytes) + hashlib.blake2b(sealed_bytes, digest_size=16).digest()


@pytest.mark.parametrize(
    "data, fields, said",
    [
        (sealed().sealed, {"store_zone": "plant-b"}, "answer of plant-b"),
        (sealed().sealed, {"stream": "facts.audit"}, "page of stream 'facts.audit'"),
        (sealed(stream="facts.audit").sealed, {}, "is of stream 'facts.audit'"),
        (cut(sealed(count=12), 0, 10).sealed, {}, "the peer's store is an old copy"),
        (sealed(count=9).sealed, {}, "holds 9 facts, the page says 10"),
        (sealed(zone="idmz").sealed, {}, "of zone idmz, which this peer may not relay"),
        (sealed(zone="idmz").sealed, {}, 'Add "idmz" to relays of this peer in node.toml here'),
        (flipped(sealed().sealed), {}, "digest"),
        (b"BSFB", {}, "batch at offset 1"),
        (b"", {}, "batch at offset 1"),
    ],
)
def test_bad_page_is_named(data: bytes, fields: dict[str, object], said: str) -> None:
    """Each fault of a page is refused by name."""
    with pytest.raises(PageRefused, match=re.escape(said)):
        check(answer(data, **fields), data)


def test_what_cannot_be_opened_is_marked() -> None:
    """A batch with a right digest whose content contradicts its header does not refuse the page."""
    data = lying(sealed())
    content = check_page(answer(data), [data], "plant-a", STREAM)[1]
    (offered,) = check_batches(content, STREAM, ORIGINS)
    assert "times" in offered.unreadable


@pytest.mark.parametrize("first, is_taken", [(CLAIM_MAX - 9, True), (CLAIM_MAX - 8, False), (2**63 - 1 - 20, False)])
def test_a_sequence_that_no_answer_can_name_is_marked(first: int, *, is_taken: bool) -> None:
    """A batch of a hostile origin ends beyond the largest sequence of an answer. It is declined by name: if it were
    stored, every zone that requests this node's digests could not read them."""
    rows = [(1, number, float(number), 0) for number in range(10)]
    link = Link(STREAM, Origin("plant-a", LIFE), first, b"p" * 16)
    batch = seal_samples(link, rows, Definitions().extended(DEFINITION))
    content = check_page(answer(batch.sealed), [batch.sealed], "plant-a", STREAM)[1]
    (offered,) = check_batches(content, STREAM, ORIGINS)
    assert (not offered.unreadable) == is_taken
    assert is_taken or str(batch.header.last_sequence) in offered.unreadable


def test_answer_to_another_question() -> None:
    """A cursor in place of the requested page."""
    cursor = CursorAnswer(
        store_zone="plant-a", life=LIFE.hex(), consumer_name="x", stream=STREAM, frontier=0, end_offset=0
    )
    with pytest.raises(PageRefused, match="another operation"):
        check_page(cursor, [], "plant-a", STREAM)


ENDS = GetDigests(stream=STREAM, origin=f"plant-a/{'1' * 32}", first_sequence=10, last_sequence=90, ends_max=4)
RANGE = (ENDS.origin, 1, 5, "0" * 32, "a" * 32)
REST = ("plant-a", 3, "b" * 32)
LIVES = GetDigests(stream=STREAM, zone="plant-a", below="2" * 32)


@pytest.mark.parametrize(
    "request_, fields, said",
    [
        (ENDS, {"ends": [(at, "a" * 32) for at in (10, 20, 30, 40, 90)]}, ""),
        (ENDS, {"ends": []}, ""),
        (GetDigests(stream=STREAM), {"ranges": [RANGE], "before": [REST]}, ""),
        (LIVES, {"ranges": [RANGE], "before": [REST]}, ""),
        (ENDS, {"ends": [(at, "a" * 32) for at in range(10, 16)]}, "6 digests and 0 ranges, asked for were at most 5"),
        (ENDS, {"ends": [(9, "a" * 32)]}, "outside of 10 to 90"),
        (ENDS, {"ends": [(10, "a" * 32), (91, "a" * 32)]}, "outside of 10 to 90"),
        (ENDS, {"ranges": [RANGE]}, "0 digests and 1 ranges"),
        (GetDigests(stream=STREAM), {"ends": [(9, "a" * 32)]}, "asked for were ranges"),
        (GetDigests(stream=STREAM, after_zone="plant-a"), {"ranges": [RANGE], "before": [REST]}, "named zones again"),
        (GetDigests(stream=STREAM), {"ranges": [RANGE]}, "other zones than were asked for"),
        (LIVES, {"before": [REST, ("plant-b", 0, "0" * 32)]}, "other zones than were asked for"),
        (LIVES, {}, "other zones than were asked for"),
        (
            msgspec.structs.replace(LIVES, below="1" * 32),
            {"ranges": [RANGE], "before": [REST]},
            "lives of plant-a again",
        ),
        (ENDS, {"store_zone": "plant-b"}, "another answer than digests"),
        (ENDS, {"stream": "facts.audit"}, "another answer than digests"),
    ],
)
def test_digests_are_those_that_were_asked_for(request_: GetDigests, fields: dict[str, object], said: str) -> None:
    """No more digests than requested, only of the requested range, and nothing else."""
    good = {"store_zone": "plant-a", "life": LIFE.hex(), "stream": STREAM, "end_offset": 99}
    sent = DigestsAnswer(**{**good, **fields})
    if not said:
        assert check_digests(sent, "plant-a", request_) is sent
        return
    with pytest.raises(PageRefused, match=re.escape(said)):
        check_digests(sent, "plant-a", request_)


def of_sequences(batch: Batch, first: int = 1, **fields: object) -> SequencesAnswer:
    """A page of sequences with one batch."""
    good = {
        "store_zone": "plant-a",
        "life": LIFE.hex(),
        "stream": STREAM,
        "origin": str(batch.header.origin),
        "batches": [(first, first + 9, len(batch.sealed))],
        "more": False,
    }
    return SequencesAnswer(**{**good, **fields})


@pytest.mark.parametrize(
    "first, fields, said",
    [
        (11, {}, "batch at sequence 11 is another than the page says"),
        (1, {"store_zone": "plant-b"}, "which was not asked for"),
        (1, {"stream": "facts.other"}, "which was not asked for"),
        (1, {"origin": f"plant-a/{'1' * 32}"}, "which was not asked for"),
    ],
)
def test_sequences_are_those_that_were_asked_for(first: int, fields: dict[str, object], said: str) -> None:
    """A batch at another place of its origin, or of another origin, does not count as the missing one."""
    batch = sealed()
    request = FetchSequences(
        stream=STREAM, origin=str(batch.header.origin), first_sequence=1, last_sequence=20, limit=100
    )
    good, _ = check_sequences(of_sequences(batch), [batch.sealed], "plant-a", request, ORIGINS)
    assert [offer.batch for offer in good] == [batch]
    with pytest.raises(PageRefused, match=re.escape(said)):
        check_sequences(of_sequences(batch, first, **fields), [batch.sealed], "plant-a", request, ORIGINS)


def test_a_repair_brings_batches_of_the_asked_origin_only() -> None:
    """The second batch is at its place in the chain of another zone whose facts this peer may also bring: it would be
    put back among facts that it does not belong to."""
    batch, foreign = sealed(), sealed("plant-b", first=11)
    request = FetchSequences(
        stream=STREAM, origin=str(batch.header.origin), first_sequence=1, last_sequence=20, limit=100
    )
    both = of_sequences(batch, batches=[(1, 10, len(batch.sealed)), (11, 20, len(foreign.sealed))])
    with pytest.raises(PageRefused, match="batch at sequence 11 is another than the page says"):
        check_sequences(both, [batch.sealed, foreign.sealed], "plant-a", request, ORIGINS | {"plant-b"})
