"""Spans are counted and timed, on a clock moved by the test."""

import logging

import pytest

from agent.telemetry import BOUNDS_S, Span, SpanStatistics, Telemetry

MS = 1_000_000


class Clock:
    """A clock in nanoseconds, moved by the test."""

    def __init__(self) -> None:
        self.now_ns = 5

    def __call__(self) -> int:
        return self.now_ns


def of_step(telemetry: Telemetry, step: tuple[Span, str]) -> SpanStatistics:
    """The counts of a step."""
    (counted,) = (counted for counted in telemetry.statistics() if counted.step == step)
    return counted


def test_ends_of_spans_are_counted_separately_and_only_stops_are_timed() -> None:
    """Each start ends in its own column or is still open; a duration without its waits is counted in its bucket. Sides
    and operations are counted separately, in the order of their first use."""
    clock = Clock()
    telemetry = Telemetry(clock)
    others = [(Span.SERVE, "GetLatest"), (Span.ASK, ""), (Span.SERVE, "")]
    for step in others[:2]:
        telemetry.start(*step)
    spans = [telemetry.start(Span.ASK, "GetLatest") for _ in range(5)]
    telemetry.start(*others[2])
    clock.now_ns += 300 * MS
    telemetry.stop(spans[0])
    telemetry.stop(spans[1], waited_ns=297 * MS)
    telemetry.fail(spans[2], "busy")
    telemetry.discard(spans[3], "too late")
    asked = of_step(telemetry, (Span.ASK, "GetLatest"))
    assert (asked.started, asked.stopped, asked.failed, asked.discarded) == (5, 2, 1, 1)
    assert {BOUNDS_S[at]: count for at, count in enumerate(asked.counts) if count} == {0.5: 1, 0.005: 1}
    assert asked.sum_s == pytest.approx(0.303)
    assert asked.step.span.side == "asking"
    assert [counted.step for counted in telemetry.statistics()] == [*others[:2], asked.step, others[2]]
    for step in others:
        other = of_step(telemetry, step)
        assert (other.started, other.stopped, other.failed, other.discarded, other.sum_s) == (1, 0, 0, 0, 0)


def test_a_duration_beyond_every_bound_is_counted() -> None:
    """The last bucket counts longer durations."""
    clock = Clock()
    telemetry = Telemetry(clock)
    started = telemetry.start(Span.SERVE, "GetObject")
    clock.now_ns += 3_600_000 * MS
    telemetry.stop(started)
    assert of_step(telemetry, (Span.SERVE, "GetObject")).counts[-1] == 1


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
            started = telemetry.start(Span.SERVE, "GetLatest", peer="idmz")
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
