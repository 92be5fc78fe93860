"""HistoryBackfill beside a fake server: what it asks, what it records, and what it says at the end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup
from agent.ingest import quality
from agent.ingest.delivery import Delivery
from agent.ingest.errors import HistoryRefused, StoredUnreadable
from agent.ingest.gap import SERVER_QUEUE_OVERFLOW, SOURCE_LOST
from agent.ingest.lifecycle import DeclaredGap, Newest
from agent.ingest.opcua.address import Reading, TagPoint
from agent.ingest.opcua.history import HistoryBackfill, HistoryPage, HistoryRange, backfill
from agent.ingest.opcua.history.gap_fill import HistoryValue
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from agent.ingest.recorder import Recorder
from agent.ingest.tags.tag_map import Tag
from agent.message import Message, Sample
from agent.settings.opcua_address import STANDARD_URI, NodeAddress
from tests.ingest.fakes import Busy, FakeStore
from tests.ingest.test_delivery import S, made, retagged
from tests.ingest.test_delivery import tag as plain_tag
from tests.support.virtual_time import run_virtual
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.virtual_time


def tag(name: str) -> Tag:
    """A tag that is the node of its name."""
    return dataclasses.replace(plain_tag(name), point=TagPoint.of(NodeAddress(STANDARD_URI, name)))


class FakeStored:
    """What a store holds from earlier processes."""

    def __init__(self, times: Mapping[int, set[int]] | None = None, outages: Sequence[int] = ()) -> None:
        self.times, self.outages = times or {}, outages
        self.is_readable = True
        self.asked: list[tuple[int, int, int]] = []

    def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:  # noqa: ARG002
        return {}

    def last_sample(self, stream: str) -> Newest | None:  # noqa: ARG002
        return None

    def sample_times(
        self,
        stream: str,  # noqa: ARG002
        numbers: Collection[int],
        first_ns: int,
        last_ns: int,
        times_max: int,
    ) -> Mapping[int, Collection[int]] | None:
        self.asked.append((len(numbers), first_ns, last_ns))
        if not self.is_readable:
            raise StoredUnreadable("the store is damaged")
        found = {n: {t for t in times if first_ns <= t <= last_ns} for n, times in self.times.items() if n in numbers}
        return found if sum(map(len, found.values())) <= times_max else None

    def declared_gaps(self, source: str) -> Sequence[DeclaredGap]:  # noqa: ARG002
        return []

    def open_outages(self, source: str) -> Sequence[int]:  # noqa: ARG002
        return self.outages


class FakeHistory:
    """A server's history: a value a second for every tag, or refusals."""

    def __init__(self, refusal: HistoryRefused | None = None, times: int = 1_000_000) -> None:
        self.refusal, self.refusals_left = refusal, times if refusal else 0
        self.calls: list[tuple[int, int]] = []
        self.names = "abc"  # of the tags, in the order of their numbers
        self.is_gone = False
        self.missing: set[str] = set()
        self.missing_status = quality.BAD_NODE_ID_UNKNOWN
        self.now_ns = 0
        self.answers: asyncio.Semaphore | None = None  # how many it may give, if not any number

    async def namespaces(self) -> list[str]:
        return [STANDARD_URI]

    async def clock_ns(self) -> int | None:
        """The clock; 0: it does not say, and what the source knows of it is right."""
        return self.now_ns or None

    async def read_history(
        self, ranges: Sequence[HistoryRange], nodes: Sequence[tuple[Reading, int]], values_max: int
    ) -> list[HistoryPage]:
        assert [str(one.address.identifier)[:1] for one, _ in nodes] == [self.names[one.tag - 1] for one in ranges]
        self.calls.append((len(ranges), values_max))
        await (self.answers.acquire() if self.answers else asyncio.sleep(0))
        if self.refusal is not None and self.refusals_left:
            self.refusals_left -= 1
            raise self.refusal
        if self.is_gone:
            return [HistoryPage(quality.BAD_NODE_ID_UNKNOWN) for _ in ranges]
        if any(one.address.identifier in self.missing for one, _ in nodes):
            return [HistoryPage(self.missing_status) for _ in ranges]
        start, end = min(r.start_ns for r in ranges), max(r.end_ns for r in ranges)
        times = range(-(-start // S) * S, end, S)[:values_max]
        return [HistoryPage(quality.GOOD, [HistoryValue(t, t // S, 0) for t in times]) for _ in ranges]


def fills(store: FakeStore) -> list[dict[str, Any]]:
    """What the facts of filled gaps say."""
    return [json.loads(m.fact.object_json) for m in store.messages.values() if m.fact.predicate == "history_backfilled"]


def times(store: FakeStore, name: str) -> list[int]:
    """The times of a tag's good samples in seconds, live and from history, in order."""
    return sorted(one.source_time_ns // S for one in store.good(name))


@asynccontextmanager
async def filling(
    delivery: Delivery, store: FakeStore, history: FakeHistory, stored: FakeStored
) -> AsyncIterator[HistoryBackfill]:
    """A backfill at work for the length of a block."""
    recorder = Recorder("plc", "plant-a", store, (Busy,), "facts.operational")
    fill = HistoryBackfill(delivery, recorder, stored, 1_000_000)
    fill.now_ns = lambda: 1_000 * S
    delivery.on_gap(fill.note_gap)
    async with TaskGroup() as group:
        task = group.create_task(fill.run(history), name="fill")
        try:
            yield fill
        finally:
            task.cancel()


async def lose_and_return(delivery: Delivery, lost_s: int, returned_s: int) -> None:
    """An outage of the source, as its supervisor tells it."""
    await delivery.lose(BAD_COMMUNICATION_ERROR, returned_s * S, since_ns=lost_s * S)
    delivery.add_gap(SOURCE_LOST, lost_s * S, returned_s * S, 0, delivery.tags, exact=False)
    await delivery.deliver(
        SampleColumns.of([Sample(n, returned_s * S, returned_s) for n in delivery.tags]), returned_s * S
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses."""
    monkeypatch.setattr(backfill, "TICK_S", 0.01)
    monkeypatch.setattr(backfill, "RETRY_S", 0.0)


async def test_an_outage_is_filled_between_the_last_value_and_the_first() -> None:
    """Values of the outage are recorded under a definition that says so, in the stream of their tag; those around it
    are not read into it, and the fact names the outage by its first time."""
    store = FakeStore()
    delivery = await made(store, tag("a"), dataclasses.replace(tag("b"), stream="facts.other"))
    async with filling(delivery, store, FakeHistory(), FakeStored()) as fill:
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100), Sample(2, 98 * S, 98)]), 100 * S)
        await lose_and_return(delivery, 101, 110)
        await wait_until_async(lambda: fills(store), "a filled gap")
        assert fill.gaps_open == 0
        assert fill.values_total == 9 + 11
    assert times(store, "a") == list(range(100, 111))
    assert times(store, "b") == list(range(98, 111))
    (said,) = fills(store)
    assert (said["cause"], said["outages"], said["values"]) == ("outage", ["1970-01-01T00:01:41Z"], 20)
    marked = [n for n, one in enumerate(store.definitions, 1) if one.acquisition == "history"]
    assert {one.tag for _, one in store.samples if one.source_time_ns // S in range(101, 110) and one.quality == 0} == (
        set(marked)
    )


async def test_a_tag_that_is_new_in_the_map_has_no_past_to_fill() -> None:
    """Its first value is no return."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    history = FakeHistory()
    async with filling(delivery, store, history, FakeStored()) as fill:
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await wait_until_async(lambda: fill.gaps_open, "the return")
        await wait_until_async(lambda: not fill.gaps_open, "nothing to fill")
    assert history.calls == []


async def test_outages_of_an_earlier_process_are_filled_with_what_the_store_lacks() -> None:
    """The store holds some of the values already, live ones and some from an interrupted filling."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    stored = FakeStored({1: {t * S for t in (*range(80, 101), 200)}, 2: {101 * S, 102 * S}}, outages=[100 * S])
    async with filling(delivery, store, FakeHistory(), stored):
        await delivery.deliver(SampleColumns.of([Sample(1, 995 * S, 995)]), 995 * S)
        await wait_until_async(lambda: fills(store), "a filled gap")
    (said,) = fills(store)
    assert (said["cause"], said["outages"]) == ("restart", ["1970-01-01T00:01:40Z"])
    # From the seam before the outage to the seam before now, without what the store has.
    assert times(store, "a") == [t for t in range(103, 990) if t != 200] + [995]


async def test_an_outage_right_before_a_restart_is_filled() -> None:
    """Two processes ended within seconds: the outage of the first is younger than what may be on its way from a server
    that publishes slowly. It is over all the same, and was before the second one's last value."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    live = {t * S for t in (*range(970, 981), 985)}
    async with filling(delivery, store, FakeHistory(), FakeStored({1: live}, outages=[981 * S])) as fill:
        fill.now_ns = lambda: 988 * S
        fill.note_stop(983 * S, 985 * S)
        delivery.seed({1: Newest(Sample(1, 985 * S, 985), 985 * S)})
        await delivery.deliver(SampleColumns.of([Sample(1, 987 * S, 987)]), 987 * S)
        await wait_until_async(lambda: len(fills(store)) == 2, "both gaps")
    assert times(store, "a") == [981, 982, 983, 984, 986, 987]


async def test_a_store_that_cannot_be_read_leaves_the_gap_unfilled_by_name() -> None:
    """The tags count as failed, the fact names them, nothing is read from the server, and the next gap is filled."""
    store, stored, history = FakeStore(), FakeStored(), FakeHistory()
    delivery = await made(store, tag("a"))
    stored.is_readable = False
    async with filling(delivery, store, history, stored) as fill:
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await lose_and_return(delivery, 101, 110)
        await wait_until_async(lambda: fills(store), "the end of the attempt")
        assert (fills(store)[0]["tags_failed"], fills(store)[0]["tags"]) == (1, ["tag:a"])
        assert (history.calls, fill.gaps_open) == ([], 0)
        stored.is_readable = True
        await lose_and_return(delivery, 112, 115)
        await wait_until_async(lambda: len(fills(store)) == 2, "the next gap")
    assert times(store, "a") == [100, *range(110, 116)]


async def test_a_node_that_is_gone_is_filled_when_it_is_back() -> None:
    """Its outage cannot be read while the node is away; both gaps are read when it has a value again."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    history = FakeHistory()
    async with filling(delivery, store, history, FakeStored()):
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        history.is_gone = True
        await lose_and_return(delivery, 101, 110)
        await wait_until_async(lambda: fills(store), "the first attempt")
        assert (fills(store)[0]["tags_gone"], fills(store)[0]["tags"]) == (1, ["tag:a"])
        history.is_gone = False
        await delivery.lose(quality.BAD_NODE_ID_UNKNOWN, 112 * S, [1])
        await delivery.deliver(SampleColumns.of([Sample(1, 115 * S, 115)]), 115 * S)
        await wait_until_async(lambda: len(fills(store)) == 3, "both gaps")
    assert times(store, "a") == list(range(100, 116))


async def test_all_that_a_node_missed_while_it_was_gone_is_filled() -> None:
    """Also where an earlier time was asked for after a later one: a restarted node reads the time of the last process
    beside that of an outage."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    history = FakeHistory()
    async with filling(delivery, store, history, FakeStored()) as fill:
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        history.is_gone = True
        await lose_and_return(delivery, 101, 110)
        await wait_until_async(lambda: fills(store), "the outage")
        fill.request(90 * S, 95 * S)
        await wait_until_async(lambda: len(fills(store)) == 2, "the time before")
        history.is_gone = False
        await delivery.lose(quality.BAD_NODE_ID_UNKNOWN, 112 * S, [1])
        await delivery.deliver(SampleColumns.of([Sample(1, 115 * S, 115)]), 115 * S)
        await wait_until_async(lambda: len(fills(store)) == 4, "all that is missing")
    assert {*range(90, 95), *range(100, 116)} <= {*times(store, "a")}


def edited(name: str) -> Tag:
    """The tag with another unit, which has another number."""
    one = tag(name)
    return dataclasses.replace(one, definition=dataclasses.replace(one.definition, unit="bar"))


async def edit(delivery: Delivery, history: FakeHistory) -> None:
    """Give the tag `a` another number. What its old item still sends is discarded."""
    history.names = "a" * 9
    await retagged(delivery, 115 * S, edited("a"))


async def test_a_gap_is_filled_of_a_tag_that_is_edited_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit gives a tag another number. A gap inside a connection waits for what is on its way, and an outage for
    other tags that return: both are known under the old number by then."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 0.1)
    store, history = FakeStore(), FakeHistory()
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, FakeStored()):
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await lose_and_return(delivery, 101, 110)
        delivery.add_gap(SERVER_QUEUE_OVERFLOW, 111 * S, 113 * S, 5, [1], exact=True)
        await edit(delivery, history)
        await delivery.deliver(SampleColumns.of([Sample(delivery.renumbered[1], 115 * S, 115)]), 115 * S)
        await wait_until_async(lambda: len(fills(store)) == 2, "both gaps")
    assert times(store, "a") == [*range(100, 114), 115]
    assert {json.dumps(one["tags"]) for one in fills(store)} == {"[]"}


async def test_an_edit_that_is_taken_back_leaves_a_gap_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag has the number again under which the gap was known."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 0.1)
    store, history = FakeStore(), FakeHistory()
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, FakeStored()):
        await edit(delivery, history)
        (number,) = delivery.tags
        delivery.add_gap(SERVER_QUEUE_OVERFLOW, 111 * S, 113 * S, 5, [number], exact=True)
        await retagged(delivery, 115 * S, tag("a"))
        await edit(delivery, history)
        await retagged(delivery, 115 * S, tag("a"))
        assert delivery.renumbered == {number: 1}
        await wait_until_async(lambda: fills(store), "a filled gap")
    assert times(store, "a") == [111, 112, 113]


async def test_an_outage_is_filled_of_a_tag_that_is_edited_in_it() -> None:
    """Its first value under the new number is the return of the tag."""
    store, history = FakeStore(), FakeHistory()
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, FakeStored({2: {t * S for t in range(90, 101)}})):
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await delivery.lose(BAD_COMMUNICATION_ERROR, 105 * S, since_ns=101 * S)
        await edit(delivery, history)
        delivery.add_gap(SOURCE_LOST, 101 * S, 120 * S, 0, delivery.tags, exact=False)
        await delivery.deliver(SampleColumns.of([Sample(delivery.renumbered[1], 120 * S, 120)]), 120 * S)
        await wait_until_async(lambda: fills(store), "a filled gap")
    assert fills(store)[0]["outages"] == ["1970-01-01T00:01:41Z"]
    assert times(store, "a") == [*range(100, 121)]


async def test_a_tag_that_is_edited_while_its_history_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for under the old number is recorded under the new one, page after page, and so is what waits
    behind it."""
    monkeypatch.setattr(backfill, "VALUES_PER_READ_MAX", 300)
    store, history = FakeStore(), FakeHistory()
    history.answers = asyncio.Semaphore(0)
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, FakeStored()) as fill:
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await lose_and_return(delivery, 101, 900)
        await wait_until_async(lambda: history.calls, "a call")
        fill.request(20 * S, 23 * S)
        await edit(delivery, history)
        for _ in range(9):
            history.answers.release()
        await wait_until_async(lambda: len(fills(store)) == 2, "both gaps")
    assert len(history.calls) > 2
    assert times(store, "a") == [20, 21, 22, *range(100, 901)]
    (number,) = (n for n, one in enumerate(store.definitions, 1) if one.unit and one.acquisition)
    assert {one.tag for one in store.of("a")} == {1, number}


async def test_a_node_that_was_gone_is_filled_when_it_is_back_under_another_number() -> None:
    """It may be edited just because its node is gone."""
    store, history = FakeStore(), FakeHistory()
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, FakeStored()):
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        history.is_gone = True
        await lose_and_return(delivery, 101, 110)
        await wait_until_async(lambda: fills(store), "the first attempt")
        assert fills(store)[0]["tags"] == ["tag:a"]
        history.is_gone = False
        await edit(delivery, history)
        await delivery.deliver(SampleColumns.of([Sample(delivery.renumbered[1], 115 * S, 115)]), 115 * S)
        await wait_until_async(lambda: len(fills(store)) == 2, "the gap")
    assert times(store, "a") == [*range(100, 111), 115]


async def test_the_time_without_a_process_is_filled_of_a_tag_that_is_edited_ahead_of_its_first_value() -> None:
    """The stop is known under the number that the tag had at the start."""
    store, history = FakeStore(), FakeHistory()
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, FakeStored({2: {t * S for t in range(90, 101)}})) as fill:
        fill.note_stop(100 * S, 102 * S)
        await edit(delivery, history)
        await delivery.deliver(SampleColumns.of([Sample(delivery.renumbered[1], 110 * S, 110)]), 115 * S)
        await wait_until_async(lambda: fills(store), "a filled gap")
    assert times(store, "a") == [*range(101, 111)]


async def test_values_that_a_server_discarded_are_read_from_its_history() -> None:
    """The tags of an overflow are compared with the store for its time, once what came after is committed."""
    store = FakeStore()
    delivery = await made(store, tag("a"), tag("b"))
    stored = FakeStored({1: {t * S for t in (100, 103, 108)}})
    async with filling(delivery, store, FakeHistory(), stored) as fill:
        delivery.add_gap(SERVER_QUEUE_OVERFLOW, 100 * S, 108 * S, 5, [1], exact=True)
        await wait_until_async(lambda: fills(store), "a filled gap")
        assert fill.gaps_open == 0
    assert times(store, "a") == [101, 102, 104, 105, 106, 107]
    assert fills(store)[0]["cause"] == "gap"
    assert times(store, "b") == []


@pytest.mark.parametrize("is_final, key", [(True, "tags_without_history"), (False, "tags_failed")])
def test_a_refused_history_is_said_and_ends(is_final: bool, key: str) -> None:
    """Without the service at once; after a number of attempts, each asking for less, where calls fail."""

    async def story() -> None:
        store = FakeStore()
        delivery = await made(store, tag("a"), tag("b"))
        history = FakeHistory(HistoryRefused("BadSomething", is_final=is_final))
        async with filling(delivery, store, history, FakeStored()):
            await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 1), Sample(2, 100 * S, 1)]), 100 * S)
            await lose_and_return(delivery, 101, 110)
            await wait_until_async(lambda: fills(store), "the end of the attempts")
            (said,) = fills(store)
            assert (said[key], said["tags"], said["values"]) == (2, ["tag:a", "tag:b"], 0)
        if is_final:
            assert len(history.calls) == 1
        else:
            assert history.calls[0] == (2, backfill.VALUES_PER_READ_MAX)
            assert history.calls[-1][0] == 1
            assert len(history.calls) >= backfill.CALLS_FAILED_MAX

    run_virtual(story())


async def test_a_passing_failure_costs_nothing() -> None:
    """A call that times out is repeated, smaller, and the gap is filled."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    history = FakeHistory(HistoryRefused("TimeoutError", is_final=False), times=2)
    async with filling(delivery, store, history, FakeStored()):
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await lose_and_return(delivery, 101, 110)
        await wait_until_async(lambda: fills(store), "a filled gap")
    assert times(store, "a") == list(range(100, 111))


async def test_a_session_that_ends_amid_a_page_loses_no_value() -> None:
    """The store refuses what was read, and the session ends: the next one finishes."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    history = FakeHistory()
    recorder = Recorder("plc", "plant-a", store, (Busy,), "facts.operational")
    fill = HistoryBackfill(delivery, recorder, FakeStored(), 1_000_000)
    await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
    await lose_and_return(delivery, 101, 110)
    for refusing in (True, False):
        store.refusing = refusing
        async with TaskGroup() as group:
            session = group.create_task(fill.run(history), name="fill")
            if refusing:
                await wait_until_async(lambda: recorder.refused_total, "a refusal")
            else:
                await wait_until_async(lambda: fills(store), "a filled gap")
            session.cancel()
    assert times(store, "a") == list(range(100, 111))


async def in_two_sessions(
    store: FakeStore, history: FakeHistory, stored: FakeStored, is_amid: Callable[[Recorder], object]
) -> Recorder:
    """An outage of ten seconds is filled: by a session that ends when `is_amid`, and by the next one."""
    delivery = await made(store, tag("a"))
    recorder = Recorder("plc", "plant-a", store, (Busy,), "facts.operational")
    fill = HistoryBackfill(delivery, recorder, stored, 1_000_000)
    delivery.on_gap(fill.note_gap)
    await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
    await lose_and_return(delivery, 101, 110)
    for end in (lambda: is_amid(recorder), lambda: fills(store)):
        async with TaskGroup() as group:
            session = group.create_task(fill.run(history), name="fill")
            await wait_until_async(end, "the session's end")
            session.cancel()
    return recorder


@pytest.mark.virtual_time(False)
async def test_a_session_that_ends_while_the_store_is_searched_leaves_its_piece() -> None:
    """The next session searches for it again, and fills it."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow(FakeStored):
        def sample_times(self, *given: Any, **named: Any) -> Any:
            begun.set()
            assert may_end.wait(LIMIT_S)
            return super().sample_times(*given, **named)

    def is_amid(_: Recorder) -> bool:
        if begun.is_set():
            asyncio.get_running_loop().call_soon(may_end.set)
        return begun.is_set()

    store = FakeStore()
    await in_two_sessions(store, FakeHistory(), Slow(), is_amid)
    assert times(store, "a") == list(range(100, 111))


async def test_a_session_that_ends_before_its_result_is_recorded_leaves_it() -> None:
    """The store takes the values and refuses the fact about them: the next session records it."""

    class Full(FakeStore):
        refuses_results = True

        def append_message(self, stream: str, message: Message) -> Future[Any]:
            if self.refuses_results and message.fact.predicate == "history_backfilled":
                raise Busy("full")
            return super().append_message(stream, message)

    def is_amid(recorder: Recorder) -> bool:
        store.refuses_results = not recorder.refused_total
        return not store.refuses_results

    store = Full()
    await in_two_sessions(store, FakeHistory(), FakeStored(), is_amid)
    (said,) = fills(store)
    assert (said["values"], said["tags_filled"]) == (9, 1)


async def test_a_new_session_continues_no_page_of_the_one_before() -> None:
    """A continuation point is of its session: the next one begins the page again, after what is recorded."""
    continued = list[bytes | None]()

    class Paging(FakeHistory):
        async def read_history(self, ranges: Any, nodes: Any, values_max: int) -> list[HistoryPage]:
            continued.extend(one.continuation_point for one in ranges)
            if ranges[0].continuation_point is not None:
                await asyncio.Event().wait()
            (page,) = await super().read_history(ranges, nodes, 3 if len(continued) == 1 else values_max)
            return [page._replace(continuation_point=b"more" if len(continued) == 1 else b"")]

    store = FakeStore()
    await in_two_sessions(store, Paging(), FakeStored(), lambda _: len(continued) == 2)
    assert continued == [None, b"more", None]
    assert times(store, "a") == list(range(100, 111))


async def test_history_is_read_at_its_rate_and_committed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page is asked for when the one before is committed, and after the pause that its values are worth: an
    hour of history neither fills the memory nor keeps live values waiting."""
    pauses, commits = list[float](), list[Future[Any]]()
    sleep = asyncio.sleep

    class Slow(FakeStore):
        def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
            super().append_columns(stream, columns)
            commits.append(Future())
            return commits[-1]

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0 if seconds > 0.01 else seconds)  # tidy: what the product asks for, or nothing

    monkeypatch.setattr(backfill, "VALUES_PER_READ_MAX", 4)
    store, history = FakeStore(), FakeHistory()
    delivery = await made(store, tag("a"))
    recorder = Recorder("plc", "plant-a", Slow(), (Busy,), "facts.operational")
    fill = HistoryBackfill(delivery, recorder, FakeStored(), 4)
    await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
    await lose_and_return(delivery, 101, 110)
    recorder._store.definitions.extend(store.definitions)  # type: ignore[attr-defined]
    monkeypatch.setattr(backfill.asyncio, "sleep", pause)
    async with TaskGroup() as group:
        session = group.create_task(fill.run(history), name="fill")
        for page in (1, 2):
            await wait_until_async(lambda page=page: len(commits) == page, "a page")
            for _ in range(5):
                await sleep(0)
            assert len(history.calls) == page
            commits[-1].set_result(None)
        await wait_until_async(lambda: pauses.count(1.0) == 2, "the pauses")
        session.cancel()


async def test_a_range_asked_for_by_hand_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags and hours are taken in pieces whose times fit into memory; a piece with too many times is halved."""
    monkeypatch.setattr(backfill, "SLICE_TAGS", 2)
    monkeypatch.setattr(backfill, "SLICE_NS", 100 * S)
    monkeypatch.setattr(backfill, "STORED_TIMES_MAX", 150)
    store = FakeStore()
    delivery = await made(store, tag("a"), tag("b"), tag("c"))
    stored = FakeStored({1: {t * S for t in range(100, 260)}, 2: {t * S + n for t in range(100, 260) for n in (0, 1)}})
    async with filling(delivery, store, FakeHistory(), stored) as fill:
        fill.request(100 * S, 400 * S)
        await wait_until_async(lambda: fills(store), "a filled gap")
    assert times(store, "a") == list(range(260, 400))
    assert times(store, "b") == list(range(260, 400))
    assert times(store, "c") == list(range(100, 400))
    assert max(numbers for numbers, _, _ in stored.asked) == 4
    assert min(numbers for numbers, _, _ in stored.asked) == 2


async def test_a_range_asked_for_by_hand_ends_before_what_may_still_arrive() -> None:
    """Values of the last ten seconds may still come by subscription, and each is recorded once: they are not read, also
    if the operator asks for more."""
    store = FakeStore()
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, FakeHistory(), FakeStored()) as fill:
        fill.request(980 * S, 2_000 * S)
        await wait_until_async(lambda: fills(store), "a filled gap")
    assert times(store, "a") == list(range(980, 990))


async def test_what_old_subscriptions_brought_is_not_read() -> None:
    """The filling waits for them. The fact names the outage and counts their values; of the other tags history is
    read, and in the next outage, which no subscription bridges, of all."""
    store = FakeStore()
    delivery = await made(store, tag("a"), tag("b"))
    history = FakeHistory()
    async with filling(delivery, store, history, FakeStored()) as fill:
        await delivery.deliver(SampleColumns.of([Sample(n, 100 * S, 100) for n in (1, 2)]), 100 * S)
        fill.await_rescue()
        await lose_and_return(delivery, 101, 110)
        fill.request(10 * S, 11 * S)
        await wait_until_async(lambda: len(fills(store)) == 1, "work beside")
        fill.request(10 * S, 12 * S)
        await wait_until_async(lambda: len(fills(store)) == 2, "work beside")
        assert fill.gaps_open == 1
        fill.rescued({1}, 9)
        await wait_until_async(lambda: len(fills(store)) == 3, "the fact")
        await lose_and_return(delivery, 120, 130)
        await wait_until_async(lambda: len(fills(store)) == 4, "the next outage")
    said, later = fills(store)[-2:]
    assert (said["tags_rescued"], said["values_rescued"], said["tags_filled"], said["values"]) == (1, 9, 1, 9)
    assert said["outages"] == ["1970-01-01T00:01:41Z"]
    assert [t for t in times(store, "a") if t >= 100] == [100, *range(110, 131)]
    assert (later["tags_rescued"], later["values_rescued"], later["tags_filled"]) == (0, 0, 2)


@pytest.mark.parametrize("status", [quality.BAD_NODE_ID_UNKNOWN, quality.BAD_USER_ACCESS_DENIED])
def test_the_second_meaning_of_an_address_has_the_history(status: int) -> None:
    """`s=a[3]` is a node of that name or an element of the array `a`; where the node does not exist, the array is read,
    also at a server (open62541) that denies access to a node that it has not."""

    async def story() -> None:
        store = FakeStore()
        element = Reading(NodeAddress(STANDARD_URI, "a"), "3")
        whole = Reading(NodeAddress(STANDARD_URI, "a[3]"))
        delivery = await made(store, dataclasses.replace(plain_tag("a"), point=TagPoint((whole, element))))
        history = FakeHistory()
        history.missing, history.missing_status = {"a[3]"}, status
        async with filling(delivery, store, history, FakeStored()):
            await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
            await lose_and_return(delivery, 101, 110)
            await wait_until_async(lambda: fills(store), "a filled gap")
        assert fills(store)[0]["tags_filled"] == 1
        assert times(store, "a") == list(range(100, 111))

    run_virtual(story())


class SlowStore(FakeStore):
    """Takes samples, and commits them when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Future[None]] = []
        self.is_slow = False

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        found = super().append_columns(stream, columns)
        if not self.is_slow:
            return found
        self.waiting.append(Future())
        return self.waiting[-1]


async def test_the_store_is_asked_when_live_values_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set back into the gap gives live values the times of the gap. The store is not asked while such
    values are on their way to it."""
    store, stored = SlowStore(), FakeStored()
    delivery = await made(store, tag("a"))
    is_asked, committed = asyncio.Event(), delivery.recorder.committed

    async def asked() -> None:
        is_asked.set()
        await committed()

    monkeypatch.setattr(delivery.recorder, "committed", asked)
    async with filling(delivery, store, FakeHistory(), stored):
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        store.is_slow = True
        await lose_and_return(delivery, 101, 110)
        await delivery.deliver(SampleColumns.of([Sample(1, 105 * S, 105)]), 110 * S)
        await wait_until_async(lambda: len(store.waiting) == 3, "values on their way")
        await is_asked.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert stored.asked == []
        stored.times = {1: {105 * S}}
        store.is_slow = False
        for future in store.waiting:
            future.set_result(None)
        await wait_until_async(lambda: fills(store), "a filled gap")
    assert times(store, "a") == list(range(100, 111))


class GoingHistory(FakeHistory):
    """A server whose clock goes, from a time on."""

    def __init__(self, now_ns: int) -> None:
        super().__init__()
        self._begun_ns = now_ns - time.monotonic_ns()

    @property
    def shown_ns(self) -> int:
        return self._begun_ns + time.monotonic_ns()

    async def clock_ns(self) -> int | None:
        return self.shown_ns


async def test_a_gap_is_read_at_once_when_it_has_ended() -> None:
    """Although the server's clock stands right behind it: a clock that goes on as ours does was not set back into
    it."""
    store, history = FakeStore(), GoingHistory(110 * S)
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, FakeStored()) as fill:
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await lose_and_return(delivery, 101, 110)
        await wait_until_async(lambda: fills(store), "a filled gap")
        assert times(store, "a") == list(range(100, 111))
        assert fill.gaps_open == 0


@pytest.mark.parametrize("is_seen", [True, False])
async def test_a_gap_in_which_the_clock_stands_again_is_filled_in_two_readings(
    monkeypatch: pytest.MonkeyPatch, *, is_seen: bool
) -> None:
    """The server's clock was set back into the gap: what it records now comes live as well, so the last seconds are
    left out, and read when they are over and the store has what came live. Its clock is asked behind each reading:
    what has come of it live may be older."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 0.5)
    store, stored, history = FakeStore(), FakeStored(), FakeHistory()
    delivery = await made(store, tag("a"))
    async with filling(delivery, store, history, stored) as fill:
        now_s = 150
        fill.now_ns = lambda: (now_s if is_seen else 1_000) * S
        history.now_ns = 150 * S
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await lose_and_return(delivery, 101, 200)
        await wait_until_async(lambda: fills(store), "the first reading")
        assert set(times(store, "a")) >= {*range(100, 139), *range(154, 201)}
        assert not set(times(store, "a")) & set(range(141, 152))
        assert fill.gaps_open == 1
        stored.times = {1: {145 * S}}
        now_s, history.now_ns = 170, 170 * S
        await wait_until_async(lambda: len(fills(store)) == 2, "the second reading")
    assert times(store, "a") == [t for t in range(100, 201) if t != 145]


async def test_a_time_that_comes_again_is_read_when_its_values_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reading reaches beyond what the server's clock showed at the first one. The store is asked when that
    time is over, and what was sampled in it had the time to come."""
    monkeypatch.setattr(backfill, "COMMITTED_S", 0.5)
    store, stored, history = FakeStore(), FakeStored(), GoingHistory(150 * S)
    delivery = await made(store, tag("a"))
    shown_ns: list[int] = []

    async def committed() -> None:
        shown_ns.append(history.shown_ns)

    monkeypatch.setattr(delivery.recorder, "committed", committed)
    async with filling(delivery, store, history, stored):
        await delivery.deliver(SampleColumns.of([Sample(1, 100 * S, 100)]), 100 * S)
        await lose_and_return(delivery, 101, 200)
        await wait_until_async(lambda: len(fills(store)) == 2, "the second reading")
    (_, _, last_ns) = stored.asked[-1]
    assert last_ns > 151 * S
    assert shown_ns[-1] >= last_ns + S // 2


async def test_a_bounded_number_of_holes_waits() -> None:
    """However often a clock is set back while the store is busy. Beyond the limit holes are merged, and no tag or time
    of one is left out."""
    delivery = await made(FakeStore(), tag("a"))
    fill = HistoryBackfill(delivery, delivery.recorder, FakeStored(), 1)
    days = range(1, 3 * backfill.HOLES_MAX)
    for day in days:
        fill._add_hole(day * 86_400 * S, (day * 86_400 + 1) * S, {day})
    assert len(fill._holes) == backfill.HOLES_MAX
    for day in days:
        first_ns = day * 86_400 * S
        assert any(day in one.tags and one.first_ns <= first_ns < one.last_ns for one in fill._holes)
