"""Records the node's own health in the stream `health`: once a minute, and at every change of its verdict or reasons.

All samples of a moment are one append, so that one batch shows the whole node. A store that refuses facts refuses these
too: nothing waits, and the next moment is recorded when it takes facts again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from agent.columns import SampleColumns
from agent.fact_store import FactStore, StoreBusy, StoreFull
from agent.health.samples import HealthSample, health_samples
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict
from agent.message import HEALTH_STREAM, TagDefinition

LOOK_S = 2.0
RECORD_S = 60.0

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
            shown = (verdict.level, verdict.alert, frozenset(reason.key for reason in verdict.reasons))
            if shown != recorded or time.monotonic() >= due_s:
                try:
                    await self._record(health_samples(snapshot, verdict), snapshot.taken_unix_ms)
                    recorded, due_s = shown, time.monotonic() + RECORD_S
                except (StoreBusy, StoreFull):
                    log.debug("health_not_recorded")
            await asyncio.sleep(LOOK_S)

    async def _record(self, samples: Sequence[HealthSample], now_ms: int) -> None:
        if new := [one.definition for one in samples if one.definition not in self._numbers]:
            numbers = await asyncio.wrap_future(self._store.appends.define(new))
            self._numbers.update(zip(new, numbers, strict=True))
        columns = SampleColumns(
            [self._numbers[one.definition] for one in samples],
            [now_ms * 1_000_000] * len(samples),
            [one.value for one in samples],
            [one.quality for one in samples],
        )
        await asyncio.wrap_future(self._store.appends.append_columns(HEALTH_STREAM, columns))
