import asyncio
import json
import logging
import math
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.gap import SUBSCRIPTION_LOST, TagGap
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua import subscription as subscription_module
from agent.ingest.opcua.address import NodeAddress, TagPoint, parse_readings
from agent.ingest.opcua.decode import Change, Changes, Publication
from agent.ingest.opcua.groups import ServerLimits
from agent.ingest.opcua.liveness import Liveness
from agent.ingest.opcua.monitoring import Monitoring
from agent.ingest.opcua.plan import Created
from agent.ingest.opcua.publishing import Header
from agent.ingest.opcua.session import HEARTBEAT_HANDLE, ItemRequest
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscription import Subscription
from agent.ingest.quality import (
    BAD_DECODING_ERROR,
    BAD_INDEX_RANGE_INVALID,
    BAD_NODE_ID_UNKNOWN,
    BAD_OUT_OF_SERVICE,
    BAD_TOO_MANY_MONITORED_ITEMS,
)
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.settings import OpcuaSourceSettings
from agent.ingest.tags.tag_map import Tag
from agent.message import Json, Sample, TagDefinition
from tests.ingest.fakes import Busy, FakeStore, in_loop
from tests.ingest.opcua.fake_session import (
    NO_SUBSCRIPTION,
    TOO_MANY_REQUESTS,
    FakeSession,
    answer,
    answer_of,
    opening,
    status_change,
)
from tests.waiting import wait_until_async

S = 1_000_000_000
FLAT = {"allow_unwrapped": False, "flatten_subgroups": True}
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
    subscription = Subscription(FakeSession(), used, ServerLimits(), found.now_ns)  # type: ignore[arg-type]
    subscription.id = 1
    found._subscriptions, found._by_id = [subscription], {1: subscription}
    return found, recorder


def publication(*changes: Change) -> Publication:
    """One message with these values."""
    return Publication(1, 1, has_data=True, changes=Changes.of(changes))


@asynccontextmanager
async def living(monkeypatch: pytest.MonkeyPatch, source: OpcuaSource, session: FakeSession) -> AsyncIterator[None]:
    """The source lives with this session for the length of a block."""
    monkeypatch.setattr(source_module, "open_session", opening(session))
    async with asyncio.TaskGroup() as group:
        life = group.create_task(source.run(lambda: None), name="life")
        try:
            yield
        finally:
            life.cancel()


async def take(source: OpcuaSource, *changes: Change) -> None:
    """A publication comes."""
    await source._take(HEADER, publication(*changes))


@in_loop
async def test_values_the_server_discarded_become_a_fact() -> None:
    """The overflow bit is kept in the sample, and a gap fact says between which times values were lost, and of which
    tags."""
    store = FakeStore()
    source, recorder = await made(store)
    await take(source, Change(1, 1.0, 0, 10 * S, 10 * S), Change(2, 1.0, 0, 11 * S, 11 * S))
    await take(source, Change(1, 2.0, 0x480, 20 * S, 20 * S), Change(2, 2.0, 0, 20 * S, 20 * S))
    await source.finish()
    await recorder.drain()
    assert store.of("a/1") == [Sample(1, 10 * S, 1.0), Sample(1, 20 * S, 2.0, 0x480)]
    (message,) = store.messages.values()
    content = json.loads(message.fact.object_json)
    assert content["reason"] == "server_queue_overflow"
    assert (content["first_time"], content["last_time"]) == ("1970-01-01T00:00:10Z", "1970-01-01T00:00:20Z")
    assert (content["count"], content["count_exact"], content["tags"]) == (1, False, ["tag:a/1"])


@pytest.mark.parametrize("burst, is_declared", [(3, True), (2, False)])
@in_loop
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


@in_loop
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


@in_loop
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
def test_a_new_tag_map_comes_behind_what_has_arrived(connected: bool) -> None:  # noqa: FBT001
    """Values in the buffer belong to the map under which they came and are recorded first, also those of a removed tag;
    what still comes for it afterwards is dropped."""

    @in_loop
    async def story() -> None:
        store = FakeStore()
        source, recorder = await made(store)
        await take(source, Change(1, 1.0, 0, 10 * S, 10 * S), Change(2, 1.0, 0, 10 * S, 10 * S))
        source._delivery.offer_map(TAGS[1:], [2])
        await (source._retag() if connected else source.finish())
        await take(source, Change(1, 2.0, 0, 11 * S, 11 * S), Change(2, 2.0, 0, 11 * S, 11 * S))
        source._refused[1] = 0x8034_0000
        await source.finish()
        await recorder.drain()
        assert [(s.value, s.quality) for s in store.of("a/1")] == [(1.0, 0), (None, BAD_OUT_OF_SERVICE)]
        assert [s.value for s in store.of("a/2")] == [1.0, 2.0]

    story()


@in_loop
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
@in_loop
async def test_a_server_that_publishes_rarely_is_waited_for(revised: dict[str, float]) -> None:
    """One that gives signs of life only every 20 s, whatever it was asked for, is given up after three of them are
    missing and not after one, or its source would be built anew for ever."""
    source, _ = await made(FakeStore(), liveness_timeout_ms=15_000)
    session = FakeSession()
    vars(session).update(revised)
    one = Subscription(session, source._settings, ServerLimits(), source.now_ns)  # type: ignore[arg-type]
    source._subscriptions = [one]
    await one.open()
    await one.watch_clock()
    one.liveness.alive_s = time.monotonic() - 50
    source._check_life()
    one.liveness.alive_s -= 15
    with pytest.raises(SourceLost, match="its clock has not moved"):
        source._check_life()


def test_the_log_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The library's own chatter does not reach the log of a node."""
    from agent.ingest.opcua.session import quiet_library

    quiet_library()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("asyncua.client.ua_client").error("traceback")
    assert not caplog.records


@in_loop
async def test_a_value_proves_life_where_the_clock_is_not_notified() -> None:
    """A server that never notifies its clock, but values, is alive (node-opcua with a handle that it cannot hold). A
    loss is then dated by what the server says of its sending, by the answer before the last."""
    source, _ = await made(FakeStore())
    (subscription,) = source._subscriptions
    for sent_s in (12, 13):
        header = HEADER._replace(publish_time_ns=sent_s * S)
        await source._take(header, publication(Change(1, 1.0, 0, 10 * S, 10 * S)))
    assert source.alive_ns == 12 * S
    subscription.liveness = Liveness(0.0)
    await take(source)
    assert (subscription.liveness.complete_ns, source.alive_ns) == (0, 0)


@in_loop
async def test_the_subscription_furthest_behind_dates_a_loss() -> None:
    """One that has proven nothing yet counts from its creation; none at all, and the life before counts."""
    source, _ = await made(FakeStore())
    first = source._subscriptions[0]
    second = Subscription(FakeSession(), source._settings, ServerLimits(), lambda: 50 * S)  # type: ignore[arg-type]
    await second.open()
    source._subscriptions.append(second)
    source._alive_before_ns = 7 * S
    assert source.alive_ns == 7 * S
    first.liveness.complete_ns = 60 * S
    assert source.alive_ns == 50 * S
    second.liveness.complete_ns = 58 * S
    assert source.alive_ns == 58 * S


@in_loop
async def test_a_server_clock_before_1970_dates_a_loss_as_any_other() -> None:
    """The last proof of life is a negative time there, not a time that comes after all samples."""
    source, _ = await made(FakeStore())
    (subscription,) = source._subscriptions
    assert source.alive_ns == 0
    subscription.liveness.see(0.0, -100 * S, None, is_proof=True, more=False)
    assert source.alive_ns == -100 * S


@in_loop
async def test_an_item_whose_node_is_gone_is_created_anew() -> None:
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


@in_loop
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


@in_loop
async def test_a_subscription_that_the_server_ends_is_replaced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tags are bad from its last sign of life until its items stand again, and a gap fact says so; those of the
    other subscription go on. What still comes of the old one is dropped."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    store = FakeStore()
    source, recorder = await made(store, items_per_subscription_max=1)
    gaps: list[TagGap] = []
    source._delivery.on_gap(gaps.append)
    session = FakeSession()
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: len(session.asked) == 2, "items")
        first, second = session.subscriptions
        session.answers.put_nowait(answer(first, 1, (1, 1.0, 10 * S), publish_ns=11 * S))
        session.answers.put_nowait(answer(second, 1, (2, 1.0, 10 * S)))
        await wait_until_async(lambda: len(store.samples) == 2, "values")
        session.answers.put_nowait(status_change(first, 2, 0x800A_0000))
        await wait_until_async(lambda: len(session.asked) == 3, "a new item")
        third = session.subscriptions[2]
        assert (session.handles(second), session.handles(third)) == ({2}, {1})
        session.answers.put_nowait(answer(first, 3, (1, 9.0, 12 * S)))
        session.answers.put_nowait(answer(third, 1, (1, 2.0, 20 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 3, "the value after")
        await wait_until_async(lambda: gaps, "the gap")
    assert [(s.source_time_ns, s.value) for s in store.of("a/1")] == [(10 * S, 1.0), (11 * S, None), (20 * S, 2.0)]
    assert [s.value for s in store.of("a/2")] == [1.0]
    assert (gaps[0].reason, gaps[0].first_time_ns, gaps[0].tags) == (SUBSCRIPTION_LOST, 11 * S, (1,))
    await recorder.drain()
    assert len(store.messages) == 1


@in_loop
async def test_a_subscription_that_is_ended_at_once_ends_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a session that has none any more although nothing was said: otherwise it would go round for ever."""
    for ending in (status_change(1, 1, 0x800A_0000), NO_SUBSCRIPTION):
        source, _ = await made(FakeStore())
        session = FakeSession()
        session.answers.put_nowait(ending)
        monkeypatch.setattr(source_module, "open_session", opening(session))
        with pytest.RaisesGroup(pytest.RaisesExc(SourceLost, match="ended a subscription at once: Bad"), **FLAT):
            await source.run(lambda: None)


@in_loop
async def test_notifications_that_never_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server still holds is asked for again and recorded in its place; what it does not hold is a gap. Fewer
    requests are kept open for a server that says they are too many."""
    store = FakeStore()
    source, recorder = await made(store, publish_requests=3)
    session = FakeSession()
    session.held[1, 2] = answer(1, 2, (1, 2.0, 2 * S))
    async with living(monkeypatch, source, session):
        session.answers.put_nowait(TOO_MANY_REQUESTS)
        session.answers.put_nowait(answer(1, 1, (1, 1.0, 1 * S), publish_ns=1 * S))
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


@in_loop
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


@in_loop
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


@in_loop
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


@in_loop
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


@in_loop
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


@in_loop
async def test_a_companion_runs_within_the_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of gaps, has the open session once everything is subscribed, and is cancelled with the life."""
    told: list[object] = []

    class Beside:
        def note_gap(self, gap: TagGap) -> None:
            told.append(gap)

        async def run(self, session: object, publisher: object) -> None:
            told.append((session, publisher))
            try:
                await asyncio.Event().wait()
            finally:
                told.append("ended")

    plain, _ = await made(FakeStore())
    source = OpcuaSource(plain._settings, plain._delivery, events=Beside())  # type: ignore[arg-type]
    session = FakeSession()
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.asked, "items")
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
        await wait_until_async(lambda: told, "the companion")
        assert told == [(session, source._publisher)]
        source._delivery.add_gap("reason", 1, 2, 0, [1], exact=False)
        source._delivery.add_gap("not over", 1, 2, 0, [1], exact=False, is_over=False)
        assert told[1:] == [TagGap("reason", 1, 2, (1,))]
    assert told[2:] == ["ended"]


@in_loop
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
    assert found["BadNodeIdUnknown"] == (25, ", ".join(f"a/{n}" for n in range(1, 21)) + " and 5 more")
    assert found["BadUserAccessDenied"][0] == 5
