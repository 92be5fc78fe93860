"""How far each zone was handed a stream: exactly so in one life, never less over several, and never more than a copy can know."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.fact_store.divergence.handed import EVERYBODY, PAGE_ENDS, Handed
from tests.fact_store.making import TELEMETRY, done, plant, samples


def fill(store: FactStore, count: int) -> None:
    """Some samples in one batch."""
    done(store.appends.append_samples(TELEMETRY, samples(count, store.end_offset(TELEMETRY) + 1)))


def hand(store: FactStore, zone: str, offset: int) -> None:
    """As the serving side does."""
    if (beginning := store.consumers.begin_serving(TELEMETRY, zone)) is not None:
        done(beginning)
    store.consumers.record_served(TELEMETRY, zone, offset)


def until(store: FactStore, zone: str) -> int:
    """The highest offset that a zone may have been told of."""
    return next(
        offset for offset in range(1000) if store.consumers.why_not_served(TELEMETRY, zone, offset + 1) is not None
    )


def test_only_the_highest_counts() -> None:
    """A page that is sent again takes nothing back; who has no row was handed what everybody was."""
    handed = Handed({("s", "idmz"): 5, ("s", EVERYBODY): 3})
    handed.note("s", "idmz", 4)
    assert [handed.until("s", zone) for zone in ("idmz", "cloud")] == [5, 3]
    handed.note("s", "cloud", 2)
    handed.note("t", "cloud", 7)
    assert [handed.until(stream, "cloud") for stream in ("s", "t", "u")] == [3, 7, 0]


def test_the_ends_of_the_last_pages_are_known() -> None:
    """By stream and zone, as many as are remembered; a page without a batch forgets none."""
    handed = Handed({})
    for offset in range(1, PAGE_ENDS + 2):
        handed.note("s", "idmz", offset, (offset, b"d"))
        handed.note("s", "idmz", offset)
    known = [offset for offset in range(PAGE_ENDS + 3) if handed.knows("s", "idmz", (offset, b"d"))]
    assert known == list(range(2, PAGE_ENDS + 2))
    assert not handed.knows("s", "idmz", (PAGE_ENDS, b"e"))
    assert not handed.knows("s", "cloud", (PAGE_ENDS, b"d"))


def test_one_life_knows_it_exactly_and_costs_one_commit(tmp_path: Path) -> None:
    """Pages are no commits: the first fetch of a zone is one, each one after it none."""
    with plant(tmp_path) as store:
        fill(store, 10)
        assert store.consumers.why_not_served(TELEMETRY, "idmz", 0) is None
        assert "read up to offset 1 of facts.telemetry, and was handed 0" in str(
            store.consumers.why_not_served(TELEMETRY, "idmz", 1)
        )
        for offset in (4, 8):
            hand(store, "idmz", offset)
            assert (until(store, "idmz"), until(store, "cloud")) == (offset, 0)
            assert store.consumers.begin_serving(TELEMETRY, "idmz") is None


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A copy of the store taken while idmz reads: it was handed 4 of 10, and will be handed more by the store that is copied."""
    with plant(tmp_path) as store:
        fill(store, 10)
        hand(store, "idmz", 4)
        with (
            closing(sqlite3.connect(tmp_path / "facts.db")) as source,
            closing(sqlite3.connect(tmp_path / "image")) as copy,
        ):
            source.backup(copy)
        fill(store, 10)
        hand(store, "idmz", 20)
    return tmp_path / "image"


def test_a_store_that_is_opened_again_contradicts_nobody(image: Path) -> None:
    """Whatever was handed out is no more than what was there; who did not read remembers exactly, over any number of lives."""
    for _ in range(3):
        with plant(image.parent) as store:
            assert (until(store, "idmz"), until(store, "cloud")) == (20, 0)
    with plant(image.parent) as store:
        hand(store, "cloud", 3)
    for _ in range(2):
        with plant(image.parent) as store:
            assert (until(store, "idmz"), until(store, "cloud")) == (20, 20)
            fill(store, 1)


def test_a_copy_knows_no_more_than_its_image_however_often_it_is_opened(image: Path) -> None:
    """It grows, is closed and opened, others read it: idmz, which the original has handed 20, was handed 10 at most."""
    shutil.copy(image, image.with_name("facts.db"))
    for life in range(3):
        with plant(image.parent) as store:
            fill(store, 20)
            hand(store, "cloud", store.end_offset(TELEMETRY))
            assert (until(store, "idmz"), until(store, "cloud")) == (10, 30 + 20 * life)
            assert store.contradiction(TELEMETRY, None, None) is None
