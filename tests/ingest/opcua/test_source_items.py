"""The items of a source's tags: a time without one is a gap, and one that is gone is created again."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.ingest.completeness import Moment, Stored
from agent.ingest.errors import SourceLost
from agent.ingest.gap import AGENT_STOPPED, ITEM_GONE
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.address import TagPoint
from agent.ingest.opcua.decode import DataChange
from agent.ingest.opcua.session import ItemRequest
from agent.ingest.opcua.subscriptions.item_plan import Created
from agent.ingest.opcua.subscriptions.monitoring import Monitoring
from agent.ingest.quality import (
    BAD_COMMUNICATION_ERROR,
    BAD_NODE_ID_UNKNOWN,
)
from agent.message import Sample
from tests.ingest.opcua.fake_session import (
    FakeSession,
    answer,
    death,
    living,
)
from tests.ingest.opcua.sources import TAGS, S, gaps_of, made, offer, tag, take
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.virtual_time

BAD_SENSOR_FAILURE = 0x808C_0000


async def test_an_item_whose_node_is_gone_is_created_again() -> None:
    """The bad sample is recorded as it came; the item is deleted and its tag parked; the value of the node that comes
    back is recorded, with the time of its return, even if the node gives it an old time."""
    source, store = await made()
    (subscription,) = source._subscriptions
    subscription.plan.want([1, 2])
    subscription.plan.answered([1, 2], [Created(0, 11), Created(0, 12)], 0)
    await take(source, DataChange(1, 1.0, 0, 10 * S, 10 * S), DataChange(2, 1.0, 0, 10 * S, 10 * S))
    await take(source, DataChange(1, None, 0x8034_0000, 20 * S, 20 * S))
    await source.finish()
    assert (subscription.plan.parked, subscription.plan.next_deletion()) == ({1}, [11])
    subscription.created_ns = 30 * S
    await take(source, DataChange(1, 2.0, 0, 5 * S, 5 * S))
    await source.finish()
    await source._delivery.recorder.drain()
    assert store.of("a/1") == [Sample(1, 10 * S, 1.0), Sample(1, 20 * S, None, 0x8034_0000), Sample(1, 30 * S, 2.0)]


@pytest.mark.parametrize("why", ["another interval", "another unit", "node gone", "refused"])
async def test_a_time_without_an_item_is_a_gap(why: str) -> None:
    """A tag whose item is created anew, since the tag map says something else of it, or its node was gone or refused:
    the gap is from where everything was delivered until the new item has published. The next process finds the tag
    absent since then. The neighbour is in no gap."""
    source, store = await made(sampling_interval_ms=0, parked_retry_ms=100)
    gaps = gaps_of(source)
    refusals = {(1, ""): BAD_NODE_ID_UNKNOWN} if why == "refused" else {}
    async with living(source, shows_ns=9 * S, refusals=refusals) as session:
        await wait_until_async(lambda: session.subscriptions and session.handles(1), "items")
        for number, at_ns in enumerate((10 * S, 11 * S), 1):
            values = [(handle, 1.0, at_ns) for handle in session.handles(1)]
            session.says(answer(1, number, *values, publish_ns=at_ns))
        await wait_until_async(lambda: source.complete == Moment(10 * S), "a second answer")
        session.shows_ns, asked = 60 * S, len(session.asked)
        number = 1
        if why == "another interval":
            point = replace(TAGS[0].point, monitoring=Monitoring(sampling_interval_ms=50))
            await offer(source, tag(1, point), tag(2))
        elif why == "another unit":
            number, _ = await offer(source, tag(1, unit="bar"), tag(2))
        elif why == "node gone":
            session.says(answer(1, 3, (1, 0.0, 12 * S), quality=BAD_NODE_ID_UNKNOWN))
        else:
            session.refusals.clear()
        await wait_until_async(lambda: len(session.asked) > asked, "another item")
        await wait_until_async(lambda: ("plc", "tag:a/1") in store.complete, "the absence in the store")
        session.says(answer(1, 4 if why == "node gone" else 3, (number, 2.0, 900 * S)))
        await wait_until_async(lambda: gaps, "the gap")
        await wait_until_async(lambda: ("plc", "tag:a/1") not in store.complete, "its end in the store")
    (gap,) = gaps
    assert (gap.reason, gap.tags) == (ITEM_GONE, (number,))
    assert gap.first_time_ns == (10 * S if why != "refused" else pytest.approx(9 * S, abs=S))
    assert 60 * S <= gap.last_time_ns < 120 * S


async def test_a_tag_without_an_item_at_the_end_of_a_process() -> None:
    """Its gap begins where the store says that it was complete."""
    source, _ = await made()
    gaps = gaps_of(source)
    source.continue_from({"": Stored(50 * S), "tag:a/1": Stored(10 * S), "tag:a/9": Stored(5 * S)}, AGENT_STOPPED)
    async with living(source) as session:
        await wait_until_async(lambda: session.asked, "items")
        session.says(answer(1, 1, (1, 2.0, 900 * S), (2, 2.0, 900 * S)))
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.first_time_ns, gap.tags) for gap in gaps] == [(ITEM_GONE, 10 * S, (1,))]


@pytest.mark.parametrize(
    "value, at_s, is_lost", [(2.0, 100, True), (1.0, 100, False), (2.0, 450, False), (2.0, 9, False)]
)
async def test_an_item_that_died_before_the_end_of_its_session(value: float, at_s: int, *, is_lost: bool) -> None:
    """The audit had not found it. The first value of the next session shows it, if that is another one, newer than the
    last, and older than what the session before was complete up to, by more than clocks differ: it should have come. A
    value that is older than the last is of a clock that is behind."""
    source, _ = await made(tag(1), tag(2), tag(3), sampling_interval_ms=0)
    gaps = gaps_of(source)
    async with living(source) as session:
        await wait_until_async(lambda: session.asked, "items")
        session.says(answer(1, 1, *((handle, 1.0, 10 * S) for handle in (1, 2, 3))))
        await wait_until_async(lambda: source._delivery.sampler.last(2).source_time_ns, "values")
        for subscription in source._subscriptions:
            subscription.liveness.complete = Moment(500 * S)
    async with living(source, start="since", refuses_key=True) as session:
        await wait_until_async(lambda: session.asked, "items")
        session.says(answer(1, 1, (2, 1.0, 10 * S), (1, value, at_s * S), (3, 1.0, 10 * S)))
        await wait_until_async(lambda: source._delivery.sampler.last(1).source_time_ns == at_s * S, "the first values")
        await wait_until_async(lambda: gaps or not is_lost, "the gap")
    found = [(gap.reason, gap.first_time_ns, gap.tags) for gap in gaps]
    assert found == ([(ITEM_GONE, 10 * S, (1,))] if is_lost else [])


async def test_nodes_that_a_server_creates_items_of_and_does_not_have(caplog: pytest.LogCaptureFixture) -> None:
    """It says so with the first notification, each time that the items are created anew: that is one bad sample of each
    and one line of the log while it stands, and one gap when values have come."""
    source, store = await made(parked_retry_ms=50)
    gaps = gaps_of(source)
    numbers = iter(range(1, 100))
    async with living(source) as session:
        for count in range(1, 5):
            await wait_until_async(lambda: len(session.asked) == 2 * count, "items")  # noqa: B023 awaited here
            values = [(handle, 0.0, count * S) for handle in (1, 2)]
            session.says(answer(1, next(numbers), *values, quality=BAD_NODE_ID_UNKNOWN))
        await wait_until_async(lambda: len(session.asked) == 10, "items")
        assert not gaps
        session.says(answer(1, next(numbers), (1, 1.0, 50 * S), (2, 1.0, 50 * S)))
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.tags) for gap in gaps] == [(ITEM_GONE, (1, 2))]
    for name in ("a/1", "a/2"):
        assert [(s.source_time_ns, s.quality) for s in store.of(name)] == [(S, BAD_NODE_ID_UNKNOWN), (50 * S, 0)]
    assert [getattr(record, "action", "") for record in caplog.records].count("tags_parked") == 1


async def test_items_are_tended_while_an_audit_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Read that the server does not answer holds back neither an edit of the tag map nor the look at parked nodes."""
    source, _ = await made(tag(1), parked_retry_ms=100)
    waiting = asyncio.Event()

    async def check(*_: object) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(source_module.Audit, "check", check)
    async with living(source) as session:
        await wait_until_async(lambda: session.asked, "items")
        session.says(answer(1, 1, (1, 1.0, S)))
        await asyncio.wait_for(waiting.wait(), LIMIT_S)
        session.refusals[2, ""] = BAD_NODE_ID_UNKNOWN
        await offer(source, tag(1), tag(2))
        await wait_until_async(lambda: len(session.asked) >= 3, "the parked node asked for again")


async def test_tags_of_a_new_map_while_their_items_are_refused() -> None:
    """One that leaves the map meanwhile is not absent, and the life goes on; one that is renumbered is absent under its
    new number since the source is without it."""
    source, store = await made(tag(1), tag(2), tag(3), sampling_interval_ms=0)
    session, answered = FakeSession(refusals={(n, ""): BAD_NODE_ID_UNKNOWN for n in (1, 2)}), asyncio.Event()

    async def create_items(*asked: Any) -> list[Created]:
        found = await FakeSession.create_items(session, *asked)
        await answered.wait()
        return found

    session.create_items = create_items  # type: ignore[method-assign]
    async with living(source, session):
        session.shows_ns = 9 * S
        await wait_until_async(lambda: session.asked, "the items")
        session.says(*(answer(1, at - 9, (3, 1.0, at * S), publish_ns=at * S) for at in (10, 11)))
        await wait_until_async(lambda: source.complete == Moment(10 * S), "a second answer")
        await offer(source, tag(2, unit="bar"), tag(3))
        await wait_until_async(lambda: not source._delivery.has_pending_map, "the new map")
        answered.set()
        await wait_until_async(lambda: ("plc", "tag:a/2") in store.complete, "the absence in the store")
    assert store.complete.keys() == {("plc", ""), ("plc", "tag:a/2")}
    assert store.complete["plc", "tag:a/2"].complete_ns == pytest.approx(9 * S, abs=S)


async def test_a_refusal_is_not_lost_with_the_call_after_it() -> None:
    """The connection breaks in the next call, and the session is kept: the refused tag is recorded, and absent."""
    source, store = await made(items_per_call_max=1)
    session = FakeSession(is_connected=False, refusals={(1, ""): BAD_NODE_ID_UNKNOWN})

    async def create_items(subscription: int, items: Sequence[ItemRequest]) -> list[Created]:
        if items[0].handle == 2:
            raise SourceLost("cut")
        return await FakeSession.create_items(session, subscription, items)

    session.create_items = create_items  # type: ignore[method-assign]
    await death(source, session, "cut")
    await source.finish()
    assert [sample.quality for sample in store.of("a/1")] == [BAD_NODE_ID_UNKNOWN]
    assert source._subscriptions.absences.tags == {1}


async def test_what_a_tag_map_says_of_an_item(caplog: pytest.LogCaptureFixture) -> None:
    """Its interval and queue; without, those of the source, and a queue that lasts through a stall. The log says once
    that it does not, at the interval that the server revised. A row that changes only there has its item created anew,
    under its number."""
    own = replace(tag(1).point, monitoring=Monitoring(sampling_interval_ms=50, queue_size=7))
    source, _ = await made(tag(1, own), tag(2), tag(3))
    async with living(source, revised=(20.0, 3)) as session:
        await wait_until_async(lambda: session.asked, "the items")
        assert [(item.sampling_ms, item.queue_size) for item in session.asked] == [(50, 7), (250, 43), (250, 43)]
        session.says(answer(1, 1, (1, 1.0, S)))
        session.revised = None
        other = TagPoint(own.reading, Monitoring(deadband=0.5))
        source._delivery.offer_map([tag(1, other), tag(2), tag(3)], [1, 2, 3])
        await wait_until_async(lambda: len(session.asked) == 4, "the item created anew")
        assert session.asked[3].monitoring.deadband == 0.5
        assert session.handles(1) == {1, 2, 3}
        assert len(session.items[1]) == 3
        (subscription,) = source._subscriptions
        await wait_until_async(lambda: subscription.sampling_ms(1, other) == 250, "its new interval")
        assert subscription.sampling_ms(2, other) == 20
    assert [getattr(record, "action", "") for record in caplog.records].count("queues_short") == 1


async def test_a_node_that_is_gone_when_the_connection_is_back_is_recorded() -> None:
    """The tag was lost with its connection. That the server no longer has the node is another reason, with another
    remedy, so it is recorded too."""
    source, store = await made(tag(1))
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 5 * S)
    async with living(source, refusals={(1, ""): BAD_NODE_ID_UNKNOWN}):
        await wait_until_async(lambda: len(store.of("a/1")) == 2, "the refusal")
    assert [sample.quality for sample in store.of("a/1")] == [BAD_COMMUNICATION_ERROR, BAD_NODE_ID_UNKNOWN]
