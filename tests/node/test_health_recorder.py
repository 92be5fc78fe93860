"""When the node records its health: at each change and once a minute, and what the store has refused as soon as it
can. What it records is in test_status.py."""

import time
from dataclasses import replace
from itertools import count, pairwise
from unittest.mock import Mock

import pytest

from agent.concurrency import TaskGroup
from agent.errors import StoreFull
from agent.health.snapshot import NodeSnapshot
from agent.health.verdict import Verdict, assess
from agent.node.health_recorder import LOOK_S, RECORD_S, HealthRecorder
from tests.health.test_pair import PAIR
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_each_change_is_recorded_as_soon_as_the_store_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health that stays is recorded once a minute, although the other gateway was heard at another moment at each look.
    A change, also of who leads, is recorded at the next look, and the next change, which the store refuses at first,
    when it takes facts again, not a minute later."""
    shown, recorded_s, is_full = NodeSnapshot("plant-a", "00", 1, 1, None, pair=PAIR), list[float](), False
    heard_ms = count()

    def judge() -> tuple[NodeSnapshot, Verdict]:
        assert shown.pair is not None
        found = replace(shown, pair=replace(shown.pair, partner_heard_ms=next(heard_ms)))
        return found, assess(found)

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
        shown = replace(shown, pair=replace(PAIR, role="follows"))
        await wait_until_async(lambda: len(recorded_s) == 4, "health is recorded")
        shown = replace(shown, pair=replace(PAIR, role="follows", leader="plant-a-3"))
        await wait_until_async(lambda: len(recorded_s) == 5, "health is recorded")
        is_full, shown = True, replace(shown, store_fill_percent=95.0)
        free_s = time.monotonic() + RECORD_S / 4
        await wait_until_async(lambda: time.monotonic() > free_s, "time passes")
        is_full = False
        await wait_until_async(lambda: len(recorded_s) == 6, "health is recorded")
        running.cancel()
    assert recorded_s[1] - recorded_s[0] == pytest.approx(RECORD_S, abs=LOOK_S + 0.1)
    assert all(later_s - earlier_s <= LOOK_S + 0.1 for earlier_s, later_s in pairwise(recorded_s[1:5]))
    assert recorded_s[5] - free_s <= LOOK_S + 0.1
