"""Spans: counts and durations of requests between nodes, by operation of the protocol.

A span starts, and ends in one of three ways: it stops (the request was answered), fails (it was refused, or timed out),
or is discarded (a newer request replaced it, or the node is being stopped). Starts and ends are counted, and the
durations of stopped spans are recorded, without the time in which a request only waited for new facts. Each start and
end is also a debug log line with a constant event and its fields.

    span    side      from                                       to
    ------  --------  -----------------------------------------  ---------------------------------------------
    ask     asking    any request but that of a page in a pull   its answer has come (no bandwidth waits)
    serve   serving   a request has come                         its answer is sent (no waits for facts)

One `Telemetry` belongs to one event loop and is used from no other thread. A span costs one to two microseconds.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds of the durations of spans and appends, from a page served from memory, or a fast fsync, to a peer in
trouble."""

_log = logging.getLogger(__name__)


class Span(StrEnum):
    """The spans, by their names in logs and metrics. Strings have a cached hash, and each request looks one up."""

    ASK = "ask"
    SERVE = "serve"

    @property
    def side(self) -> str:
        """Whether the node sends the request, or serves it."""
        return "asking" if self is Span.ASK else "serving"


class SpanKey(NamedTuple):
    """The key of a counter. `operation` is an operation of the protocol, "" for an unreadable request."""

    span: Span
    operation: str


class Started(NamedTuple):
    """A span that has started: when, by the clock of its telemetry, and the fields of its log lines."""

    step: SpanKey
    at_ns: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """Counts since the process started. `counts[i]` is the number of stopped spans with a duration above BOUNDS_S[i -
    1] and up to BOUNDS_S[i], the last one of those above all bounds."""

    step: SpanKey
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
        self._counted = defaultdict[SpanKey, _Counted](_Counted)

    def start(self, span: Span, operation: str, **fields: object) -> Started:
        """Start a span. The caller must end it exactly once, with `stop`, `fail` or `discard`."""
        step = SpanKey(span, operation)
        self._counted[step].started += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("span_start", extra={**_log_fields(step), **fields})
        return Started(step, self._clock_ns(), fields)

    def stop(self, started: Started, waited_ns: int = 0, **fields: object) -> None:
        """The request was answered; `waited_ns` of its time are not counted."""
        took_ns = self._clock_ns() - started.at_ns - waited_ns
        counted = self._counted[started.step]
        counted.counts[bisect_left(BOUNDS_S, took_ns / 1e9)] += 1
        counted.sum_ns += took_ns
        if _log.isEnabledFor(logging.DEBUG):
            self._log_end("span_stop", started, took_ns, fields)

    def fail(self, started: Started, reason: str) -> None:
        """The request was refused, or timed out."""
        self._counted[started.step].failed += 1
        if _log.isEnabledFor(logging.DEBUG):
            self._log_end("span_exception", started, self._clock_ns() - started.at_ns, {"reason": reason})

    def discard(self, started: Started, reason: str) -> None:
        """The request ended and has no answer."""
        self._counted[started.step].discarded += 1
        if _log.isEnabledFor(logging.DEBUG):
            self._log_end("span_discarded", started, self._clock_ns() - started.at_ns, {"reason": reason})

    def statistics(self) -> tuple[SpanStatistics, ...]:
        """The counts of each span and operation, in the order of their first use."""
        return tuple(
            SpanStatistics(
                step, span.started, sum(span.counts), span.failed, span.discarded, tuple(span.counts), span.sum_ns / 1e9
            )
            for step, span in self._counted.items()
        )

    @staticmethod
    def _log_end(event: str, started: Started, took_ns: int, fields: Mapping[str, object]) -> None:
        took_ms = round(took_ns / 1e6, 3)
        _log.debug(event, extra={**_log_fields(started.step), "took_ms": took_ms, **started.fields, **fields})


def _log_fields(step: SpanKey) -> dict[str, object]:
    """The fields of a step in log lines."""
    return {"span": step.span, "side": step.span.side, "operation": step.operation}
