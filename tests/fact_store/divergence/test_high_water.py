"""The mark of what a zone was served: exact within one life, never too low over several, and no higher than an old copy
can have it."""

import shutil
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.fact_store.divergence.high_water import PAGE_ENDS, ServedHighWater
from tests.fact_store.making import TELEMETRY, done, plant, samples


def fill(store: FactStore, count: int) -> None:
    """Some samples in one batch."""
    done(store.appends.append_samples(TELEMETRY, samples(count, store.end_offset(TELEMETRY) + 1)))


def serve(store: FactStore, zone: str, offset: int) -> None:
    """Record an answer as the serving side does."""
    if (beginning := store.consumers.begin_serving(TELEMETRY, zone)) is not None:
        done(beginning)
    store.consumers.record_served(TELEMETRY, zone, offset)


def served(store: FactStore, zone: str) -> int:
    """The highest offset that a zone may have been served."""
    return next(
        offset for offset in range(1000) if store.consumers.why_not_served(TELEMETRY, zone, offset + 1) is not None
    )


def test_a_repeated_page_lowers_no_mark() -> None:
    """A page that is sent again lowers no mark; a zone without a row was served nothing."""
    handed = ServedHighWater({("s", "idmz"): 5, ("s", "cloud"): None})
    handed.record("s", "idmz", 4)
    assert [handed.offset("s", zone) for zone in ("idmz", "cloud")] == [5, 0]
    handed.record("s", "cloud", 2)
    handed.record("t", "cloud", 7)
    assert [handed.offset(stream, "cloud") for stream in ("s", "t", "u")] == [2, 7, 0]


def test_the_ends_of_the_last_pages_are_remembered() -> None:
    """By stream and zone, the last PAGE_ENDS of them; a page without a batch removes none."""
    handed = ServedHighWater({})
    for offset in range(1, PAGE_ENDS + 2):
        handed.record("s", "idmz", offset, (offset, b"d"))
        handed.record("s", "idmz", offset)
    known = [offset for offset in range(PAGE_ENDS + 3) if handed.is_recent_page_end("s", "idmz", (offset, b"d"))]
    assert known == list(range(2, PAGE_ENDS + 2))
    assert not handed.is_recent_page_end("s", "idmz", (PAGE_ENDS, b"e"))
    assert not handed.is_recent_page_end("s", "cloud", (PAGE_ENDS, b"d"))


def test_the_mark_is_exact_in_one_life_and_costs_one_commit(tmp_path: Path) -> None:
    """The first fetch of a zone costs one commit, each later one none."""
    with plant(tmp_path) as store:
        fill(store, 10)
        assert store.consumers.why_not_served(TELEMETRY, "idmz", 0) is None
        assert "read up to offset 1 of facts.telemetry, and was handed 0" in str(
            store.consumers.why_not_served(TELEMETRY, "idmz", 1)
        )
        for offset in (4, 8):
            serve(store, "idmz", offset)
            assert (served(store, "idmz"), served(store, "cloud")) == (offset, 0)
            assert store.consumers.begin_serving(TELEMETRY, "idmz") is None


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A copy of the store taken while idmz reads: it was served 4 of 10, and the original serves it more afterwards."""
    with plant(tmp_path) as store:
        fill(store, 10)
        serve(store, "idmz", 4)
        for part in ("", "-wal"):  # as an image of the machine has them
            shutil.copy(tmp_path / f"facts.db{part}", tmp_path / f"image{part}")
        fill(store, 10)
        serve(store, "idmz", 20)
    return tmp_path / "image"


def test_a_store_that_is_opened_again_contradicts_no_reader(image: Path) -> None:
    """Opening raises the mark of a zone that read to the end of the log; the mark of any other stays exact over any
    number of lives."""
    for _ in range(3):
        with plant(image.parent) as store:
            assert (served(store, "idmz"), served(store, "cloud")) == (20, 0)
    with plant(image.parent) as store:
        serve(store, "cloud", 3)
    for _ in range(2):
        with plant(image.parent) as store:
            assert (served(store, "idmz"), served(store, "cloud")) == (20, 20)
            fill(store, 1)


def test_opening_a_copy_does_not_raise_its_marks(image: Path) -> None:
    """The copy grows, is opened again, and serves others: for idmz, which the original served 20, its mark stays 10."""
    for part in ("", "-wal"):
        shutil.copy(f"{image}{part}", image.with_name(f"facts.db{part}"))
    for life in range(3):
        with plant(image.parent) as store:
            fill(store, 20)
            serve(store, "cloud", store.end_offset(TELEMETRY))
            assert (served(store, "idmz"), served(store, "cloud")) == (10, 30 + 20 * life)
            assert store.contradiction(TELEMETRY, None, None) is None
