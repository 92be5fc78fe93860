"""Hours until the store is full or facts are lost: tables of held bytes, inflow and results."""

from dataclasses import replace

import pytest

from agent.fact_store.core.store_age import HOUR_MS
from agent.fact_store.read.forecast import ConsumerLag, Inflow, Mark, StreamUse, forecast, inflow_of
from agent.settings.store import ZoneLimit

MB = 1_000_000
SLOW = Inflow(36 * MB, HOUR_MS)  # 10 kB a second


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
    inflow. What another zone lacks does not count."""
    lags = [replace(behind(at_mb, 1), zone=zone) for at_mb, zone in ((60, "idmz"), (90, "idmz"), (30, "mes"))]
    holds = {"idmz": ZoneLimit(bytes_max=152 * MB), "mes": ZoneLimit()}
    found = forecast(0, None, [log(*lags), log(*lags[::-1])], holds)
    assert [stream.hours_until_ttl_loss for stream in found.streams] == pytest.approx([(152 - 80) / 72] * 2)
    hours = dict(zip(lags, (consumer.hours_until_ttl_loss for consumer in found.consumers), strict=False))
    assert hours == pytest.approx({lags[0]: 1.0, lags[1]: 1.0, lags[2]: 167.0})


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
