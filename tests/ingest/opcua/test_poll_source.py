"""A source that is polled, with a server that the test plays."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.completeness import Moment
from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import CLOCK_SET_BACK, TagGap
from agent.ingest.opcua import poll_source
from agent.ingest.opcua.address import Reading, TagPoint
from agent.ingest.opcua.poll_source import OpcuaPollSource
from agent.ingest.opcua.session import Ending
from agent.ingest.opcua.subscriptions.item_plan import ServerLimits
from agent.ingest.quality import (
    BAD_COMMUNICATION_ERROR,
    BAD_DECODING_ERROR,
    BAD_ENCODING_LIMITS_EXCEEDED,
    BAD_NODE_ID_UNKNOWN,
)
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.source_clock import ClockReading
from agent.ingest.tags.tag_map import Tag
from agent.message import Sample, TagDefinition
from agent.settings.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession, living, opening
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


S = 1_000_000_000
NAMES = ("a", "b", "array", "gone")


def good(value: object, time_ns: int) -> tuple[object, int, int, int]:
    """What a Read gives."""
    return value, 0, time_ns, time_ns


async def polled(store: FakeStore, *names: str) -> OpcuaPollSource:
    """A source of tags with these names, polled all the time."""
    tags = [
        Tag(n, "facts.telemetry", TagDefinition(f"tag:a/{name}"), SamplingRule(), TagPoint(reading))
        for n, name in enumerate(names, 1)
        for reading in [Reading(NodeAddress("urn:x", name), "3" if name == "array" else "")]
    ]
    recorder = Recorder("plc", "plant-a", store, "facts.operational")
    numbers = await recorder.define([tag.definition for tag in tags])
    settings = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), mode="poll", poll_interval_ms=10)
    return OpcuaPollSource(settings, Delivery("plc", tags, numbers, recorder))


async def steady(store: FakeStore, *names: str) -> tuple[OpcuaPollSource, FakeSession]:
    """Such a source, and a session with a server whose values of these tags stand."""
    session = FakeSession()
    session.values = {(name, ""): good(1.0, 10 * S) for name in names}
    return await polled(store, *names), session


async def test_values_are_read_in_intervals(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In calls the server takes, also if it only enforces its limit. A value with the old time is none; a bad one is
    recorded and logged once, and comes back; an element of an array is recorded as one value."""
    store = FakeStore()
    source = await polled(store, *NAMES)
    session = FakeSession(ServerLimits(nodes_per_read=3))
    session.nodes_per_read = 2
    session.values = {
        ("a", ""): good(1.0, 10 * S),
        ("b", ""): (None, 0x808C_0000, 0, 11 * S),
        ("gone", ""): (None, BAD_NODE_ID_UNKNOWN, 0, 11 * S),
        ("array", "3"): good(7, 10 * S),
    }
    up: list[bool] = []
    with caplog.at_level(logging.WARNING, "agent.ingest"):
        async with living(monkeypatch, source, session, lambda: up.append(True)):
            await wait_until_async(lambda: store.good("a/array"), "the element")
            session.values["a", ""] = good(2.0, 12 * S)
            session.values["b", ""] = good(3.0, 5 * S)
            await wait_until_async(lambda: len(store.good("a/a")) == 2, "the next value")
            await wait_until_async(lambda: store.good("a/b"), "the sensor")
    assert up == [True]
    assert (session.reads[:2], max(session.reads[2:])) == ([1, 3], 2)
    assert store.of("a/a") == [Sample(1, 10 * S, 1.0), Sample(1, 12 * S, 2.0)]
    assert [s.quality for s in store.of("a/b")] == [0x808C_0000, 0]
    assert [s.value for s in store.of("a/array")] == [7]
    lines = {record.status: record.tags for record in caplog.records if hasattr(record, "tags")}
    assert lines == {"BadSensorFailure": "a/b (row 2, )", "BadNodeIdUnknown": "a/gone (row 4, )"}
    assert source.complete is not None


async def test_a_value_without_a_source_time_has_that_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the time at which the server read the value. Our own clock dates a value only if the server gives no
    time."""
    store = FakeStore()
    source = await polled(store, "a", "b")
    session = FakeSession()
    session.values = {("a", ""): (1.0, 0, 0, 11 * S), ("b", ""): (2.0, 0, 0, 0)}
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: store.good("a/a") and store.good("a/b"), "the values")
    assert store.of("a/a") == [Sample(1, 11 * S, 1.0)]
    assert store.of("a/b")[0].source_time_ns > 1_700_000_000 * S


async def test_another_reason_for_a_missing_value_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sensor that has failed and is then taken out of service, or whose node is gone: the tag has the status that the
    server gives now, also if the connection was lost before."""
    store = FakeStore()
    source = await polled(store, "a")
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 5 * S)
    session = FakeSession()
    statuses = [0x808C_0000, 0x808D_0000, BAD_NODE_ID_UNKNOWN]
    async with living(monkeypatch, source, session):
        for count, status in enumerate(statuses, 2):
            session.values = {("a", ""): (None, status, 0, 0)}
            await wait_until_async(lambda count=count: len(store.of("a/a")) >= count, "the status")
    assert [sample.quality for sample in store.of("a/a")] == [BAD_COMMUNICATION_ERROR, *statuses]


async def test_a_value_that_is_too_large_costs_its_own_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of the server can hold it. It is a bad value; the others go on, in calls as long as before."""
    store = FakeStore()
    names = [str(n) for n in range(10)]
    source, session = await steady(store, *names)
    session.too_large = {("7", "")}
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: all(store.good(f"a/{name}") for name in names if name != "7"), "the others")
        await wait_until_async(lambda: session.reads[-4:] == [1, 9, 1, 9], "polls that know it")
    assert [sample.quality for sample in store.of("a/7")] == [BAD_ENCODING_LIMITS_EXCEEDED]


async def test_a_lost_session_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has room for few sessions would be shut for the source by its own lost ones. A session of a server
    that was restarted is not ours, whatever its token."""
    store = FakeStore()
    source, first = await steady(store, "a")
    second = FakeSession()
    async with living(monkeypatch, source, first):
        await wait_until_async(lambda: store.good("a/a"), "a value")
    assert (first.ending, first.is_reactivated) == (Ending.KEEP, False)
    second.start = "tomorrow"
    monkeypatch.setattr(poll_source, "open_session", opening(second))
    with pytest.raises(SourceLost, match="was restarted"):
        await source.run(lambda: None)
    assert (second.ending, second.is_reactivated, second.reads) == (Ending.KEEP, True, [])


@pytest.mark.parametrize("told", [0, 1])
async def test_a_server_that_reads_one_node_at_a_time_is_polled(monkeypatch: pytest.MonkeyPatch, told: int) -> None:
    """Told so, or found out: each node has a call for itself, and all calls are one poll."""
    store = FakeStore()
    source = await polled(store, "a", "b")
    session = FakeSession(ServerLimits(nodes_per_read=told))
    session.nodes_per_read, session.shows_ns = 1, 20 * S
    session.values = {("a", ""): good(1.0, 10 * S), ("b", ""): good(2.0, 10 * S)}
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: store.good("a/a") and store.good("a/b"), "both values")
        session.values["b", ""] = good(3.0, 12 * S)
        await wait_until_async(lambda: len(store.good("a/b")) == 2, "the next poll")
    assert set(session.reads[2:]) == {1}
    assert source.complete is not None
    assert 20 * S <= source.complete.time_ns < 21 * S


async def test_a_malformed_value_costs_its_own_tag(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a bad value; the others go on, in calls as before: what was malformed is read again after a while. A
    clock that cannot be read is one that the server does not show."""
    store = FakeStore()
    names = [str(n) for n in range(10)]
    source, session = await steady(store, *names)
    session.malformed = {("7", ""), (2258, "")}
    with caplog.at_level(logging.WARNING, "agent.ingest"):
        async with living(monkeypatch, source, session):
            await wait_until_async(lambda: all(store.good(f"a/{name}") for name in names if name != "7"), "the others")
            session.malformed.remove((2258, ""))
            await wait_until_async(lambda: session.reads[-4:] == [1, 9, 1, 9], "polls that know it")
            assert [sample.quality for sample in store.of("a/7")] == [BAD_DECODING_ERROR]
            session.malformed.clear()
            session.values["7", ""] = good(2.0, 12 * S)
            await wait_until_async(lambda: store.good("a/7"), "the value")
            await wait_until_async(lambda: session.reads[-2:] == [1, 10], "one call")
    assert [record.status for record in caplog.records if hasattr(record, "tags")] == ["BadDecodingError"]


async def test_a_clock_that_moves_once_a_second_is_not_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each poll reads the same time of a server whose clock has not moved since (asyncua). The answers say when they
    were made: no gap is declared, and the source was alive at what the clock shows, not later."""
    source, session = await steady(FakeStore(), "a")
    gaps, begin_ns = list[TagGap](), time.monotonic_ns()
    source._delivery.on_gap(gaps.append)
    monkeypatch.setattr(session, "reads_ns", lambda: ClockReading(10 * S, 10 * S + time.monotonic_ns() - begin_ns))
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: time.monotonic_ns() > begin_ns + S // 4, "polls between two ticks")
    assert (source.clock.set_back_ns, source.complete) == (0, Moment(10 * S))
    assert source.clock.now_ns() >= 10 * S + S // 4 - S // 100
    assert not [gap for gap in gaps if gap.reason == CLOCK_SET_BACK]


async def test_polls_that_a_slow_server_costs_become_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that holds an answer back, and gives it within the time-out, costs the polls of that time, twice:
    several of them are a gap, of which the store knows. They are counted once and not made up: what follows keeps the
    interval."""
    store, gaps, polls_s = FakeStore(), list[TagGap](), list[float]()
    source, session = await steady(store, "a")
    source._delivery.on_gap(gaps.append)
    read = session.read_clock

    async def slow(*arguments: Any) -> Any:
        polls_s.append(time.monotonic())
        if len(polls_s) in {1, 5}:
            await wait_until_async(lambda: time.monotonic() > polls_s[-1] + 0.1, "the end of the stall")
        return await read(*arguments)

    monkeypatch.setattr(session, "read_clock", slow)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: len(polls_s) == 9 and store.messages, "polls after two gaps")
    (content, *_) = store.told()
    assert (content["reason"], content["tags"]) == ("polls_missed", ["tag:a/a"])
    slots = [round((at_s - polls_s[0]) * 100) for at_s in polls_s]
    assert slots == [0, 11, 12, 13, 14, 25, 26, 27, 28]
    assert source.polls_missed_total == 20
    assert [round((gap.last_time_ns - gap.first_time_ns) / 10_000_000) for gap in gaps] == [9, 9]
