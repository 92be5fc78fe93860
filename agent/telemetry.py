"""Spans: how often the steps that carry facts from zone to zone begin, how they end, and how long they take.

A span starts, and ends in one of three ways: it stops (what it was for has happened), fails (somebody refused, or nothing came), or is
discarded (it came to an end of no use: a page that did not fit, a request that a newer one replaced). Starts and ends are counted,
and the durations of those that stopped; time in which a step only waited for facts to be written is left out where the step
can tell. Each is also a log line at level debug, a constant event with its fields, so that an idle node's log stays quiet.

    span            side      from                                          to
    --------------  --------  --------------------------------------------  ------------------------------------------------
    fetch           asking    a request for a page is sent                  its page has come (waiting at the peer included)
    append          asking    a page is handed to the store                 it is durable, or the store refused it
    confirm         asking    a request that confirms is sent               the peer says that its frontier is there
    confirm         serving   a confirmation is handed to the store         it is durable
    bootstrap       asking    a stream is read of which nothing is held     for the first time nothing is outstanding
    bootstrap       serving   a consumer registers itself                   for the first time it has reached the end of the log
    anti_entropy    asking    a comparison of digests begins                it ends, with what was divergent fetched again
    ask             asking    anything but a page of a pull is asked for    its answer has come (waiting for bandwidth left out)
    serve           serving   a request has come                            its answer is with the broker (waiting for facts left out)

The last two are counted for each operation of the protocol: what serves a `fetch` is a `serve` of FetchFacts, what is appended here by other
zones one of AppendFact, and the other side of `anti_entropy` those of GetDigests and FetchSequences.

One `Telemetry` belongs to one event loop and is used from no other thread. It costs one to two microseconds a span.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""From a page out of memory to a fetch whose peer is in trouble; a fetch that waits at the peer lies between the last two."""

_log = logging.getLogger(__name__)


class Span(StrEnum):
    """What is measured, by its name in logs and metrics. Strings, whose hash is known: they are looked up with every step."""

    FETCH = "fetch"
    APPEND = "append"
    CONFIRM = "confirm"
    BOOTSTRAP = "bootstrap"
    ANTI_ENTROPY = "anti_entropy"
    ASK = "ask"
    SERVE = "serve"


class Side(StrEnum):
    """Who takes the step: the node that asks, or the one that is asked."""

    ASKING = "asking"
    SERVING = "serving"


STEPS: tuple[tuple[Span, Side], ...] = (
    (Span.FETCH, Side.ASKING),
    (Span.APPEND, Side.ASKING),
    (Span.CONFIRM, Side.ASKING),
    (Span.CONFIRM, Side.SERVING),
    (Span.BOOTSTRAP, Side.ASKING),
    (Span.BOOTSTRAP, Side.SERVING),
    (Span.ANTI_ENTROPY, Side.ASKING),
    (Span.ASK, Side.ASKING),
    (Span.SERVE, Side.SERVING),
)
"""What there is to measure, as in the table above."""


class Step(NamedTuple):
    """What is counted by itself. `operation` is one of the protocol's names, so there are few; "" where there is none."""

    span: Span
    side: Side
    operation: str = ""


class Started(NamedTuple):
    """A span that has begun: when, on the clock of its telemetry, and what its log lines say of it."""

    step: Step
    at_ns: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """Counted since the start. `counts[i]` durations of stopped ones lay above BOUNDS_S[i - 1] and not above BOUNDS_S[i]; the
    last, above them all."""

    step: Step
    started: int
    stopped: int
    failed: int
    discarded: int
    counts: tuple[int, ...]
    sum_s: float


class _Counted:
    __slots__ = ("counts", "discarded", "failed", "started", "sum_ns")

    def __init__(self) -> None:
        self.started = self.failed = self.discarded = self.sum_ns = 0
        self.counts = [0] * (len(BOUNDS_S) + 1)


class Telemetry:
    """The spans of one node."""

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._counted = {Step(*step): _Counted() for step in STEPS}

    def start(self, span: Span, side: Side = Side.ASKING, operation: str = "", **fields: object) -> Started:
        """A span begins; whoever holds what is returned ends it once, in one of the three ways."""
        step = Step(span, side, operation)
        if (counted := self._counted.get(step)) is None:
            assert (span, side) in STEPS, step
            counted = self._counted[step] = _Counted()
        counted.started += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("span_start", extra={**_named(step), **fields})
        return Started(step, self._clock_ns(), fields)

    def stop(self, started: Started, waited_ns: int = 0, **fields: object) -> None:
        """What it was for has happened; `waited_ns` of its time it had nothing to do."""
        took_ns = self._clock_ns() - started.at_ns - waited_ns
        counted = self._counted[started.step]
        counted.counts[bisect_left(BOUNDS_S, took_ns / 1e9)] += 1
        counted.sum_ns += took_ns
        if _log.isEnabledFor(logging.DEBUG):
            self._told("span_stop", started, took_ns, fields)

    def fail(self, started: Started, reason: str) -> None:
        """Somebody refused, or nothing came."""
        self._counted[started.step].failed += 1
        if _log.isEnabledFor(logging.DEBUG):
            self._told("span_exception", started, self._clock_ns() - started.at_ns, {"reason": reason})

    def discard(self, started: Started, reason: str) -> None:
        """It ended and was of no use."""
        self._counted[started.step].discarded += 1
        if _log.isEnabledFor(logging.DEBUG):
            self._told("span_discarded", started, self._clock_ns() - started.at_ns, {"reason": reason})

    def statistics(self) -> tuple[SpanStatistics, ...]:
        """Every step, in the order of `STEPS`; operations follow as they first came."""
        return tuple(
            SpanStatistics(
                *(step, one.started, sum(one.counts), one.failed, one.discarded, tuple(one.counts), one.sum_ns / 1e9)
            )
            for step, one in self._counted.items()
        )

    @staticmethod
    def _told(event: str, started: Started, took_ns: int, fields: Mapping[str, object]) -> None:
        took_ms = round(took_ns / 1e6, 3)
        _log.debug(event, extra={**_named(started.step), "took_ms": took_ms, **started.fields, **fields})


def _named(step: Step) -> dict[str, object]:
    """As log lines say it."""
    named: dict[str, object] = {"span": step.span, "side": step.side}
    return named | {"operation": step.operation} if step.operation else named
