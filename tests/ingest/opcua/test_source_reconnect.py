"""How a life of a source continues the one before, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent.ingest.errors import SourceLost
from agent.ingest.gap import NOT_DELIVERED
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.session import Ending, OpenedSubscription
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscriptions import subscription as subscription_module
from agent.ingest.opcua.subscriptions.item_plan import Created, ServerLimits
from agent.ingest.quality import BAD_COMMUNICATION_ERROR, BAD_TIMEOUT, BAD_TOO_MANY_MONITORED_ITEMS
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession, answer, death, living, status_change
from tests.ingest.opcua.sources import S, gaps_of, made, offer, tag
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time

BAD_SUBSCRIPTION_ID_INVALID = 0x8028_0000


async def lost(
    *,
    queue_size: int = 10,
    limits: ServerLimits = ServerLimits(),  # noqa: B008 frozen
    **settings: Any,
) -> tuple[OpcuaSource, FakeStore]:
    """A source whose first session, with subscription 1 and a value of both tags, was lost. The server has revised the
    queues to `queue_size`."""
    source, store = await made(**settings)
    async with living(source, revised=(250.0, queue_size), limits=limits) as session:
        await wait_until_async(lambda: session.subscriptions, "a subscription")
        session.says(answer(1, 1, (1, 1.0, S), (2, 1.0, S)))
        await wait_until_async(lambda: len(store.good("a/2")) == 1, "values")
    assert session.ending is Ending.KEEP
    await source.finish()
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 4 * S, since_ns=2 * S)
    source.take_missed()
    return source, store


@pytest.mark.parametrize("is_reactivated", [True, False])
async def test_a_kept_subscription_goes_on(*, is_reactivated: bool) -> None:
    """In the same session, or transferred to another one: nothing is created, what was sent and did not arrive is
    requested again, and a value that stands is good again. Nothing was missed."""
    source, store = await lost()
    gaps = gaps_of(source)
    held = {(1, 2): answer(1, 2, (1, 2.0, 5 * S))}
    async with living(source, refuses_key=not is_reactivated, held=held) as session:
        await wait_until_async(lambda: len(store.good("a/1")) == 3, "the value that did not arrive")
        session.says(answer(1, 3, (1, 3.0, 6 * S)))
        await wait_until_async(lambda: len(store.good("a/1")) == 4, "another value")
    assert (session.subscriptions, session.asked) == ([], [])
    assert session.transfers == ([] if is_reactivated else [[1]])
    assert [sample.value for sample in store.of("a/1")] == [1.0, None, 1.0, 2.0, 3.0]
    assert [sample.value for sample in store.of("a/2")] == [1.0, None, 1.0]
    assert (gaps, source.take_missed()) == ([], False)


async def test_events_learn_what_became_of_their_own_subscription() -> None:
    """The server gives the subscription of values and not that of events, then the other way round."""
    source: Any = (await lost())[0]
    for refused, others in ((9, True), (1, False)):
        session, told = FakeSession(transfer_statuses={refused: BAD_SUBSCRIPTION_ID_INVALID}), list[int]()
        source.events = SimpleNamespace(kept_ids=[9], note_transfer=told.append)
        assert await source._transfer(session) is others
        assert told == [BAD_SUBSCRIPTION_ID_INVALID if others else 0]


@pytest.mark.parametrize("case", ["refused", "restarted"])
async def test_everything_is_created_anew_where_nothing_can_be_kept(case: str) -> None:
    """The server refuses the transfer, or is another one: then it is not asked for one."""
    source, _ = await lost()
    async with living(
        source,
        first_number=10,
        refuses_key=True,
        transfer_statuses={1: BAD_SUBSCRIPTION_ID_INVALID},
        start="today" if case == "refused" else "tomorrow",
    ) as session:
        await wait_until_async(lambda: session.subscriptions == [11] and session.handles(11) == {1, 2}, "new items")
    assert session.transfers == ([[1]] if case == "refused" else [])
    assert source.take_missed()


async def test_a_session_of_another_server_is_left_alone() -> None:
    """A server that was restarted has a session with our token: it is neither used nor closed, and the next life begins
    anew."""
    source, _ = await lost()
    other = FakeSession(start="tomorrow")
    await death(source, other, "was restarted")
    assert (other.ending, other.transfers, other.subscriptions) == (Ending.KEEP, [], [])
    async with living(source, start="tomorrow") as session:
        await wait_until_async(lambda: session.subscriptions, "a subscription")
    assert not session.is_reactivated


async def test_a_kept_subscription_that_sends_nothing_is_kept_no_longer() -> None:
    """Neither a value nor the clock within some publishing intervals: the next life transfers it, the one after creates
    everything anew, and closes the session before."""
    source, _ = await lost(liveness_timeout_ms=60_000)
    taken = list[tuple[bool, int, Ending]]()
    for _ in range(3):
        session = FakeSession(first_number=10)
        begun_s = asyncio.get_running_loop().time()
        await death(source, session, "has sent no value")
        lasted_s = asyncio.get_running_loop().time() - begun_s
        assert (lasted_s < 10) == (not session.subscriptions)
        taken.append((session.is_reactivated, len(session.transfers), session.ending))
    assert taken == [
        (True, 0, Ending.LEAVE_SUBSCRIPTIONS),
        (False, 1, Ending.CLOSE),
        (False, 0, Ending.CLOSE),
    ]


async def test_a_subscription_that_the_session_has_lost_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows the session and not the subscription: its tags are in a gap from where they were complete."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    source, _ = await lost()
    gaps = gaps_of(source)
    async with living(source, first_number=10, unheld=BAD_SUBSCRIPTION_ID_INVALID) as session:
        await wait_until_async(lambda: session.subscriptions and session.handles(11) == {1, 2}, "new items")
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.tags) for gap in gaps] == [(NOT_DELIVERED, (1, 2))]


async def test_a_value_that_a_lost_session_cut_short_is_recorded() -> None:
    """The first since the kept session continued, while the store refuses: the values that stand wait before it."""
    source, store = await lost()
    store.refusing = True
    async with living(source) as session:
        session.says(answer(1, 2, (1, 2.0, 5 * S)))
        await wait_until_async(lambda: session.acks and source._buffer.empty(), "the value")
    store.refusing = False
    await source.finish()
    assert [sample.value for sample in store.of("a/1")] == [1.0, None, 1.0, 2.0]


async def test_a_tag_that_is_renumbered_and_back_while_away_is_not_absent() -> None:
    """Its item was kept: what that publishes is its own."""
    source, _ = await lost()
    for unit in ("bar", ""):
        await offer(source, tag(1, unit=unit), tag(2))
        await source._take_over_map()
    async with living(source) as session:
        session.says(answer(1, 2, (1, 2.0, 5 * S)))
        await wait_until_async(lambda: not source._subscriptions.absences.tags, "the value")
    assert not session.asked


async def test_an_item_without_a_queue_has_missed_what_came_meanwhile() -> None:
    """The server holds its last value only."""
    source, _ = await lost(queue_size=1)
    gaps = gaps_of(source)
    async with living(source):
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.tags) for gap in gaps] == [(NOT_DELIVERED, (1, 2))]


@pytest.mark.parametrize("is_first", [True, False])
async def test_items_that_are_lost_with_the_answer_about_them_are_a_gap(
    monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """The server may have created them, and they may have published. If they are those of a subscription that replaces
    an ended one, the gap begins where that one had delivered everything."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    source, _ = await made(sampling_interval_ms=0)
    gaps, session = gaps_of(source), FakeSession(shows_ns=10 * S, is_connected=False)

    async def create_items(*asked: Any) -> list[Created]:
        if is_first or len(session.subscriptions) > 1:
            raise SourceLost("cut")
        session.says(*(answer(1, at - 9, (1, 1.0, at * S), publish_ns=at * S) for at in (10, 11)))
        session.says(status_change(1, 3, BAD_TIMEOUT))
        return await FakeSession.create_items(session, *asked)

    monkeypatch.setattr(session, "create_items", create_items)
    await death(source, session, "cut")
    await source.finish()
    async with living(source, first_number=10, items={1: {}, **session.items}) as session:
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.tags) for gap in gaps] == [(NOT_DELIVERED, (1, 2))]
    assert is_first or gaps[0].first_time_ns == 10 * S


async def test_a_new_map_that_a_lost_session_cut_short_is_followed_in_the_next() -> None:
    """The connection breaks while another subscription is made for it: its new tags have items afterwards, and those
    without room are bad."""
    source, store = await lost(limits=ServerLimits(items_per_subscription=3, subscriptions_per_session=2))
    await offer(source, *map(tag, (2, 3, 4, 5, 6)))
    session = FakeSession(first_number=10)
    session.items[1] = {number: SimpleNamespace(handle=handle) for number, handle in ((2, 1), (3, 2))}  # type: ignore[misc]

    async def cut() -> OpenedSubscription:
        session.says(answer(1, 2, (2, 2.0, 5 * S)))
        await wait_until_async(lambda: len(store.good("a/2")) == 3, "a value")
        raise SourceLost("cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "create_subscription", cut)
        await death(source, session, "cut")
    await source.finish()
    async with living(source, first_number=10, items=session.items) as session:
        await wait_until_async(lambda: session.subscriptions and session.handles(11) == {4, 5}, "the new items")
        await wait_until_async(lambda: store.of("a/6"), "the tag without room")
    assert session.handles(1) == {2, 3}
    assert [sample.quality for sample in store.of("a/6")] == [BAD_TOO_MANY_MONITORED_ITEMS]


async def test_a_subscription_whose_creation_was_not_answered_is_deleted() -> None:
    """The connection broke in place of the answer. The next life uses the session again, and finds it by its first
    notification."""
    source, _ = await made()
    async with living(source, creating=1) as session:
        await wait_until_async(lambda: session.subscriptions, "a subscription")
        session.says(answer(1, 1, (1, 1.0, S)))
        await wait_until_async(lambda: source._is_proven, "a value")
    async with living(source) as session:
        session.says(answer(77, 1))
        await wait_until_async(lambda: session.deleted == [77], "its end")
    assert session.is_reactivated


async def test_a_stop_reads_the_clock() -> None:
    """It was set back since it was read last, and may be put right while no process runs: what is stored is by the
    clock as it is now."""
    source, store = await made()
    async with living(source, shows_ns=3_600 * S) as session:
        await wait_until_async(lambda: session.subscriptions, "a subscription")
        session.says(*(answer(1, n, (1, 1.0, n * S), publish_ns=(3_600 + n) * S) for n in (1, 2, 3)))
        await wait_until_async(lambda: len(store.good("a/1")) == 3, "values")
        session.shows_ns = 100 * S
    await source.finish()
    await source._delivery.recorder.end_recording()
    (stored,) = store.complete.values()
    assert stored.complete_ns < 110 * S


async def test_a_life_that_reached_no_server_is_followed_by_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two servers one is dead, then the other: each time the one that is read is tried once more, then left."""
    source, _ = await made(urls=("opc.tcp://other",))
    tried, dead = list[str](), set[str]()

    @asynccontextmanager
    async def opened(settings: OpcuaSourceSettings, **_: object) -> AsyncIterator[FakeSession]:
        if settings.url in dead:
            raise SourceLost("dead")
        yield FakeSession()

    async def begin(_: FakeSession) -> None:
        raise SourceLost("reached")

    monkeypatch.setattr(source_module, "open_session", opened)
    monkeypatch.setattr(source, "_begin_life", begin)
    for dead_now in ("", "plc", "plc", "other", "other"):
        dead = {f"opc.tcp://{dead_now}"}
        with pytest.raises(SourceLost):
            await source.run(lambda: None)
        tried.append(source._servers.url)
    assert tried == [f"opc.tcp://{name}" for name in ("plc", "plc", "other", "other", "plc")]
