"""What of a store is read by which task, and the pages of a range."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import Batch, Origin
from agent.pages import Hole
from agent.replication.protocol.messages import RangeAnswer
from agent.signing.certificates import SignerTrust
from pyspark_bsfg.errors import FactsGone, OptionError, StoreUnreadable
from pyspark_bsfg.ranges import FACTS_MIN_PER_TASK, OffsetRange, joined, recorded, resolve, split, task_count
from pyspark_bsfg.transports.ports import Asked
from pyspark_bsfg.transports.proofs import Signers
from pyspark_bsfg.transports.range_pages import RangePages
from tests.signing import signers
from tests.signing.making import chain

FIRSTS = st.integers(1, 2**62)
STREAM, LIFE = "facts.telemetry", "00" * 16
ORIGIN = Origin("plant", bytes(range(16)))
BATCHES = chain(6)  # of one fact each, so that a batch's place is its offset


@given(
    FIRSTS,
    st.integers(1, 10**7),
    st.integers(1, 64),
    st.one_of(st.none(), st.integers(1, 500)),
    st.integers(10**4, 10**9),
)
def test_every_offset_is_in_exactly_one_task(
    first: int, facts: int, cores: int, partitions: int | None, facts_max: int
) -> None:
    """Tasks lie end to end, fill the range, differ by one fact at most, and none exceeds its limit."""
    whole = OffsetRange(first, first + facts - 1)
    parts = split([whole], task_count(facts, cores, partitions, facts_max))
    assert parts[0].first == whole.first
    assert parts[-1].last == whole.last
    assert all(left.last + 1 == right.first for left, right in pairwise(parts))
    sizes = {part.facts for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= facts_max
    assert min(sizes) > 0


@pytest.mark.parametrize(
    "facts, cores, partitions, facts_max, tasks",
    [
        (0, 4, None, 10, 0),
        (1, 4, None, 10**6, 1),
        (FACTS_MIN_PER_TASK * 2, 8, None, 10**6, 2),  # not worth eight tasks
        (10**6, 2, None, 10**6, 2),
        (10**6, 2, 7, 10**6, 7),  # as asked
        (10**6, 2, 1, 10**5, 10),  # asked, but none may get so much
        (3, 2, 100, 10**6, 3),  # no task without a fact
    ],
)
def test_how_many_tasks(facts: int, cores: int, partitions: int | None, facts_max: int, tasks: int) -> None:
    """The number of tasks follows the documentation of the options."""
    count = task_count(facts, cores, partitions, facts_max)
    assert count == tasks == len(split([OffsetRange(5, 4 + facts)], count))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=12), st.integers(1, 9))
def test_facts_between_gaps_are_shared_too(gaps_and_facts: list[tuple[int, int]], tasks: int) -> None:
    """Where filters leave only parts of a range, each fact of the parts is in one task, and tasks get equal shares."""
    parts, at = [], 1
    for gap, facts in gaps_and_facts:
        parts.append(OffsetRange(at + gap, at + gap + facts - 1))
        at += gap + facts
    left = [offset for part in parts for offset in range(part.first, part.last + 1)]
    shares = [[offset for offset in left if share.first <= offset <= share.last] for share in split(parts, tasks)]
    assert [part for share in shares for part in share] == left
    assert (
        {len(share) for share in shares} <= {len(left) // len(shares), -(-len(left) // len(shares))} if left else True
    )
    touching = list(joined(parts))
    assert [offset for part in touching for offset in range(part.first, part.last + 1)] == left
    assert all(first.last + 1 < second.first for first, second in pairwise(touching))


def test_options_narrow_the_range() -> None:
    """Without options all that is held, otherwise what was named."""
    held = OffsetRange(11, 100)
    assert resolve(held, None, None) == held
    assert resolve(held, 20, 30) == OffsetRange(20, 30)
    assert resolve(held, 101, None).facts == 0


@pytest.mark.parametrize(
    "start, end, names", [(10, None, "before 11"), (None, 101, "ends at 100"), (102, None, "ends at 100")]
)
def test_a_range_beyond_the_store_is_refused(start: int | None, end: int | None, names: str) -> None:
    """A range that reaches beyond the store is no shorter range, it is an error that says where the store ends."""
    with pytest.raises(FactsGone, match=names):
        resolve(OffsetRange(11, 100), start, end)


@pytest.mark.parametrize(
    "since, before, span",
    [
        (None, None, (11, 100)),
        (60, 120, (20, 39)),  # marks at exactly these times
        (61, 121, (20, 69)),  # a minute more at each side, nothing less
        (150, 160, (40, 69)),
        (0, 5, (11, 10)),  # before the first mark
        (500, None, (70, 100)),
        (None, 500, (11, 100)),
        (60, 60, (20, 19)),
    ],
)
def test_times_are_widened_to_marks(since: int | None, before: int | None, span: tuple[int, int]) -> None:
    """Everything recorded since one time and before another is in the range, and at most a mark more at each end."""
    marks = [(11, 10), (20, 60), (40, 120), (70, 180)]
    assert recorded(OffsetRange(11, 100), marks, since, before) == OffsetRange(*span)
    assert recorded(OffsetRange(11, 100), [], since, before) == OffsetRange(11, 100)


def test_a_clock_that_was_set_back_hides_nothing() -> None:
    """Each fact that a mark of the time stands before is in the range."""
    marks = [(1, 100), (10, 200), (20, 150), (30, 250)]
    assert recorded(OffsetRange(1, 40), marks, 180, 190) == OffsetRange(1, 29)


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
    stands before them; and a record made with another key proves nothing. A renewed certificate of the key ends the
    time of no other."""
    authority = signers.make("facts", is_ca=True)
    made = signers.make("plant", authority)
    key, other = (signers.signing_key(certificate) for certificate in (made, signers.make("plant", authority)))
    signers_trusted = Signers(SignerTrust((authority.certificate,)), signers.NOW_MS)
    renewed = signers.make("plant", authority, key=made.key, begins=signers.NOW + timedelta(days=1))
    signers_trusted.add([made.der, renewed.der])
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
