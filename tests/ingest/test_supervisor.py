"""The lives of a source, with a driver whose fate the test decides."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from agent.columns import SampleColumns
from agent.concurrency import TaskGroup
from agent.ingest.completeness import Moment
from agent.ingest.delivery import Delivery
from agent.ingest.errors import NoHistory, NotConnected, SourceBusy, SourceLost, SourceRefused, UnknownSource
from agent.ingest.lifecycle import State
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.quality import BAD_COMMUNICATION_ERROR, TAG_REMOVED
from agent.ingest.supervision import EventStatistics, supervisor
from agent.ingest.tags.file import load_tag_maps
from agent.ingest.tags.tag_map import TagMap
from agent.message import Sample, TagDefinition, time_text
from tests.ingest.fakes import FakeStore, SlowStore
from tests.ingest.lives import TAGS, PlayedSource, deliver, gaps
from tests.ingest.plant import ingesting, opcua
from tests.waiting import LIMIT_S, wait_until_async


@pytest.mark.parametrize("death", [AssertionError("ours"), ExceptionGroup("tasks", [AssertionError("ours")])])
def test_our_own_mistake_ends_the_process(played: PlayedSource, death: Exception) -> None:
    """An assertion that fails, in a source or in one of its tasks, is not counted as a lost source."""
    played.dies(death)

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), played.ingesting():
            await asyncio.Event().wait()

    with pytest.raises(BaseExceptionGroup) as ended:
        asyncio.run(scenario())
    assert ended.group_contains(AssertionError, match="ours")


async def test_a_source_stops_though_its_cancellation_became_an_error(played: PlayedSource) -> None:
    """A life that answers its cancellation with an error is the last one: ingest stops, and begins no other."""
    lives = []

    async def life(*_: object) -> None:
        lives.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(lives) == 1:
                raise SourceLost("request cancelled") from None
            raise

    played.lives(life)
    async with asyncio.timeout(LIMIT_S), played.ingesting():
        await wait_until_async(lambda: lives, "the first life")
    assert len(lives) == 1


@pytest.mark.parametrize(
    "death", [SourceBusy("full"), ExceptionGroup("a", [ExceptionGroup("b", [SourceBusy("full")])])]
)
async def test_a_server_without_room_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource, death: Exception
) -> None:
    """Whatever the back-off says, and also when a task of the source was told so."""
    played.dies(death)
    monkeypatch.setattr(supervisor.Backoff, "wait_ms", lambda *_: 3_600_000)
    monkeypatch.setattr(supervisor, "BUSY_WAIT_S", 0.0)
    async with played.ingesting() as run:
        await run.wait_good("plant/x", 1)


async def test_stopping_waits_for_the_last_commit(played: PlayedSource) -> None:
    """Ingest ends when what its sources delivered is committed, not when the store has taken it."""
    played.dies(None)
    store = SlowStore()

    async def commit() -> None:
        await wait_until_async(lambda: store.waiting, "the first sample")
        running.ingest.stop()
        for _ in range(20):
            await asyncio.sleep(0)
        states.append(running.source("meter").values_total)
        for appended in store.waiting:
            appended.set_result(None)

    states = list[int]()
    async with TaskGroup() as group, played.ingesting(store=store) as running:
        group.create_task(commit(), name="commit")
        await wait_until_async(lambda: states, "the commit")
    assert states == [0]
    assert running.source("meter").values_total == 2


async def test_a_loss_begins_where_the_source_was_complete(played: PlayedSource) -> None:
    """Also the bad sample has that time. One gap fact declares the loss when the source is back."""
    played.dies(SourceLost("gone"), alive_ns=10**9)
    store = FakeStore()
    async with played.ingesting(store=store) as run:
        await run.wait_good("plant/x", 1)
        await wait_until_async(lambda: gaps(store), "the gap")
        (gap,) = gaps(store)
        assert (gap[0], gap[2:]) == ("1970-01-01T00:00:01Z", (0, False))
        lost = store.of("plant/x")[1]
        assert (lost.source_time_ns, lost.quality) == (10**9 + 1, BAD_COMMUNICATION_ERROR)


@pytest.mark.parametrize("missed", [True, False])
async def test_a_source_that_missed_nothing_declares_nothing(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource, *, missed: bool
) -> None:
    """Its server kept what came while it was away. A life that ends before the source has returned does not decide."""
    played.dies(SourceLost("gone"))
    asked = list[str]()

    def take_missed(self: ModbusSource) -> bool:
        asked.append(self.name)
        return missed

    monkeypatch.setattr(ModbusSource, "name", "meter", raising=False)
    monkeypatch.setattr(ModbusSource, "take_missed", take_missed)
    async with played.ingesting() as run:
        await run.wait_good("plant/x", 1)
        await wait_until_async(lambda: len(asked) == 2, "the return")
    assert len(gaps(run.store)) == missed


async def test_a_source_returns_with_a_value(played: PlayedSource, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that comes up and gives nothing is no return, nor is one that gives a value and is lost before it is
    up: the log does not say so, and the outage goes on, since what the first life was complete up to."""
    lives = [(True, True), (True, False), (False, True), (True, False), (True, True)]  # is up, has a value
    begun = list[Moment]()

    async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
        is_up, has_value = lives[len(begun)]
        source.complete = source.clock.now()
        begun.append(source.complete)
        if is_up:
            on_up()
        if has_value:
            await deliver(source, source.complete.time_ns, float(len(begun)))
        if len(begun) < len(lives):
            raise SourceLost("gone")
        await asyncio.Event().wait()

    played.lives(life)
    with caplog.at_level(logging.INFO, "agent.ingest"):
        async with played.ingesting() as running:
            await running.wait_good("plant/x", 2)
            await wait_until_async(lambda: gaps(running.store), "the gap")
            assert running.source("meter").connects_total == 4
    actions = [record.action for record in caplog.records if hasattr(record, "action")]
    assert actions == ["source_connected", "source_lost", "source_returned"]
    assert {first for first, *_ in gaps(running.store)} == {time_text(begun[0].time_ns)}


async def test_each_reason_of_an_outage_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Attempts that fail as the one before are not logged; one that fails for another reason is."""
    played.dies(SourceLost("gone"))
    reasons = [SourceLost("no route"), SourceLost("no route"), SourceRefused("who are you?"), SourceLost("no route")]
    alive = ModbusSource.run

    async def run(self: ModbusSource, on_up: Callable[[], None]) -> None:
        if self.complete and reasons:
            raise reasons.pop(0)
        await alive(self, on_up)

    monkeypatch.setattr(ModbusSource, "run", run)
    with caplog.at_level(logging.WARNING, "agent.ingest"):
        async with played.ingesting() as running:
            await running.wait_good("plant/x", 1)
    found = [record.why for record in caplog.records if getattr(record, "action", "") == "source_lost"]
    assert found == ["SourceLost: gone", "SourceLost: no route", "SourceRefused: who are you?"]


def renamed(played: PlayedSource) -> TagMap:
    """The tag map with another name."""
    source = played.settings(TAGS.replace("plant/", "press/"))
    return load_tag_maps([source])[source.name]


async def test_a_map_that_comes_while_tags_are_numbered_is_used(played: PlayedSource) -> None:
    """The tag file changes while the store, at the start, numbers the tags that it had: the source begins with the new
    ones. The others had values in the process before, perhaps, and are out of service."""
    played.dies(None)

    class Slow(FakeStore):
        asked = 0

        def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
            self.asked += 1
            numbers = super().define(definitions)
            return first if self.asked == 1 else numbers

    store, first = Slow(), Future[list[int]]()
    async with played.ingesting(store=store) as run:
        await wait_until_async(lambda: store.asked, "the numbering")
        run.ingest._offer("meter", renamed(played))
        first.set_result([1, 2])
        await run.wait_good("press/x")
    assert [sample.quality for sample in store.of("plant/x")] == [TAG_REMOVED]


async def test_a_map_that_the_store_fails_to_number_is_numbered_later(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource
) -> None:
    """The problem is in the statistics until then."""
    played.dies(None)
    monkeypatch.setattr(supervisor, "NUMBERING_RETRY_S", 0.05)
    store = FakeStore()
    async with played.ingesting(store=store) as run:
        await run.wait_good("plant/x")
        with monkeypatch.context() as patched:
            patched.setattr(store, "define", Mock(side_effect=OSError("the disk")))
            run.ingest._offer("meter", renamed(played))
            await wait_until_async(lambda: "the disk" in run.source("meter").tags_problem, "the problem")
        await wait_until_async(lambda: len(store.definitions) == 4, "the numbering")
        delivery = run.ingest._by_name["meter"]._delivery
        await wait_until_async(lambda: delivery.has_pending_map, "the offer")
        assert not run.source("meter").tags_problem


async def test_a_changed_source_ends_before_it_begins_again(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource
) -> None:
    """A device may accept one connection only. What watched the tag files before has ended too."""
    happened = list[str]()

    async def run(self: ModbusSource, _: object) -> None:
        happened.append(f"begins at {self._settings.port}")
        await asyncio.Event().wait()

    async def finish(self: ModbusSource) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        happened.append(f"ends at {self._settings.port}")

    monkeypatch.setattr(ModbusSource, "run", run)
    monkeypatch.setattr(ModbusSource, "finish", finish)
    async with played.ingesting() as running:
        await wait_until_async(lambda: happened, "the source")
        changed = played.settings(port=2)
        await running.ingest.change([changed], load_tag_maps([changed]))
        await wait_until_async(lambda: len(happened) == 3, "the source again")
        assert happened == ["begins at 1", "ends at 1", "begins at 2"]
        watching = lambda: [task.get_name() for task in asyncio.all_tasks()].count("tag files")  # noqa: E731
        await wait_until_async(lambda: watching() == 1, "the end of the watch before")


async def test_a_person_ends_the_waiting(played: PlayedSource) -> None:
    """A source that waits for an hour is connected at once when somebody asks for it; a wrong name is answered with the
    names there are."""
    played.dies(SourceLost("gone"))
    hour = {"reconnect_delay_ms": 60_000, "reconnect_delay_max_ms": 3_600_000}
    async with ingesting(played.settings(**hour)) as run:
        await run.wait_state("meter", State.WAITING)
        with pytest.raises(UnknownSource, match="no source 'metre'; the sources of this node: meter"):
            run.ingest.retry("metre")
        assert run.ingest.retry("meter") == "waiting"
        await run.wait_good("plant/x", 1)
        assert run.ingest.retry("meter") == "connected"


async def test_after_a_person_asked_the_waits_begin_anew(monkeypatch: pytest.MonkeyPatch, played: PlayedSource) -> None:
    """Each short life counts as one more failure in a row, though it was connected, until then: a person who has mended
    the device waits no hour for the next attempt."""
    played.dies(*[SourceLost("gone")] * 3)
    failures = list[int]()

    def wait_ms(_: supervisor.Backoff, count: int, __: float) -> int:
        failures.append(count)
        return 0 if count == 1 else 3_600_000

    monkeypatch.setattr(supervisor.Backoff, "wait_ms", wait_ms)
    async with played.ingesting() as run:
        await wait_until_async(lambda: len(failures) == 2, "the long wait")
        await wait_until_async(lambda: run.ingest.retry("meter") == "connected", "the fourth life")
    assert failures == [1, 2, 1]


async def test_a_stop_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that commits no more holds up no stop, and the log says that samples may be missing."""
    played.dies(None)
    monkeypatch.setattr(supervisor, "DRAIN_S", 0.01)
    store = SlowStore()
    async with played.ingesting(store=store):
        await wait_until_async(lambda: store.waiting, "the first sample")
    (found,) = [record for record in caplog.records if "too long" in record.message]
    assert (vars(found)["action"], vars(found)["source"]) == ("source_not_drained", "meter")


async def test_what_a_person_asks_of_a_source_reaches_it(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource, tmp_path: Path
) -> None:
    """A time to fill, tags to read and a second try reach the source that is connected; its counters are in the
    status. Before the first connection each is refused with the reason."""
    up = asyncio.Event()
    asked = Mock(
        polls_total=9,
        polls_missed_total=6,
        polls_late_total=7,
        clock=Mock(ahead_ns=None),
        backfill=Mock(gaps_open=3, values_total=5),
    )
    asked.events.statistics.return_value = (1, 2, 3, 4)
    asked.events.end_recording = AsyncMock()
    asked.finish = AsyncMock()
    asked.read_tags = AsyncMock(return_value=[])
    asked.complete = None

    def source_of(delivery: Delivery) -> Any:
        async def run(on_up: Callable[[], None]) -> None:
            await up.wait()
            on_up()
            await delivery.deliver(SampleColumns.of([Sample(1, 10**18, 1.0)]), 10**18)
            await asyncio.Event().wait()

        asked.run = run
        return asked

    made = supervisor.make_source
    monkeypatch.setattr(
        supervisor, "make_source", lambda s, *more: source_of(more[0]) if s.name == "plc" else made(s, *more)
    )
    tags = "tag,address\nplant/a,nsu=urn:p;i=1\nplant/b,nsu=urn:p;i=2\n"
    async with ingesting(opcua(1, tmp_path, tags), played.settings()) as run:
        with pytest.raises(NoHistory, match="meter is a Modbus device"):
            run.ingest.backfill("meter", 1, 2)
        await run.wait_state("plc", State.CONNECTING)
        with pytest.raises(NotConnected, match="plc is connecting: no value yet"):
            await run.ingest.read_tags("plc", ["plant/a"])
        up.set()
        await run.wait_state("plc", State.CONNECTED)
        assert run.ingest.backfill("plc", 1, 2) == 3
        asked.backfill.request.assert_called_once_with(1, 2)
        await run.ingest.read_tags("plc", ["plant/b"])
        assert [tag.name for tag in asked.read_tags.call_args.args[0]] == ["plant/b"]
        run.ingest.retry("plc")
        asked.retry.assert_called_once_with()
        found = run.source("plc")
        assert (found.gaps_open, found.backfilled_total, found.events) == (3, 5, EventStatistics(1, 2, 3, 4))
        assert (found.polls_total, found.polls_missed_total, found.polls_late_total, found.tags_silent) == (9, 6, 7, 1)
        asked.backfill = None
        with pytest.raises(NoHistory, match="history_values_per_s_max is 0"):
            run.ingest.backfill("plc", 1, 2)
