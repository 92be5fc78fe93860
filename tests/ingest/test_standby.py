"""One of two gateways of a zone stands by: its sources are warm and record nothing, until it begins to record."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent.columns import SampleColumns
from agent.ingest import Ingest, IngestPorts
from agent.ingest.completeness import Moment, Stored
from agent.ingest.errors import SourceLost, TagFileProblem
from agent.ingest.gap import POLLS_MISSED
from agent.ingest.lifecycle import Newest, State
from agent.ingest.modbus import source as modbus_source
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.ports import StoredFacts
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from agent.ingest.supervision import outages
from agent.ingest.supervision.joint_search import JointSearch
from agent.ingest.tags.file import load_tag_maps
from agent.ingest.tags.tag_map import TagMap
from agent.message import Message
from agent.settings.sources import SourceSettings
from tests.ingest.fakes import FakeStore, Program, running
from tests.ingest.lives import TAGS, Before, PlayedSource, before, deliver, gaps, reasons
from tests.ingest.modbus.field import field_device
from tests.ingest.plant import Running, ingesting, modbus, opcua
from tests.waiting import wait_until_async

S = 1_000_000_000
TURNS = {"subscribe": 20, "poll": 2, "modbus": 3}  # some seconds, more than `liveness_timeout_ms`
KINDS = pytest.mark.parametrize("kind", TURNS)


def source_of(kind: str, plc: Program, meter: Program, folder: Path) -> SourceSettings:
    """A quick source of this kind."""
    return modbus(meter.port, folder) if kind == "modbus" else opcua(plc.port, folder, mode=kind, poll_interval_ms=100)


async def stands_by(run: Running, turns: int = 1) -> None:
    """Until each source has stood by for so many turns."""
    for name in [source.name for source in run.ingest.statistics()]:
        await run.wait_state(name, State.STANDBY)
        until = run.source(name).turns_total + turns
        await wait_until_async(lambda name=name, until=until: run.source(name).turns_total >= until, "turns in standby")


def losses(store: FakeStore) -> list[str]:
    """The reasons of its gaps, without that of a machine too busy for ten polls a second."""
    return [reason for reason in reasons(store) if reason != POLLS_MISSED]


def has_all_values(store: FakeStore) -> bool:
    """Whether every tag has a good value."""
    return len({sample.tag for _, sample in store.samples if sample.quality == 0}) == len(store.definitions)


@pytest.mark.system
@KINDS
async def test_a_standby_records_nothing_and_begins_at_once(
    plc: Program, meter: Program, tmp_path: Path, kind: str
) -> None:
    """While it stands by, the source is connected and the store stays empty. Then every tag has a value, over the
    connection that was warm. At its end, what had arrived is committed and nothing is bad or missing. When it begins
    again, one gap says since when another gateway did not record."""
    store = FakeStore()
    async with ingesting(source_of(kind, plc, meter, tmp_path), store=store, is_recording=False) as run:
        (source,) = run.ingest.statistics()
        await stands_by(run, TURNS[kind])
        assert (store.samples, store.messages, store.complete) == ([], {}, {})
        assert (run.ingest.fitness(), run.source(source.name).tags_silent) == (1, 0)
        run.ingest.begin_recording(None)
        await wait_until_async(lambda: has_all_values(store), "a value of each tag")
        await run.wait_state(source.name, State.CONNECTED)
        assert (run.source(source.name).connects_total, run.source(source.name).errors_total) == (1, 0)
        await run.ingest.end_recording()
        count = len(store.samples)
        await stands_by(run, 2)
        assert len(store.samples) == count
        assert {sample.quality for _, sample in store.samples} == {0}
        assert losses(store) == []
        run.ingest.begin_recording(time.time_ns() - S)
        await wait_until_async(lambda: len(store.samples) > count and losses(store), "values, and the gap")
    assert losses(store) == ["leader_changed"]


@pytest.mark.system
@KINDS
async def test_a_source_lost_in_standby_is_shown_and_not_recorded(
    plc: Program, meter: Program, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits with a reason, and stands by again when its server is back."""
    monkeypatch.setattr(modbus_source, "STANDBY_LINE_S", 0.1)
    program, module = (meter, "modbus_server") if kind == "modbus" else (plc, "opcua_server")
    store = FakeStore()
    async with ingesting(source_of(kind, plc, meter, tmp_path), store=store, is_recording=False) as run:
        (source,) = run.ingest.statistics()
        await stands_by(run)
        program.kill()
        await run.wait_state(source.name, State.WAITING)
        assert run.source(source.name).last_error
        assert run.ingest.fitness() == 0
        with running(module, port=program.port):
            await stands_by(run)
            assert (store.samples, store.messages, store.complete) == ([], {}, {})


@pytest.mark.parametrize("connections_max", [1, 2])
async def test_an_idle_line_is_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, connections_max: int
) -> None:
    """A device that ends idle connections is connected again and again, which is no loss. One that accepts a single
    connection has it for the gateway that records. Either way, polls begin at once."""
    monkeypatch.setattr(modbus_source, "STANDBY_TICK_S", 0.02)
    opened = list[float]()
    ready = modbus_source.Line.keep_open

    async def noted(line: modbus_source.Line, age_s_max: float) -> None:
        opened.append(0.0 if line.is_open else 1.0)
        await ready(line, age_s_max)

    monkeypatch.setattr(modbus_source.Line, "keep_open", noted)
    with field_device("tcp,idle=0.1") as port:
        # No time-out: a busy machine may take longer than usual for a connection, which is no loss either.
        source = modbus(port, tmp_path, TAGS, connections_max=connections_max, poll_interval_ms=50, timeout_ms=20_000)
        async with ingesting(source, is_recording=False) as run:
            await stands_by(run, 30)
            if connections_max > 1:
                await wait_until_async(lambda: sum(opened) > 2, "connections that were opened again")
            assert (run.source("meter").errors_total, run.ingest.fitness()) == (0, 1)
            assert bool(opened) == (connections_max > 1)
            assert not [record for record in caplog.records if record.levelname == "WARNING"]
            run.ingest.begin_recording(None)
            await run.wait_good("plant/x")


# --- the lives of a source that stands by, with a driver whose fate the test decides -----------------------------------


async def obedient(source: ModbusSource, on_up: Callable[[], None]) -> None:
    """A life that gives a value every now and then."""
    on_up()
    while True:
        source.complete = source.clock.now()
        await deliver(source, source.complete.time_ns)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "complete_s, newest_s, lost_s, since_s, expected",
    [
        # The gap begins where the later of both gateways ended.
        (1, 1, 0, 2, ("leader_changed", "1970-01-01T00:00:02Z")),
        (None, 1, 0, 2, ("leader_changed", "1970-01-01T00:00:02Z")),
        (3, 1, 0, 2, ("agent_stopped", "1970-01-01T00:00:03Z")),
        # The other one led until second 9 without the device, and has recorded that as bad since second 4: nothing is
        # there since then, and no other fact says so.
        (2, 3, 4, 9, ("leader_changed", "1970-01-01T00:00:04Z")),
        # The other one failed while this one was off. It does not know up to when it has all of the other one: the gap
        # begins where this node ended, because newer samples do not show that the gaps between them are here. On a new
        # disk it begins with the newest sample.
        (3, 1, 0, None, ("agent_stopped", "1970-01-01T00:00:03Z")),
        (3, 500, 0, None, ("agent_stopped", "1970-01-01T00:00:03Z")),
        (3, 0, 0, None, ("agent_stopped", "1970-01-01T00:00:03Z")),
        (None, 1, 0, None, ("leader_changed", "1970-01-01T00:00:01Z")),
        (None, 500, 0, None, ("leader_changed", "1970-01-01T00:08:20Z")),
        (None, 0, 0, None, None),
    ],
)
async def test_where_the_gap_begins(
    played: PlayedSource,
    complete_s: int | None,
    newest_s: int,
    lost_s: int,
    since_s: int | None,
    expected: tuple[str, str] | None,
) -> None:
    """The start of a standby declares nothing, whatever its earlier process has left."""
    played.lives(obedient)
    store, stored = FakeStore(), before(complete_s and complete_s * S, newest_s * S, lost_s * S)
    async with played.ingesting(store=store, stored=stored, is_recording=False) as run:
        await stands_by(run)
        assert (store.samples, store.messages, store.complete) == ([], {}, {})
        run.ingest.begin_recording(since_s and since_s * S)
        await run.wait_good("plant/x", 2)
        await wait_until_async(lambda: store.messages or expected is None, "the gap")
    found = list(zip(reasons(store), [first for first, *_ in gaps(store)], strict=True))
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize("since_ns, gaps_first", [(2 * S, 1), (None, 0)])
async def test_a_leader_stores_its_gap_before_its_first_value(
    played: PlayedSource, since_ns: int | None, gaps_first: int
) -> None:
    """Its source gives a value before it has come up, which ends the gap: the value waits for the gap. Only then it
    says that its gaps are stored. In the first lead of all there is none, and nothing waits."""
    has_read, may_come_up = asyncio.Event(), asyncio.Event()

    async def slow(source: ModbusSource, on_up: Callable[[], None]) -> None:
        await deliver(source, 8 * S)
        has_read.set()
        await may_come_up.wait()
        on_up()
        await deliver(source, 9 * S)
        await asyncio.Event().wait()

    played.lives(slow)
    store, stored = FakeStore(), before(S if gaps_first else None, S if gaps_first else 0)
    async with played.ingesting(store=store, stored=stored, is_recording=False) as run:
        await stands_by(run)
        assert not run.ingest.gaps_stored()
        run.ingest.begin_recording(since_ns)
        await has_read.wait()
        assert (len(store.samples), run.ingest.gaps_stored()) == ((0, False) if gaps_first else (2, True))
        may_come_up.set()
        await run.wait_good("plant/x", 1)
        await wait_until_async(run.ingest.gaps_stored, "the gap")
        assert store.before[0][0] == gaps_first
        await run.ingest.end_recording()
        assert not run.ingest.gaps_stored()


@pytest.mark.parametrize("wait_s, is_pair, is_early", [(0.0, True, True), (1_000.0, True, False), (0.0, False, False)])
async def test_a_source_without_a_good_value_declares_its_gap_once(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource, wait_s: float, is_pair: bool, is_early: bool
) -> None:
    """The device is up and refuses everything: after a while the gap is stored without a value, which the other gateway
    waits for. A good value that comes later, or within that while, makes no second gap. Where one gateway records
    alone, the gap ends with the value."""
    turns, may_answer = list[int](), asyncio.Event()

    async def refusing(source: ModbusSource, on_up: Callable[[], None]) -> None:
        on_up()
        while True:
            now_ns = source.clock.now_ns()
            if may_answer.is_set():
                await deliver(source, now_ns)
            await source._delivery.deliver_due(now_ns)
            turns.append(now_ns)
            await asyncio.sleep(0)

    played.lives(refusing)
    monkeypatch.setattr(outages, "VALUE_WAIT_S", wait_s)
    store = FakeStore()
    async with played.ingesting(store=store, stored=before(S), is_recording=not is_pair) as run:
        run.ingest.begin_recording(2 * S)
        await wait_until_async(lambda: len(turns) > 20, "turns without a value")
        assert (len(store.messages), run.ingest.gaps_stored()) == (is_early, is_early)
        may_answer.set()
        await run.wait_good("plant/x", 2)
        await wait_until_async(lambda: run.ingest.gaps_stored() and store.messages, "the gap")
    assert reasons(store) == ["leader_changed" if is_pair else "agent_stopped"]


async def test_a_source_that_is_lost_before_it_comes_up_stores_its_gap(played: PlayedSource) -> None:
    """It gave a value, and then its life ended: the gap is stored before that value, and before this gateway says
    so."""
    lost = asyncio.Event()

    async def lost_at_once(source: ModbusSource, _: Callable[[], None]) -> None:
        if lost.is_set():
            await asyncio.Event().wait()
        lost.set()
        source.complete = Moment(8 * S)
        await deliver(source, 8 * S)
        raise SourceLost("away")

    played.lives(lost_at_once)
    store = FakeStore()
    async with played.ingesting(store=store, stored=before(S), is_recording=False) as run:
        run.ingest.begin_recording(2 * S)
        await wait_until_async(run.ingest.gaps_stored, "its word that the gap is stored")
        assert (gaps(store)[0][0], store.before[0][0]) == ("1970-01-01T00:00:02Z", 1)


def test_a_source_without_tags_has_no_gap(played: PlayedSource) -> None:
    """A tag file that is not good keeps no other source from being believed."""
    ingest = Ingest("plant-a", [played.settings()], {"meter": TagMap("t.csv", ())}, IngestPorts(FakeStore()))
    assert ingest.gaps_stored()


async def test_what_the_next_process_begins_with_is_stored_first(played: PlayedSource) -> None:
    """If this one is killed after its first value, its gap is in no fact yet."""
    played.lives(obedient)
    store = FakeStore()
    async with played.ingesting(store=store, stored=before(S), is_recording=False) as run:
        run.ingest.begin_recording(2 * S)
        await run.wait_good("plant/x", 1)
    assert store.before[0][1] == {("meter", ""): Stored(2 * S)}


async def test_a_source_that_is_away_when_recording_begins_is_recorded_as_bad(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource
) -> None:
    """The value that the other gateway recorded last would look current. It is tried at once, whatever the back-off
    was."""
    tries = list[int]()

    async def away(*_: object) -> None:
        tries.append(1)
        raise SourceLost("away")

    monkeypatch.setattr(ModbusSource, "run", away)
    store = FakeStore()
    slow = played.settings(reconnect_delay_ms=50_000, reconnect_delay_max_ms=50_000)
    async with ingesting(slow, store=store, stored=before(S), is_recording=False) as run:
        await run.wait_state("meter", State.WAITING)
        assert store.samples == []
        run.ingest.begin_recording(2 * S)
        assert not run.ingest.gaps_stored()
        await run.wait_bad("plant/x", BAD_COMMUNICATION_ERROR)
        assert store.of("plant/x")[0].source_time_ns == 2 * S
        await wait_until_async(run.ingest.gaps_stored, "its word that this is stored")
        assert run.ingest._by_name["meter"]._failures.count == 1, "those of the standby do not delay it"
    assert len(tries) == 2


class Watched(FakeStore):
    """Fails if something is recorded while nothing may be."""

    may_record = False

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        assert self.may_record
        return super().append_columns(stream, columns)

    def append_message(self, stream: str, message: Message) -> Future[Any]:
        assert self.may_record
        return super().append_message(stream, message)


async def test_begin_and_end_in_any_order(played: PlayedSource) -> None:
    """Also twice, before the first connection, and during a reload of one of them: after the last one both sources
    record, or stand by. Nothing is recorded in standby, and nothing as bad."""
    played.lives(obedient)
    for steps in itertools.product(["begin", "end", "change", "turn"], repeat=4):
        print(steps)
        await check_steps(steps, played)


async def check_steps(steps: Sequence[str], played: PlayedSource) -> None:
    """Ingest goes through these steps."""
    store = Watched()
    sources = played.settings(), played.other()
    async with asyncio.TaskGroup() as group, ingesting(*sources, store=store, is_recording=False) as run:
        is_recording, under_way = False, list[asyncio.Task[None]]()
        for number, step in enumerate(steps):
            if step == "begin":
                store.may_record = is_recording = True
                run.ingest.begin_recording(time.time_ns())
            elif step == "end":
                is_recording = False
                under_way.append(group.create_task(run.ingest.end_recording()))
                await asyncio.sleep(0)  # it begins
            elif step == "change":
                await asyncio.sleep(0)  # until `run` has begun
                changed = [played.settings(timeout_ms=301 + number), sources[1]]
                under_way.append(group.create_task(run.ingest.change(changed, load_tag_maps(changed))))
            else:
                await asyncio.sleep(0)
        if under_way:
            await asyncio.wait(under_way)
        store.may_record = is_recording
        if is_recording:
            for tag in ("plant/x", "press/x"):
                await run.wait_more(tag, 1)
        else:
            await stands_by(run)
    assert {sample.quality for _, sample in store.samples} <= {0}


async def test_a_stop_during_the_end_of_recording(played: PlayedSource) -> None:
    """Nothing begins anew."""
    played.lives(obedient)
    async with asyncio.TaskGroup() as group, played.ingesting() as run:
        await run.wait_good("plant/x")
        group.create_task(run.ingest.end_recording())
        await asyncio.sleep(0)
        run.ingest.stop()


async def test_a_source_that_is_changed_before_its_first_value_keeps_its_gap(
    played: PlayedSource, tmp_path: Path
) -> None:
    """The device was away since this gateway began to record, and a reload makes its source anew: it begins where it
    would have begun without the reload. A source that the reload adds begins where this node was complete."""
    played.lives(obedient)
    store, stored, changed = FakeStore(), before(2 * S, 3 * S), [played.settings(timeout_ms=301)]
    (tmp_path / "new.csv").write_text(TAGS.replace("plant/", "press/"))
    changed.append(replace(changed[0], name="new", tags_file=tmp_path / "new.csv"))
    async with played.ingesting(store=store, stored=stored, is_recording=False) as run:
        run.ingest.begin_recording(7 * S)
        await asyncio.sleep(0)  # until `run` has begun
        await run.ingest.change(changed, load_tag_maps(changed))
        await wait_until_async(lambda: len(store.messages) == 2, "both gaps")
    assert sorted(begin for begin, *_ in gaps(store)) == ["1970-01-01T00:00:02Z", "1970-01-01T00:00:07Z"]


async def test_a_source_that_was_changed_stores_its_gaps_before_its_values(played: PlayedSource) -> None:
    """A reload has made it anew. When it is lost after that and gives a value, the value waits until it has come up."""
    has_read, ends = asyncio.Event(), iter([None, SourceLost("away")])

    async def lost_once(source: ModbusSource, on_up: Callable[[], None]) -> None:
        end = next(ends, has_read)
        if end is not has_read:
            on_up()
        source.complete = source.clock.now()
        await deliver(source, source.complete.time_ns)
        if isinstance(end, SourceLost):
            raise end
        if end is has_read:
            has_read.set()
        await asyncio.Event().wait()

    played.lives(lost_once)
    store, changed = FakeStore(), [played.settings(timeout_ms=301)]
    async with played.ingesting(store=store, is_recording=False) as run:
        run.ingest.begin_recording(None)
        await run.wait_good("plant/x")
        await run.ingest.change(changed, load_tag_maps(changed))
        await has_read.wait()
        assert [sample.quality for sample in store.of("plant/x")] == [0, 0, BAD_COMMUNICATION_ERROR]


async def test_the_problem_of_a_tag_file_outlives_the_lead(played: PlayedSource) -> None:
    """Whoever leads: a file that is not in force is said to be so until it is corrected."""
    played.lives(obedient)
    async with played.ingesting() as run:
        await run.wait_good("plant/x")
        (source,) = run.ingest.statistics()
        run.ingest._note_file_problems(source.name, [TagFileProblem("t.csv", 3, "type", "int17", "is no type")])
        for _ in range(2):
            await run.ingest.end_recording()
            assert "int17" in run.source(source.name).tags_problem
            run.ingest.begin_recording(None)


async def test_tags_that_are_removed_in_standby_are_recorded_by_the_other_gateway(
    monkeypatch: pytest.MonkeyPatch, played: PlayedSource
) -> None:
    """A new tag map is taken over without a fact. Those removed before are searched when recording begins."""
    searches = list[int]()

    async def run_with_map(source: ModbusSource, _: Callable[[], None]) -> None:
        while source._delivery.is_standby:
            source._delivery.take_over_map(source.clock.now_ns())
            await source._delivery.stand_by(0.01)
        await asyncio.Event().wait()

    monkeypatch.setattr(ModbusSource, "run", run_with_map)
    store = FakeStore()
    async with played.ingesting(
        store=store, is_recording=False, find_removed=lambda _: searches.append(1) or []
    ) as run:
        await stands_by(run)
        source = played.settings(TAGS.replace("plant/", "press/"))
        run.ingest._offer("meter", load_tag_maps([source])["meter"])
        await wait_until_async(lambda: len(store.definitions) == 4, "the new tags")
        await stands_by(run, 2)
        assert (store.samples, searches) == ([], [])
        run.ingest.begin_recording(None)
        await wait_until_async(lambda: searches, "the search")
    assert store.samples == []


async def test_sources_that_begin_together_search_together() -> None:
    """Those that ask while one search runs have the next one in common. One that ends during its search leaves it to
    the others."""
    calls, may_answer = list[set[int]](), threading.Semaphore(0)

    class Slow(Before):
        """Answers when it may."""

        def newest_samples(self, stream: str, numbers: Sequence[int]) -> dict[int, Newest]:
            calls.append(set(numbers))
            may_answer.acquire()
            return super().newest_samples(stream, numbers)

    search = JointSearch(cast(StoredFacts, Slow({}, S, 0)))
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(search.newest_samples("s", [number])) for number in range(4)]
        await wait_until_async(lambda: len(calls) == 1, "the first search")
        may_answer.release()
        await wait_until_async(lambda: len(calls) == 2, "the second search")
        asked[1].cancel()
        await wait_until_async(lambda: len(calls) == 3, "the same again")
        may_answer.release(2)
    assert calls == [{0}, {1, 2, 3}, {1, 2, 3}]
    assert [list(await asked[number]) for number in (0, 2, 3)] == [[0], [2], [3]]


@pytest.mark.parametrize("is_alone", [True, False])
async def test_the_first_value_after_a_takeover_is_recorded_as_it_is(played: PlayedSource, *, is_alone: bool) -> None:
    """It is that of the newest sample here. What the other gateway recorded after that may still come, and would stay
    the latest value; a gateway that records alone need not say it again."""
    was_delivered = asyncio.Event()

    async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
        on_up()
        await deliver(source, 5 * S, 1.0)
        was_delivered.set()
        await asyncio.Event().wait()

    played.lives(life)
    store = FakeStore()
    changing = played.settings(
        "tag,table,register,type,deadband\nplant/x,holding,1,int16,0\nplant/y,holding,2,int16,0\n"
    )
    async with ingesting(changing, store=store, stored=before(S), is_recording=is_alone) as run:
        if not is_alone:
            run.ingest.begin_recording(2 * S)
        await was_delivered.wait()
    assert [sample.source_time_ns for sample in store.good("plant/x")] == ([] if is_alone else [5 * S])
