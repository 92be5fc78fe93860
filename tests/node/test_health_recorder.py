"""When the node records its health: at each change and once a minute, and what the store has refused as soon as it
can. What it records is in test_status.py."""

import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from agent.concurrency import TaskGroup
from agent.errors import StoreFull
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict, assess
from agent.node.health_recorder import LOOK_S, RECORD_S, HealthRecorder
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_each_change_is_recorded_as_soon_as_the_store_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health that stays is recorded once a minute. A change is recorded at the next look, and the next change, which
    the store refuses at first, when it takes facts again, not a minute later."""
    shown, recorded_s, is_full = NodeSnapshot("plant-a", "00", 1, 1, None), list[float](), False

    def judge() -> tuple[NodeSnapshot, Verdict]:
        return shown, assess(shown)

    async def record(*_: object) -> None:
        if is_full:
            raise StoreFull("facts.db", "full")
        recorded_s.append(time.monotonic())

    recorder = HealthRecorder(Mock(), judge)
    monkeypatch.setattr(recorder, "_record", record)
    async with TaskGroup() as group:
        running = group.create_task(recorder.run(), name="health")
        await wait_until_async(lambda: len(recorded_s) == 2, "health is recorded")
        shown = replace(shown, store_fill_percent=60.0)
        await wait_until_async(lambda: len(recorded_s) == 3, "health is recorded")
        is_full, shown = True, replace(shown, store_fill_percent=95.0)
        free_s = time.monotonic() + RECORD_S / 4
        await wait_until_async(lambda: time.monotonic() > free_s, "time passes")
        is_full = False
        await wait_until_async(lambda: len(recorded_s) == 4, "health is recorded")
        running.cancel()
    assert recorded_s[1] - recorded_s[0] == pytest.approx(RECORD_S, abs=LOOK_S + 0.1)
    assert recorded_s[2] - recorded_s[1] <= LOOK_S + 0.1
    assert recorded_s[3] - free_s <= LOOK_S + 0.1
