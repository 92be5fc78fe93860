"""Hours until the store is full or facts are lost: tables of held bytes, inflow and results; and those of a real store,
from its batches, marks and settings."""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.fact_store import StoreReader
from agent.fact_store.core.store_age import HOUR_MS
from agent.fact_store.read.forecast import ConsumerLag, Inflow, Mark, StoreSpace, StreamUse, forecast, inflow_of
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit
from tests.fact_store.making import TELEMETRY, done, plant, samples

MB = 1_000_000
SLOW = Inflow(36 * MB, HOUR_MS)  # 10 kB a second
ROOMY = StoreSettings(disk_free_bytes_min=0, ballast_bytes=0)
BATCH = 50


def log(*lags: ConsumerLag, bytes_max: int = 0, ttl_hours: float = 168.0, inflow: Inflow = SLOW) -> StreamUse:
    """A stream of 100 MB in all, of which 20 MB are released."""
    return StreamUse("facts.telemetry", 100 * MB, 20 * MB, bytes_max, ttl_hours, inflow, lags)


def caught_up(name: str = "a") -> ConsumerLag:
    """A consumer that has confirmed all facts."""
    return ConsumerLag(name, 100 * MB, None)


def behind(at_mb: int, hours: float, name: str = "b") -> ConsumerLag:
    """A consumer that has confirmed the first `at_mb`, and whose oldest unconfirmed fact is `hours` old."""
    return ConsumerLag(name, at_mb * MB, int(hours * HOUR_MS))


@pytest.mark.parametrize(
    "what, room_mb, use, hours",
    [
        ("everything confirmed yields", 280, log(caught_up()), 10.0),
        ("what one lacks does not", 280, log(caught_up(), behind(60, 1)), (280 + 40) / 36),
        ("without consumers nothing yields", 360, log(), 10.0),
        ("the stream's own limit comes first", 10_000, log(bytes_max=116 * MB), 1.0),
        ("over its own limit it is full now", 10_000, log(bytes_max=70 * MB), 0.0),
        ("confirmed facts yield to its own limit too", 10_000, log(caught_up(), bytes_max=72 * MB), 2.0),
        ("no room at all", -5, log(), 0.0),
        ("the time to live comes first", 10_000, log(ttl_hours=200), None),
        ("it never does", 10_000, log(ttl_hours=0), (10_000) / 36),
        ("nor does the stream's own limit then", 10_000, log(bytes_max=7300 * MB, ttl_hours=200), None),
        ("the room is unknown", None, log(), None),
        ("nothing comes in", 280, log(inflow=Inflow(0, HOUR_MS)), None),
        ("too early to tell", 280, log(inflow=Inflow(9 * MB, 9_999)), None),
    ],
)
def test_hours_until_full(what: str, room_mb: int | None, use: StreamUse, hours: float | None) -> None:
    """The room is the free bytes and the confirmed ones; the hours are the room divided by the inflow of the last
    hour."""
    found = forecast(80 * MB, None if room_mb is None else room_mb * MB, [use])
    (stream,) = found.streams
    assert stream.hours_until_full == pytest.approx(hours), what


@pytest.mark.parametrize(
    "what, use, hours",
    [
        ("without readers nothing is lost", log(), None),
        ("everything confirmed", log(caught_up()), None),
        ("the worst counts", log(caught_up(), behind(60, 68), behind(90, 8, "c")), 100.0),
        ("over already", log(behind(20, 200)), 0.0),
        ("for ever", log(behind(60, 68), ttl_hours=0), None),
    ],
)
def test_hours_until_ttl_loss(what: str, use: StreamUse, hours: float | None) -> None:
    """The time to live less the age of the oldest fact that a consumer lacks, for the worst consumer."""
    (stream,) = forecast(0, None, [use]).streams
    assert stream.hours_until_ttl_loss == pytest.approx(hours), what


def test_hours_until_a_zone_holds_back_all_that_it_may() -> None:
    """In each stream it holds back what the slower of its consumers lacks, of all streams together, which grow by their
    inflow; without an inflow there is no such hour. What another zone lacks does not count."""
    lags = [replace(behind(at_mb, 1), zone=zone) for at_mb, zone in ((60, "idmz"), (90, "idmz"), (30, "mes"))]
    holds = {"idmz": ZoneLimit(bytes_max=152 * MB), "mes": ZoneLimit()}
    found = forecast(0, None, [log(*lags), log(*lags[::-1])], holds)
    assert [stream.hours_until_ttl_loss for stream in found.streams] == pytest.approx([(152 - 80) / 72] * 2)
    hours = dict(zip(lags, (consumer.hours_until_ttl_loss for consumer in found.consumers), strict=False))
    assert hours == pytest.approx({lags[0]: 1.0, lags[1]: 1.0, lags[2]: 167.0})
    (still,) = forecast(
        0, None, [log(*lags, inflow=Inflow(0, HOUR_MS))], {"idmz": ZoneLimit(bytes_max=41 * MB)}
    ).streams
    assert still.hours_until_ttl_loss == 167.0


def test_fill_is_of_the_real_limit() -> None:
    """The percentage of the stream's own limit, none without one. Confirmed facts do not count, so a store full of them
    is not full."""
    (limited,) = forecast(0, None, [log(bytes_max=160 * MB)]).streams
    (free,) = forecast(0, None, [log()]).streams
    assert (limited.fill_percent, free.fill_percent, free.bytes_max) == (50.0, None, None)
    (kept,) = forecast(80 * MB, 0, [log(caught_up(), behind(92, 1), bytes_max=80 * MB)]).streams
    assert (kept.bytes, kept.fill_percent) == (80 * MB, 10.0)
    assert forecast(80 * MB, 0, [log(caught_up(), behind(92, 1))]).fill_percent == 10.0


MINUTE_MS = 60_000


@pytest.mark.parametrize(
    "what, marks, end, expected",
    [
        ("live all the time", [(0, 0, False), (30, 300, False)], 600, (600, 60)),
        (
            "a minute of backlog goes, bytes and time",
            [(0, 0, False), (50, 500, True), (51, 9_500, False)],
            9_590,
            (590, 59),
        ),
        ("what came after it within its minute, too", [(0, 0, False), (50, 500, True)], 9_500, (500, 59)),
        ("backlog for half a minute", [(0, 0, False), (50.5, 505, True), (51, 9_505, False)], 9_595, (595, 59.5)),
        ("silence after backlog counts", [(0, 0, False), (10, 100, True), (50, 9_100, False)], 9_200, (200, 59)),
        ("nothing but backlog", [(0, 0, True), (1, 500, True), (2, 900, True)], 999, (0, 57)),
    ],
)
def test_inflow_leaves_backlog_out(
    what: str, marks: list[tuple[float, int, bool]], end: int, expected: tuple[int, float]
) -> None:
    """A live stream has 10 bytes a minute; backlog in that hour does not change its inflow."""
    found = [Mark(int(minutes * MINUTE_MS), total, is_backlog) for minutes, total, is_backlog in marks]
    assert inflow_of(found, 0, end, 60 * MINUTE_MS) == Inflow(expected[0], int(expected[1] * MINUTE_MS)), what


def test_no_inflow_while_only_backlog_comes() -> None:
    """A new zone that has received only backlog has no forecast."""
    assert inflow_of([Mark(5, 0, True)], 5, 10**9, 5 + 59_000).bytes_per_s is None


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
