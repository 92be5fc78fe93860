"""The items of a source's tags: a time without one is a gap, and one that is gone is created again."""

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.ingest.delivery import Delivery
from agent.ingest.gap import ITEM_REFUSED, ITEM_RENEWED, TagGap
from agent.ingest.lifecycle import Newest
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.address import TagPoint, parse_readings
from agent.ingest.opcua.audit import Findings
from agent.ingest.opcua.decode import Change
from agent.ingest.opcua.monitoring import Monitoring
from agent.ingest.opcua.plan import Created
from agent.ingest.opcua.server_clock import ServerTime
from agent.ingest.opcua.session import CallTooLarge, ItemRequest
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscription import Subscription
from agent.ingest.quality import (
    BAD_COMMUNICATION_ERROR,
    BAD_NODE_ID_UNKNOWN,
    BAD_TOO_MANY_MONITORED_ITEMS,
)
from agent.ingest.recorder import Recorder
from agent.message import Sample, time_text
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import Busy, FakeStore
from tests.ingest.opcua.fake_session import (
    FakeSession,
    answer,
    living,
)
from tests.ingest.opcua.sources import TAGS, S, gaps_of, made, tag, take
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.virtual_time

BAD_SENSOR_FAILURE = 0x808C_0000


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
    gaps = gaps_of(source)
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
    used = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), buffer_values_max=1_000, **settings)  # type: ignore[arg-type]
    source = OpcuaSource(used, delivery)
    return source, gaps_of(source)


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
    gaps = gaps_of(source)
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
    gaps = gaps_of(source)
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
