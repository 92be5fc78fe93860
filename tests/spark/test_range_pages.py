"""What a reader takes of a node's answers: pages of the range, and of a node that errs or lies nothing."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent.batch import Batch, Origin
from agent.pages import Hole
from agent.replication.protocol.messages import RangeAnswer
from agent.signing.certificates import SignerTrust
from pyspark_bsfg.errors import FactsGone, OptionError, StoreUnreadable
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.transports.ports import Asked
from pyspark_bsfg.transports.proofs import Signers
from pyspark_bsfg.transports.range_pages import RangePages
from tests.signing import signers
from tests.signing.making import chain

STREAM, LIFE = "facts.telemetry", "00" * 16
ORIGIN = Origin("plant", bytes(range(16)))
BATCHES = chain(6)  # of one fact each, so that a batch's place is its offset


def pages(first: int, last: int, signers_trusted: Signers | None = None) -> RangePages:
    """The reading of a range."""
    return RangePages("enterprise", "enterprise", Asked(STREAM, OffsetRange(first, last), LIFE), signers_trusted)


def answer(batches: Sequence[tuple[int, Batch]], **fields: Any) -> tuple[RangeAnswer, list[bytes]]:
    """A page with batches at their offsets."""
    entries = [(at, at + batch.header.count - 1, len(batch.sealed)) for at, batch in batches]
    page: dict[str, Any] = {"store_zone": "enterprise", "life": LIFE, "stream": STREAM, "end_offset": 6}
    return RangeAnswer(**(page | {"batches": entries} | fields)), [batch.sealed for _, batch in batches]


def test_pages_follow_one_another_to_the_end_of_the_range() -> None:
    """Each request begins behind the page before; holes are cut to the range."""
    reading = pages(2, 5)
    assert reading.request().first_offset == 2
    assert [
        placed.first_offset for placed in reading.take_answer(*answer([(2, BATCHES[1]), (3, BATCHES[2])])).batches
    ] == [
        2,
        3,
    ]
    assert (reading.request().first_offset, reading.request().life) == (4, LIFE)
    assert reading.take_answer(*answer([], holes=[(4, 6, "expired")])).holes == [Hole(4, 5, "expired")]
    assert reading.is_done


@pytest.mark.parametrize(
    "batches, fields, error, said",
    [
        ([(2, BATCHES[1])], {"stream": "facts.other"}, StoreUnreadable, "answered another request"),
        ([(2, BATCHES[1])], {"store_zone": "plant"}, StoreUnreadable, "answered another request"),
        ([(3, BATCHES[2])], {}, StoreUnreadable, "facts 3 to 3 came, requested were facts from 2 on"),
        ([(1, BATCHES[0]), (2, BATCHES[1])], {}, StoreUnreadable, "facts 1 to 2 came"),
        ([(2, chain(1, stream="facts.x")[0])], {}, StoreUnreadable, "is not the one that the page lists"),
        ([], {}, FactsGone, "ends at 6, not at 5"),
        ([], {"omitted": [(2, 5)]}, OptionError, "a zone that records nothing"),
    ],
)
def test_an_answer_that_cannot_be_right_is_refused(
    batches: list[tuple[int, Batch]], fields: dict[str, Any], error: type[Exception], said: str
) -> None:
    """Another stream or zone, a gap, facts before the range, a foreign batch, too early an end, and facts that are left
    out."""
    with pytest.raises(error, match=said):
        pages(2, 5).take_answer(*answer(batches, **fields))


def test_a_changed_byte_is_refused() -> None:
    """A batch's digest is compared, whoever has changed it on the way."""
    page, sealed = answer([(2, BATCHES[1])])
    sealed[0] = sealed[0][:-40] + bytes([sealed[0][-40] ^ 1]) + sealed[0][-39:]
    with pytest.raises(StoreUnreadable, match="batch at offset 2: digest"):
        pages(2, 2).take_answer(page, sealed)


def test_a_record_proves_its_chain_and_nothing_else() -> None:
    """The record of the fourth batch proves the first four of the page, not the fifth; not one of another chain that
    stands before them; and a record made with another key proves nothing."""
    authority = signers.make("facts", is_ca=True)
    made = signers.make("plant", authority)
    key, other = (signers.signing_key(certificate) for certificate in (made, signers.make("plant", authority)))
    signers_trusted = Signers(SignerTrust((authority.certificate,)), signers.NOW_MS)
    signers_trusted.add([made.der])
    stranger, batches = chain(1, text="other")[0], chain(6, key=key, at=[3])
    assert signers_trusted.verified([stranger, *batches[1:]]) == ["no", "yes", "yes", "yes", "no", "no"]
    forged = chain(2, key=other, link=batches[3].link)
    assert signers_trusted.verified([*batches[:4], *forged]) == ["yes"] * 4 + ["no"] * 2
    assert signers_trusted.known() == [f"plant/{key.key_id.hex()}"]


def test_whole_batches_are_requested_to_prove_them() -> None:
    """A page may begin before the range and end behind it, because only a whole batch has its record."""
    authority = signers.make("facts", is_ca=True)
    made = signers.make("plant", authority)
    signers_trusted = Signers(SignerTrust((authority.certificate,)), signers.NOW_MS)
    batches = chain(6, key=signers.signing_key(made))
    page, sealed = answer(list(enumerate(batches, 1)), signers=[made.der])
    reading = pages(2, 3, signers_trusted)
    assert reading.request().whole_batches
    taken = reading.take_answer(page, sealed).batches
    assert [(placed.first_offset, placed.verified) for placed in taken] == [(1, "yes"), (2, "yes"), (3, "yes")]
    assert reading.is_done
