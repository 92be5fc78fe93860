"""Spans: how often the steps that carry facts from zone to zone begin, how they end, and how long they take.

A span starts, and ends in one of three ways: it stops (what it was for has happened), fails (somebody refused, or nothing came), or is
discarded (it came to an end of no use: a page that did not fit, a request that a newer one replaced). Starts and ends are counted,
and the durations of those that stopped; time in which a step only waited for facts to be written is left out where the step
can tell. Each is also a log line at level debug, a constant event with its fields, so that an idle node's log stays quiet.

    span            side      from                                          to
    --------------  --------  --------------------------------------------  ------------------------------------------------
    fetch           asking    a request for a page is sent                  its page has come (waiting at the peer included)
    append          asking    a page is handed to the store                 it is durable, or the store refused it
    bootstrap       asking    a stream is read of which nothing is held     for the first time nothing is outstanding
    serve           serving   a request has come                            its answer is with the broker (waiting left out)
    confirm         serving   a confirmation is handed to the store         it is durable
    anti_entropy    asking    a comparison of digests begins                it ends, with what was divergent fetched again

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
    BOOTSTRAP = "bootstrap"
    SERVE = "serve"
    CONFIRM = "confirm"
    ANTI_ENTROPY = "anti_entropy"


class Started(NamedTuple):
    """A span that has begun: when, on the clock of its telemetry, and what its log lines say of it."""

    span: Span
    at_ns: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """Counted since the start. `counts[i]` durations of stopped ones lay above BOUNDS_S[i - 1] and not above BOUNDS_S[i]; the
    last, above them all."""

    span: Span
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
        self._counted = {span: _Counted() for span in Span}

    def start(self, span: Span, **fields: object) -> Started:
        """A span begins; whoever holds what is returned ends it once, in one of the three ways."""
        self._counted[span].started += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("span_start", extra={"span": span, **fields})
        return Started(span, self._clock_ns(), fields)

    def stop(self, started: Started, waited_ns: int = 0, **fields: object) -> None:
        """What it was for has happened; `waited_ns` of its time it had nothing to do."""
        took_ns = self._clock_ns() - started.at_ns - waited_ns
        counted = self._counted[started.span]
        counted.counts[bisect_left(BOUNDS_S, took_ns / 1e9)] += 1
        counted.sum_ns += took_ns
        if _log.isEnabledFor(logging.DEBUG):
            self._told("span_stop", started, took_ns, fields)

    def fail(self, started: Started, reason: str) -> None:
        """Somebody refused, or nothing came."""
        self._counted[started.span].failed += 1
        if _log.isEnabledFor(logging.DEBUG):
            self._told("span_exception", started, self._clock_ns() - started.at_ns, {"reason": reason})

    def discard(self, started: Started, reason: str) -> None:
        """It ended and was of no use."""
        self._counted[started.span].discarded += 1
        if _log.isEnabledFor(logging.DEBUG):
            self._told("span_discarded", started, self._clock_ns() - started.at_ns, {"reason": reason})

    def statistics(self) -> tuple[SpanStatistics, ...]:
        """Every span, in the order of `Span`."""
        return tuple(
            SpanStatistics(
                *(span, one.started, sum(one.counts), one.failed, one.discarded, tuple(one.counts), one.sum_ns / 1e9)
            )
            for span, one in self._counted.items()
        )

    @staticmethod
    def _told(event: str, started: Started, took_ns: int, fields: Mapping[str, object]) -> None:
        took_ms = round(took_ns / 1e6, 3)
        _log.debug(event, extra={"span": started.span, "took_ms": took_ms, **started.fields, **fields})
