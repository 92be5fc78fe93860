"""Follows the stream `health` of a store: the newest health of each zone, as its node recorded it.

A node records everything about itself in one append, so the newest batch of a zone shows the whole zone, and older ones
are never opened.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from agent.batch import Kind, Origin
from agent.fact_store import BatchSummary, StoreReader
from agent.health.samples import read_health
from agent.health.verdict import THRESHOLDS
from agent.message import HEALTH_STREAM
from agent.page.named_ends import NamedEnds
from agent.query.scan import BatchFacts, Dictionary, Scanner

ZONES_MAX = 5_000
MARK_MS = 60_000
"""A store's marks give the time of an arrival to the minute."""


@dataclass(frozen=True, slots=True)
class ZoneHealth:
    """The health of a zone at a moment: values by path (`store_fill_percent`, `source/boiler/tags_bad`). `at_unix_ms`
    is by the zone's clock, and not after `arrived_unix_ms`, which is by the clock here, to a minute."""

    zone: str
    at_unix_ms: int
    values: dict[str, Any]
    offset: int = 0
    arrived_unix_ms: int = 0
    missing: str = ""
    """Facts that it names and that do not come (`named_ends`)."""


class HealthTail:
    """The newest health of each zone in a store."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self.dictionary = Dictionary(reader)
        self._end_offset = 0
        self.zones: dict[str, ZoneHealth] = {}
        self._ends = NamedEnds()

    def read(self, now_unix_ms: int) -> set[str]:
        """Read what was recorded since the last call; the zones of which there was anything. Raises StoreError."""
        scanner = Scanner(self._reader, self.dictionary)
        end_offset = scanner.ends.get(HEALTH_STREAM, 0)
        if end_offset <= self._end_offset:
            return set()
        first_offset = max(self._end_offset + 1, scanner.firsts.get(HEALTH_STREAM, 1))
        newest: dict[str, BatchSummary] = {}
        # At first, only as far back as the last zone that can have health: a year of a thousand zones is long.
        sought = {zone for zone, _ in self._reader.definition_ends()} if not self._end_offset else None
        for page in scanner.summaries(HEALTH_STREAM, first_offset, end_offset, newest_first=True):
            for summary in page:
                zone = summary.origin.zone
                if summary.kind == Kind.SAMPLES and zone not in newest and len(newest) < ZONES_MAX:
                    newest[zone] = summary
            if sought is not None and sought <= newest.keys():
                break
        # Health that comes late does not replace newer health, unless that is old: the zone's clock may have been set
        # back.
        old_ms = now_unix_ms - round(THRESHOLDS["health_age"].warn * 1000)
        known_ms = {zone: found.at_unix_ms for zone, found in self.zones.items() if found.at_unix_ms >= old_ms}
        opened = (
            summary for zone, summary in newest.items() if summary.time_max_ns // 1_000_000 >= known_ms.get(zone, 0)
        )
        marks = self._arrivals(now_unix_ms)
        for facts in scanner.facts_of(HEALTH_STREAM, opened):
            _, arrived_ms = marks[max(bisect(marks, facts.first_offset, key=itemgetter(0)) - 1, 0)]
            if found := _health(facts, arrived_ms):
                self.zones[found.zone] = found
        self._end_offset = end_offset
        return self.zones.keys() & newest.keys()

    def compare_ends(self, zones: Iterable[str], now_ms: int) -> None:
        """Compare what zones have named with what is here. Raises StoreError."""
        for zone in zones:
            known = self.zones[zone]
            missing = self._ends.look(zone, known.values, self._reached, now_ms)
            if missing != known.missing:
                self.zones[zone] = replace(known, missing=missing)

    def _arrivals(self, now_unix_ms: int) -> list[tuple[int, int]]:
        """When what was not read yet has arrived at the latest (Unix ms), by first offset."""
        marks = [] if self._end_offset else self._reader.clock_marks(HEALTH_STREAM)
        return [(offset, unix_ms + MARK_MS) for offset, unix_ms in marks] or [(0, now_unix_ms)]

    def _reached(self, zone: str, stream: str, life: bytes) -> int | None:
        if ranges := self._reader.held_of(stream, Origin(zone, life)):
            return ranges[-1].last_sequence
        return 0 if self._reader.holds_zone(stream, zone) else None


def _health(facts: BatchFacts, arrived_ms: int) -> ZoneHealth | None:
    samples = zip(facts.column("subject"), facts.column("source_time_ns"), facts.values(), strict=True)
    at_ns, values = read_health(samples)
    zone = facts.batch.header.origin.zone
    # By a clock that is ahead, silence would not be seen, nor what comes once it is set.
    at_ms = min(at_ns // 1_000_000, arrived_ms)
    return ZoneHealth(zone, at_ms, values, facts.first_offset, arrived_ms) if values else None
