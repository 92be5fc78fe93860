"""The polling of a Modbus device, against a line that the test plays."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.line import Endpoints
from agent.ingest.modbus.poll_grid import Missed, PollGrid, Slot
from agent.ingest.modbus.read_plan import Read
from agent.ingest.modbus.source import UNITS_ASKED_AGAIN, ModbusSource
from agent.ingest.quality import BAD_COMMUNICATION_ERROR, BAD_DEVICE_FAILURE, BAD_NODE_ID_UNKNOWN, BAD_TIMEOUT
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags.tag_map import Tag
from agent.message import TagDefinition
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.fakes import FakeStore
from tests.ingest.modbus.devices import PlayedLine
from tests.waiting import wait_until_async

S = 1_000_000_000
INT16 = value_type("int16", "ABCD")


def tags_at(*points: Register) -> list[Tag]:
    """The tags a/1 and on, of these registers."""
    return [
        Tag(number, "facts.telemetry", TagDefinition(f"tag:a/{number}"), SamplingRule(), point)
        for number, point in enumerate(points, 1)
    ]


FIRST = Register(1, Table.HOLDING, 1, 1, INT16)
TAGS = tags_at(FIRST, replace(FIRST, address=2))
THREE_UNITS = tags_at(*(replace(FIRST, unit_id=unit_id) for unit_id in (1, 2, 3)))


def dead() -> PlayedLine:
    """A unit that answers nothing."""
    return PlayedLine(silent=lambda _: True)


async def made(tags: Sequence[Tag] = TAGS, **settings: Any) -> tuple[ModbusSource, FakeStore]:
    """A source of these registers that is connected to nothing, and its store."""
    store = FakeStore()
    recorder = Recorder("meter", "plant-a", store)
    numbers = await recorder.define([tag.definition for tag in tags])
    used = ModbusSourceSettings("meter", Path("t.csv"), 0, **{"host": "meter", **settings})
    return ModbusSource(used, Endpoints(), Delivery("meter", tags, numbers, recorder)), store


async def poll(source: ModbusSource, device: PlayedLine) -> None:
    """One poll of everything, with time for the search."""
    await source._poll_all(device, frozenset({1_000}), time.monotonic_ns() + 10**10)  # type: ignore[arg-type]


def qualities(store: FakeStore) -> dict[str, list[int]]:
    """The qualities of the samples of each tag."""
    return {str(number): [sample.quality for sample in store.of(f"a/{number}")] for number in (1, 2)}


async def test_a_unit_that_falls_silent_makes_its_tags_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and since its last answer: its last values must not pass for current ones."""
    source, store = await made()
    for time_ns, device in ((10 * S, PlayedLine()), (20 * S, dead()), (30 * S, dead())):
        monkeypatch.setattr(source.clock, "now_ns", lambda time_ns=time_ns: time_ns)
        await poll(source, device)
    found = [(sample.source_time_ns, sample.quality) for sample in store.of("a/1")]
    assert found == [(10 * S, 0), (10 * S + 1, BAD_TIMEOUT)]
    assert qualities(store) == {"1": [0, BAD_TIMEOUT], "2": [0, BAD_TIMEOUT]}


@pytest.mark.parametrize("holds_line", [False, True])
async def test_what_a_unit_gave_before_it_fell_silent_comes_before_its_loss(holds_line: bool) -> None:
    """It answers the first read of a poll and no other one; if that holds the line, it is silent at once. No value that
    came before may stand as the last one."""
    source, store = await made(tags_at(*(replace(FIRST, address=1_000 * n) for n in (1, 2, 3))))
    await poll(source, PlayedLine())
    failing = PlayedLine(silent=lambda read: read.address > 1_000, values={1_000: 7})
    failing.hold_ms = {1: 3_000} if holds_line else {}
    await poll(source, failing)
    assert source._units[0].is_silent == holds_line
    assert [sample.value for sample in store.of("a/1")] == [1_000, 7, None]
    assert qualities(store) == {"1": [0, 0, BAD_TIMEOUT], "2": [0, BAD_TIMEOUT]}


async def test_a_device_none_of_whose_units_answers_is_lost() -> None:
    """Otherwise its connection would be kept for ever, where another one may help."""
    source, _ = await made(tags_at(replace(FIRST, poll_interval_ms=1)))
    with pytest.raises(SourceLost, match="none of the units at meter:502 answers any more"):
        await source._poll(dead(), PollGrid({1}, time.monotonic_ns()), 0)  # type: ignore[arg-type]


async def test_a_device_whose_last_unit_answers_comes_up() -> None:
    """However many others are silent, and whichever of them are asked again."""
    source, _ = await made(tags_at(*(replace(FIRST, unit_id=unit_id) for unit_id in range(1, UNITS_ASKED_AGAIN + 3))))
    *silent, last = source._units
    await live(source, PlayedLine(silent=lambda read: read.unit_id != last.unit_id))
    assert ([unit.is_silent for unit in silent], last.is_silent) == ([True] * len(silent), False)


async def test_a_register_that_does_not_exist_is_bad_alone() -> None:
    """Its neighbour goes on; the refused one is recorded as bad, once. A unit before has one, too."""
    source, store = await made(tags_at(*(replace(tag.point, unit_id=2) for tag in TAGS), TAGS[1].point))
    for _ in range(3):
        await poll(source, PlayedLine({2: 2}))
    found = qualities(store)
    assert found["2"] == [BAD_NODE_ID_UNKNOWN]
    assert set(found["1"]) == {0}


async def test_a_device_that_is_busy_makes_what_was_asked_for_bad() -> None:
    """A refusal for the moment says nothing about addresses: all that the read was to bring is bad, and asked for
    again."""
    source, store = await made()
    await poll(source, PlayedLine({2: 4}))
    await poll(source, PlayedLine())
    assert qualities(store) == {"1": [BAD_DEVICE_FAILURE, 0], "2": [BAD_DEVICE_FAILURE, 0]}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The actions in the log, in order."""
    return [record.action for record in caplog.records if hasattr(record, "action")]


async def test_a_unit_that_stays_silent_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is asked, and over new connections; its return is told when it gives values."""
    caplog.set_level(logging.INFO)
    source, _ = await made()
    for _ in range(3):
        await poll(source, dead())
        for unit in source._units:
            unit.answered()  # as at a new connection
    assert told(caplog) == ["unit_lost"]
    await poll(source, PlayedLine())
    for _ in range(2):
        await poll(source, dead())
    assert told(caplog) == ["unit_lost", "unit_returned", "answer_missing", "unit_lost"]


async def test_the_log_names_refused_tags_as_the_file_does(caplog: pytest.LogCaptureFixture) -> None:
    """One line for all tags that are refused for a reason: name, row, and the address as it is written there."""
    caplog.set_level(logging.INFO)
    tags = [
        replace(tag, row=number + 7, definition=replace(tag.definition, address=f"unit 1 holding 4090{number}"))
        for number, tag in enumerate(TAGS)
    ]
    source, _ = await made(tags)
    await poll(source, PlayedLine({1: 2, 2: 2}))
    (line,) = [record for record in caplog.records if getattr(record, "action", "") == "tags_parked"]
    assert (line.count, line.why) == (2, "illegal data address (2)")  # type: ignore[attr-defined]
    assert line.tags == "a/1 (row 7, unit 1 holding 40900), a/2 (row 8, unit 1 holding 40901)"  # type: ignore[attr-defined]


async def live(source: ModbusSource, device: PlayedLine) -> None:
    """A life of a source that ends when it has come up."""

    def came_up() -> None:
        raise SourceLost("again")

    source._line = device  # type: ignore[assignment]
    with pytest.raises(SourceLost, match=r"^again$"):
        await source.run(came_up)


async def test_a_device_that_stays_silent_is_no_news_with_each_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """It accepts connections for days. When it was up again, the next silence is news."""
    caplog.set_level(logging.INFO)
    source, _ = await made()
    for _ in range(2):
        await live(source, PlayedLine())
        caplog.clear()
        for _ in range(3):
            source._line = dead()  # type: ignore[assignment]
            with pytest.raises((SourceLost, ExceptionGroup)):
                await source.run(lambda: None)
        assert told(caplog) == ["answer_missing", "unit_lost"]


async def test_a_life_begins_with_what_the_device_can_now() -> None:
    """That a device closed a second connection, or that units were silent, counts for one life: after its restart it
    may accept one, and each unit is polled. The life has a sign of life with its first value, from which the pause
    before the next attempt follows."""
    source, _ = await made(THREE_UNITS)
    source._takes_one_line = True
    for unit in source._units:
        unit.fell_silent(0)
    began_s = time.monotonic()
    await live(source, PlayedLine())
    assert not source._takes_one_line
    assert not [unit for unit in source._units if unit.is_silent]
    assert source.alive_s >= began_s


@pytest.mark.parametrize("refused", ["deliver", "deliver_due"])
async def test_slots_that_pass_while_the_store_refuses_are_missed_from_the_first_poll_on(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first values and the first gap of a life: the outage has ended with those values, and its gap does not cover
    the slots."""
    source, _ = await made()
    source._line = PlayedLine()  # type: ignore[assignment]
    now_ns = [100 * S]
    monkeypatch.setattr("agent.ingest.modbus.source.boot_ns", lambda: now_ns[0])

    async def wait_for_store(*_: object) -> None:
        now_ns[0] += 60 * S
        monkeypatch.setattr(source._delivery, refused, accept)

    async def accept(*_: object) -> None:
        """The store has room again."""

    def end(missed: Sequence[Missed], *_: object) -> None:
        raise SourceLost(f"{missed[0].count} missed")

    monkeypatch.setattr(source, "_note_missed", end)
    monkeypatch.setattr(source._delivery, refused, wait_for_store)
    with pytest.raises(ExceptionGroup) as lost:
        await source.run(lambda: None)
    assert str(lost.value.exceptions[0]) == "59 missed"


async def test_polls_that_pass_while_the_machine_is_suspended_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the event loop stands still meanwhile."""
    source, _ = await made()
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: time.monotonic_ns() + 60 * S)

    def end(missed: Sequence[Missed], *_: object) -> None:
        raise SourceLost(f"{missed[0].count} missed")

    monkeypatch.setattr(source, "_note_missed", end)
    with pytest.raises(SourceLost, match="60 missed"):
        await source._poll(PlayedLine(), PollGrid({1_000}, time.monotonic_ns() - S), 0)  # type: ignore[arg-type]


async def test_a_refusal_replaces_the_loss_before() -> None:
    """After an outage, which is presumed of all tags, a parked tag gets its own reason again with the first poll over a
    new connection."""
    source, store = await made()
    await poll(source, PlayedLine({2: 2}))
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, source.clock.now_ns(), corrects=True)
    await live(source, PlayedLine({2: 2}))
    assert qualities(store)["2"] == [BAD_NODE_ID_UNKNOWN, BAD_COMMUNICATION_ERROR, BAD_NODE_ID_UNKNOWN]


async def test_a_counter_that_wraps_is_a_fact() -> None:
    """The reading is stored as it is; the fact has both readings and what was counted between them. Of two counters the
    second becomes one by an edit of the tag file."""
    word = value_type("uint16", "ABCD")
    counters = tags_at(*(replace(tag.point, kind=word, counter=65_536) for tag in TAGS))
    source, store = await made([counters[0], replace(counters[1], point=replace(counters[1].point, counter=None))])
    source._delivery.offer_map(counters, [1, 2])
    assert await source._take_over_map()
    await poll(source, PlayedLine(values={1: 65_530, 2: 30_000}))
    await poll(source, PlayedLine(values={1: 6, 2: 5}))
    await poll(source, PlayedLine(values={1: 6, 2: 8}))
    await source.finish()
    found = {m.fact.subject: (m.fact.predicate, json.loads(m.fact.object_json)) for m in store.messages.values()}
    assert found["tag:a/1"][0] == "counter_wrapped"
    assert (found["tag:a/1"][1]["before"], found["tag:a/1"][1]["counted"]) == (65_530, 12)
    assert found["tag:a/2"][0] == "counter_restarted"
    assert [sample.value for sample in store.of("a/1")] == [65_530, 6, 6]


async def test_missed_polls_are_counted_and_a_fact(caplog: pytest.LogCaptureFixture) -> None:
    """Slots that were not polled: their number, their times, and the tags of their interval, times slots. The log says
    so once."""
    slow, third = (replace(TAGS[1], definition=TagDefinition(f"tag:a/{name}")) for name in ("slow", "third"))
    slow = replace(slow, point=replace(slow.point, poll_interval_ms=5_000))
    third = replace(third, point=replace(third.point, unit_id=2))
    source, store = await made([TAGS[0], slow, third])
    await poll(source, PlayedLine())
    source._note_missed([Missed(1_000, 3, 0, 2 * 10**9)], 10**18, "polls_missed")
    await source._delivery.recorder.drain()
    assert source.polls_missed_total == 3
    (content,) = store.told()
    assert (content["reason"], content["count"], content["tags"]) == ("polls_missed", 6, ["tag:a/1", "tag:a/third"])
    assert content["first_time"].startswith("2001-09-09T01:46:40")
    source._note_missed([Missed(1_000, 1, 0, 0)], 2 * 10**18, "polls_missed")
    assert told(caplog) == ["polls_missed"]


async def test_each_gap_says_why_its_polls_were_missed() -> None:
    """The store has refused values before the second of three polls; the gap before the third has another reason."""
    turns = list[Slot]()
    source, store = await made()

    def take_slot(_: int) -> Slot:
        source._delivery.recorder.refused_total += len(turns) == 1
        turns.append(Slot(frozenset(), 0, (Missed(1_000, 1, 0, 0),) if turns else ()))
        if len(turns) > 3:
            raise SourceLost("enough")
        return turns[-1]

    grid = SimpleNamespace(next_ns=lambda: 0, take_slot=take_slot)
    with pytest.raises(SourceLost, match="enough"):
        await source._poll(PlayedLine(), grid, 0)  # type: ignore[arg-type]
    await source._delivery.recorder.drain()
    assert [content["reason"] for content in store.told()] == ["store_refused", "polls_missed"]
    assert (source.polls_total, source.polls_missed_total) == (3, 2)


async def test_a_source_that_is_lost_in_a_poll_is_complete_up_to_the_beginning_of_the_poll() -> None:
    """Units that had their turn late have missed slots since then, which only the next poll would declare."""
    began_ns = list[int]()

    def breaks(read: Read) -> bool:
        began_ns.append(time.time_ns())
        if read.unit_id == 3:
            raise SourceLost("cut")
        return False

    source, _ = await made(THREE_UNITS)
    with pytest.raises(SourceLost, match="cut"):
        await poll(source, PlayedLine(silent=breaks))
    assert source.complete is not None
    assert source.complete.time_ns <= began_ns[0]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_tag_that_moves_to_a_silent_unit_loses_its_value(is_known: bool) -> None:
    """Otherwise its last value, of the unit before, would look current for as long as the new one does not answer.
    Neither that value nor the source is complete while the store makes the new map wait."""
    source, store = await made(THREE_UNITS if is_known else [THREE_UNITS[0], THREE_UNITS[2]])
    device = PlayedLine(silent=lambda read: read.unit_id == 2)
    await poll(source, device)
    first, *others = THREE_UNITS
    moved = replace(
        first, definition=TagDefinition("tag:a/1", address="unit 2"), point=replace(TAGS[1].point, unit_id=2)
    )
    numbers = await source._delivery.recorder.define([tag.definition for tag in (moved, *others)])
    source._delivery.offer_map([moved, *others], numbers)
    slots, taken_over_ns = [Slot(frozenset({1_000}), 0, ())], list[int]()

    def take_slot(_: int) -> Slot:
        if not slots:
            raise SourceLost("enough")
        return slots.pop()

    def keep(*_: object) -> None:
        taken_over_ns.append(source.clock.now_ns())

    grid = SimpleNamespace(next_ns=lambda: 0, take_slot=take_slot, keep=keep)
    with pytest.raises(SourceLost, match="enough"):
        await source._poll(device, grid, 0)  # type: ignore[arg-type]
    assert qualities(store)["1"] == [0, BAD_TIMEOUT]
    assert source.complete is not None
    assert max(store.of("a/1")[-1].source_time_ns, source.complete.time_ns) < taken_over_ns[0]


async def test_a_poll_reads_the_intervals_that_are_due() -> None:
    """A tag with an interval of its own is left out of the others' polls, and read along when both are due."""
    source, _ = await made(tags_at(FIRST, replace(FIRST, address=2, poll_interval_ms=5_000)))
    for due, asked in (({1_000}, [(1, 1)]), ({5_000}, [(2, 1)]), ({1_000, 5_000}, [(1, 2)])):
        device = PlayedLine()
        await source._poll_all(device, frozenset(due), time.monotonic_ns() + 10**9)  # type: ignore[arg-type]
        assert [(read.address, read.count) for read in device.asked] == asked


async def test_retry_asks_for_what_is_refused_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Without it the pause is waited for. The log says that the tag is read again."""
    caplog.set_level(logging.INFO)
    source, store = await made()
    await poll(source, PlayedLine({2: 2}))
    await poll(source, PlayedLine())
    assert qualities(store)["2"] == [BAD_NODE_ID_UNKNOWN]
    source.retry()
    await poll(source, PlayedLine())
    assert qualities(store)["2"] == [BAD_NODE_ID_UNKNOWN, 0]
    assert told(caplog) == ["tags_parked", "tags_returned"]


async def test_a_search_rests_when_its_slot_is_over() -> None:
    """One question of the search and no more, so that the next poll begins in time; the next poll goes on with it."""
    tags = tags_at(*(replace(FIRST, address=number) for number in range(1, 9)))
    (source, _), device = await made(tags), PlayedLine({2: 2, 7: 2})
    for asked in ([(1, 8), (1, 4)], [(1, 2)]):  # the read of the plan is refused; the halves of it
        device.asked.clear()
        await source._poll_all(device, frozenset({1_000}), time.monotonic_ns())  # type: ignore[arg-type]
        assert [(read.address, read.count) for read in device.asked] == asked


def gateway_with_a_dead_unit() -> PlayedLine:
    """Three units; unit 2 never answers, and its silence holds the line."""

    def is_silent(read: Read) -> bool:
        found.hold_ms = {2: 3_000} if read.unit_id == 2 else found.hold_ms
        return read.unit_id == 2

    found = PlayedLine(silent=is_silent)
    return found


async def test_a_unit_that_holds_the_line_is_asked_rarely_and_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first silence is logged with what it costs. It is not asked beside the others any more, but after a poll, and
    not before twenty times what its silence takes."""
    source, _ = await made(THREE_UNITS)
    gateway, now_ns = gateway_with_a_dead_unit(), [100 * S]
    monkeypatch.setattr("agent.ingest.modbus.source.boot_ns", lambda: now_ns[0])
    await poll(source, gateway)
    assert [read.unit_id for read in gateway.asked] == [1, 2, 3]
    assert [r.hold_ms for r in caplog.records if getattr(r, "action", "") == "unit_holds_line"] == [3_000]  # type: ignore[attr-defined]
    assert source._has_one_line(gateway)  # type: ignore[arg-type]
    for second in range(101, 280):
        now_ns[0] = second * S
        await poll(source, gateway)
        await source._ask_silent(gateway)  # type: ignore[arg-type]
    units = [read.unit_id for read in gateway.asked]
    asked = [place for place, unit in enumerate(units) if unit == 2]
    assert len(asked) == 3, "at the start, after 60 s, and after 120 s"
    assert all(units[place - 1] == 3 and units[place + 1] == 1 for place in asked[1:]), "after a poll"


async def test_a_unit_that_returns_does_not_wait_for_one_that_holds_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own silence costs little, so it is asked after its own pause."""
    source, _ = await made(THREE_UNITS)
    gateway, now_ns = gateway_with_a_dead_unit(), [100 * S]
    monkeypatch.setattr("agent.ingest.modbus.source.boot_ns", lambda: now_ns[0])
    await poll(source, gateway)
    now_ns[0] += 61 * S
    await source._ask_silent(gateway)  # type: ignore[arg-type]
    source._units[2].fell_silent(now_ns[0])
    now_ns[0] += 5 * S
    await source._ask_silent(gateway)  # type: ignore[arg-type]
    assert [unit.is_silent for unit in source._units] == [False, True, False]


async def test_a_unit_that_leaves_the_tag_file_is_forgotten() -> None:
    """It was dead and is not asked any more: nothing says that it holds the line, and the others need not wait."""
    source, _ = await made(THREE_UNITS)
    endpoint = source._line._endpoint
    endpoint.note_hold(2, 3_000)
    endpoint.answers.late_ns[2] = 2 * S
    source._delivery.offer_map([THREE_UNITS[0], THREE_UNITS[2]], [1, 3])
    assert "unit 2" in source.remarks
    await source._take_over_map()
    assert source.remarks == ""
    assert not source._has_one_line(source._line)


def hesitant(*unanswered: int) -> PlayedLine:
    """A unit that does not answer these requests, counted from 0."""
    found = PlayedLine(silent=lambda _: len(found.asked) in unanswered)
    return found


async def test_a_unit_that_misses_one_poll_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    """Its tags are bad for this poll, and it is polled in the next one, however often that happens. After two polls in
    a row it is silent."""
    source, store = await made()
    device = hesitant(1, 2, 4, 5, 7, 8, 9, 10)
    for _ in range(6):
        await poll(source, device)
    assert qualities(store)["1"] == [0, BAD_TIMEOUT] * 3
    assert not source._units[0].is_silent
    await poll(source, device)
    assert source._units[0].is_silent
    assert told(caplog) == ["answer_missing", "unit_lost"]


async def test_a_second_connection_that_is_never_read_from_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that answers over the first one is silent there, too: the silent unit is asked over the first one."""
    source, _ = await made(THREE_UNITS)
    monkeypatch.setattr("agent.ingest.modbus.source.Line", lambda _: dead())
    source._units[1].fell_silent(0)
    probing = asyncio.create_task(source._probe(PlayedLine()))  # type: ignore[arg-type]
    await wait_until_async(lambda: source._has_one_line(PlayedLine()), "what the second connection is")  # type: ignore[arg-type]
    probing.cancel()


async def test_each_silent_unit_is_asked_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three silent units the first and the last stay dead; the one between them is found, over the second
    connection."""
    source, _ = await made(THREE_UNITS)
    side = PlayedLine(silent=lambda read: read.unit_id != 2)
    monkeypatch.setattr("agent.ingest.modbus.source.Line", lambda _: side)
    for unit in source._units:
        unit.fell_silent(0)
    probing = asyncio.create_task(source._probe(PlayedLine()))  # type: ignore[arg-type]
    await wait_until_async(lambda: not source._units[1].is_silent, "the unit between")
    probing.cancel()
    assert [unit.is_silent for unit in source._units] == [True, False, True]


@pytest.mark.parametrize(
    "second, settings",
    [
        (True, {}),
        (False, {"connections_max": 1}),
        (False, {"transport": "rtu", "host": "", "serial_port": "/dev/ttyS0"}),
    ],
)
async def test_a_silent_unit_is_asked_over_its_own_connection_when_the_line_is_free_again(
    settings: dict[str, Any], *, second: bool
) -> None:
    """It was taken to hold the line, and a later silence has shown that it does not. Where there is no second
    connection it is asked over the one line."""
    source, _ = await made(**settings)
    gateway = PlayedLine()
    source._silence.clear()
    gateway.hold_ms = {2: 3_000}
    await source._ask_silent(gateway)  # type: ignore[arg-type]
    assert not source._silence.is_set()
    gateway.hold_ms = {}
    await source._ask_silent(gateway)  # type: ignore[arg-type]
    assert source._silence.is_set() == second
