"""HistoryBackfill beside a fake server: what it asks, what it records, and what it says at the end."""

from __future__ import annotations

import asyncio

import pytest

from agent.columns import SampleColumns
from agent.ingest.errors import HistoryRefused
from agent.ingest.gap import ITEM_GONE
from agent.ingest.opcua.history import backfill
from agent.message import Sample
from tests.ingest.fakes import SlowStore
from tests.ingest.opcua.history.filling import FakeHistory, FakeStored, filling, prepared
from tests.ingest.test_delivery import S
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_an_outage_is_filled_between_the_last_value_and_the_first() -> None:
    """Values of the outage are recorded under a definition that says so, in the stream of their tag; those around it
    are not read into it, and the fact names the outage by its first time."""
    async with filling("ab", other="b") as it:
        await it.delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100), Sample(2, 98 * S, 98)]), 100 * S)
        await it.outage()
        await it.filled()
        assert it.fill.gaps_open == 0
        assert it.fill.values_total == 18
    assert it.times() == list(range(100, 111))
    assert it.times("b") == [98, *range(101, 111)]
    (said,) = it.fills()
    assert (said["cause"], said["outages"], said["values"]) == ("gap", ["1970-01-01T00:01:41Z"], 18)
    marked = [n for n, definition in enumerate(it.store.definitions, 1) if definition.acquisition == "history"]
    assert {s.tag for _, s in it.store.samples if s.source_time_ns // S in range(101, 110) and s.quality == 0} == (
        set(marked)
    )


async def test_outages_of_an_earlier_process_are_filled_with_what_the_store_lacks() -> None:
    """The store holds some of the values already, live ones and some from an interrupted filling."""
    stored = FakeStored({1: {t * S for t in (*range(80, 101), 200)}, 2: {101 * S, 102 * S}}, outages=[100 * S])
    async with filling(stored=stored) as it:
        await it.value(995)
        await it.filled()
    (said,) = it.fills()
    assert (said["cause"], said["outages"]) == ("restart", ["1970-01-01T00:01:40Z"])
    # From the seam before the outage to the seam before now, without what the store has.
    assert it.times() == [t for t in range(103, 990) if t != 200] + [995]


async def test_a_store_that_cannot_be_read_leaves_the_gap_unfilled_by_name() -> None:
    """The tags count as failed, the fact names them, nothing is read from the server, and the next gap is filled."""
    async with filling() as it:
        it.stored.is_readable = False
        await it.value(100)
        await it.outage()
        await it.filled()
        assert (it.fills()[0]["tags_failed"], it.fills()[0]["tags"]) == (1, ["tag:a"])
        assert (it.history.calls, it.fill.gaps_open) == ([], 0)
        it.stored.is_readable = True
        await it.outage(112, 115)
        await it.filled(2)
    assert it.times() == [100, 110, *range(112, 116)]


@pytest.mark.parametrize("is_final, key", [(True, "tags_without_history"), (False, "tags_failed")])
async def test_a_refused_history_is_said_and_ends(is_final: bool, key: str) -> None:
    """Without the service at once; after a number of attempts, each asking for less, where calls fail."""
    history = FakeHistory(HistoryRefused("BadSomething", is_final=is_final))
    async with filling("ab", history=history) as it:
        await it.delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 1), Sample(2, 100 * S, 1)]), 100 * S)
        await it.outage()
        await it.filled()
        (said,) = it.fills()
        assert (said[key], said["tags"], said["values"]) == (2, ["tag:a", "tag:b"], 0)
    if is_final:
        assert len(history.calls) == 1
    else:
        assert history.calls[0] == (2, backfill.VALUES_PER_READ_MAX)
        assert history.calls[-1][0] == 1
        assert len(history.calls) >= backfill.CALLS_FAILED_MAX


async def test_a_passing_failure_costs_nothing() -> None:
    """A call that times out is repeated, smaller, and the gap is filled."""
    history = FakeHistory(HistoryRefused("TimeoutError", is_final=False), times=2)
    async with filling(history=history) as it:
        await it.value(100)
        await it.outage()
        await it.filled()
    assert it.times() == list(range(100, 111))


async def test_history_is_read_at_its_rate_and_committed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page is asked for when the one before is committed, and after the pause that its values are worth: an
    hour of history neither fills the memory nor keeps live values waiting."""
    pauses, store, sleep = list[float](), SlowStore(is_slow=False), asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0 if seconds > 0.01 else seconds)  # tidy: what the product asks for, or nothing

    monkeypatch.setattr(backfill, "VALUES_PER_READ_MAX", 4)
    it = await prepared(store=store, values_per_s=4)
    await it.value(100)
    await it.outage()
    store.is_slow = True
    monkeypatch.setattr(asyncio, "sleep", pause)
    async with it.session():
        for page in (1, 2):
            await wait_until_async(lambda: len(store.waiting) == page, "a page")  # noqa: B023 awaited here
            for _ in range(5):
                await sleep(0)
            assert len(it.history.calls) == page
            store.waiting[-1].set_result(None)
        await wait_until_async(lambda: pauses.count(1.0) == 2, "the pauses")


async def test_a_range_asked_for_by_hand_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags and hours are taken in pieces whose times fit into memory; a piece with too many times is halved."""
    monkeypatch.setattr(backfill, "SLICE_TAGS", 2)
    monkeypatch.setattr(backfill, "SLICE_NS", 100 * S)
    monkeypatch.setattr(backfill, "STORED_TIMES_MAX", 150)
    stored = FakeStored({1: {t * S for t in range(100, 260)}, 2: {t * S + n for t in range(100, 260) for n in (0, 1)}})
    async with filling("abc", stored=stored) as it:
        it.fill.request(100 * S, 400 * S)
        await it.filled()
    assert it.times() == list(range(260, 400))
    assert it.times("b") == list(range(260, 400))
    assert it.times("c") == list(range(100, 400))
    assert max(numbers for numbers, _, _ in stored.asked) == 4
    assert min(numbers for numbers, _, _ in stored.asked) == 2


async def test_a_node_that_stays_away_is_asked_about_once_for_each_gap() -> None:
    """Two outages, of which neither could be read: what was not read of the first is read with the second, and then
    nothing is left to do."""
    async with filling("ab") as it:
        it.history.is_gone = True
        for gaps, lost_s in ((1, 101), (2, 701)):
            await it.outage(lost_s, lost_s + 9)
            await it.filled(gaps)
        await wait_until_async(lambda: not it.fill.gaps_open, "the end of the reading")
    assert [fill["tags_gone"] for fill in it.fills()] == [2, 2]
    assert len(it.history.calls) == 3


@pytest.mark.parametrize("is_back_early", [False, True])
async def test_a_gap_that_was_read_while_its_node_was_gone_is_read_when_it_is_back(*, is_back_early: bool) -> None:
    """With the gap that the node leaves, also if that one is told before the answer about the first has come."""
    async with filling("ab") as it:
        it.history.is_gone = True
        await it.outage()
        await (wait_until_async(lambda: it.history.calls, "the reading") if is_back_early else it.filled())
        it.delivery.add_gap(ITEM_GONE, 150 * S, 155 * S, 0, [1], exact=False)
        await it.filled()
        it.history.is_gone = False
        await it.filled(3)
    assert [fill["tags_gone"] for fill in it.fills()] == [2, 0, 0]
    assert it.times() == [*range(101, 111), *range(150, 156)]
    assert it.times("b") == [110]
