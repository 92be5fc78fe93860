"""A source that is polled, with a server that the test plays."""

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from agent.ingest.completeness import Moment, Stored
from agent.ingest.gap import AGENT_STOPPED, CLOCK_SET_BACK, TagGap
from agent.ingest.opcua.address import Reading, TagPoint
from agent.ingest.opcua.poll_source import OpcuaPollSource
from agent.ingest.opcua.session import Ending
from agent.ingest.opcua.subscriptions.item_plan import ServerLimits
from agent.ingest.quality import (
    BAD_COMMUNICATION_ERROR,
    BAD_DECODING_ERROR,
    BAD_ENCODING_LIMITS_EXCEEDED,
    BAD_NODE_ID_UNKNOWN,
    TAG_REMOVED,
)
from agent.ingest.source_clock import ServerClockReading
from agent.message import Sample
from agent.settings.opcua_address import NodeAddress
from agent.status_codes import status_name
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession, death, living
from tests.ingest.opcua.sources import S, gaps_of, made, tag
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


NAMES = ("a", "b", "array", "gone")


def good(value: object, time_ns: int) -> tuple[object, int, int, int]:
    """What a Read gives."""
    return value, 0, time_ns, time_ns


async def polled(*names: str) -> tuple[OpcuaPollSource, FakeStore]:
    """A source of tags with these names, polled all the time, and its store."""
    readings = [Reading(NodeAddress("urn:x", name), "3" if name == "array" else "") for name in names]
    tags = [tag(n, TagPoint(reading), name) for n, (name, reading) in enumerate(zip(names, readings, strict=True), 1)]
    plain, store = await made(*tags, mode="poll", poll_interval_ms=10)
    return OpcuaPollSource(plain._settings, plain._delivery), store


async def steady(*names: str) -> tuple[OpcuaPollSource, FakeStore, FakeSession]:
    """Such a source, and a session with a server whose values of these tags stand."""
    return *await polled(*names), FakeSession(values={(name, ""): good(1.0, 10 * S) for name in names})


async def test_values_are_read_in_intervals(caplog: pytest.LogCaptureFixture) -> None:
    """In calls the server takes, also if it only enforces its limit. A value with the old time is none; a bad one is
    recorded and logged once, and comes back; an element of an array is recorded as one value."""
    source, store = await polled(*NAMES)
    session = FakeSession(ServerLimits(nodes_per_read=3), nodes_per_read=2)
    session.values = {
        ("a", ""): good(1.0, 10 * S),
        ("b", ""): (None, 0x808C_0000, 0, 11 * S),
        ("gone", ""): (None, BAD_NODE_ID_UNKNOWN, 0, 11 * S),
        ("array", "3"): good(7, 10 * S),
    }
    up: list[bool] = []
    with caplog.at_level(logging.WARNING, "agent.ingest"):
        async with living(source, session, lambda: up.append(True)):
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


async def test_a_value_without_a_source_time_has_that_of_the_server() -> None:
    """It is the time at which the server read the value. Our own clock dates a value only if the server gives no
    time."""
    source, store = await polled("a", "b")
    async with living(source, values={("a", ""): (1.0, 0, 0, 11 * S), ("b", ""): (2.0, 0, 0, 0)}):
        await wait_until_async(lambda: store.good("a/a") and store.good("a/b"), "the values")
    assert store.of("a/a") == [Sample(1, 11 * S, 1.0)]
    assert store.of("a/b")[0].source_time_ns > 1_700_000_000 * S


async def test_another_reason_for_a_missing_value_is_recorded() -> None:
    """A sensor that has failed and is then taken out of service, or whose node is gone: the tag has the status that the
    server gives now, also if the connection was lost before."""
    source, store = await polled("a")
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 5 * S)
    statuses = [0x808C_0000, 0x808D_0000, BAD_NODE_ID_UNKNOWN]
    async with living(source) as session:
        for count, status in enumerate(statuses, 2):
            session.values = {("a", ""): (None, status, 0, 0)}
            await wait_until_async(lambda count=count: len(store.of("a/a")) >= count, "the status")
    assert [sample.quality for sample in store.of("a/a")] == [BAD_COMMUNICATION_ERROR, *statuses]


async def test_a_lost_session_is_used_again() -> None:
    """A server that has room for few sessions would be shut for the source by its own lost ones. A session of a server
    that was restarted is not ours, whatever its token."""
    source, store, first = await steady("a")
    second = FakeSession(start="tomorrow")
    async with living(source, first):
        await wait_until_async(lambda: store.good("a/a"), "a value")
    assert (first.ending, first.is_reactivated) == (Ending.KEEP, False)
    await death(source, second, "was restarted")
    assert (second.ending, second.is_reactivated, second.reads) == (Ending.KEEP, True, [])


@pytest.mark.parametrize("told", [0, 1])
async def test_a_server_that_reads_one_node_at_a_time_is_polled(told: int) -> None:
    """Told so, or found out: each node has a call for itself, and all calls are one poll."""
    source, store = await polled("a", "b")
    session = FakeSession(ServerLimits(nodes_per_read=told), nodes_per_read=1, shows_ns=20 * S)
    session.values = {("a", ""): good(1.0, 10 * S), ("b", ""): good(2.0, 10 * S)}
    async with living(source, session):
        await wait_until_async(lambda: store.good("a/a") and store.good("a/b"), "both values")
        session.values["b", ""] = good(3.0, 12 * S)
        await wait_until_async(lambda: len(store.good("a/b")) == 2, "the next poll")
    assert set(session.reads[2:]) == {1}
    assert source.complete is not None
    assert 20 * S <= source.complete.time_ns < 21 * S


@pytest.mark.parametrize(
    "kind, status", [("malformed", BAD_DECODING_ERROR), ("too_large", BAD_ENCODING_LIMITS_EXCEEDED)]
)
async def test_a_value_that_cannot_be_read_costs_its_own_tag(
    kind: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is malformed, or no answer of the server can hold it: it is a bad value; the others go on, in calls as before,
    and it is read again after a while. A clock that cannot be read is one that the server does not show."""
    names = [str(n) for n in range(10)]
    source, store, session = await steady(*names)
    unreadable = {("7", "")}
    setattr(session, kind, unreadable)
    session.malformed |= {(2258, "")}
    with caplog.at_level(logging.WARNING, "agent.ingest"):
        async with living(source, session):
            await wait_until_async(lambda: all(store.good(f"a/{name}") for name in names if name != "7"), "the others")
            session.malformed -= {(2258, "")}
            await wait_until_async(lambda: session.reads[-4:] == [1, 9, 1, 9], "polls that know it")
            assert [sample.quality for sample in store.of("a/7")] == [status]
            unreadable.clear()
            session.values["7", ""] = good(2.0, 12 * S)
            await wait_until_async(lambda: store.good("a/7"), "the value")
            await wait_until_async(lambda: session.reads[-2:] == [1, 10], "one call")
    assert [record.status for record in caplog.records if hasattr(record, "tags")] == [status_name(status)]


async def test_a_clock_that_moves_once_a_second_is_not_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each poll reads the same time of a server whose clock has not moved since (asyncua). The answers say when they
    were made: no gap is declared, and the source was alive at what the clock shows, not later."""
    source, _, session = await steady("a")
    gaps, begin_ns = gaps_of(source), time.monotonic_ns()
    monkeypatch.setattr(
        session, "reads_ns", lambda: ServerClockReading(10 * S, 10 * S + time.monotonic_ns() - begin_ns)
    )
    async with living(source, session):
        await wait_until_async(lambda: time.monotonic_ns() > begin_ns + S // 4, "polls between two ticks")
    assert (source.clock.set_back_ns, source.complete) == (0, Moment(10 * S))
    assert 10 * S + S // 4 - S // 100 <= source.clock.now_ns() < 20 * S
    assert not [gap for gap in gaps if gap.reason == CLOCK_SET_BACK]


async def test_the_clock_of_a_server_is_compared_with_what_an_earlier_process_saw() -> None:
    """It was set back by a minute meanwhile. One that shows no time is not known."""
    for continued, shows_ns in ((True, 100 * S), (False, 0)):
        source, store, session = await steady("a")
        stored = Stored(50 * S, shows_ns - time.time_ns() + 60 * S)
        source.continue_from({"": stored} if continued else {}, AGENT_STOPPED)
        session.reads_ns = lambda: ServerClockReading(shows_ns, shows_ns)  # type: ignore[method-assign]  # noqa: B023 awaited here
        async with living(source, session):
            await wait_until_async(lambda: store.good("a/a"), "a value")  # noqa: B023 awaited here
        assert source.clock.set_back_ns == pytest.approx(60 * S if continued else 0, abs=S)
        assert (source.clock.ahead_ns is not None) == continued


async def test_a_poll_is_of_the_tags_of_now_and_history_runs_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    """A tag that has left the map is read no more, and one that stays without a value is not logged again. History has
    the session and is told of gaps."""
    told = list[object]()

    async def run(session: object) -> None:
        told.append(session)
        await asyncio.Event().wait()

    plain, store = await polled("a", "b", "c", "d")
    source = OpcuaPollSource(plain._settings, plain._delivery, SimpleNamespace(run=run, note_gap=told.append))  # type: ignore[arg-type]
    values = {(name, ""): good(1.0, 10 * S) for name in "ab"} | {(name, ""): (None, 0x808C_0000, 0, 0) for name in "cd"}
    async with living(source, values=values) as session:
        await wait_until_async(lambda: store.good("a/b"), "values")
        source._delivery.offer_map([source._delivery.tags[number] for number in (1, 3, 4)], [1, 3, 4])
        await wait_until_async(lambda: session.reads[-4:] == [1, 3, 1, 3], "polls of three tags")
        source._delivery.add_gap("reason", 1, 2, 0, [1], exact=False)
    assert [record.tags for record in caplog.records if hasattr(record, "tags")] == ["a/c (row 3, ), a/d (row 4, )"]
    assert told == [session, TagGap("reason", 1, 2, (1,))]
    assert [sample.quality for sample in store.of("a/b")] == [0, TAG_REMOVED]


async def test_polls_that_a_slow_server_costs_become_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that holds an answer back, and gives it within the time-out, costs the polls of that time, twice:
    several of them are a gap, of which the store knows. They are counted once and not made up: what follows keeps the
    interval."""
    source, store, session = await steady("a")
    gaps, polls_s = gaps_of(source), list[float]()
    read = session.read_clock

    async def slow(*arguments: Any) -> Any:
        polls_s.append(time.monotonic())
        if len(polls_s) in {1, 5}:
            await wait_until_async(lambda: time.monotonic() > polls_s[-1] + 0.1, "the end of the stall")
        return await read(*arguments)

    monkeypatch.setattr(session, "read_clock", slow)
    async with living(source, session):
        await wait_until_async(lambda: len(polls_s) == 9 and store.messages, "polls after two gaps")
    (content, *_) = store.told()
    assert (content["reason"], content["tags"]) == ("polls_missed", ["tag:a/a"])
    slots = [round((at_s - polls_s[0]) * 100) for at_s in polls_s]
    assert slots == [0, 11, 12, 13, 14, 25, 26, 27, 28]
    assert source.polls_missed_total == 20
    assert 8 <= source.polls_total <= 9
    assert [round((gap.last_time_ns - gap.first_time_ns) / 10_000_000) for gap in gaps] == [9, 9]
