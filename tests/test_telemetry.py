"""Spans are counted and timed, on a clock moved by the test."""

import logging

import pytest

from agent.telemetry import BOUNDS_S, STEPS, Side, Span, SpanStatistics, Step, Telemetry

MS = 1_000_000


class Clock:
    """A clock in nanoseconds, moved by the test."""

    def __init__(self) -> None:
        self.now_ns = 5

    def __call__(self) -> int:
        return self.now_ns


def of(telemetry: Telemetry, span: Span) -> SpanStatistics:
    """The counts of one span of the asking side."""
    return next(counted for counted in telemetry.statistics() if counted.step == (span, Side.ASKING, ""))


def test_ends_of_spans_are_counted_separately_and_only_stops_are_timed() -> None:
    """Each start ends in its own column or is still open; a duration without its waits is counted in its bucket."""
    clock = Clock()
    telemetry = Telemetry(clock)
    spans = [telemetry.start(Span.FETCH) for _ in range(5)]
    clock.now_ns += 300 * MS
    telemetry.stop(spans[0])
    telemetry.stop(spans[1], waited_ns=297 * MS)
    telemetry.fail(spans[2], "busy")
    telemetry.discard(spans[3], "too late")
    fetches = of(telemetry, Span.FETCH)
    assert (fetches.started, fetches.stopped, fetches.failed, fetches.discarded) == (5, 2, 1, 1)
    assert {BOUNDS_S[at]: count for at, count in enumerate(fetches.counts) if count} == {0.5: 1, 0.005: 1}
    assert fetches.sum_s == pytest.approx(0.303)
    assert of(telemetry, Span.APPEND) == SpanStatistics(
        Step(Span.APPEND, Side.ASKING), 0, 0, 0, 0, (0,) * (len(BOUNDS_S) + 1), 0.0
    )


def test_a_duration_beyond_every_bound_is_counted() -> None:
    """The last bucket counts longer durations."""
    clock = Clock()
    telemetry = Telemetry(clock)
    started = telemetry.start(Span.BOOTSTRAP)
    clock.now_ns += 3_600_000 * MS
    telemetry.stop(started)
    assert of(telemetry, Span.BOOTSTRAP).counts[-1] == 1


def test_the_log_has_each_event_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    """Four events with span, fields and duration at debug; none at info."""
    clock = Clock()
    telemetry = Telemetry(clock)

    def all_ends() -> None:
        for end in (
            telemetry.stop,
            lambda started: telemetry.fail(started, "busy"),
            lambda started: telemetry.discard(started, "late"),
        ):
            started = telemetry.start(Span.SERVE, Side.SERVING, "GetLatest", peer="idmz")
            clock.now_ns += 2 * MS
            end(started)

    with caplog.at_level(logging.INFO):
        all_ends()
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG, "agent.telemetry"):
        all_ends()
    logged = [
        (record.message, record.__dict__.get("took_ms"), record.__dict__.get("reason")) for record in caplog.records
    ]
    begun = ("span_start", None, None)
    assert logged == [
        *(begun, ("span_stop", 2.0, None)),
        *(begun, ("span_exception", 2.0, "busy")),
        *(begun, ("span_discarded", 2.0, "late")),
    ]
    named = {
        tuple(record.__dict__[name] for name in ("span", "side", "operation", "peer")) for record in caplog.records
    }
    assert named == {("serve", "serving", "GetLatest", "idmz")}


def test_sides_and_operations_are_counted_separately() -> None:
    """Every step of the table is there from the start with zero counts, an operation from its first use, and no other
    step."""
    telemetry = Telemetry()
    assert [counted.step[:2] for counted in telemetry.statistics()] == list(STEPS)
    telemetry.stop(telemetry.start(Span.CONFIRM, Side.SERVING))
    telemetry.stop(telemetry.start(Span.SERVE, Side.SERVING, "GetLatest"))
    counted = {counted.step: counted.stopped for counted in telemetry.statistics() if counted.started}
    assert counted == {("confirm", "serving", ""): 1, ("serve", "serving", "GetLatest"): 1}
    with pytest.raises(AssertionError):
        telemetry.start(Span.FETCH, Side.SERVING)
