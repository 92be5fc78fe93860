"""Shell: what the page reads from the store's file: health, latest values, the samples of a tag, incidents.

Searches run in a thread, one at a time, and their results are kept for a while, so that many visitors cost what a
single one does. Dead or alive, the node is not asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.batch import Kind
from agent.errors import StoreError
from agent.fact_store import Incident, StoreReader
from agent.message import HEALTH_STREAM, Value
from agent.page.health_tail import HealthTail
from agent.page.trend import Trend, trend_of
from agent.query.latest import LatestRecord, find_latest, latest_record
from agent.query.scan import Bounds, Scanner

KEPT_S, KEPT_COSTS = 2.0, 20.0
"""A result is kept for two seconds, or for twenty times what it cost."""
DEPTH_FACTS = 2_000_000
DEFINITIONS_MAX = 100_000
"""In a search, those of health included; each takes a kilobyte meanwhile."""
SAMPLES_MAX = 2_000_000
"""Of one picture; a longer time begins there."""
INCIDENTS_SHOWN = 100

ResultT = TypeVar("ResultT")


class StoreFacts:
    """Reads one store. It is opened when it is first needed, and again after an error."""

    def __init__(self, store_file: Path) -> None:
        self._file = store_file
        self._reader: StoreReader | None = None
        self.health: HealthTail | None = None
        self._turn = asyncio.Lock()
        self._kept: dict[str, tuple[float, Any]] = {}

    async def read_health(self) -> HealthTail:
        """The health of all zones now. Raises StoreError."""
        async with self._turn:
            return await asyncio.to_thread(self._with_reader, self._read_health)

    async def latest(self, zone: str = "") -> list[LatestRecord] | None:
        """The latest value of every tag that is not health, of a zone or of all; None if they are too many. Raises
        StoreError."""
        return await self._cached(f"latest {zone}", lambda reader: self._latest(reader, zone))

    async def incidents(self) -> list[Incident]:
        """What the store noted, newest first. Raises StoreError."""
        return await self._cached("incidents", lambda reader: reader.incidents(INCIDENTS_SHOWN))

    async def trend(self, zone: str, subject: str, first_ms: int, last_ms: int) -> Trend:
        """The picture of a tag. Raises StoreError."""
        async with self._turn:
            return await asyncio.to_thread(
                self._with_reader, lambda reader: self._trend(reader, zone, subject, first_ms, last_ms)
            )

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self.health = None

    async def _cached(self, name: str, read: Callable[[StoreReader], ResultT]) -> ResultT:
        async with self._turn:
            until_s, found = self._kept.get(name, (0.0, None))
            began_s = time.monotonic()
            if began_s >= until_s:
                self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > began_s}
                found = await asyncio.to_thread(self._with_reader, read)
                now_s = time.monotonic()
                self._kept[name] = now_s + max(KEPT_S, KEPT_COSTS * (now_s - began_s)), found
            return found  # type: ignore[no-any-return]

    def _with_reader(self, read: Callable[[StoreReader], ResultT]) -> ResultT:
        try:
            if self._reader is None:
                self._reader = StoreReader(self._file)
                self.health = HealthTail(self._reader)
            return read(self._reader)
        except StoreError:
            self.close()
            raise

    def _scanner(self, reader: StoreReader) -> Scanner:
        """With the definitions that health was read with: those of a thousand zones take a second to read and check."""
        assert self.health is not None, "made with the reader"
        return Scanner(reader, self.health.dictionary)

    def _read_health(self, _: StoreReader) -> HealthTail:
        assert self.health is not None, "made with the reader"
        now_ms = time.time_ns() // 1_000_000
        self.health.compare_ends(self.health.read(now_ms), now_ms)
        return self.health

    def _latest(self, reader: StoreReader, zone: str) -> list[LatestRecord] | None:
        counts = reader.definition_counts()
        if (counts.get(zone, 0) if zone else sum(counts.values())) > DEFINITIONS_MAX:
            return None
        scanner = self._scanner(reader)
        found = find_latest(
            scanner,
            time.time_ns(),
            streams=frozenset(scanner.ends) - {HEALTH_STREAM},
            zone=zone or None,
            depth_facts=DEPTH_FACTS,
        )
        return [latest_record(row) for row in found]

    def _trend(self, reader: StoreReader, zone: str, subject: str, first_ms: int, last_ms: int) -> Trend:
        bounds = Bounds(
            zones=frozenset({zone}),
            kinds=frozenset({Kind.SAMPLES.value}),
            time_min_ns=first_ms * 1_000_000,
            time_max_ns=last_ms * 1_000_000,
            subject_tests=(subject.__eq__,),
        )
        times_ns, values, qualities = list[int](), list[Value](), list[int]()
        for facts in self._scanner(reader).scan(bounds, newest_first=True):
            times_ns += facts.column("source_time_ns")
            values += facts.values()
            qualities += facts.column("quality")
            if len(times_ns) > SAMPLES_MAX:
                first_ms = max(first_ms, min(times_ns) // 1_000_000)
                break
        as_arrived = range(len(times_ns))[::-1]
        order = sorted(as_arrived, key=times_ns.__getitem__)  # of equal times the last to arrive stays last
        return trend_of(
            [times_ns[at] // 1_000_000 for at in order],
            [values[at] for at in order],
            [qualities[at] for at in order],
            first_ms,
            last_ms,
        )
