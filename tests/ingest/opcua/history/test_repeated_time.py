"""A server's clock is set back into a gap: what it records again comes once, from the subscription or from history."""

from __future__ import annotations

import asyncio

import pytest

from agent.columns import SampleColumns
from agent.ingest.opcua.history import HistoryBackfill, backfill
from agent.message import Sample
from tests.ingest.fakes import FakeStore, SlowStore
from tests.ingest.opcua.history.filling import FakeStored, GoingHistory, filling, tag
from tests.ingest.test_delivery import S, made
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_the_store_is_asked_when_live_values_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set back into the gap gives live values the times of the gap. The store is not asked while such
    values are on their way to it."""
    store, is_asked = SlowStore(is_slow=False), asyncio.Event()
    async with filling(store=store) as it:
        committed = it.delivery.recorder.committed

        async def asked() -> None:
            is_asked.set()
            await committed()

        monkeypatch.setattr(it.delivery.recorder, "committed", asked)
        await it.value(100)
        store.is_slow = True
        await it.outage()
        await it.delivery.deliver(SampleColumns.of([Sample(1, 105 * S, 105)]), 110 * S)
        await wait_until_async(lambda: len(store.waiting) == 3, "values on their way")
        await is_asked.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert it.stored.asked == []
        it.stored.times[1].add(105 * S)
        store.is_slow = False
        for future in store.waiting:
            future.set_result(None)
        await it.filled()
    assert it.times() == list(range(100, 111))


async def test_a_gap_is_read_at_once_when_it_has_ended() -> None:
    """Although the server's clock stands right behind it: a clock that goes on as ours does was not set back into
    it."""
    async with filling(history=GoingHistory(110 * S)) as it:
        await it.value(100)
        await it.outage()
        await it.filled()
        assert it.times() == list(range(100, 111))
        assert it.fill.gaps_open == 0


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_gap_in_which_the_clock_stands_again_is_filled_in_two_readings(*, is_seen: bool) -> None:
    """The server's clock was set back into the gap: what it records now comes live as well, so the last seconds are
    left out, and read when they are over and the store has what came live. Its clock is asked behind each reading:
    what has come of it live may be older."""
    async with filling() as it:
        now_s = 150
        it.fill.now_ns = lambda: (now_s if is_seen else 1_000) * S
        it.history.now_ns = 150 * S
        await it.value(100)
        await it.outage(101, 200)
        await it.filled()
        assert set(it.times()) >= {*range(100, 139), *range(154, 201)}
        assert not set(it.times()) & set(range(141, 152))
        assert it.fill.gaps_open == 1
        it.stored.times = {1: {145 * S}}
        now_s, it.history.now_ns = 170, 170 * S
        await it.filled(2)
    assert it.times() == [t for t in range(100, 201) if t != 145]


async def test_a_time_that_comes_again_is_read_when_its_values_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reading reaches beyond what the server's clock showed at the first one. The store is asked when that
    time is over, and what was sampled in it had the time to come."""
    shown_ns, history = list[int](), GoingHistory(150 * S)

    async def committed() -> None:
        shown_ns.append(history.shown_ns)

    async with filling(history=history) as it:
        monkeypatch.setattr(it.delivery.recorder, "committed", committed)
        await it.value(100)
        await it.outage(101, 200)
        await it.filled(2)
    (_, _, last_ns) = it.stored.asked[-1]
    assert last_ns > 151 * S
    assert shown_ns[-1] >= last_ns + S // 10


async def test_a_bounded_number_of_gaps_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a clock is set back while the store is busy. Beyond the limit gaps are merged, and no tag or time
    of one is left out."""
    monkeypatch.setattr(backfill, "JOBS_MAX", 5)
    delivery = await made(FakeStore(), tag("a"))
    fill = HistoryBackfill(delivery, delivery.recorder, FakeStored(), 1)
    days = range(1, 20)
    for day in days:
        fill._add(backfill._Job("gap", day * 86_400 * S, day * 86_400 * S + S, {day}))
        assert fill.gaps_open <= 5
    covered = {
        day
        for day in days
        for job in fill._jobs
        if job.first_ns <= day * 86_400 * S < job.last_ns and day in job.tags  # type: ignore[operator]
    }
    assert covered == set(days)
