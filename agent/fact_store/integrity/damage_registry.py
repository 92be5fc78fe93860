"""Damage found while facts are served or verified, said once: an incident, and a notice that travels with the facts.

Readers find it in any thread and pass over it; the writer writes it down. Said once in a life of the program, and the notice
once for ever, because its id follows from where the damage lies. What cannot be written now, because too much waits for the disk
or it is full, is said when somebody comes across it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from agent.batch import Origin
from agent.fact_store.append import Call, append_notice
from agent.fact_store.log import Hole, OriginRange, StoreError, stream_fact
from agent.fact_store.sqlite import Transaction
from agent.fact_store.writer import Writer

log = logging.getLogger(__name__)

REPORTED_MAX = 10_000  # a disk that has damaged more batches than this is said to be bad often enough
INCIDENT = "damaged"


class _Place(NamedTuple):
    stream: str
    first_offset: int
    last_offset: int

    def covers(self, other: _Place) -> bool:
        is_inside = self.first_offset <= other.first_offset and other.last_offset <= self.last_offset
        return self.stream == other.stream and is_inside


class DamageRegistry:
    """What this life has found damaged. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: set[_Place] = set()
        self._writer: Writer | None = None
        self._origin: Origin | None = None

    def start(self, writer: Writer, origin: Origin) -> None:
        """From now on there is somebody to tell."""
        self._writer, self._origin = writer, origin

    @property
    def count(self) -> int:
        """How many damaged places were found and are not repaired."""
        return len(self._reported)

    def report(self, stream: str, hole: Hole, why: str, origins: Sequence[OriginRange]) -> None:
        """A reader came across damage."""
        writer, origin, place = self._writer, self._origin, _Place(stream, hole.first_offset, hole.last_offset)
        with self._lock:
            if writer is None or origin is None or len(self._reported) >= REPORTED_MAX or self._is_reported(place):
                return
            self._reported = {one for one in self._reported if not place.covers(one)} | {place}
        log.error(
            "facts_damaged",
            extra={
                "stream": stream,
                "first_offset": hole.first_offset,
                "last_offset": hole.last_offset,
                "reason": f"damaged: {why or 'no row is there'}",
            },
        )
        run = partial(_record_damage, origin=origin, stream=stream, hole=hole, why=why, origins=origins)
        call = Call(f"damage in {stream}", len(why), time.monotonic_ns(), run)
        call.future.add_done_callback(lambda done: self._forget(place) if done.exception() else None)
        try:
            writer.call(call)
        except StoreError:
            self._forget(place)

    def remove_repaired(self, stream: str, first_offset: int, last_offset: int) -> None:
        """What was found between these offsets is damaged no longer; found again, it is said again."""
        with self._lock:
            self._reported = {
                one
                for one in self._reported
                if one.stream != stream or one.last_offset < first_offset or last_offset < one.first_offset
            }

    def _is_reported(self, place: _Place) -> bool:
        """A hole grows where what lies beside it is damaged later, and is cut where a page ends."""
        return place in self._reported or any(one.covers(place) for one in self._reported)

    def _forget(self, place: _Place) -> None:
        with self._lock:
            self._reported.discard(place)


def _record_damage(
    transaction: Transaction, *, origin: Origin, stream: str, hole: Hole, why: str, origins: Sequence[OriginRange]
) -> None:
    """In the writer's transaction: the incident for who looks here, the notice for who reads elsewhere."""
    about: dict[str, object] = {
        "first_offset": hole.first_offset,
        "last_offset": hole.last_offset,
        "count": hole.last_offset - hole.first_offset + 1,
        "why": why,
        "origins": [
            {
                "zone": one.zone,
                "epoch": one.epoch.hex(),
                "first_sequence": one.first_sequence,
                "last_sequence": one.last_sequence,
            }
            for one in origins
        ],
    }
    number = transaction.stream(stream).id
    for one in origins:
        if (known := transaction.catalog.origins.get(Origin(one.zone, one.epoch))) is not None:
            transaction.add_damage(number, known, one.first_sequence, one.last_sequence)
    place = f"{stream}:{hole.first_offset}-{hole.last_offset}"
    whose = ", ".join(f"{one.zone}/{one.epoch.hex()} {one.first_sequence} to {one.last_sequence}" for one in origins)
    transaction.add_incident(
        INCIDENT,
        f"{stream} {hole.first_offset} to {hole.last_offset}",
        f"{why or 'the rows are not there'}; facts of {whose or 'nobody the table names'}",
    )
    append_notice(
        transaction, stream, stream_fact(origin, stream, "facts_damaged", about, place, transaction.now_unix_ms)
    )
