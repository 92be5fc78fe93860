"""HistoryBackfill beside a fake server: what it asks, what it records, and what it says at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from agent.columns import SampleColumns
from agent.errors import StoreFull
from agent.ingest.errors import HistoryRefused
from agent.ingest.gap import ITEM_GONE, SERVER_QUEUE_OVERFLOW, SOURCE_LOST
from agent.ingest.opcua.history import HistoryBackfill, HistoryPage, backfill
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from agent.message import Message, Sample
from tests.ingest.fakes import FakeStore, SlowStore
from tests.ingest.opcua.history.filling import (
    FakeHistory,
    FakeStored,
    Filling,
    GoingHistory,
    filling,
    prepared,
    tag,
)
from tests.ingest.test_delivery import S, made
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
    """The store holds some of the values already, live ones and some from an interrupted filling. The last outage is
    later than the present, because the server's clock was set back since. What is far from any outage is not read."""
    stored = FakeStored(
        {1: {t * S for t in (*range(80, 101), 200)}, 2: {101 * S, 102 * S}},
        outages=[(9_100 * S, 9_110 * S), (100 * S, 110 * S), (300 * S, 310 * S)],
    )
    async with filling(stored=stored) as it:
        await it.value(995)
        await it.filled(2)
    first, second = it.fills()
    assert (first["cause"], first["outages"]) == ("restart", ["1970-01-01T00:05:00Z", "1970-01-01T00:01:40Z"])
    assert (second["cause"], second["outages"]) == ("restart", ["1970-01-01T02:31:40Z"])
    # From the seam before the outage to the seam before now, without what the store has.
    assert it.times() == [*(t for t in range(103, 990) if t != 200), 995, *range(9_090, 9_111)]


async def test_an_outage_that_waits_to_be_filled_is_not_filled_twice() -> None:
    """The store has the outage of this process as an open one, too, until it is filled."""
    async with filling(stored=FakeStored(outages=[(101 * S, 110 * S)])) as it:
        await it.value(100)
        await it.outage()
        await it.filled()
        await wait_until_async(lambda: not it.fill.gaps_open, "the end of the reading")
    assert [(said["cause"], said["values"]) for said in it.fills()] == [("gap", 9)]


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
async def test_a_refused_history_is_said_and_ends(is_final: bool, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the service at once; after a number of attempts, each asking for less, where calls fail. The tags that
    were not asked for are named, too."""
    monkeypatch.setattr(backfill, "SLICE_TAGS", 2)
    history = FakeHistory(HistoryRefused("BadSomething", is_final=is_final))
    async with filling("abc", history=history) as it:
        await it.delivery.deliver(SampleColumns.of([Sample(tag, 100 * S, 1) for tag in (1, 2, 3)]), 100 * S)
        await it.outage()
        await it.filled()
        (said,) = it.fills()
        assert (said[key], said["tags"], said["values"]) == (3, ["tag:a", "tag:b", "tag:c"], 0)
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


async def test_what_a_server_refuses_is_not_asked_for_again_in_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers one node in a call is asked for all three in the first hour only, and for two when it has
    refused nothing for an hour. A refused call may take until its time-out."""
    monkeypatch.setattr(backfill, "SLICE_NS", 100 * S)
    history = FakeHistory()
    history.nodes_max = 1
    async with filling("abc", history=history) as it:
        it.fill.request(100 * S, 400 * S)
        await it.filled()
    assert [nodes for nodes, _ in history.calls if nodes > 1] == [3, 2]
    assert it.times("a") == it.times("c") == list(range(100, 400))


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
    assert it.fills()[0]["tags_filled"] == 3, "each tag counts once"
    assert max(numbers for numbers, _, _ in stored.asked) == 4
    assert min(numbers for numbers, _, _ in stored.asked) == 2


async def test_values_of_one_time_are_divided_by_their_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose clock stands still has values of all its tags at one time: halving the time would never end."""
    monkeypatch.setattr(backfill, "STORED_TIMES_MAX", 1)
    stored = FakeStored({number: {150 * S} for number in (1, 2)})
    async with filling("ab", stored=stored) as it:
        it.fill.request(150 * S, 151 * S)
        await it.filled()
    assert not it.fill.gaps_open


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


# --- a session ends while a gap is filled, in every part of the work: the next one goes on ----------------------------


async def in_two_sessions(it: Filling, is_amid: Callable[[], object]) -> None:
    """An outage of ten seconds is filled: by a session that ends when `is_amid`, and by the next one."""
    await it.value(100)
    await it.outage()
    for end in (is_amid, it.fills):
        async with it.session():
            await wait_until_async(end, "the session's end")


async def test_a_session_that_ends_amid_a_page_loses_no_value() -> None:
    """The store refuses what was read, and the session ends: the next one has it stored, and then says so."""
    it = await prepared()

    def is_amid() -> bool:
        it.store.full_streams = {"facts.telemetry"} if not it.fill._recorder.refused_total else set()
        return not it.store.full_streams

    await in_two_sessions(it, is_amid)
    assert it.times() == list(range(100, 111))


async def test_a_session_that_ends_before_its_result_is_recorded_leaves_it() -> None:
    """The store takes the values and refuses the fact about them: the next session records it."""

    class Full(FakeStore):
        refuses_results = True

        def append_message(self, stream: str, message: Message) -> Future[Any]:
            if self.refuses_results and message.fact.predicate == "history_backfilled":
                raise StoreFull("full")
            return super().append_message(stream, message)

    def is_amid() -> bool:
        store.refuses_results = not it.fill._recorder.refused_total
        return not store.refuses_results

    store = Full()
    it = await prepared(store=store)
    await in_two_sessions(it, is_amid)
    (said,) = it.fills()
    assert (said["values"], said["tags_filled"]) == (9, 1)


async def test_a_new_session_continues_no_page_of_the_one_before() -> None:
    """A continuation point is of its session: the next one begins the page again, after what is recorded."""
    continued = list[bytes | None]()

    class Paging(FakeHistory):
        async def read_history(self, ranges: Any, nodes: Any, values_max: int) -> list[HistoryPage]:
            continued.extend(part.continuation_point for part in ranges)
            if ranges[0].continuation_point is not None:
                await asyncio.Event().wait()
            (page,) = await super().read_history(ranges, nodes, 3 if len(continued) == 1 else values_max)
            return [page._replace(continuation_point=b"more" if len(continued) == 1 else b"")]

    it = await prepared(history=Paging())
    await in_two_sessions(it, lambda: len(continued) == 2)
    assert continued == [None, b"more", None]
    assert it.times() == list(range(100, 111))


# --- a tag is edited, which gives it another number, before, in and after a gap of it ---------------------------------


async def test_a_gap_is_filled_of_a_tag_that_is_edited_meanwhile() -> None:
    """An edit gives a tag another number. Two gaps that touch are read together; they wait for what is on its way, and
    are known under the old number by then."""
    async with filling() as it:
        await it.value(100)
        await it.outage()
        it.delivery.add_gap(SERVER_QUEUE_OVERFLOW, 111 * S, 113 * S, 5, [1], exact=True)
        await it.edit()
        await it.value(115)
        await it.filled()
    assert it.times() == [*range(100, 114), 115]
    assert {json.dumps(fill["tags"]) for fill in it.fills()} == {"[]"}


async def test_an_outage_is_filled_of_a_tag_that_is_edited_in_it() -> None:
    """Its first value under the new number is the return of the tag."""
    async with filling(stored=FakeStored({2: {t * S for t in range(90, 101)}})) as it:
        await it.value(100)
        await it.delivery.lose(BAD_COMMUNICATION_ERROR, 105 * S, since_ns=101 * S)
        await it.edit()
        it.delivery.add_gap(SOURCE_LOST, 101 * S, 120 * S, 0, it.delivery.tags, exact=False)
        await it.value(120)
        await it.filled()
    assert it.fills()[0]["outages"] == ["1970-01-01T00:01:41Z"]
    assert it.times() == [*range(100, 121)]


async def test_a_tag_that_is_edited_while_its_history_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for under the old number is recorded under the new one, page after page, and so is what waits
    behind it."""
    monkeypatch.setattr(backfill, "VALUES_PER_READ_MAX", 300)
    async with filling() as it:
        it.history.answers = asyncio.Semaphore(0)
        await it.value(100)
        await it.outage(101, 900)
        await wait_until_async(lambda: it.history.calls, "a call")
        it.fill.request(20 * S, 23 * S)
        await it.edit()
        for _ in range(9):
            it.history.answers.release()
        await it.filled(2)
    assert len(it.history.calls) > 2
    assert it.times() == [20, 21, 22, *range(100, 901)]
    (number,) = (n for n, known in enumerate(it.store.definitions, 1) if known.unit and known.acquisition)
    assert {sample.tag for sample in it.store.of("a")} == {1, number}


async def test_a_node_that_was_gone_is_read_under_its_new_number() -> None:
    """A tag may be edited just because its node is gone."""
    async with filling() as it:
        it.history.is_gone = True
        await it.outage()
        await it.filled()
        it.history.is_gone = False
        await it.edit()
        it.delivery.add_gap(ITEM_GONE, 150 * S, 155 * S, 0, it.delivery.tags, exact=False)
        await it.filled(3)
    assert it.times() == [*range(101, 111), *range(150, 156)]


# --- a clock is set back into a gap: what is recorded again comes once ------------------------------------------------


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
    async with filling("ab") as it:
        now_s = 150
        it.fill.now_ns = lambda: (now_s if is_seen else 1_000) * S
        it.history.now_ns = 150 * S
        await it.value(100)
        await it.outage(101, 200)
        await it.filled()
        assert set(it.times()) >= {*range(100, 139), *range(154, 201)}
        assert not set(it.times()) & set(range(141, 152))
        assert it.fill.gaps_open == 1
        it.stored.times = {1: {145 * S}, 2: {146 * S}}
        now_s, it.history.now_ns = 170, 170 * S
        await it.filled(2)
    assert it.times() == [t for t in range(100, 201) if t != 145]
    assert it.times("b") == [t for t in range(101, 201) if t != 146]


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
