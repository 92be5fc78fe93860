import asyncio
import json
import logging
import math
import re
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import ITEM_REFUSED, ITEM_RENEWED, NOTIFICATIONS_MISSING, SUBSCRIPTION_LOST, TagGap
from agent.ingest.lifecycle import Newest
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua import subscription as subscription_module
from agent.ingest.opcua.address import TagPoint, parse_readings
from agent.ingest.opcua.audit import Findings
from agent.ingest.opcua.decode import Change, Changes, Publication
from agent.ingest.opcua.groups import ServerLimits
from agent.ingest.opcua.liveness import Liveness
from agent.ingest.opcua.monitoring import Monitoring
from agent.ingest.opcua.plan import Created
from agent.ingest.opcua.publishing import Header
from agent.ingest.opcua.server_clock import ServerTime
from agent.ingest.opcua.session import HEARTBEAT_HANDLE, CallTooLarge, ItemRequest, Session
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscription import CallSize, Subscription
from agent.ingest.quality import (
    BAD_COMMUNICATION_ERROR,
    BAD_DECODING_ERROR,
    BAD_INDEX_RANGE_INVALID,
    BAD_NODE_ID_UNKNOWN,
    BAD_TOO_MANY_MONITORED_ITEMS,
    TAG_REMOVED,
)
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags.tag_map import Tag
from agent.message import Json, Sample, TagDefinition, time_text
from agent.settings.opcua_address import NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import Busy, FakeStore
from tests.ingest.opcua.fake_session import (
    NO_SUBSCRIPTION,
    TOO_MANY_REQUESTS,
    FakeSession,
    answer,
    answer_of,
    living,
    opening,
    status_change,
)
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.virtual_time


S = 1_000_000_000
FLAT = {"allow_unwrapped": False, "flatten_subgroups": True}
BAD_SENSOR_FAILURE = 0x808C_0000
HEADER = Header(1, 1, 0, has_data=True)


def tag(number: int, point: TagPoint | None = None) -> Tag:
    """A tag that every server of these tests has."""
    point = point or TagPoint.of(NodeAddress("urn:x", number))
    return Tag(number, "facts.telemetry", TagDefinition(f"tag:a/{number}"), SamplingRule(), point)


TAGS = [tag(1), tag(2)]


async def made(store: FakeStore, tags: list[Tag] = TAGS, **settings: object) -> tuple[OpcuaSource, Recorder]:
    """A source of these tags that is connected to nothing; it has a subscription that stands for one."""
    recorder = Recorder("plc", "plant-a", store, (Busy,), "facts.operational")
    numbers = await recorder.define([tag.definition for tag in tags])
    used = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), **{"buffer_values_max": 1_000, **settings})  # type: ignore[arg-type]
    found = OpcuaSource(used, Delivery("plc", tags, numbers, recorder))
    subscription = Subscription(FakeSession(), used, ServerLimits(), found.now_ns, CallSize(9))  # type: ignore[arg-type]
    subscription.id = 1
    found._subscriptions, found._by_id = [subscription], {1: subscription}
    return found, recorder


def publication(*changes: Change) -> Publication:
    """One message with these values."""
    return Publication(Changes.of(changes))


async def take(source: OpcuaSource, *changes: Change) -> None:
    """A publication comes."""
    await source._take(cast("Session", FakeSession()), HEADER, publication(*changes))


async def test_values_the_server_discarded_become_a_fact() -> None:
    """The overflow bit is kept in the sample, and a gap fact says between which times values were lost, of which two of
    three tags, and how many at least: each tag has a spacing of its own."""
    store = FakeStore()
    source, recorder = await made(store, [*TAGS, tag(3)])
    await take(source, *(Change(number, 1.0, 0, (9 + number) * S, (9 + number) * S) for number in (1, 2, 3)))
    seconds = ((1, 20), (1, 21), (1, 22), (2, 20), (2, 22), (2, 24), (3, 20))
    marked = {(1, 20): 0x480, (2, 20): 0x480}
    await take(source, *(Change(one, 2.0, marked.get((one, at), 0), at * S, at * S) for one, at in seconds))
    await source.finish()
    await recorder.drain()
    assert store.of("a/1")[:2] == [Sample(1, 10 * S, 1.0), Sample(1, 20 * S, 2.0, 0x480)]
    (message,) = store.messages.values()
    content = json.loads(message.fact.object_json)
    assert content["reason"] == "server_queue_overflow"
    assert (content["first_time"], content["last_time"]) == ("1970-01-01T00:00:10Z", "1970-01-01T00:00:20Z")
    assert (content["count"], content["count_exact"], content["tags"]) == (7 + 2, False, ["tag:a/1", "tag:a/2"])


@pytest.mark.parametrize("burst, is_declared", [(3, True), (2, False)])
async def test_as_many_values_as_the_queue_holds_may_be_the_rest_of_more(burst: int, *, is_declared: bool) -> None:
    """A server that discards without the overflow bit (asyncua, python-opcua) sends exactly a full queue after a stall.
    The gap before it is declared, also if the server says that it samples rarely; a shorter burst has lost nothing."""
    store = FakeStore()
    source, recorder = await made(store, sampling_interval_ms=0)
    (subscription,) = source._subscriptions
    request = ItemRequest(1, TAGS[0].point.readings[0].address, 1, "", 0.0, 3, Monitoring())
    subscription._note_created(request, Created(0, 11, 60_000.0, 3))
    await take(source, Change(1, 0.0, 0, 10 * S, 10 * S))
    await take(source, *(Change(1, float(n), 0, 20 * S + n, 20 * S + n) for n in range(burst)))
    await source.finish()
    await recorder.drain()
    found = [json.loads(message.fact.object_json) for message in store.messages.values()]
    expected = [("server_queue_overflow", "1970-01-01T00:00:10Z", "1970-01-01T00:00:20Z", 0)] if is_declared else []
    assert [(one["reason"], one["first_time"], one["last_time"], one["count"]) for one in found] == expected


async def test_a_full_buffer_holds_the_next_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room left nothing is acknowledged and no Publish is sent, so the server queues; an end of the session in
    that moment loses nothing of what has arrived."""
    store = FakeStore()
    source, recorder = await made(store, publish_requests=3)
    session = FakeSession()
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.publishes_open == 3, "open requests")
        store.refusing = True
        for number in range(1, 8):
            session.answers.put_nowait(answer(1, number, (1, float(number), number * S)))
        await wait_until_async(lambda: session.publishes_open == 0, "all requests answered")
        assert source._buffer.full()
        assert session.answers.qsize() > 0
    store.refusing = False
    await source.finish()
    await recorder.drain()
    left = session.answers.qsize()
    assert [sample.value for sample in store.of("a/1")] == [float(n) for n in range(1, 8 - left)]
    assert len(session.acks) < 7 - left


async def test_times_come_from_the_source_else_the_server_else_the_servers_clock() -> None:
    """A value without source time takes the server's; one without any takes the server's clock as last seen, not
    ours."""
    store = FakeStore()
    source, _ = await made(store)
    hour_ahead_ns = source.now_ns() + 3600 * S
    await take(source, Change(HEARTBEAT_HANDLE, "2026", 0, hour_ahead_ns, 0))
    assert abs(source.now_ns() - hour_ahead_ns) < 60 * S
    changes = Change(1, 1.0, 0, 5 * S, 6 * S), Change(1, 2.0, 0, 0, 7 * S), Change(1, 3.0, 0, 0, 0)
    await take(source, *changes)
    await source.finish()
    times = [sample.source_time_ns for sample in store.of("a/1")]
    assert times[:2] == [5 * S, 7 * S]
    assert abs(times[2] - hour_ahead_ns) < 60 * S
    assert len(store.samples) == 3  # the heartbeat is no sample


@pytest.mark.parametrize("connected", [True, False])
async def test_a_new_tag_map_comes_behind_what_has_arrived(connected: bool) -> None:
    """Values in the buffer belong to the map under which they came and are recorded first, also those of a removed tag;
    what still comes for it afterwards is dropped."""
    store = FakeStore()
    source, recorder = await made(store)
    await take(source, Change(1, 1.0, 0, 10 * S, 10 * S), Change(2, 1.0, 0, 10 * S, 10 * S))
    source._delivery.offer_map(TAGS[1:], [2])
    await (source._take_over_map() if connected else source.finish())
    await take(source, Change(1, 2.0, 0, 11 * S, 11 * S), Change(2, 2.0, 0, 11 * S, 11 * S))
    source._refused[1] = 0x8034_0000
    await source.finish()
    await recorder.drain()
    assert [(s.value, s.quality) for s in store.of("a/1")] == [(1.0, 0), (None, TAG_REMOVED)]
    assert [s.value for s in store.of("a/2")] == [1.0, 2.0]


async def test_a_tag_that_is_edited_when_its_subscription_has_ended_is_lost() -> None:
    """The end is known by the number that the tag had, and recorded behind the edit. The tag returns from it."""
    store = FakeStore()
    source, recorder = await made(store)
    source._delivery.sampler.note_returns()
    await take(source, Change(1, 1.0, 0, 10 * S, 10 * S))
    edited = replace(TAGS[0], definition=replace(TAGS[0].definition, unit="bar"))
    (number,) = await recorder.define([edited.definition])
    source._delivery.offer_map([edited, TAGS[1]], [number, 2])
    await source._take_over_map()
    source._ended.append(([1], 11 * S))
    await source._deliver_due()
    await take(source, Change(number, 1.0, 0, 12 * S, 12 * S))
    await source.finish()
    await recorder.drain()
    assert [(s.tag, s.value) for s in store.of("a/1")] == [(1, 1.0), (number, None), (number, 1.0)]
    (returned,) = [one for tag, one in source._delivery.sampler.take_returns() if tag == number]
    assert (returned.lost_ns, returned.before_ns) == (store.of("a/1")[1].source_time_ns, 12 * S)


async def test_a_connection_that_stands_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No error, no closed socket, every call answered, keep-alives even, only no value ever: the server's clock that
    does not move ends it. It never counts as connected."""
    source, _ = await made(FakeStore(), liveness_timeout_ms=300)
    source._delivery.expect_value(lambda _: None)
    session = FakeSession()
    for number in range(1, 50):
        session.answers.put_nowait(answer(1, number, publish_ns=number * S))
    monkeypatch.setattr(source_module, "open_session", opening(session))
    came_up: list[bool] = []
    with pytest.RaisesGroup(pytest.RaisesExc(SourceLost, match="sent no value and its clock has not moved"), **FLAT):
        await source.run(lambda: came_up.append(True))
    assert not came_up
    assert session.handles(1) == {1, 2}


@pytest.mark.parametrize("revised", [{"publishing_ms": 20_000.0}, {"clock_ms": 20_000.0}])
async def test_a_server_that_publishes_rarely_is_waited_for(revised: dict[str, float]) -> None:
    """One that gives signs of life only every 20 s, whatever it was asked for, is given up after three of them are
    missing and not after one, or its source would be built anew for ever."""
    source, _ = await made(FakeStore(), liveness_timeout_ms=15_000)
    session = FakeSession()
    vars(session).update(revised)
    one = Subscription(session, source._settings, ServerLimits(), source.now_ns, CallSize(9))  # type: ignore[arg-type]
    source._subscriptions = [one]
    await one.open()
    await one.watch_clock()
    one.liveness.alive_s = time.monotonic() - 50
    source._check_life()
    one.liveness.alive_s -= 15
    with pytest.raises(SourceLost, match="its clock has not moved"):
        source._check_life()


@pytest.mark.parametrize("clock", ["refused", "stands"])
async def test_keep_alives_are_waited_for_as_the_server_sends_them(clock: str) -> None:
    """A server whose clock says nothing proves its life by keep-alives, ten times as rare as they were asked for."""
    source, _ = await made(FakeStore(), liveness_timeout_ms=15_000)
    session = FakeSession()
    session.slower, session.has_clock = 10.0, clock == "stands"
    one = Subscription(session, source._settings, ServerLimits(), source.now_ns, CallSize(9))  # type: ignore[arg-type]
    source._subscriptions = [one]
    await one.open()
    await one.watch_clock()
    if clock == "stands":
        one.liveness.note_clock("once")
        one.liveness._begun_s -= 20
        source._check_life()
    assert not one.liveness.has_clock
    one.liveness.alive_s = time.monotonic() - 140
    source._check_life()
    one.liveness.alive_s -= 20
    with pytest.raises(SourceLost):
        source._check_life()


def test_the_log_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The library's own chatter does not reach the log of a node."""
    from agent.ingest.opcua.session import quiet_library

    quiet_library()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("asyncua.client.ua_client").error("traceback")
    assert not caplog.records


async def test_a_value_proves_life_where_the_clock_is_not_notified() -> None:
    """A server that never notifies its clock, but values, is alive (node-opcua with a handle that it cannot hold). A
    loss is then dated by what the server says of its sending, by the answer before the last."""
    source, _ = await made(FakeStore())
    (subscription,) = source._subscriptions
    for sent_s in (12, 13):
        header = HEADER._replace(publish_time_ns=sent_s * S)
        await source._take(cast("Session", FakeSession()), header, publication(Change(1, 1.0, 0, 10 * S, 10 * S)))
    assert source.alive_ns == 12 * S
    subscription.liveness = Liveness(0.0)
    await take(source)
    assert (subscription.liveness.complete_ns, source.alive_ns) == (0, 0)


async def test_the_subscription_furthest_behind_dates_a_loss() -> None:
    """One that has proven nothing yet counts from its creation; none at all, and the life before counts."""
    source, _ = await made(FakeStore())
    first = source._subscriptions[0]
    second = Subscription(FakeSession(), source._settings, ServerLimits(), lambda: 50 * S, CallSize(9))  # type: ignore[arg-type]
    await second.open()
    source._subscriptions.append(second)
    source._alive_before_ns = 7 * S
    assert source.alive_ns == 7 * S
    first.liveness.complete_ns = 60 * S
    assert source.alive_ns == 50 * S
    second.liveness.complete_ns = 58 * S
    assert source.alive_ns == 58 * S


async def test_a_clock_is_as_new_as_the_publication_that_brings_it() -> None:
    """A new subscription brings the server's clock as it was when it last moved, up to a second ago (asyncua): that is
    no clock that was set back, and no gap is declared for it."""
    source, _ = await made(FakeStore())
    gaps: list[TagGap] = []
    source._delivery.on_gap(gaps.append)
    (subscription,) = source._subscriptions
    now_ns = time.monotonic_ns()
    source._clock.read(100 * S, now_ns, None)
    source._declare_since(NOTIFICATIONS_MISSING, ServerTime(90 * S, 0), [1])
    subscription.clock_least_ns = source._clock.least_ns(time.monotonic_ns())
    shown = Change(HEARTBEAT_HANDLE, "99.2", 0, 99_200_000_000, 99_200_000_000)
    source._note_publication(HEADER._replace(publish_time_ns=100 * S + 1), publication(shown))
    assert (source._clock.set_back_ns, [gap.reason for gap in gaps]) == (0, [NOTIFICATIONS_MISSING])
    assert source._clock.shown_ns == 100 * S + 1


async def test_a_server_clock_before_1970_dates_a_loss_as_any_other() -> None:
    """The last proof of life is a negative time there, not a time that comes after all samples."""
    source, _ = await made(FakeStore())
    (subscription,) = source._subscriptions
    assert source.alive_ns == 0
    for sent_ns in (-101 * S, -100 * S, -99 * S):
        subscription.liveness.note_answer(0.0, sent_ns, None, is_proof=True, more=False)
    assert source.alive_ns == -100 * S


async def test_an_item_whose_node_is_gone_is_created_again() -> None:
    """The bad sample is recorded as it came; the item is deleted and its tag parked; the value of the node that comes
    back is recorded, with the time of its return, even if the node gives it an old time."""
    store = FakeStore()
    source, recorder = await made(store)
    (subscription,) = source._subscriptions
    subscription.plan.want([1, 2])
    subscription.plan.answered([1, 2], [Created(0, 11), Created(0, 12)], 0)
    await take(source, Change(1, 1.0, 0, 10 * S, 10 * S), Change(2, 1.0, 0, 10 * S, 10 * S))
    await take(source, Change(1, None, 0x8034_0000, 20 * S, 20 * S))
    await source.finish()
    assert (subscription.plan.parked, subscription.plan.next_deletion()) == ({1}, [11])
    subscription.created_ns = 30 * S
    await take(source, Change(1, 2.0, 0, 5 * S, 5 * S))
    await source.finish()
    await recorder.drain()
    assert store.of("a/1") == [Sample(1, 10 * S, 1.0), Sample(1, 20 * S, None, 0x8034_0000), Sample(1, 30 * S, 2.0)]


@pytest.mark.parametrize("why", ["another interval", "another unit", "node gone", "refused", "refused before"])
async def test_a_time_without_an_item_is_a_gap(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag whose item is created anew, since the tag map says something else of it, or its node was gone: the gap is
    from the last sign of life of the old item, or from its refusal, until the new one stands; also if that is in the
    next session. The neighbour is in no gap."""
    source, recorder = await made(FakeStore(), sampling_interval_ms=0, parked_retry_ms=100)
    gaps: list[TagGap] = []
    source._delivery.on_gap(gaps.append)
    session = FakeSession()
    session.shows_ns = 9 * S
    if "refused" in why:
        session.refusals[1, ""] = 0x8034_0000
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: source._built, "items")
        (subscription,) = session.subscriptions
        for number, at_ns in enumerate((10 * S, 11 * S), 1):
            values = [(handle, 1.0, at_ns) for handle in session.handles(subscription)]
            session.answers.put_nowait(answer(subscription, number, *values, publish_ns=at_ns))
        await wait_until_async(lambda: source.alive_ns == 10 * S, "a second answer")
        assert not gaps
        session.shows_ns = 1_000 * S
        session.refusals = {} if why == "refused" else session.refusals
        changed = TAGS[0]
        if why == "another interval":
            changed = tag(1, replace(TAGS[0].point, monitoring=Monitoring(sampling_interval_ms=50)))
            source._delivery.offer_map([changed, TAGS[1]], [1, 2])
        elif why == "another unit":
            changed = replace(TAGS[0], definition=replace(TAGS[0].definition, unit="bar"))
            source._delivery.offer_map([changed, TAGS[1]], [*await recorder.define([changed.definition]), 2])
        elif why == "node gone":
            session.answers.put_nowait(answer(subscription, 3, (1, 0.0, 12 * S), quality=0x8034_0000))
        if why != "refused before":
            await wait_until_async(lambda: gaps, "the gap")
    if why == "refused before":
        session = FakeSession()
        session.shows_ns = 1_000 * S
        async with living(monkeypatch, source, session):
            await wait_until_async(lambda: gaps, "the gap")
    (gap,) = [one for one in gaps if one.reason in (ITEM_REFUSED, ITEM_RENEWED)]
    assert gap.reason == (ITEM_RENEWED if "another" in why else ITEM_REFUSED)
    assert gap.tags == (3 if why == "another unit" else 1,)
    assert gap.first_time_ns == (10 * S if "refused" not in why else pytest.approx(9 * S, abs=S))
    assert 1_000 * S <= gap.last_time_ns < 2_000 * S


def restarted(samples: Sequence[tuple[str, Sample]], **settings: object) -> tuple[OpcuaSource, list[TagGap]]:
    """The same source in the next process, which finds these samples, and the gaps that it declares."""
    store = FakeStore()
    store.definitions = [one.definition for one in TAGS]
    delivery = Delivery("plc", TAGS, [1, 2], Recorder("plc", "plant-a", store, (Busy,), "facts.operational"))
    newest = {sample.tag: sample for _, sample in samples}
    good_ns = {sample.tag: sample.source_time_ns for _, sample in samples if not sample.quality}
    delivery.seed({tag: Newest(sample, good_ns.get(tag, 0)) for tag, sample in newest.items()})
    gaps: list[TagGap] = []
    delivery.on_gap(gaps.append)
    used = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), buffer_values_max=1_000, **settings)  # type: ignore[arg-type]
    return OpcuaSource(used, delivery), gaps


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("why", ["refused", "node gone", "sensor failure"])
async def test_a_tag_without_an_item_at_the_end_of_a_process(
    why: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gap reaches over the restart: from the end of its item, as the store has it, or from the refusal, until it
    has one again. A bad value of an item that lives is no such end."""
    store = FakeStore()
    source, recorder = await made(store, sampling_interval_ms=0, parked_retry_ms=60_000)
    session = FakeSession()
    session.shows_ns = 9 * S
    if why == "refused":
        session.refusals[1, ""] = BAD_TOO_MANY_MONITORED_ITEMS
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: source._built, "items")
        (subscription,) = session.subscriptions
        values = [(handle, 1.0, 10 * S) for handle in session.handles(subscription)]
        session.answers.put_nowait(answer(subscription, 1, *values, publish_ns=10 * S))
        if why != "refused":
            status = BAD_NODE_ID_UNKNOWN if why == "node gone" else BAD_SENSOR_FAILURE
            session.answers.put_nowait(answer(subscription, 2, (1, 0.0, 12 * S), publish_ns=12 * S, quality=status))
        await wait_until_async(lambda: [one for one in store.of("a/1") if one.quality], "the bad sample")
        await wait_until_async(lambda: store.good("a/2"), "its neighbour")
        kept = [*store.samples]
    if end == "stop":
        await source.finish()
        await recorder.drain()
        kept = store.samples
    source, gaps = restarted(kept, sampling_interval_ms=0, parked_retry_ms=100)
    session = FakeSession()
    session.shows_ns = 1_000 * S
    if why == "refused":
        session.refusals[1, ""] = BAD_TOO_MANY_MONITORED_ITEMS
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: source._built, "items")
        assert [gap.reason for gap in gaps] == ([ITEM_REFUSED] if why == "node gone" else [])
        session.refusals.clear()
        if why != "sensor failure":
            await wait_until_async(lambda: gaps, "the gap")
    refused = [gap for gap in gaps if gap.reason == ITEM_REFUSED]
    assert [gap.tags for gap in refused] == ([] if why == "sensor failure" else [(1,)])
    for gap in refused:
        undelivered_ns = source._settings.undelivered_ms(source._delivery.points.values()) * 1_000_000
        ended_ns = 12 * S if why == "node gone" else pytest.approx(9 * S, abs=S)
        assert gap.first_time_ns + undelivered_ns == ended_ns
        assert 1_000 * S <= gap.last_time_ns < 2_000 * S


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_dead_item_at_the_end_of_a_process(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit has found it, and the server has not created another yet: its gap is a fact at once, and up to the stop
    if there is one."""
    store = FakeStore()
    source, recorder = await made(store, sampling_interval_ms=0)
    session, create = FakeSession(), FakeSession.create_items
    session.shows_ns = 20 * S

    async def check(_: object, one: Subscription, __: object) -> Findings:
        return Findings({}, [1] if one.plan.item(1) else [], {1: ServerTime(10 * S, 0)})

    async def create_once(one: int, items: Sequence[ItemRequest]) -> list[Created]:
        return await (asyncio.Event().wait() if session.asked else create(session, one, items))  # type: ignore[return-value]

    monkeypatch.setattr(source_module.Audit, "check", check)
    monkeypatch.setattr(session, "create_items", create_once)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.asked, "items")
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S), (2, 1.0, S)))
        await wait_until_async(lambda: store.messages, "the fact")
        kept, found_ns = [*store.messages.values()], source.now_ns()
    if end == "stop":
        await source.finish()
        await recorder.drain()
        kept = [*store.messages.values()]
    facts = [json.loads(message.fact.object_json) for message in kept]
    assert {(one["reason"], one["first_time"], *one["tags"]) for one in facts} == {
        (ITEM_RENEWED, "1970-01-01T00:00:10Z", "tag:a/1")
    }
    assert (facts[-1]["last_time"] > time_text(found_ns)) == (end == "stop")


@pytest.mark.parametrize(
    "value, at_s, proven_s, first_s",
    [(2.0, 100, 10, 10), (2.0, 100, 50, 50), (2.0, 100, 150, None), (1.0, 100, 10, None), (2.0, 450, 10, None)],
)
async def test_an_item_that_died_before_the_end_of_its_session(
    value: float, at_s: int, proven_s: int, first_s: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit had not found it. The first value of the next session shows it, if that is another one and older than
    what the session before has delivered, by more than clocks differ: it should have come. The gap begins with the last
    sign of life of the item, a value or a Read. A value that is older than that sign is of a clock that is behind."""
    source, _ = await made(FakeStore(), sampling_interval_ms=0)
    gaps: list[TagGap] = []
    source._delivery.on_gap(gaps.append)
    session = FakeSession()
    session.shows_ns = 9 * S
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: source._auditor, "the audit")
        session.answers.put_nowait(answer(session.subscriptions[0], 1, (1, 1.0, 10 * S), (2, 1.0, 10 * S)))
        await wait_until_async(lambda: source._delivery.sampler.last(2).source_time_ns, "values")
        assert source._auditor is not None, "waited for"
        source._auditor._alive[1] = ServerTime(proven_s * S, 0)
        source._subscriptions[0].liveness.complete_ns = 500 * S
    session = FakeSession()
    session.shows_ns, session.started = 1_000 * S, "since"  # so nothing is taken over
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.asked, "items")
        first = answer(session.subscriptions[0], 1, (1, value, at_s * S), (2, 1.0, 10 * S))
        session.answers.put_nowait(first)
        await wait_until_async(lambda: source._delivery.sampler.last(1).source_time_ns == at_s * S, "the first values")
    found = [(gap.reason, gap.first_time_ns, gap.tags) for gap in gaps if gap.reason == ITEM_RENEWED]
    assert found == ([] if first_s is None else [(ITEM_RENEWED, first_s * S, (1,))])


async def test_a_node_that_a_server_creates_items_of_and_does_not_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so with the first notification, each time that the item is created anew: that is one gap fact, one bad
    sample and one line of the log while it stands, and another fact when a value has come."""
    store = FakeStore()
    source, _ = await made(store, [tag(1)], parked_retry_ms=50)
    gaps: list[TagGap] = []
    source._delivery.on_gap(gaps.append)
    session, numbers = FakeSession(), iter(range(1, 100))
    async with living(monkeypatch, source, session):
        for count in range(1, 5):
            await wait_until_async(lambda: len(session.asked) == count, "an item")  # noqa: B023 awaited here
            gone = answer(1, next(numbers), (1, 0.0, count * S), quality=BAD_NODE_ID_UNKNOWN)
            session.answers.put_nowait(gone)
        await wait_until_async(lambda: len(session.asked) == 5, "an item")
        assert len(gaps) == 1
        session.answers.put_nowait(answer(1, next(numbers), (1, 1.0, 50 * S)))
        await wait_until_async(lambda: store.good("a/1"), "a value")
    assert [(gap.reason, gap.first_time_ns) for gap in gaps] == [(ITEM_REFUSED, gaps[0].first_time_ns)] * 2
    assert gaps[0].last_time_ns < gaps[1].last_time_ns
    assert [(one.source_time_ns, one.quality) for one in store.of("a/1")] == [(S, BAD_NODE_ID_UNKNOWN), (50 * S, 0)]
    assert [getattr(one, "action", "") for one in caplog.records].count("tags_parked") == 1


async def test_items_are_tended_while_an_audit_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Read that the server does not answer holds back neither an edit of the tag map nor the look at parked nodes."""
    source, _ = await made(FakeStore(), [tag(1)], parked_retry_ms=100)
    session, waiting = FakeSession(), asyncio.Event()

    async def check(*_: object) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(source_module.Audit, "check", check)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.asked, "items")
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
        await asyncio.wait_for(waiting.wait(), LIMIT_S)
        session.refusals[2, ""] = BAD_NODE_ID_UNKNOWN
        source._delivery.offer_map(
            [tag(1), tag(2)], await source._delivery.recorder.define([tag(1).definition, tag(2).definition])
        )
        await wait_until_async(lambda: len(session.asked) >= 3, "the parked node asked for again")


async def test_items_are_spread_over_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the server's limits; what it has no room for is bad with a status that says so; a new tag map moves
    nothing that stays."""
    store = FakeStore()
    source, _ = await made(store, [tag(n) for n in range(1, 6)])
    session = FakeSession(ServerLimits(items_per_subscription=3, subscriptions_per_session=2))
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: len(store.of("a/5")) == 1, "the tag without room")
        assert store.of("a/5")[0].quality == BAD_TOO_MANY_MONITORED_ITEMS
        assert [session.handles(one) for one in session.subscriptions] == [{1, 2}, {3, 4}]
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
        source._delivery.offer_map([tag(n) for n in (2, 3, 4, 5)], [2, 3, 4, 5])
        await wait_until_async(lambda: session.handles(1) == {2, 5}, "the new map")
        assert session.handles(session.subscriptions[1]) == {3, 4}
        assert [item.handle for item in session.asked] == [1, 2, 3, 4, 5]


async def test_a_subscription_that_the_server_ends_is_replaced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tags are bad from its last sign of life until its items stand again, and a gap fact says so; those of the
    other subscription go on. What still comes of the old one is dropped."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    store = FakeStore()
    source, recorder = await made(store, items_per_subscription_max=1, sampling_interval_ms=0)
    gaps: list[TagGap] = []
    source._delivery.on_gap(gaps.append)
    session = FakeSession()
    session.shows_ns = 10 * S
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: len(session.asked) == 2, "items")
        first, second = session.subscriptions
        session.answers.put_nowait(answer(first, 1, (1, 1.0, 10 * S), publish_ns=11 * S))
        session.answers.put_nowait(answer(first, 2, (1, 1.5, 11 * S), publish_ns=12 * S))
        session.answers.put_nowait(answer(second, 1, (2, 1.0, 10 * S)))
        await wait_until_async(lambda: len(store.samples) == 3, "values")
        await wait_until_async(lambda: source.now_ns() < 100 * S, "the clock, which is read behind what was created")
        session.shows_ns = 1_000 * S
        session.answers.put_nowait(status_change(first, 3, 0x800A_0000))
        await wait_until_async(lambda: len(session.asked) == 3, "a new item")
        third = session.subscriptions[2]
        assert (session.handles(second), session.handles(third)) == ({2}, {1})
        session.answers.put_nowait(answer(first, 4, (1, 9.0, 12 * S)))
        session.answers.put_nowait(answer(third, 1, (1, 2.0, 20 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 4, "the value after")
        await wait_until_async(lambda: gaps, "the gap")
    found = [(s.source_time_ns, s.value) for s in store.of("a/1")]
    assert found == [(10 * S, 1.0), (11 * S, 1.5), (11 * S + 1, None), (20 * S, 2.0)]
    assert [s.value for s in store.of("a/2")] == [1.0]
    assert (gaps[0].reason, gaps[0].first_time_ns, gaps[0].tags) == (SUBSCRIPTION_LOST, 11 * S, (1,))
    assert 1_000 * S <= gaps[0].last_time_ns < 2_000 * S, "not before the new items were created"
    await recorder.drain()
    assert len(store.messages) == 1


async def test_a_refused_node_is_asked_for_again_by_the_subscription_that_replaces_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice: all tags of the ended subscription are in the new one, also those without an item at that moment."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    source, _ = await made(FakeStore())
    session = FakeSession()
    session.refusals[2, ""] = BAD_NODE_ID_UNKNOWN
    async with living(monkeypatch, source, session):
        for turn in range(1, 3):
            await wait_until_async(lambda turn=turn: len(session.asked) == 2 * turn, "both items asked for")  # type: ignore[misc]
            session.answers.put_nowait(status_change(session.subscriptions[-1], 1, 0x800A_0000))
        session.refusals.clear()
        await wait_until_async(lambda: len(session.subscriptions) == 3, "the second new subscription")
        await wait_until_async(lambda: session.handles(session.subscriptions[-1]) == {1, 2}, "both items")


async def test_a_node_that_is_gone_ends_no_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """python-opcua says of a deleted node that the status of the whole subscription is BadNodeIdUnknown, and goes on
    publishing: no tag is lost, and the audit finds the one that is."""
    store = FakeStore()
    source, recorder = await made(store)
    session = FakeSession()
    async with living(monkeypatch, source, session):
        session.answers.put_nowait(answer(1, 1, (1, 1.0, 10 * S)))
        session.answers.put_nowait(status_change(1, 2, BAD_NODE_ID_UNKNOWN))
        session.answers.put_nowait(answer(1, 3, (1, 2.0, 20 * S)))
        await wait_until_async(lambda: session.keeps_subscriptions and len(store.of("a/1")) == 2, "values")
        assert not source._subscriptions[0].ended
        assert session.subscriptions == [1]
    await recorder.drain()
    assert [s.value for s in store.of("a/1")] == [1.0, 2.0]
    assert not store.messages


async def test_a_subscription_that_is_ended_at_once_ends_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a session that has none any more although nothing was said: otherwise it would go round for ever."""
    for ending in (status_change(1, 1, 0x800A_0000), NO_SUBSCRIPTION):
        source, _ = await made(FakeStore())
        session = FakeSession()
        session.answers.put_nowait(ending)
        monkeypatch.setattr(source_module, "open_session", opening(session))
        with pytest.RaisesGroup(pytest.RaisesExc(SourceLost, match="ended a subscription at once: Bad"), **FLAT):
            await source.run(lambda: None)


async def test_notifications_that_never_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server still holds is asked for again and recorded in its place; what it does not hold is a gap. Fewer
    requests are kept open for a server that says they are too many."""
    store = FakeStore()
    source, recorder = await made(store, publish_requests=3)
    session = FakeSession()
    session.shows_ns = 15 * S
    session.held[1, 2] = answer(1, 2, (1, 2.0, 2 * S))
    async with living(monkeypatch, source, session):
        session.answers.put_nowait(TOO_MANY_REQUESTS)
        session.answers.put_nowait(answer(1, 1, (1, 1.0, 1 * S), publish_ns=1 * S))
        await wait_until_async(lambda: source.now_ns() < 100 * S, "the clock, which is read behind what was created")
        session.shows_ns = 1_000 * S
        session.answers.put_nowait(answer(1, 4, (1, 4.0, 4 * S)))
        # The answer is held until no older request is open: these come for the others.
        session.answers.put_nowait(answer(1, 5, (1, 5.0, 5 * S)))
        session.answers.put_nowait(answer(1, 6, (1, 6.0, 6 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 5, "values")
        await wait_until_async(lambda: session.publishes_open == 2, "two requests")
    assert [s.value for s in store.of("a/1")] == [1.0, 2.0, 4.0, 5.0, 6.0]
    await recorder.drain()
    (message,) = store.messages.values()
    content = json.loads(message.fact.object_json)
    assert (content["reason"], content["count"], content["count_exact"]) == ("notifications_missing", 1, False)
    assert content["last_time"].startswith("1970-01-01T00:16:4"), "as the server's clock shows"


async def test_a_session_that_ends_while_notifications_are_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is asked for its clock before they are declared. A life that ends meanwhile declares them all the
    same, and what arrived after them is recorded."""
    store = FakeStore()
    source, recorder = await made(store, publish_requests=1)
    session, asked = FakeSession(), asyncio.Event()

    async def clock_ns() -> None:
        asked.set()
        await asyncio.Event().wait()

    async with living(monkeypatch, source, session):
        session.answers.put_nowait(answer(1, 1, (1, 1.0, 1 * S)))
        await wait_until_async(lambda: store.of("a/1"), "a value")
        monkeypatch.setattr(session, "clock_ns", clock_ns)
        session.answers.put_nowait(answer(1, 4, (1, 4.0, 4 * S)))
        await asked.wait()
    await source.finish()
    await recorder.drain()
    assert [s.value for s in store.good("a/1")] == [1.0, 4.0]
    (message,) = store.messages.values()
    content = json.loads(message.fact.object_json)
    assert (content["reason"], content["count"], content["count_exact"]) == ("notifications_missing", 2, False)


UNREADABLE = answer(1, 2, (1, 2.0, 2 * S))[:21] + struct.pack("<i", 1) + b"\xff" * 8


@pytest.mark.parametrize(
    "body",
    [answer(1, 0), answer(1, 2), answer(1, 7, (1, 7.0, 7 * S)), UNREADABLE, answer(1, 2)[:9]],
    ids=["number 0", "no data", "another", "unreadable", "cut short"],
)
async def test_a_server_that_republishes_something_else_does_not_hold_it(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """An empty notification of number 0 (asyncua, python-opcua), one of the right number without data, one of another
    number, one that cannot be read: each is asked for once, is a gap, and what follows it is recorded. One that cannot
    be read ended each session in which it was asked for."""
    store = FakeStore()
    source, recorder = await made(store, publish_requests=1)
    session = FakeSession()
    session.held[1, 2] = body
    async with living(monkeypatch, source, session):
        session.answers.put_nowait(answer(1, 1, (1, 1.0, 1 * S), publish_ns=1 * S))
        session.answers.put_nowait(answer(1, 3, (1, 3.0, 3 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 2, "values")
    await recorder.drain()
    assert session.republished == 1
    assert [s.value for s in store.of("a/1")] == [1.0, 3.0]
    assert ["notifications_missing" in str(message.fact) for message in store.messages.values()] == [True]


async def test_items_whose_queue_stays_short_are_created_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server refuses the call that gives them a longer queue for its size. They are there, and the log tells of
    the queue."""
    store = FakeStore()
    source, _ = await made(store, [tag(1), tag(2)])
    session = FakeSession()
    session.revised = 20.0, 3

    async def refused(*_: object) -> list[Created]:
        raise CallTooLarge

    monkeypatch.setattr(session, "resize_queues", refused)
    async with living(monkeypatch, source, session):
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
        await wait_until_async(lambda: store.of("a/1"), "a value")
    assert len(session.items[1]) == 2
    assert [getattr(one, "action", "") for one in caplog.records].count("queues_short") == 1


async def test_what_a_tag_map_says_of_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interval and queue; without, those of the source, and a queue that lasts through a stall at the interval that
    the server revised. A row that changes only there has its item created anew, under its number."""
    own = TagPoint(parse_readings("nsu=urn:x;i=1"), Monitoring(sampling_interval_ms=50, queue_size=7))
    source, _ = await made(FakeStore(), [tag(1, own), tag(2)])
    session = FakeSession()
    session.revised = 20.0, 3
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.resized, "a longer queue")
        assert [(item.sampling_ms, item.queue_size) for item in session.asked] == [(50, 7), (250, 43)]
        assert [(item.handle, item.queue_size) for item in session.resized] == [(2, 526)]
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
        other = TagPoint(own.readings, Monitoring(deadband=0.5))
        source._delivery.offer_map([tag(1, other), tag(2)], [1, 2])
        await wait_until_async(lambda: len(session.asked) == 3, "the item created anew")
        assert session.asked[2].monitoring.deadband == 0.5
        assert session.handles(1) == {1, 2}
        assert len(session.items[1]) == 2


async def test_a_malformed_value_costs_its_own_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a bad sample; those behind it become a gap fact, since their beginning is unknown. The session goes
    on."""
    store = FakeStore()
    source, recorder = await made(store)
    session = FakeSession()
    async with living(monkeypatch, source, session):
        good, endless = struct.pack("<Bd", 11, 1.5), struct.pack("<Bi", 12, 1_000_000)
        session.answers.put_nowait(answer_of(1, 1, (1, good, S), (2, endless, S), (1, good, 2 * S), (1, good, 3 * S)))
        session.answers.put_nowait(answer(1, 2, (1, 2.5, 4 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 2, "the value after it")
    await recorder.drain()
    assert [sample.value for sample in store.of("a/1")] == [1.5, 2.5]
    assert [(sample.value, sample.quality) for sample in store.of("a/2")] == [(None, BAD_DECODING_ERROR)]
    (fact,) = [json.loads(message.fact.object_json) for message in store.messages.values()]
    assert (fact["reason"], fact["count"], fact["count_exact"]) == ("values_unreadable", 2, True)
    assert fact["tags"] == ["tag:a/1", "tag:a/2"]


async def test_a_malformed_value_in_each_publication_costs_one_call_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's clock is read, and a line logged, for the first of them; each is a bad sample, and what stands
    behind each is counted as lost."""
    store = FakeStore()
    source, recorder = await made(store)
    session, reads = FakeSession(), list[int]()

    async def read() -> None:
        reads.append(len(store.of("a/2")))

    monkeypatch.setattr(session, "clock_ns", read)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
        reads.clear()
        good, endless = struct.pack("<Bd", 11, 1.5), struct.pack("<Bi", 12, 1_000_000)
        for number in range(1, 6):
            values = (2, endless, number * S), (1, good, number * S)
            session.answers.put_nowait(answer_of(1, number, *values))
        await wait_until_async(lambda: len(store.of("a/2")) == 5, "the bad samples")
    await source.finish()
    await recorder.drain()
    assert reads == [0]
    assert {sample.quality for sample in store.of("a/2")} == {BAD_DECODING_ERROR}
    said = [json.loads(message.fact.object_json) for message in store.messages.values()]
    assert sum(one["count"] for one in said if one["reason"] == "values_unreadable") == 5
    assert [getattr(one, "action", "") for one in caplog.records].count("values_unreadable") == 1


async def test_an_address_with_an_index_is_a_node_or_an_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of that very name wins. Where there is none the array is read, and its one element is the value; where
    there is neither, the tag is bad."""
    store = FakeStore()
    points = [TagPoint(parse_readings(f"nsu=urn:x;s={name}[3]")) for name in ("node", "array", "nothing")]
    source, _ = await made(store, [tag(n, point) for n, point in enumerate(points, 1)])
    session = FakeSession()
    session.refusals = {(name, ""): BAD_NODE_ID_UNKNOWN for name in ("array[3]", "nothing[3]")}
    session.refusals["nothing", "3"] = 0x8036_0000  # BadIndexRangeInvalid
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: store.of("a/3"), "the bad tag")
        assert store.of("a/3")[0].quality == BAD_NODE_ID_UNKNOWN
        asked = {(item.address.identifier, item.index_range) for item in session.items[1].values()}
        assert asked == {("node[3]", ""), ("array", "3")}
        double, int64, text = struct.Struct("<Bid").pack, struct.Struct("<Biq").pack, struct.Struct("<Bii3s").pack
        arrays = (double(0x8B, 1, 1.5), double(0x8B, 1, math.nan), int64(0x88, 1, 2**60), text(0x8C, 1, 3, b"NaN"))
        values = [(1 if n == 0 else 2, array, S + n) for n, array in enumerate(arrays)]
        last = [(2, double(0x8B, 1, 2.5), 2 * S), (2, struct.pack("<Bi2s", 12, 2, b"xy"), 3 * S)]
        session.answers.put_nowait(answer_of(1, 1, *values, *last))
        await wait_until_async(lambda: len(store.of("a/2")) == 5, "values")
    assert store.of("a/1")[0].value == Json.of([1.5])
    assert [sample.value for sample in store.of("a/2")][1:] == [2**60, "NaN", 2.5, "x"]
    assert str(store.of("a/2")[0].value) == "nan"


async def test_a_server_without_index_ranges_gives_no_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would send the whole array with a good status; the tag is bad instead, and others are monitored."""
    store = FakeStore()
    points = [TagPoint(parse_readings(f"nsu=urn:x;i={address}")) for address in ("7", "7[3]", "7[1:2]")]
    source, _ = await made(store, [tag(n, point) for n, point in enumerate(points, 1)])
    session = FakeSession()
    session.has_no_ranges = True
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: store.of("a/3"), "the bad tags")
        assert [store.of(f"a/{n}")[0].quality for n in (2, 3)] == [BAD_INDEX_RANGE_INVALID] * 2
        assert session.handles(1) == {1}


async def test_a_value_ahead_of_the_answer_is_read_as_the_element_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first value of an item may come before the answer to its creation."""
    store = FakeStore()
    source, _ = await made(store, [tag(1, TagPoint(parse_readings("nsu=urn:x;i=7[3]")))])
    session = FakeSession()
    create = session.create_items

    async def answered_late(subscription_id: int, items: Sequence[ItemRequest]) -> list[Created]:
        found = await create(subscription_id, items)
        session.answers.put_nowait(answer_of(subscription_id, 1, (1, struct.pack("<Bid", 0x8B, 1, 1.5), S)))
        await wait_until_async(lambda: store.of("a/1"), "the value")
        return found

    monkeypatch.setattr(session, "create_items", answered_late)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: store.of("a/1"), "the value")
    assert store.of("a/1") == [Sample(1, S, 1.5)]


async def test_history_and_events_run_within_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events begin before anything is subscribed. Both have the open session once everything is, and are cancelled with
    the life. History is told of gaps whose end is known."""
    told: list[object] = []

    class Work:
        async def begin(self, *_: object) -> None:
            assert not session.subscriptions

        async def run(self, *given: object) -> None:
            told.append(given)
            try:
                await asyncio.Event().wait()
            finally:
                told.append("ended")

        async def finish(self) -> None:
            told.append("finished")

        def note_gap(self, gap: TagGap) -> None:
            told.append(gap)

    plain, _ = await made(FakeStore())
    source = OpcuaSource(plain._settings, plain._delivery, Work(), Work())  # type: ignore[arg-type]
    session = FakeSession()
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.asked, "items")
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
        await wait_until_async(lambda: len(told) == 2, "history and events")
        assert told == [(session,), (session, source._publisher)]
        source._delivery.add_gap("reason", 1, 2, 0, [1], exact=False)
        source._delivery.add_gap("not over", 1, 2, 0, [1], exact=False, is_over=False)
        assert told[2:] == [TagGap("reason", 1, 2, (1,))]
    assert told[3:] == ["ended", "ended"]
    await source.finish()
    assert told[5:] == ["finished"]


async def test_a_node_that_is_gone_when_the_connection_is_back_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag was lost with its connection. That the server no longer has the node is another reason, with another
    remedy, so it is recorded too."""
    store = FakeStore()
    source, _ = await made(store, [tag(1)])
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 5 * S)
    session = FakeSession()
    session.refusals = {(1, ""): BAD_NODE_ID_UNKNOWN}
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: len(store.of("a/1")) == 2, "the refusal")
    assert [sample.quality for sample in store.of("a/1")] == [BAD_COMMUNICATION_ERROR, BAD_NODE_ID_UNKNOWN]


async def test_the_log_names_parked_tags(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One line for each status, which is a name; the first twenty tags by name, then how many more."""
    source, _ = await made(FakeStore(), [tag(n) for n in range(1, 31)])
    session = FakeSession()
    session.refusals = {(n, ""): 0x8034_0000 if n <= 25 else 0x801F_0000 for n in range(1, 31)}
    with caplog.at_level(logging.WARNING, "agent.ingest"):
        async with living(monkeypatch, source, session):
            await wait_until_async(lambda: source._subscriptions and source._subscriptions[0].plan.parked, "parked")
            await wait_until_async(lambda: caplog.records, "lines")
    found = {record.status: (record.count, record.tags) for record in caplog.records if hasattr(record, "tags")}
    assert set(found) == {"BadNodeIdUnknown", "BadUserAccessDenied"}
    count, named = found["BadNodeIdUnknown"]
    assert (count, re.findall(r"(\S+) \(row", named)) == (25, [f"a/{n}" for n in range(1, 21)])
    assert named.endswith(" and 5 more")
    assert found["BadUserAccessDenied"][0] == 5
