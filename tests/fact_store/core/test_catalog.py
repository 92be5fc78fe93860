"""The newest batches in memory are pages like those of the file; a mapping in shards is a dictionary."""

from collections.abc import Iterator
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import batch
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core import catalog
from agent.fact_store.core.catalog import Catalog, Shards, StoreNames, StreamState, TailCache
from agent.fact_store.core.errors import StoreClosed
from agent.pages import StoredBatch
from tests.fact_store.making import EVERYTHING, TELEMETRY, done, plant, samples

SIZES = (1, 2, 30, 1, 7, 60, 1, 1, 17)
NUMBERS = st.integers(0, sum(SIZES) + 10)
CHANGES = st.lists(st.tuples(st.integers(0, 200), st.none() | st.integers()))


def test_the_age_of_a_store_is_that_of_its_newest_mark() -> None:
    """Whichever stream has it: what another stream recorded later would seem to come from the future."""
    for ages_ms in permutations([None, 5_000, 90_000]):
        streams = {f"s{n}": StreamState(n, f"s{n}", mark_ms=age_ms) for n, age_ms in enumerate(ages_ms)}
        assert Catalog(StoreNames("plant", "plant"), streams).age_ms == 90_000


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FactStore, StoreReader]]:
    """A store that has all its batches in memory, and a reader of its file."""
    folder = tmp_path_factory.mktemp("tail")
    with plant(folder) as store, closing(StoreReader(folder / "facts.db")) as reader:
        first = 1
        for size in SIZES:
            done(store.appends.append_samples(TELEMETRY, samples(size, first)))
            first += size
        yield store, reader


@given(after=NUMBERS, facts=NUMBERS.map(lambda n: n + 1), size=st.integers(1, 3000), until=st.none() | NUMBERS)
def test_a_page_is_the_same_by_every_way(
    both: tuple[FactStore, StoreReader], after: int, facts: int, size: int, until: int | None
) -> None:
    """The tail cache, the single statement of the usual case, and the several statements of all others return the same
    batches, limits and end."""
    store, reader = both
    end_offset = store.end_offset(TELEMETRY)
    last = end_offset if until is None else min(until, end_offset)
    from_memory = store.read(TELEMETRY, after, facts, size, until_offset=until)
    assert from_memory == reader.read(TELEMETRY, after, facts, size, until_offset=last, end_offset=end_offset)
    assert from_memory == reader.read(TELEMETRY, after, facts, size, until_offset=last)


def test_the_end_is_served_without_the_file(
    both: tuple[FactStore, StoreReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of facts just committed does not read the file."""
    store, _ = both

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the file was asked")

    monkeypatch.setattr(StoreReader, "read", refuse)
    end_offset = store.end_offset(TELEMETRY)
    page = store.read(TELEMETRY, end_offset - 1, EVERYTHING, EVERYTHING)
    assert [stored.last_offset for stored in page.batches] == [end_offset]


def test_a_closed_store_serves_nothing(tmp_path: Path) -> None:
    """After `close` a read is refused, whatever is in memory."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))
        assert store.read(TELEMETRY, 0, 1, 1).batches
    with pytest.raises(StoreClosed):
        store.read(TELEMETRY, 0, 1, 1)


def test_a_tail_answers_nothing_that_begins_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts before the oldest batch in memory, where one has room, are only in the file. An answer from memory would
    skip them."""
    link = batch.Link(TELEMETRY, batch.Origin("plant", bytes(16)))
    rows = [(1, number, 20.5, 0) for number in range(10)]
    stored = StoredBatch(11, batch.seal_samples(link, rows, batch.Definitions().extended(b"{}")))
    monkeypatch.setattr(catalog, "TAIL_BYTES_MAX", len(stored.sealed))
    tail = TailCache().extended([stored.batch, stored.batch], 20)
    assert tail == TailCache((stored,), len(stored.sealed))
    assert tail.page(9, 100, 100, 20) is None
    for after_offset in (10, 15):
        page = tail.page(after_offset, 100, 100, 20)
        assert page is not None
        assert list(page.batches) == [stored]
    assert tail.page(20, 100, 100, 20) is None


@given(CHANGES, CHANGES)
def test_a_copy_is_a_dictionary_of_its_own(
    before: list[tuple[int, int | None]], after: list[tuple[int, int | None]]
) -> None:
    """Set and deleted like a dictionary; what is changed in a copy is not changed in the one that was copied."""
    first, expected = Shards[int, int](), dict[int, int]()
    changed(first, expected, before)
    second, kept = first.copy(), dict(expected)
    changed(second, expected, after)
    assert (first, second) == (kept, expected)
    assert (len(second), set(second), second.get(1)) == (len(expected), set(expected), expected.get(1))


def changed(shards: Shards[int, int], plain: dict[int, int], changes: list[tuple[int, int | None]]) -> None:
    """Carry out changes in both; None deletes."""
    for key, value in changes:
        if value is not None:
            shards[key] = plain[key] = value
        elif shards.pop(key, None) is not None:
            del plain[key]
