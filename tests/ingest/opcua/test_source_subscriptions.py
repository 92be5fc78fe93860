"""The subscriptions of a source: their items, their end, and notifications that are missing."""

import struct
from typing import Any

import pytest

from agent.ingest.errors import SourceBusy
from agent.ingest.gap import NOT_DELIVERED
from agent.ingest.opcua.subscriptions import subscription as subscription_module
from agent.ingest.opcua.subscriptions.item_plan import Created, ServerLimits
from agent.ingest.quality import (
    BAD_NODE_ID_UNKNOWN,
    BAD_TOO_MANY_MONITORED_ITEMS,
)
from tests.ingest.opcua.fake_session import (
    NO_SUBSCRIPTION,
    TOO_MANY_REQUESTS,
    FakeSession,
    answer,
    death,
    living,
    status_change,
)
from tests.ingest.opcua.sources import S, gaps_of, made, tag
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_items_are_spread_over_subscriptions() -> None:
    """Within the server's limits; what it has no room for is bad with a status that says so; a new tag map moves
    nothing that stays."""
    source, store = await made(*(tag(n) for n in range(1, 6)))
    async with living(source, limits=ServerLimits(items_per_subscription=3, subscriptions_per_session=2)) as session:
        await wait_until_async(lambda: len(store.of("a/5")) == 1, "the tag without room")
        assert store.of("a/5")[0].quality == BAD_TOO_MANY_MONITORED_ITEMS
        assert [session.handles(subscription) for subscription in session.subscriptions] == [{1, 2}, {3, 4}]
        session.says(answer(1, 1, (1, 1.0, S)))
        source._delivery.offer_map([tag(n) for n in (2, 3, 4, 5)], [2, 3, 4, 5])
        await wait_until_async(lambda: session.handles(1) == {2, 5}, "the new map")
        assert session.handles(session.subscriptions[1]) == {3, 4}
        assert [item.handle for item in session.asked] == [1, 2, 3, 4, 5]


async def test_a_subscription_that_the_server_ends_is_replaced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tags are bad from its last sign of life until its items stand again, and a gap fact says so; those of the
    other subscription go on. What still comes of the old one is dropped."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    source, store = await made(items_per_subscription_max=1, sampling_interval_ms=0)
    gaps = gaps_of(source)
    async with living(source, shows_ns=10 * S) as session:
        await wait_until_async(lambda: len(session.asked) == 2, "items")
        first, second = session.subscriptions
        session.says(
            answer(first, 1, (1, 1.0, 10 * S), publish_ns=11 * S),
            answer(first, 2, (1, 1.5, 11 * S), publish_ns=12 * S),
            answer(second, 1, (2, 1.0, 10 * S)),
        )
        await wait_until_async(lambda: len(store.samples) == 3, "values")
        await wait_until_async(
            lambda: source.clock.now_ns() < 100 * S, "the clock, which is read behind what was created"
        )
        session.shows_ns = 60 * S
        session.says(status_change(first, 3, 0x800A_0000))
        await wait_until_async(lambda: len(session.asked) == 3, "a new item")
        third = session.subscriptions[2]
        assert (session.handles(second), session.handles(third)) == ({2}, {1})
        session.says(answer(first, 4, (1, 9.0, 12 * S)), answer(third, 1, (1, 2.0, 20 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 4, "the value after")
        await wait_until_async(lambda: gaps, "the gap")
    found = [(s.source_time_ns, s.value) for s in store.of("a/1")]
    assert found == [(10 * S, 1.0), (11 * S, 1.5), (11 * S + 1, None), (20 * S, 2.0)]
    assert [s.value for s in store.of("a/2")] == [1.0]
    assert (gaps[0].reason, gaps[0].first_time_ns, gaps[0].tags) == (NOT_DELIVERED, 11 * S, (1,))
    assert 60 * S <= gaps[0].last_time_ns < 120 * S, "not before the new items were created"
    await source._delivery.recorder.drain()
    assert len(store.messages) == 1


async def test_what_a_subscription_sent_before_its_end_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses meanwhile, so it waits in the buffer, where it counts as delivered: the gap begins behind
    it."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    source, store = await made(tag(1))
    async with living(source, shows_ns=10 * S) as session:
        await wait_until_async(lambda: session.asked, "an item")
        session.says(answer(1, 1, (1, 1.0, 10 * S)))
        await wait_until_async(lambda: store.of("a/1"), "a value")
        store.refusing = True
        session.says(*(answer(1, number, (1, float(number), number * 10 * S)) for number in (2, 3, 4)))
        session.says(status_change(1, 5, 0x800A_0000))
        await wait_until_async(lambda: source._subscriptions._ended, "its end")
        store.refusing = False
        await wait_until_async(lambda: len(session.asked) == 2, "a new item")
    await source._delivery.recorder.drain()
    assert [sample.value for sample in store.of("a/1")] == [1.0, 2.0, 3.0, 4.0, None]


async def test_a_refused_node_is_asked_for_again_by_the_subscription_that_replaces_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice: all tags of the ended subscription are in the new one, also those without an item at that moment."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    source, _ = await made()
    async with living(source, refusals={(2, ""): BAD_NODE_ID_UNKNOWN}) as session:
        for turn in range(1, 3):
            await wait_until_async(lambda turn=turn: len(session.asked) == 2 * turn, "both items asked for")  # type: ignore[misc]
            session.says(status_change(session.subscriptions[-1], 1, 0x800A_0000))
        session.refusals.clear()
        await wait_until_async(lambda: len(session.subscriptions) == 3, "the second new subscription")
        await wait_until_async(lambda: session.handles(session.subscriptions[-1]) == {1, 2}, "both items")


async def test_a_subscription_that_is_ended_at_once_ends_the_life() -> None:
    """So does a session that has none any more although nothing was said: otherwise it would go round for ever."""
    for ending in (status_change(1, 1, 0x800A_0000), NO_SUBSCRIPTION):
        source, _ = await made()
        session = FakeSession()
        session.says(ending)
        await death(source, session, "ended a subscription at once: Bad")


async def test_notifications_that_never_came() -> None:
    """What the server still holds is asked for again and recorded in its place; what it does not hold is a gap. Fewer
    requests are kept open for a server that says they are too many."""
    source, store = await made(publish_requests=3)
    async with living(source, shows_ns=15 * S, held={(1, 2): answer(1, 2, (1, 2.0, 2 * S))}) as session:
        session.says(TOO_MANY_REQUESTS, answer(1, 1, (1, 1.0, 1 * S), publish_ns=1 * S))
        await wait_until_async(
            lambda: source.clock.now_ns() < 100 * S, "the clock, which is read behind what was created"
        )
        session.shows_ns = 60 * S
        session.says(answer(1, 4, (1, 4.0, 4 * S)))
        # The answer is held until no older request is open: these come for the others.
        session.says(answer(1, 5, (1, 5.0, 5 * S)), answer(1, 6, (1, 6.0, 6 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 5, "values")
        await wait_until_async(lambda: session.publishes_open == 2 and store.told(), "two requests, and the gap")
    assert [s.value for s in store.of("a/1")] == [1.0, 2.0, 4.0, 5.0, 6.0]
    await source._delivery.recorder.drain()
    (content,) = store.told()
    assert (content["reason"], content["count"], content["count_exact"]) == ("not_delivered", 0, False)
    assert content["last_time"].startswith("1970-01-01T00:01:0"), "as the server's clock shows"


async def test_a_notification_that_is_lost_before_the_answer_about_its_items() -> None:
    """The items publish as soon as the server has created them, so that their values are missing."""
    source, _ = await made()
    gaps, session, create_items = gaps_of(source), FakeSession(), FakeSession.create_items

    async def create_slowly(*asked: Any) -> list[Created]:
        session.says(answer(1, 1, (1, 1.0, S)), answer(1, 3, (1, 3.0, 3 * S)))
        await wait_until_async(lambda: (1, 3) in session.acks, "both notifications")
        return await create_items(session, *asked)

    session.create_items = create_slowly  # type: ignore[method-assign]
    async with living(source, session):
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.tags) for gap in gaps] == [(NOT_DELIVERED, (1, 2))]


UNREADABLE = answer(1, 2, (1, 2.0, 2 * S))[:21] + struct.pack("<i", 1) + b"\xff" * 8


@pytest.mark.parametrize(
    "body",
    [answer(1, 0), answer(1, 2), answer(1, 7, (1, 7.0, 7 * S)), UNREADABLE, answer(1, 2)[:9]],
    ids=["number 0", "no data", "another", "unreadable", "cut short"],
)
async def test_a_server_that_republishes_something_else_does_not_hold_it(body: bytes) -> None:
    """An empty notification of number 0 (asyncua, python-opcua), one of the right number without data, one of another
    number, one that cannot be read: each is asked for once, is a gap, and what follows it is recorded. One that cannot
    be read ended each session in which it was asked for."""
    source, store = await made(publish_requests=1)
    async with living(source, held={(1, 2): body}) as session:
        session.says(answer(1, 1, (1, 1.0, 1 * S), publish_ns=1 * S), answer(1, 3, (1, 3.0, 3 * S)))
        await wait_until_async(lambda: len(store.of("a/1")) == 2 and store.told(), "values, and the gap")
    await source._delivery.recorder.drain()
    assert session.republished == 1
    assert [s.value for s in store.of("a/1")] == [1.0, 3.0]
    assert [gap["reason"] for gap in store.told()] == ["not_delivered"]


# --- limits that a server does not tell, and that show only as a refusal, or as no answer -----------------------------


async def test_a_subscription_that_is_refused_costs_no_tag() -> None:
    """The server has one, and ours is full: it takes the other items too. A source without any says that it waits for
    room, so that it is asked again soon."""
    source, _ = await made(*(tag(n) for n in range(1, 6)), items_per_subscription_max=2)
    async with living(source, room=1) as session:
        await wait_until_async(
            lambda: [session.handles(subscription) for subscription in session.subscriptions] == [{1, 2, 3, 4, 5}],
            "all items",
        )
    await death(source, FakeSession(room=0, start="tomorrow", refuses_key=True), error=SourceBusy)


async def test_a_subscription_that_is_refused_is_asked_for_again() -> None:
    """The server still keeps those of a session before, and its one subscription has no room for all tags: the others
    are bad, and have their items as soon as it gives another one, without a new session."""
    source, store = await made(*(tag(n) for n in range(1, 6)), parked_retry_ms=1_000)
    async with living(source, room=1, limits=ServerLimits(items_per_subscription=3)) as session:
        await wait_until_async(lambda: len(store.of("a/5")) == 1, "the tag without room")
        assert store.of("a/5")[0].quality == BAD_TOO_MANY_MONITORED_ITEMS
        session.room = 3
        await wait_until_async(lambda: len(session.subscriptions) == 3, "the other subscriptions")
        await wait_until_async(lambda: session.handles(session.subscriptions[2]) == {5}, "the last item")
        assert [session.handles(subscription) for subscription in session.subscriptions] == [{1, 2}, {3, 4}, {5}]


async def test_calls_that_are_not_answered_in_time_get_smaller() -> None:
    """A slow controller needs longer for one call than the time-out, at every connect: each next session creates half
    as many items in a call, until they are created."""
    source, _ = await made(*(tag(n) for n in range(1, 9)))
    for _ in range(2):
        await death(source, FakeSession(refuses_key=True, items_in_time=3))
    async with living(source, refuses_key=True, items_in_time=3) as session:
        await wait_until_async(
            lambda: session.subscriptions and session.handles(session.subscriptions[0]) == set(range(1, 9)), "all items"
        )
