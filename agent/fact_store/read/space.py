"""Reads the rows and the free space of the disk on which a forecast (forecast.py) rests.

Cheap enough for every second, however large the store: two look-ups for each consumer, one and the marks of an hour for
each stream, all by an index. It reads only the tables and the disk's free space, so it works in any process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from agent.batch import DIGEST_BYTES
from agent.fact_store.core import MARK_EVERY_MS, Catalog, StreamState
from agent.fact_store.read.forecast import (
    INFLOW_MS,
    ConsumerLag,
    Inflow,
    Mark,
    StoreSpace,
    StreamUse,
    forecast,
    inflow_of,
)
from agent.fact_store.sqlite import QUERIES, disk_free
from agent.settings.store import StoreSettings, StreamSettings, ZoneLimit

MARKS_MAX = 2 * INFLOW_MS // MARK_EVERY_MS + 1
"""Marks in an hour: one a minute, and one more whenever backlog begins."""


def measure_space(
    connection: sqlite3.Connection,
    folder: Path,
    catalog: Catalog,
    age_ms: int,
    settings: StoreSettings,
    policies: Mapping[str, StreamSettings],
    holds: Mapping[str, ZoneLimit],
) -> StoreSpace:
    """The forecast for the store of a connection; `age_ms` is the store's age now."""
    logs = [
        _stream_use(connection, catalog, stream, age_ms, policies.get(name) or StreamSettings(name))
        for name, stream in catalog.streams.items()
    ]
    used, room = _room(connection, folder, settings)
    return forecast(used, room, logs, holds)


def _room(connection: sqlite3.Connection, folder: Path, settings: StoreSettings) -> tuple[int, int | None]:
    """Bytes of the file in use, and how many more it may take."""
    page, pages, free = (
        connection.execute(QUERIES[name]).fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    used = (pages - free) * page
    rooms = []
    if settings.bytes_max:
        rooms.append(settings.bytes_max - used)
    if (left := disk_free(folder)) is not None:
        rooms.append(free * page + max(0, left - settings.disk_free_bytes_min))
    return used, min(rooms, default=None)


def _stream_use(
    connection: sqlite3.Connection, catalog: Catalog, stream: StreamState, age_ms: int, policy: StreamSettings
) -> StreamUse:
    lags = tuple(
        ConsumerLag(
            name,
            bytes_up_to(connection, stream, consumer.frontier),
            _age_of(connection, stream, consumer.frontier + 1, age_ms)
            if consumer.frontier < stream.end_offset
            else None,
            consumer.zone,
        )
        for name, consumer in catalog.consumers.items()
        if consumer.stream == stream.name
    )
    return StreamUse(
        name=stream.name,
        bytes_total=stream.bytes_total,
        released_bytes=stream.released_bytes,
        bytes_max=policy.bytes_max,
        ttl_hours=policy.ttl_hours,
        inflow=_inflow(connection, stream, age_ms),
        lags=lags,
    )


def bytes_up_to(connection: sqlite3.Connection, stream: StreamState, frontier: int) -> int:
    """Sealed bytes of the stream up to a frontier; a batch confirmed in part counts as unconfirmed."""
    if frontier >= stream.end_offset:
        return stream.bytes_total
    values = {"stream": stream.id, "frontier": frontier, "digest_bytes": DIGEST_BYTES}
    row = connection.execute(QUERIES["select_bytes_up_to"], values).fetchone()
    return stream.released_bytes if row is None else max(row[0], stream.released_bytes)


def _age_of(connection: sqlite3.Connection, stream: StreamState, offset: int, age_ms: int) -> int:
    """The highest possible age of the fact at an offset in milliseconds; the age of the store if no mark is old
    enough."""
    offset = max(offset, stream.released_offset + 1)
    row = connection.execute(QUERIES["select_mark_at"], (stream.id, offset)).fetchone()
    return max(0, age_ms - (row[0] if row else 0))


def _inflow(connection: sqlite3.Connection, stream: StreamState, age_ms: int) -> Inflow:
    first = connection.execute(QUERIES["select_marks"], (stream.id, 1)).fetchone()
    if first is None:
        return Inflow(0, 0)
    asked = {"stream": stream.id, "since_ms": age_ms - INFLOW_MS, "limit": MARKS_MAX}
    rows = connection.execute(QUERIES["select_marks_since"], asked).fetchall()
    marks = [Mark(at_ms, bytes_total, bool(is_backlog)) for at_ms, bytes_total, is_backlog in rows]
    return inflow_of(marks, first[1], stream.bytes_total, age_ms)
