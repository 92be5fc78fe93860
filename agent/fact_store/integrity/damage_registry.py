"""The register of damaged places found by readers and the scrub: each is reported once, as an incident and as a fact in
the stream.

Readers in any thread skip damage; the writer records it. A place is reported once in a life of the process, and its
fact is stored only once, because its message id is derived from the place. If the writer cannot record it now (busy, or
the disk is full), it is reported again at the next read of the place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from agent.batch import Origin
from agent.errors import StoreError
from agent.fact_store.append import append_notice
from agent.fact_store.sqlite import Transaction
from agent.fact_store.writer import Writer
from agent.pages import Hole, OriginRange

log = logging.getLogger(__name__)

REPORTED_MAX = 10_000  # places; after this many, more reports would not help the operator
INCIDENT = "damaged"


class _Place(NamedTuple):
    stream: str
    first_offset: int
    last_offset: int

    def covers(self, place: _Place) -> bool:
        is_inside = self.first_offset <= place.first_offset and place.last_offset <= self.last_offset
        return self.stream == place.stream and is_inside


class DamageRegistry:
    """The damaged places found in this life of the process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported: set[_Place] = set()
        self._writer: Writer | None = None

    def start(self, writer: Writer) -> None:
        """Report to this writer from now on; damage found earlier is dropped and found again."""
        self._writer = writer

    @property
    def count(self) -> int:
        """How many damaged places were found in this life and are not repaired."""
        return len(self._reported)

    def report(self, stream: str, hole: Hole, why: str, origins: Sequence[OriginRange]) -> None:
        """Record that a reader found damage. `why` is what was wrong with the row, `origins` are the origins of its
        facts."""
        writer, place = self._writer, _Place(stream, hole.first_offset, hole.last_offset)
        with self._lock:
            if writer is None or len(self._reported) >= REPORTED_MAX or self._is_reported(place):
                return
            self._reported = {known for known in self._reported if not place.covers(known)} | {place}
        log.error(
            "facts_damaged",
            extra={
                "stream": stream,
                "first_offset": hole.first_offset,
                "last_offset": hole.last_offset,
                "reason": f"damaged: {why or 'the rows are missing'}",
            },
        )
        run = partial(_record_damage, stream=stream, hole=hole, why=why, origins=origins)
        try:
            recording = writer.submit(f"damage in {stream}", run, size=len(why))
        except StoreError:
            self._forget(place)
        else:
            recording.add_done_callback(lambda done: self._forget(place) if done.exception() else None)

    def remove_repaired(self, stream: str, first_offset: int, last_offset: int) -> None:
        """Remove the places between these offsets; if they are found damaged again, they are reported again."""
        with self._lock:
            self._reported = {
                known
                for known in self._reported
                if known.stream != stream or known.last_offset < first_offset or last_offset < known.first_offset
            }

    def _is_reported(self, place: _Place) -> bool:
        """Whether a place, or one that covers it, was reported: a hole is cut at the end of a page, and grows when rows
        beside it are damaged."""
        return place in self._reported or any(known.covers(place) for known in self._reported)

    def _forget(self, place: _Place) -> None:
        with self._lock:
            self._reported.discard(place)


def _record_damage(
    transaction: Transaction, *, stream: str, hole: Hole, why: str, origins: Sequence[OriginRange]
) -> None:
    """Record damage as an incident for the operator of this node, and as a fact for other readers."""
    about: dict[str, object] = {
        "first_offset": hole.first_offset,
        "last_offset": hole.last_offset,
        "count": hole.last_offset - hole.first_offset + 1,
        "why": why,
        "origins": [sequences.named() for sequences in origins],
    }
    number = transaction.stream(stream).id
    for sequences in origins:
        if (known := transaction.origin_number(Origin(sequences.zone, sequences.life))) is not None:
            transaction.add_damage(number, known, sequences.first_sequence, sequences.last_sequence)
    whose = ", ".join(
        f"{sequences.zone}/{sequences.life.hex()} {sequences.first_sequence} to {sequences.last_sequence}"
        for sequences in origins
    )
    transaction.add_incident(
        INCIDENT,
        f"{stream} {hole.first_offset} to {hole.last_offset}",
        f"{why or 'the rows are missing'}; facts of {whose or 'unknown origins'}",
    )
    append_notice(transaction, stream, "facts_damaged", about, f"{stream}:{hole.first_offset}-{hole.last_offset}")
