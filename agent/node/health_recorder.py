"""Records the node's own health in the stream `health`: once a minute, and at every change of its verdict or reasons.

All samples of a moment are one append, so that one batch shows the whole node. A store that refuses facts refuses these
too: nothing waits, and the next moment is recorded when it takes facts again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from agent.columns import SampleColumns
from agent.errors import StoreBusy, StoreFull
from agent.fact_store import FactStore
from agent.health.samples import HealthSample, health_samples, level_of, read_health
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict
from agent.message import HEALTH_STREAM, TagDefinition
from agent.query.scan import Bounds, Scanner

LOOK_S = 2.0
RECORD_S = 60.0
LOOK_BACK_FACTS = 1_000_000
"""Ten minutes of a thousand zones; while a node is down, nothing comes after its own."""

log = logging.getLogger(__name__)


class HealthRecorder:
    """Appends the node's health. `judge`: the node now."""

    def __init__(self, store: FactStore, judge: Callable[[], tuple[NodeSnapshot, Verdict]]) -> None:
        self._store, self._judge = store, judge
        self._numbers: dict[TagDefinition, int] = {}

    async def run(self) -> None:
        """Record until cancelled."""
        recorded: tuple[object, ...] = ()
        due_s = 0.0
        while True:
            snapshot, verdict = self._judge()
            role = snapshot.pair and (snapshot.pair.role, snapshot.pair.leader)  # the page shows it above
            shown = (verdict.level, verdict.alert, frozenset(reason.key for reason in verdict.reasons), role)
            if shown != recorded or time.monotonic() >= due_s:
                try:
                    await self._record(health_samples(snapshot, verdict), snapshot.taken_unix_ms)
                    recorded, due_s = shown, time.monotonic() + RECORD_S
                except (StoreBusy, StoreFull):
                    log.debug("health_not_recorded")
            await asyncio.sleep(LOOK_S)

    async def _record(self, samples: Sequence[HealthSample], now_ms: int) -> None:
        if new := [sample.definition for sample in samples if sample.definition not in self._numbers]:
            numbers = await asyncio.wrap_future(self._store.appends.define(new, stream=HEALTH_STREAM))
            self._numbers.update(zip(new, numbers, strict=True))
        columns = SampleColumns(
            [self._numbers[sample.definition] for sample in samples],
            [now_ms * 1_000_000] * len(samples),
            [sample.value for sample in samples],
            [sample.quality for sample in samples],
        )
        await asyncio.wrap_future(self._store.appends.append_columns(HEALTH_STREAM, columns))


@dataclass(frozen=True, slots=True)
class RecordedHealth:
    """What the node last recorded of itself, perhaps in an earlier process."""

    at_unix_ms: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)

    def since(self) -> dict[str, int]:
        """Since when its level and each of its problems were, as `since_of` has them."""
        level, found = level_of(self.values.get("verdict")), self.values.get("since_unix_ms")
        since = {level.value: found} if level is not None and found else {}
        return since | {
            f"{reason['problem']} {reason['subject']}": reason["since_unix_ms"] for reason in self.values["reasons"]
        }

    def behind_s(self, zone: str, stream: str, now_unix_ms: int) -> float:
        """How far a pull that has had no answer since then is behind."""
        lag_s: float | None = self.values.get(f"peer/{quote(zone, safe='')}/{quote(stream, safe='')}/lag_seconds")
        return max(0.0, (now_unix_ms - self.at_unix_ms) / 1000) + (lag_s or 0.0)


def last_recorded(store: FactStore) -> RecordedHealth | None:
    """The newest health of this node in its store; None if there is none. Raises StoreError."""
    scanner = Scanner(store.reader)
    first_offset = max(1, scanner.ends.get(HEALTH_STREAM, 0) - LOOK_BACK_FACTS)
    bounds = Bounds(frozenset({HEALTH_STREAM}), zones=frozenset({store.node}), offset_min=first_offset)
    at_ns, values = 0, dict[str, Any]()
    for facts in scanner.scan(bounds, newest_first=True):
        columns = facts.column("subject"), facts.column("source_time_ns"), facts.values()
        part_ns, part = read_health(zip(*columns, strict=True))
        if part_ns != at_ns:
            if "reasons" in values:
                break
            values = {}
        at_ns, values = part_ns, part | values
    return RecordedHealth(at_ns // 1_000_000, values) if "reasons" in values else None
