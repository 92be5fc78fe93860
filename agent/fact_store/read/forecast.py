"""Forecasts, in hours, when the store will be full and when facts will be lost to their time to live. Core: no IO.

It answers two questions. *If all consumers stopped now, when would the store be full?* New facts may replace confirmed
ones, so the room is the free bytes plus the bytes confirmed by all consumers. The inflow is that of the last hour,
without backlog that peers had kept. *If nothing changes, when are the first facts lost?* That is the time to live, or
the hours for which a zone may hold facts back, less the age of the oldest fact that a consumer lacks; or the time until
its zone holds back all the bytes that it may, at the present inflow. The consumer that loses facts first counts.

Full means full of unconfirmed facts. If the time to live makes room before the limit is reached, the store is never
full, and the forecast is a loss instead.

Without a limit, inflow or consumer the answer is None, "not expected". Ages are the store's own (store_age.py), so
clock jumps do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from agent.fact_store.core import HOUR_MS, MARK_EVERY_MS
from agent.settings.store import ZoneLimit

INFLOW_MS = HOUR_MS  # the inflow of this time is the forecast of later inflow
INFLOW_MS_MIN = 10_000  # a shorter time gives no rate


@dataclass(frozen=True, slots=True)
class Inflow:
    """The inflow of a stream: sealed bytes in milliseconds of the store's age."""

    bytes: int
    span_ms: int

    @property
    def bytes_per_s(self) -> float | None:
        """The rate; None for too short a time."""
        return None if self.span_ms < INFLOW_MS_MIN else 1000 * self.bytes / self.span_ms


class Mark(NamedTuple):
    """A mark of a stream: all bytes sealed up to the store's age `age_ms`, and whether backlog came after it."""

    age_ms: int
    bytes_total: int
    is_backlog: bool


def inflow_of(marks: Sequence[Mark], first_ms: int, bytes_total: int, age_ms: int) -> Inflow:
    """The inflow of the last hour, or since the first mark (`first_ms`) if that is younger. `marks` are those of the
    last hour, oldest first; the log has `bytes_total` bytes now.

    A minute with backlog is left out, both its bytes and its time: a day of history that arrives within minutes does
    not predict later inflow. A time without marks had no inflow, and counts.
    """
    if not marks:
        return Inflow(0, min(INFLOW_MS, age_ms - first_ms))
    came, span_ms = bytes_total - marks[0].bytes_total, min(INFLOW_MS, age_ms - first_ms)
    ends = [(mark.age_ms, mark.bytes_total) for mark in marks[1:]]
    for mark, (end_ms, end_bytes) in zip(marks, [*ends, (age_ms, bytes_total)], strict=True):
        if mark.is_backlog:
            came -= end_bytes - mark.bytes_total
            span_ms -= min(end_ms - mark.age_ms, MARK_EVERY_MS)
    return Inflow(max(0, came), max(0, span_ms))


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """The lag of one consumer. `bytes_total`: the stream's sealed bytes up to its frontier. `age_ms`: the highest
    possible age of the oldest fact that it has not confirmed; None if it has confirmed all. `zone`: its owner."""

    consumer: str
    bytes_total: int
    age_ms: int | None
    zone: str = ""


@dataclass(frozen=True, slots=True)
class StreamUse:
    """One stream: all bytes ever sealed, those released, its limit (0: none), time to live (0: none), inflow and
    consumers."""

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
        """Held bytes that every consumer has confirmed: they can be released without a loss."""
        if not self.lags:
            return 0
        return max(0, min(lag.bytes_total for lag in self.lags) - self.released_bytes)

    @property
    def lasting_bytes(self) -> float | None:
        """The bytes that the stream would hold without confirmations: the inflow during its time to live. None without
        a rate."""
        inflow = self.inflow.bytes_per_s
        if not inflow:
            return inflow
        return inflow * self.ttl_hours * 3600 if self.ttl_hours else float("inf")


@dataclass(frozen=True, slots=True)
class ConsumerSpace:
    """What one consumer holds back: sealed bytes that it has not confirmed, and the hours that the oldest of them has
    waited."""

    name: str
    stream: str
    bytes_held: int
    hours_held: float
    hours_until_ttl_loss: float | None


@dataclass(frozen=True, slots=True)
class StreamSpace:
    """The use and forecast of one stream. None: not expected.

    `fill_percent` is the share of `bytes_max` held by unconfirmed facts: at 100 the next append is refused, or drops
    the oldest.
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
    """The use and forecast of the whole store: `bytes` of its file in use, its limit, its streams and consumers.
    `fill_percent` as for a stream."""

    bytes: int
    bytes_max: int | None
    fill_percent: float | None
    hours_until_full: float | None
    streams: tuple[StreamSpace, ...] = field(default=())
    consumers: tuple[ConsumerSpace, ...] = field(default=())


def forecast(
    used_bytes: int,
    room_bytes: int | None,
    logs: Sequence[StreamUse],
    holds: Mapping[str, ZoneLimit] = MappingProxyType({}),
) -> StoreSpace:
    """The forecast for a store whose file uses `used_bytes` and may grow by `room_bytes` (None: unknown). `holds`: what
    each zone may hold back."""
    of_zone = {zone: _ZoneHold(limit, *_held_by(zone, logs)) for zone, limit in holds.items()}
    room = None if room_bytes is None else max(0, room_bytes)
    rates = [log.inflow.bytes_per_s for log in logs]
    known = [rate for rate in rates if rate is not None]
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
        streams=tuple(_stream(log, hours, of_zone) for log in logs),
        consumers=tuple(_consumer(log, lag, of_zone.get(lag.zone)) for log in logs for lag in log.lags),
    )


class _ZoneHold(NamedTuple):
    """A zone's limit, the bytes that it holds back in all streams, and the inflow of these streams."""

    limit: ZoneLimit
    bytes: int
    bytes_per_s: float


def _held_by(zone: str, logs: Sequence[StreamUse]) -> tuple[int, float]:
    held, inflow = 0, 0.0
    for log in logs:
        ends = [lag.bytes_total for lag in log.lags if lag.zone == zone]
        if ends:
            held += max(0, log.bytes_total - max(min(ends), log.released_bytes))
            inflow += log.inflow.bytes_per_s or 0
    return held, inflow


def _stream(log: StreamUse, store_hours: float | None, holds: Mapping[str, _ZoneHold]) -> StreamSpace:
    """The forecast for a stream. It is full when it reaches its own limit or the store's, whichever comes first."""
    inflow, limit = log.inflow.bytes_per_s, log.bytes_max or None
    stuck = log.bytes - log.confirmed_bytes
    own_hours = None
    if limit is not None and (log.lasting_bytes or 0) > limit:
        own_hours = _hours(max(0, limit - stuck), inflow)
    losses = [_until_loss(log, lag, holds.get(lag.zone)) for lag in log.lags]
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


def _consumer(log: StreamUse, lag: ConsumerLag, hold: _ZoneHold | None) -> ConsumerSpace:
    held = max(0, log.bytes_total - max(lag.bytes_total, log.released_bytes))
    return ConsumerSpace(lag.consumer, log.name, held, (lag.age_ms or 0) / HOUR_MS, _until_loss(log, lag, hold))


def _until_loss(log: StreamUse, lag: ConsumerLag, hold: _ZoneHold | None) -> float | None:
    """Hours until a fact is released that this consumer has not confirmed."""
    if lag.age_ms is None:
        return None
    age_hours = lag.age_ms / HOUR_MS
    found = [max(0.0, log.ttl_hours - age_hours) if log.ttl_hours else None]
    if hold is not None:
        # Only from half of a limit on: a zone that is behind for a moment is not a forecast of a loss.
        hours_max, bytes_max = hold.limit.hours_max, hold.limit.bytes_max
        if hours_max and age_hours >= hours_max / 2:
            found.append(max(0.0, hours_max - age_hours))
        if bytes_max and hold.bytes >= bytes_max / 2:
            found.append(_hours(max(0, bytes_max - hold.bytes), hold.bytes_per_s))
    return _least(*found)


def _hours(room_bytes: int, bytes_per_s: float | None) -> float | None:
    return room_bytes / bytes_per_s / 3600 if bytes_per_s else None


def _percent(used: int, limit: int | None) -> float | None:
    return None if limit is None else 100 * used / max(1, limit)


def _least(*hours: float | None) -> float | None:
    return min((value for value in hours if value is not None), default=None)
