"""How long there is still room, and how long until something is lost: from bytes, ages and limits to hours. Core: no IO.

An operator asks two questions before a weekend. *If everybody who reads from here stopped now, when would the store be full?*
Confirmed facts yield to new ones, so the room is what is free together with what everybody has confirmed, and the pace is what
came in during the last hour, history that a peer had kept left out. *If nothing changes, when are the first facts lost to their time to live?* That is the time to
live less the age of the oldest fact that a consumer lacks, for the consumer that is worst off.

Full means full of what cannot go: where the time to live makes room before the limit is met, the store is never full, and what
it says of that is said as a loss.

Nothing here is guessed: without a limit, without inflow or without a consumer the answer is None, which means "not to be
expected". Ages are the store's own (age.py), so no clock that jumps changes a forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.fact_store.log import HOUR_MS, MARK_EVERY_MS

INFLOW_MS = HOUR_MS  # what came in for so long says what will come
INFLOW_MS_MIN = 10_000  # of less nobody can tell a pace


@dataclass(frozen=True, slots=True)
class Inflow:
    """What a stream took in: so many sealed bytes in so many milliseconds of the store's own clock."""

    bytes: int
    span_ms: int

    @property
    def bytes_per_s(self) -> float | None:
        """None while it is too early to tell."""
        return None if self.span_ms < INFLOW_MS_MIN else 1000 * self.bytes / self.span_ms


class Mark(NamedTuple):
    """How far a stream's log had come: sealed bytes ever, when the store's own clock said `age_ms`; whether backlog came from there on."""

    age_ms: int
    bytes_total: int
    is_backlog: bool


def inflow_of(marks: Sequence[Mark], first_ms: int, bytes_total: int, age_ms: int) -> Inflow:
    """What came in during the last hour, or since the first mark of all (`first_ms`) where that is younger. `marks` are those of this
    hour, oldest first; the log ends at `bytes_total` now.

    A minute that took in backlog is left out, its bytes and its time: a day's history that comes within minutes says nothing of the
    hours to come. After a minute without a mark there was silence, which counts.
    """
    if not marks:
        return Inflow(0, min(INFLOW_MS, age_ms - first_ms))
    came, span_ms = bytes_total - marks[0].bytes_total, min(INFLOW_MS, age_ms - first_ms)
    ends = [(one.age_ms, one.bytes_total) for one in marks[1:]]
    for mark, (end_ms, end_bytes) in zip(marks, [*ends, (age_ms, bytes_total)], strict=True):
        if mark.is_backlog:
            came -= end_bytes - mark.bytes_total
            span_ms -= min(end_ms - mark.age_ms, MARK_EVERY_MS)
    return Inflow(max(0, came), max(0, span_ms))


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """How far one consumer is. `bytes_total`: the stream's sealed bytes up to its frontier. `age_ms`: how old, at most, the
    oldest fact is that it has not confirmed; None where it has confirmed everything."""

    consumer: str
    bytes_total: int
    age_ms: int | None


@dataclass(frozen=True, slots=True)
class StreamUse:
    """One stream: its sealed bytes ever (`bytes_total`), those that are gone, its limit (0: none) and time to live (0: none)."""

    name: str
    bytes_total: int
    released_bytes: int
    bytes_max: int
    ttl_hours: float
    inflow: Inflow
    lags: tuple[ConsumerLag, ...] = ()

    @property
    def bytes(self) -> int:
        """Sealed bytes that are held."""
        return self.bytes_total - self.released_bytes

    @property
    def confirmed_bytes(self) -> int:
        """Of those, what every consumer has confirmed: room that can be won back without a loss."""
        if not self.lags:
            return 0
        return max(0, min(one.bytes_total for one in self.lags) - self.released_bytes)

    @property
    def lasting_bytes(self) -> float | None:
        """What the stream comes to hold when nobody confirms: the inflow of its time to live. None while nobody can tell."""
        inflow = self.inflow.bytes_per_s
        if not inflow:
            return inflow
        return inflow * self.ttl_hours * 3600 if self.ttl_hours else float("inf")


@dataclass(frozen=True, slots=True)
class ConsumerSpace:
    """What one consumer holds back: sealed bytes it has not confirmed, and for how many hours the oldest has waited for it."""

    name: str
    stream: str
    bytes_held: int
    hours_held: float
    hours_until_ttl_loss: float | None


@dataclass(frozen=True, slots=True)
class StreamSpace:
    """One stream: how much it holds of what it may, what comes in, and what is to be expected. None: not to be expected.

    `fill_percent` is what would not yield to new facts, of `bytes_max`: at 100 the next append is refused, or drops the oldest.
    """

    name: str
    bytes: int
    bytes_max: int | None
    fill_percent: float | None
    inflow_bytes_per_s: float | None
    hours_until_full: float | None
    ttl_hours: float | None
    hours_until_ttl_loss: float | None


@dataclass(frozen=True, slots=True)
class StoreSpace:
    """The whole store: `bytes` of its file in use, the most it can hold, and its streams and consumers. `fill_percent` as for a
    stream."""

    bytes: int
    bytes_max: int | None
    fill_percent: float | None
    hours_until_full: float | None
    streams: tuple[StreamSpace, ...] = field(default=())
    consumers: tuple[ConsumerSpace, ...] = field(default=())


def forecast(used_bytes: int, room_bytes: int | None, logs: Sequence[StreamUse]) -> StoreSpace:
    """The forecast for a store whose file uses so many bytes and may still take `room_bytes` (None: nobody can say)."""
    room = None if room_bytes is None else max(0, room_bytes)
    paces = [log.inflow.bytes_per_s for log in logs]
    known = [pace for pace in paces if pace is not None]
    confirmed = sum(log.confirmed_bytes for log in logs)
    stuck = max(0, used_bytes - confirmed)
    limit = None if room is None else used_bytes + room
    lasting = sum(log.lasting_bytes or 0 for log in logs)
    hours = None if limit is None or lasting <= limit else _hours(limit - stuck, sum(known))
    return StoreSpace(
        bytes=used_bytes,
        bytes_max=limit,
        fill_percent=_percent(stuck, limit),
        hours_until_full=hours,
        streams=tuple(_stream(log, hours) for log in logs),
        consumers=tuple(_consumer(log, one) for log in logs for one in log.lags),
    )


def _stream(log: StreamUse, store_hours: float | None) -> StreamSpace:
    """A stream is full when it meets its own limit or the store's, whichever comes first."""
    inflow, limit = log.inflow.bytes_per_s, log.bytes_max or None
    stuck = log.bytes - log.confirmed_bytes
    own_hours = None
    if limit is not None and (log.lasting_bytes or 0) > limit:
        own_hours = _hours(max(0, limit - stuck), inflow)
    losses = [_until_loss(log, one) for one in log.lags]
    return StreamSpace(
        name=log.name,
        bytes=log.bytes,
        bytes_max=limit,
        fill_percent=_percent(stuck, limit),
        inflow_bytes_per_s=inflow,
        hours_until_full=_least(own_hours, store_hours if inflow else None),
        ttl_hours=log.ttl_hours or None,
        hours_until_ttl_loss=_least(*losses),
    )


def _consumer(log: StreamUse, one: ConsumerLag) -> ConsumerSpace:
    held = max(0, log.bytes_total - max(one.bytes_total, log.released_bytes))
    return ConsumerSpace(one.consumer, log.name, held, (one.age_ms or 0) / HOUR_MS, _until_loss(log, one))


def _until_loss(log: StreamUse, one: ConsumerLag) -> float | None:
    if not log.ttl_hours or one.age_ms is None:
        return None
    return max(0.0, log.ttl_hours - one.age_ms / HOUR_MS)


def _hours(room_bytes: int, bytes_per_s: float | None) -> float | None:
    return room_bytes / bytes_per_s / 3600 if bytes_per_s else None


def _percent(used: int, limit: int | None) -> float | None:
    return None if limit is None else 100 * used / max(1, limit)


def _least(*hours: float | None) -> float | None:
    return min((one for one in hours if one is not None), default=None)
