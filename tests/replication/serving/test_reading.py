"""Reading a page from a damaged store, and within limits."""

from dataclasses import replace
from typing import Any

import pytest

from agent.batch import Definitions, Link, Origin, parse, seal_samples
from agent.pages import Page, StoredBatch
from agent.replication.serving.outcomes import Refuse
from agent.replication.serving.page import ReadPlan
from agent.replication.serving.reading import PageQuery, PageRead, read_page, read_sequences, read_whole

ORIGIN = Origin("plant-a", bytes(16))


class Rotten:
    """A store with one batch in which one bit has changed."""

    def read(self, *_limits: object, **_until: object) -> Page:
        """The batch, as the disk gives it back."""
        rows = [(1, number, float(number), 0) for number in range(10)]
        good = seal_samples(Link("facts", ORIGIN), rows, Definitions().extended(b"{}"))
        bad = good.sealed[:-20] + bytes([good.sealed[-20] ^ 1]) + good.sealed[-19:]
        return Page([StoredBatch(1, replace(good, sealed=bad))], 10)

    def definitions(self, *_range: object) -> list[bytes]:
        """The one definition."""
        return [b"{}"]


def asked(limit: int) -> PageQuery:
    """A page of at most `limit` facts for idmz."""
    return PageQuery(ReadPlan("facts", 0, limit, 10_000), "idmz", {}, 1_000_000)


def test_damage_is_named_when_a_batch_must_be_opened() -> None:
    """A slice of a damaged batch is an error answer that names the batch."""
    refused = read_page(Rotten(), asked(3))  # type: ignore[arg-type]
    assert isinstance(refused, Refuse)
    assert refused.code == "store_unavailable"
    assert "offset 1 is damaged" in refused.message


def test_damage_in_a_whole_batch_is_the_receivers_to_find() -> None:
    """A whole batch is sent as stored; the receiver checks its digest."""
    assert isinstance(read_page(Rotten(), asked(10)), PageRead)  # type: ignore[arg-type]


class Measured(Rotten):
    """A store that records how many bytes were requested."""

    def __init__(self) -> None:
        self.bytes_max = list[int]()

    def read(self, *limits: object, **until: object) -> Page:
        """As above; the last limit is in bytes."""
        self.bytes_max.append(int(str(limits[-1])))
        return super().read(*limits, **until)


def test_no_more_is_read_than_a_packet_takes() -> None:
    """For a request of eight megabytes, only one packet's worth is read and digested; a smaller limit is kept."""
    store = Measured()
    for bytes_max in (8_000_000, 10_000):
        query = PageQuery(ReadPlan("facts", 0, 10, bytes_max), "idmz", {}, 1_000_000)
        for read in (read_page, read_whole):
            read(store, query)  # type: ignore[arg-type]
    assert store.bytes_max == [1_000_000, 1_000_000, 10_000, 10_000]


class Repaired:
    """A store with two batches of ten facts, the second of which came late: it needs fewer definitions."""

    def read(self, *_limits: object, **_until: object) -> Page:
        """Both, whatever is asked for."""
        known = [Definitions().extended(b"{}").extended(b"[]"), Definitions().extended(b"{}")]
        rows = [(1, number, float(number), 0) for number in range(10)]
        sealed = [seal_samples(Link("facts", ORIGIN), rows, each) for each in known]
        return Page([StoredBatch(1, sealed[0]), StoredBatch(11, sealed[1])], 20)

    def read_sequences(self, *_limits: object, **_until: object) -> Page:
        """Offsets are sequences here."""
        return self.read()

    def definitions(self, _origin: Origin, after_number: int, until_number: int) -> list[bytes]:
        """As the store numbers them."""
        return [b"{}", b"[]"][after_number:until_number]


def test_a_page_has_the_definitions_of_all_its_batches() -> None:
    """Also of those that need more than the last, each under its own number; what the requester knows is left out."""
    for known, numbers in ((0, [1, 2]), (1, [2]), (2, [])):
        definitions_known = {str(ORIGIN): known}
        query = PageQuery(ReadPlan("facts", 0, 20, 10_000), "idmz", definitions_known, 1_000_000)
        page = read_page(Repaired(), query)  # type: ignore[arg-type]
        assert isinstance(page, PageRead)
        assert [one.number for one in page.definitions] == numbers
        assert [bytes(one.definition) for one in page.definitions] == [b"{}", b"[]"][known:]


def test_own_facts_of_a_former_epoch_come_with_their_definitions() -> None:
    """A zone that takes back facts of one of its former epochs needs their definitions; others of its own are left out,
    with theirs."""
    for former, numbers in ((frozenset({ORIGIN.epoch}), [1, 2]), (frozenset({b"1" * 16}), [])):
        query = PageQuery(ReadPlan("facts", 0, 20, 10_000), "plant-a", {}, 1_000_000, former_epochs=former)
        page = read_page(Repaired(), query)  # type: ignore[arg-type]
        assert isinstance(page, PageRead)
        assert [one.number for one in page.definitions] == numbers
        assert len(page.batches) == len(numbers)


@pytest.mark.parametrize("is_by_sequence", [False, True])
def test_a_first_batch_is_whole_wherever_the_range_begins(*, is_by_sequence: bool) -> None:
    """A range that begins inside a batch and asks for fewer facts than it has gets all of it: a part proves nothing,
    and cannot be stored."""
    store: Any = Repaired()
    query = PageQuery(ReadPlan("facts", 4, 1, 10_000), "idmz", {}, 1_000_000)
    page = read_sequences(store, ORIGIN, query) if is_by_sequence else read_whole(store, query)
    assert isinstance(page, PageRead)
    assert [(first, last) for first, last, _ in page.entries] == [(1, 10)]
    assert parse(page.batches[0]).header.count == 10
