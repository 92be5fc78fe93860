"""What an earlier process stored, and what it could not: the time without a process is declared."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from agent.ingest.completeness import Stored
from agent.ingest.errors import SourceLost
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.ports import StoredFacts
from agent.ingest.tags.file import load_tag_maps
from agent.message import time_text
from tests.ingest.fakes import FakeStore, Program
from tests.ingest.lives import PlayedSource, before, deliver, gaps, reasons
from tests.ingest.plant import ingesting, modbus, opcua
from tests.ingest.simulated import Before as StoredBefore
from tests.waiting import wait_until_async

S = 10**9
NOON = 2 * 365 * 86_400 * S + 43_200 * S
BEFORE = before(10**9, 3 * 10**9, parts=("", "events"))


@pytest.mark.system
@pytest.mark.parametrize("kind", ["subscribe", "poll", "modbus"])
async def test_a_process_that_is_killed_in_its_first_seconds_leaves_a_gap(
    plc: Program, meter: Program, tmp_path: Path, kind: str
) -> None:
    """Up to when its values and its events are complete is stored before its first value. So the next process, and one
    after it, begin their gap there."""
    events = ("Server",) if kind == "subscribe" else ()
    source = modbus(meter.port, tmp_path) if kind == "modbus" else opcua(plc.port, tmp_path, mode=kind, events=events)
    async with ingesting(source) as run:
        await wait_until_async(lambda: run.store.samples, "a value")
    assert {part for _, part in run.store.before[0][1]} == ({"", "events"} if events else {""})


async def test_a_value_of_an_earlier_process_is_the_last_one(played: PlayedSource) -> None:
    """A quiet source records nothing after a restart; its last value is the one in the store, not none."""

    async def run_quietly(*_: object) -> None:
        await asyncio.Event().wait()

    played.lives(run_quietly)
    async with played.ingesting(stored=BEFORE) as run:
        await wait_until_async(lambda: run.ingest.statistics()[0].last_value_unix_ms == 3_000, "the stored time")


async def test_a_source_that_does_not_return_stays_complete_up_to_then(played: PlayedSource) -> None:
    """A process that ends before the return leaves what it found to the next one, whatever it has recorded."""

    async def life(source: ModbusSource, __: Callable[[], None]) -> None:
        source.complete = source.clock.now()
        await source._delivery.note_complete({"": Stored(source.clock.now_ns())})
        raise SourceLost("gone")

    played.lives(life)
    store = FakeStore()
    async with played.ingesting(store=store, stored=BEFORE) as run:
        await wait_until_async(lambda: run.store.of("plant/x"), "the bad sample")
    assert (store.complete, reasons(store)) == ({}, [])


async def test_a_stop_between_the_first_value_and_the_return_declares_the_gap(played: PlayedSource) -> None:
    """Otherwise the store would hold values after a loss that no fact names, until a next process."""
    is_first = asyncio.Event()

    async def life(source: ModbusSource, _: Callable[[], None]) -> None:
        await deliver(source, source.clock.now_ns())
        is_first.set()
        await asyncio.Event().wait()

    played.lives(life)
    store = FakeStore()
    async with played.ingesting(store=store, stored=BEFORE):
        await is_first.wait()
    assert reasons(store) == ["agent_stopped"]


@pytest.mark.parametrize("shown_s", [4, -3_600, 60 - NOON // S, NOON // S], ids=["stands", "behind", "1970", "ahead"])
async def test_a_stop_is_as_long_as_a_clock_says_that_is_set_later(played: PlayedSource, shown_s: int) -> None:
    """A gateway without a battery clock is switched off at noon for eight hours. Its clock goes on from then, from an
    hour before, from 1970, or from years later; the node is restarted, and then a time server sets the clock. The last
    gap fact has the eight hours; none covers values from before, or years that never were."""
    began_ns, off_ns, is_last = NOON + shown_s * S, 8 * 3_600 * S, False
    ours = [0, began_ns]  # since the start of the machine, and the clock

    async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
        source.clock._ours = lambda: (ours[0], ours[1])
        on_up()
        await turn(source, 1)
        if is_last:
            await turn(source, 9, NOON + off_ns + 9 * S)
        await asyncio.Event().wait()

    async def turn(source: ModbusSource, passed_s: int, set_to_ns: int = 0) -> None:
        ours[:] = ours[0] + passed_s * S, set_to_ns or ours[1] + passed_s * S
        source.complete = source.clock.now()
        await deliver(source, source.complete.time_ns)
        await source._delivery.deliver_due(source.complete.time_ns)
        await source._delivery.note_complete({"": source.clock.stored(source.complete)})

    played.lives(life)
    store = FakeStore()
    store.complete["meter", ""] = Stored(NOON)
    for is_last in (False, True):
        stored = cast(StoredFacts, StoredBefore(store))
        async with played.ingesting(store=store, stored=stored, doubted=lambda: [(began_ns, began_ns + 60 * S)]) as run:
            await (run.wait_good("plant/x") if is_last else wait_until_async(lambda: store.samples, "a value"))
    assert set(reasons(store)) == {"agent_stopped"}
    *others, last = [gap[:2] for gap in gaps(store)]
    assert last == (time_text(NOON), time_text(NOON + off_ns))
    if shown_s == 60 - NOON // S:  # what the clock says of the restart, too
        assert others.pop() == (time_text(61 * S), time_text(62 * S))
    assert others in ([(last[0], last[0])], [(last[0], time_text(NOON + n * S)) for n in (5, 6)])
    assert list(store.complete) == [("meter", "")]


@pytest.mark.parametrize("shown_s, until_s", [(-1_800, 0), (10_000 - NOON // S, 0), (3_600, 3_600)])
async def test_the_clock_of_a_server_that_was_set_while_ours_was_not_believed(
    played: PlayedSource, shown_s: int, until_s: int
) -> None:
    """After an hour without a process it shows half an hour less, 1970, or the right time. The gap fact has what it
    says, or no time if that cannot be; when the clock of the node is believed again, another has the hour."""
    ours, shown_ns = [0, S], NOON + shown_s * S

    async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
        source.clock.is_ours, source.clock._ours = False, lambda: (ours[0], ours[1])
        source.clock.continue_from(Stored(NOON, 0))
        source.clock.note_reading(shown_ns, None)
        on_up()
        await deliver(source, source.clock.now_ns())
        ours[:] = S, NOON + 3_601 * S
        await source._delivery.deliver_due(source.clock.now_ns())
        await deliver(source, source.clock.now_ns())
        await asyncio.Event().wait()

    played.lives(life)
    store = FakeStore()
    store.complete["meter", ""] = Stored(NOON, 0)
    stored = cast(StoredFacts, StoredBefore(store))
    async with played.ingesting(store=store, stored=stored, doubted=lambda: [(0, 9 * S)]):
        await wait_until_async(lambda: len(store.samples) == 4, "the values")
    found = [gap[:2] for why, gap in zip(reasons(store), gaps(store), strict=True) if why == "agent_stopped"]
    hour = time_text(shown_ns - 3_600 * S), time_text(shown_ns)
    assert found == [(time_text(NOON), time_text(NOON + until_s * S)), hour][until_s > 0 :]


@pytest.mark.parametrize("reason", ["agent_stopped", "source_lost"])
async def test_a_tag_removed_before_the_return_has_its_gap(
    played: PlayedSource, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """The fact at the end of the outage does not name it any more, whether the outage goes on or begins."""
    has_begun = asyncio.Event()

    async def life(source: ModbusSource, _: Callable[[], None]) -> None:
        has_begun.set()
        await wait_until_async(lambda: source._delivery.has_pending_map, "the offer")
        if reason == "source_lost":
            source.complete = source.clock.now()
            raise SourceLost("gone")
        await take_over(source)
        await asyncio.Event().wait()

    async def take_over(source: ModbusSource) -> None:
        source._delivery.take_over_map(source.clock.now_ns())
        await source._delivery.recorder.settle()

    monkeypatch.setattr(ModbusSource, "finish", take_over)
    played.lives(life)
    other = played.other()
    async with played.ingesting(stored=BEFORE if reason == "agent_stopped" else None) as run:
        await has_begun.wait()
        run.ingest._offer("meter", load_tag_maps([other])["other"])
        await wait_until_async(lambda: run.store.of("plant/x"), "the removal")
    (gap,) = run.store.told()
    assert (gap["reason"], gap["tags"]) == (reason, ["tag:plant/x", "tag:plant/y"])


async def test_a_stop_right_after_the_clock_was_set_declares_the_time_as_it_was(played: PlayedSource) -> None:
    """The next process begins its gap on the clock as it is now, and does not know that it was set."""
    is_set = asyncio.Event()

    async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
        on_up()
        source.clock.note_reading(3_600 * 10**9, None)
        source.complete = source.clock.now()
        source.clock.note_reading(10**9, source.clock.least_ns())
        is_set.set()
        await asyncio.Event().wait()

    played.lives(life)
    store = FakeStore()
    async with played.ingesting(store=store):
        await is_set.wait()
    assert reasons(store) == ["clock_set_back"]
    assert gaps(store)[0][0].startswith("1970-01-01T01:00:00")


async def test_a_source_that_has_returned_is_complete_up_to_later(played: PlayedSource) -> None:
    """From its first good value on, what it has recorded is stored as complete: a later stop declares no gap that
    begins with an outage which is over."""

    async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
        on_up()
        await deliver(source, 5 * 10**9)
        while True:
            await source._delivery.note_complete({"": Stored(5 * 10**9)})
            await source._delivery.deliver_due(source.clock.now_ns())
            await asyncio.sleep(0)

    played.lives(life)
    async with played.ingesting(stored=BEFORE) as run:
        await wait_until_async(lambda: run.store.complete, "the stored time")
        assert run.store.complete == {("meter", ""): Stored(5 * 10**9)}


async def test_a_clock_that_is_set_during_a_loss_is_declared_twice(played: PlayedSource) -> None:
    """In its times as it is now, and as it was: a value of the loss may have either. A stop after the return declares
    nothing more."""
    readings = [3_600 * 10**9, 10**9]

    async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
        is_first = len(readings) == 2
        if readings:
            source.clock.note_reading(readings.pop(0), source.clock.least_ns())
        if is_first:
            source.complete = source.clock.now()
            on_up()
            await deliver(source, source.clock.now_ns())
            raise SourceLost("gone")
        on_up()
        await deliver(source, source.clock.now_ns())
        source.complete = source.clock.now()
        await asyncio.Event().wait()

    played.lives(life)
    store = FakeStore()
    async with played.ingesting(store=store) as run:
        await wait_until_async(lambda: len(reasons(run.store)) == 2, "the gaps")
    assert sorted(reasons(store)) == ["clock_set_back", "source_lost"]
    (as_it_was,) = (gap for gap, why in zip(gaps(store), reasons(store), strict=True) if why == "clock_set_back")
    assert as_it_was[0].startswith("1970-01-01T01:00:00")
