"""How a life of a source continues the one before, step by step."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agent.ingest.errors import SourceLost
from agent.ingest.gap import NOT_DELIVERED
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.session import Ending
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscriptions import subscription as subscription_module
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession, answer, living, opening
from tests.ingest.opcua.sources import FLAT, S, gaps_of, made
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time

BAD_SUBSCRIPTION_ID_INVALID = 0x8028_0000


async def lost(
    monkeypatch: pytest.MonkeyPatch, store: FakeStore, *, queue_size: int = 10, **settings: Any
) -> OpcuaSource:
    """A source whose first session, with subscription 1 and a value of both tags, was lost. The server has revised the
    queues to `queue_size`."""
    source, _ = await made(store, **settings)
    session = FakeSession()
    session.revised = (250.0, queue_size)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.subscriptions, "a subscription")
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S), (2, 1.0, S)))
        await wait_until_async(lambda: len(store.good("a/2")) == 1, "values")
    assert session.ending is Ending.KEEP
    await source.finish()
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 4 * S, since_ns=2 * S)
    source.take_missed()
    return source


@pytest.mark.parametrize("is_reactivated", [True, False])
async def test_a_kept_subscription_goes_on(monkeypatch: pytest.MonkeyPatch, *, is_reactivated: bool) -> None:
    """In the same session, or transferred to another one: nothing is created, what was sent and did not arrive is
    requested again, and a value that stands is good again. Nothing was missed."""
    store = FakeStore()
    source = await lost(monkeypatch, store)
    gaps = gaps_of(source)
    session = FakeSession()
    session.refuses_key = not is_reactivated
    session.held[1, 2] = answer(1, 2, (1, 2.0, 5 * S))
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: len(store.good("a/1")) == 3, "the value that did not arrive")
        session.answers.put_nowait(answer(1, 3, (1, 3.0, 6 * S)))
        await wait_until_async(lambda: len(store.good("a/1")) == 4, "another value")
    assert (session.subscriptions, session.asked) == ([], [])
    assert session.transfers == ([] if is_reactivated else [[1]])
    assert [sample.value for sample in store.of("a/1")] == [1.0, None, 1.0, 2.0, 3.0]
    assert [sample.value for sample in store.of("a/2")] == [1.0, None, 1.0]
    assert (gaps, source.take_missed()) == ([], False)


async def test_events_learn_what_became_of_their_own_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gives the subscription of values and not that of events, then the other way round."""
    source: Any = await lost(monkeypatch, FakeStore())
    for refused, others in ((9, True), (1, False)):
        session, told = FakeSession(), list[int]()
        session.transfer_statuses = {refused: BAD_SUBSCRIPTION_ID_INVALID}
        source.events = SimpleNamespace(kept_ids=[9], note_transfer=told.append)
        assert await source._transfer(session) is others
        assert told == [BAD_SUBSCRIPTION_ID_INVALID if others else 0]


@pytest.mark.parametrize("case", ["refused", "restarted"])
async def test_everything_is_created_anew_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The server refuses the transfer, or is another one: then it is not asked for one."""
    source = await lost(monkeypatch, FakeStore())
    session = FakeSession(first_number=10)
    session.refuses_key = True
    session.transfer_statuses = {1: BAD_SUBSCRIPTION_ID_INVALID}
    session.start = "today" if case == "refused" else "tomorrow"
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.subscriptions == [11] and session.handles(11) == {1, 2}, "new items")
    assert session.transfers == ([[1]] if case == "refused" else [])
    assert source.take_missed()


async def test_a_session_of_another_server_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was restarted has a session with our token: it is neither used nor closed, and the next life begins
    anew."""
    source = await lost(monkeypatch, FakeStore())
    other = FakeSession()
    other.start = "tomorrow"
    monkeypatch.setattr(source_module, "open_session", opening(other))
    with pytest.raises(SourceLost, match="was restarted"):
        await source.run(lambda: None)
    assert (other.ending, other.transfers, other.subscriptions) == (Ending.KEEP, [], [])
    session = FakeSession()
    session.start = "tomorrow"
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.subscriptions, "a subscription")
    assert not session.is_reactivated


async def test_a_kept_subscription_that_sends_nothing_is_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a value nor the clock within some publishing intervals: the next life transfers it, the one after creates
    everything anew, and closes the session before."""
    source = await lost(monkeypatch, FakeStore(), liveness_timeout_ms=60_000)
    taken = list[tuple[bool, int, Ending]]()
    for _ in range(3):
        session = FakeSession(first_number=10)
        monkeypatch.setattr(source_module, "open_session", opening(session))
        begun_s = asyncio.get_running_loop().time()
        with pytest.RaisesGroup(pytest.RaisesExc(SourceLost, match="has sent no value"), **FLAT):  # type: ignore[call-overload]
            await source.run(lambda: None)
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
    source = await lost(monkeypatch, FakeStore())
    gaps = gaps_of(source)
    session = FakeSession(first_number=10)
    session.unheld = BAD_SUBSCRIPTION_ID_INVALID
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.subscriptions and session.handles(11) == {1, 2}, "new items")
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.tags) for gap in gaps] == [(NOT_DELIVERED, (1, 2))]


async def test_an_item_without_a_queue_has_missed_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server holds its last value only."""
    source = await lost(monkeypatch, FakeStore(), queue_size=1)
    gaps = gaps_of(source)
    async with living(monkeypatch, source, FakeSession()):
        await wait_until_async(lambda: gaps, "the gap")
    assert [(gap.reason, gap.tags) for gap in gaps] == [(NOT_DELIVERED, (1, 2))]


async def test_a_subscription_whose_creation_was_not_answered_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection broke in place of the answer. The next life uses the session again, and finds it by its first
    notification."""
    source, _ = await made(FakeStore())
    session = FakeSession()
    session.creating = 1
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.subscriptions, "a subscription")
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
        await wait_until_async(lambda: source._is_proven, "a value")
    session = FakeSession()
    async with living(monkeypatch, source, session):
        session.answers.put_nowait(answer(77, 1))
        await wait_until_async(lambda: session.deleted == [77], "its end")
    assert session.is_reactivated


async def test_a_stop_reads_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was set back since it was read last, and may be put right while no process runs: what is stored is by the
    clock as it is now."""
    store = FakeStore()
    source, recorder = await made(store)
    session = FakeSession()
    session.shows_ns = 3_600 * S
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.subscriptions, "a subscription")
        for number in (1, 2, 3):
            session.answers.put_nowait(answer(1, number, (1, 1.0, number * S), publish_ns=(3_600 + number) * S))
        await wait_until_async(lambda: len(store.good("a/1")) == 3, "values")
        session.shows_ns = 100 * S
    await source.finish()
    await recorder.end_recording()
    (stored,) = store.complete.values()
    assert stored.complete_ns < 110 * S
