"""Room and hours of a real store: bytes from the batches, ages and inflow from the marks, limits from the settings."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent.fact_store import StoreReader
from agent.fact_store.read.forecast import StoreSpace
from agent.settings.store import StoreSettings, StreamSettings
from tests.fact_store.making import TELEMETRY, done, plant, samples

ROOMY = StoreSettings(disk_free_bytes_min=0, ballast_bytes=0)
BATCH = 50


def filled(folder: Path) -> list[int]:
    """A store with four batches and three consumers: at the start, in the middle of the third batch, at the end.
    Returns the sealed bytes of the batches."""
    with plant(folder) as store:
        for name in ("all", "none", "some"):
            done(store.consumers.register(name, "idmz", TELEMETRY))
        for n in range(4):
            done(store.appends.append_samples(TELEMETRY, samples(BATCH, n * BATCH + 1)))
        done(store.consumers.confirm("all", 4 * BATCH))
        done(store.consumers.confirm("some", 2 * BATCH + 10))
        return [len(batch.sealed) for batch in store.read(TELEMETRY, 0, 1000, 10**9).batches]


def marked(folder: Path, *marks: tuple[int, int, int]) -> None:
    """Set the marks: first_offset, bytes_total, age in minutes."""
    with closing(sqlite3.connect(folder / "facts.db")) as connection:
        (stream,) = connection.execute("SELECT id FROM stream WHERE name = ?", (TELEMETRY,)).fetchone()
        connection.execute("DELETE FROM mark")
        for first_offset, bytes_total, minutes in marks:
            values = (stream, first_offset, bytes_total, minutes * 60_000, 0)
            connection.execute("INSERT INTO mark VALUES (?, ?, ?, ?, ?, 0)", values)
        connection.commit()


def space_of(folder: Path, minutes: int, settings: StoreSettings = ROOMY, **policy: float) -> StoreSpace:
    """The forecast at an age of the store in minutes."""
    policies = {TELEMETRY: StreamSettings(TELEMETRY, **policy)}  # type: ignore[arg-type]
    with closing(StoreReader(folder / "facts.db")) as reader:
        return reader.space(settings, policies, age_ms=minutes * 60_000)


def test_bytes_and_hours_held_back_by_each_consumer(tmp_path: Path) -> None:
    """Whole batches that a consumer has not confirmed, also one confirmed in part; the hours since the mark before its
    oldest fact."""
    sizes = filled(tmp_path)
    marked(tmp_path, (1, 0, 0), (2 * BATCH + 1, sum(sizes[:2]), 60))
    held = {use.name: use for use in space_of(tmp_path, 120, ttl_hours=24.0).consumers}
    assert {name: use.bytes_held for name, use in held.items()} == {
        "all": 0,
        "none": sum(sizes),
        "some": sum(sizes[2:]),
    }
    assert {name: use.hours_held for name, use in held.items()} == {"all": 0.0, "none": 2.0, "some": 1.0}
    assert {name: use.hours_until_ttl_loss for name, use in held.items()} == {"all": None, "none": 22.0, "some": 23.0}


@pytest.mark.parametrize(
    "what, marks, minutes, batches, span_minutes",
    [
        ("the last hour", [(1, 0, 0), (51, 1, 30), (101, 2, 90)], 120, 2, 60),
        ("less than an hour of life", [(1, 0, 10)], 30, 4, 20),
        ("nothing for an hour", [(1, 0, 0), (51, 1, 10)], 200, 0, 60),
        ("one burst is spread over the hour", [(1, 0, 0), (151, 3, 119)], 120, 1, 60),
    ],
)
def test_inflow_is_that_of_the_last_hour(
    tmp_path: Path, what: str, marks: list[tuple[int, int, int]], minutes: int, batches: int, span_minutes: int
) -> None:
    """Bytes since the oldest mark of the last hour, divided by the hour, or by the life of the stream if that is
    shorter."""
    sizes = filled(tmp_path)
    marked(tmp_path, *((offset, sum(sizes[:before]), age) for offset, before, age in marks))
    (stream,) = space_of(tmp_path, minutes).streams
    expected = sum(sizes[4 - batches :]) / (span_minutes * 60) if batches else 0.0
    assert stream.inflow_bytes_per_s == pytest.approx(expected), what


def test_room_is_the_nearest_limit(tmp_path: Path) -> None:
    """The limit of the file by the settings, or the free space above the disk's floor, whichever is less."""
    filled(tmp_path)
    free = os.statvfs(tmp_path)
    on_disk = space_of(tmp_path, 0).bytes_max
    assert on_disk is not None
    assert on_disk == pytest.approx(free.f_bavail * free.f_frsize, rel=0.1)
    two_mb = StoreSettings(bytes_max=2 * 1024 * 1024, disk_free_bytes_min=0)
    assert space_of(tmp_path, 0, two_mb).bytes_max == 2 * 1024 * 1024
    floor = StoreSettings(disk_free_bytes_min=10**15)
    beyond = space_of(tmp_path, 0, floor)
    assert beyond.bytes_max == beyond.bytes > 0


def test_a_store_without_marks(tmp_path: Path) -> None:
    """Facts without marks are as old as the store, and there is no inflow."""
    filled(tmp_path)
    marked(tmp_path)
    found = space_of(tmp_path, 180)
    assert [stream.inflow_bytes_per_s for stream in found.streams] == [None]
    assert {use.name: use.hours_held for use in found.consumers} == {"all": 0.0, "none": 3.0, "some": 3.0}


def test_a_running_store_has_the_same_figures(tmp_path: Path) -> None:
    """The node's own figures are the same, from the writer's catalog and age."""
    sizes = filled(tmp_path)
    with plant(tmp_path) as store:
        found = store.space()
        (stream,) = found.streams
        assert (stream.name, stream.bytes, stream.ttl_hours) == (TELEMETRY, sum(sizes), 168.0)
        assert {use.name: use.bytes_held for use in found.consumers}["none"] == sum(sizes)
        assert all(use.hours_held < 1 for use in found.consumers)
