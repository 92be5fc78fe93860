"""A source whose session was lost, beside a server that still holds what it did not receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.decode import Change
from agent.ingest.opcua.publishing import Header
from agent.ingest.opcua.rescue import rescue as rescue_module
from agent.ingest.opcua.session import HEARTBEAT_HANDLE, OpenedSubscription
from agent.ingest.opcua.source import Buffered
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession, answer, living, status_change
from tests.ingest.opcua.sources import S, made, publication
from tests.support.virtual_time import run_virtual
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


BAD_SUBSCRIPTION_ID_INVALID = 0x8028_0000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses."""
    monkeypatch.setattr(source_module, "TICK_S", 0.01)


@dataclass
class Told:
    """What a backfill is told of the rescue."""

    is_waiting: bool = False
    tags: Iterable[int] | None = None
    values: int = 0
    now_ns: Any = None

    async def run(self, _: object) -> None:
        await asyncio.Event().wait()

    def await_rescue(self) -> None:
        self.is_waiting = True

    def rescued(self, tags: Iterable[int], values: int) -> None:
        self.is_waiting, self.tags, self.values = False, tags, values


async def one_life(monkeypatch: pytest.MonkeyPatch, store: FakeStore, **settings: object) -> tuple[Any, Any, Told]:
    """A source with subscription 1 that has had three values of tag 1, and was lost."""
    source, recorder = await made(store, **settings)  # type: ignore[arg-type]
    source.backfill = told = Told()  # type: ignore[assignment]
    session = FakeSession()
    async with living(monkeypatch, source, session):
        for number in (1, 2, 3):
            session.answers.put_nowait(answer(1, number, (1, float(number), number * S), publish_ns=number * S))
        await wait_until_async(lambda: len(store.good("a/1")) == 3, "values")
        await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
    await source.finish()
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 4 * S, since_ns=3 * S)
    assert told.tags is None
    return source, recorder, told


def gaps(store: FakeStore) -> list[str]:
    """The gap facts."""
    return [str(message.fact.object_json) for message in store.messages.values()]


async def test_what_the_old_subscription_holds_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent and never came is asked for again, and what is queued comes; both subscriptions bring the values
    since the new one began. Then the old one is deleted, and nothing is missing of the tags that both have."""
    store = FakeStore()
    source, recorder, told = await one_life(monkeypatch, store)
    session = FakeSession(first_number=10)
    session.held[1, 4] = answer(1, 4, (1, 4.0, 4 * S))
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
        assert (session.transfers, session.subscriptions) == ([[1]], [11])
        assert told.is_waiting
        session.answers.put_nowait(answer(1, 5, (1, 5.0, 5 * S), (2, 5.0, 5 * S)))
        session.answers.put_nowait(answer(11, 1, (1, 6.5, 13 * S // 2)))
        session.answers.put_nowait(answer(1, 6, (1, 6.0, 6 * S), (1, 6.5, 13 * S // 2), (1, 7.0, 7 * S)))
        session.answers.put_nowait(answer(1, 7))
        session.answers.put_nowait(answer(11, 2, (1, 7.0, 7 * S), (2, 5.0, 5 * S)))
        await wait_until_async(lambda: session.deleted == [1], "the end of the old subscription")
        session.answers.put_nowait(answer(1, 7, (1, 9.0, 9 * S)))
        source._buffer.put_nowait(
            Buffered(1, publication(Change(1, 9.5, 0, 9 * S, 0)), 0, 0)
        )  # was on its way when the rescue ended
        session.answers.put_nowait(answer(11, 3, (2, 8.0, 8 * S)))
        await wait_until_async(lambda: len(store.good("a/2")) == 2, "the new subscription")
    await source.finish()
    await recorder.drain()
    assert [one.value for one in store.good("a/1")] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 6.0, 7.0]
    assert [one.value for one in store.good("a/2")] == [5.0, 8.0]
    assert (told.is_waiting, set(told.tags or ()), told.values) == (False, {1, 2}, 5)
    assert gaps(store) == []


async def test_answers_that_waited_do_not_end_the_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the old subscription that came before the new items were created, and were read only after that, say
    nothing of what happened in between: two that came later end it. On a busy machine the value between was lost."""
    source, _, _ = await one_life(monkeypatch, FakeStore())
    rescue = source._rescue_of_session_before()
    rescue.subscriptions[1] = source._subscriptions[0]
    rescue.built(100.0)
    for arrived_s, is_over in ((98.0, False), (99.0, False), (101.0, False), (102.0, True)):
        rescue.note_answer(Header(1, 5, 0, has_data=True, arrived_s=arrived_s), 5)
        assert rescue.is_over(rescue._begun_s) == is_over


async def test_a_rescue_ends_after_what_it_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that waits in the buffer when the rescue is over is recorded first: afterwards its subscription is not
    known any more."""
    store = FakeStore()
    source, _, told = await one_life(monkeypatch, store)
    rescue = source._rescue = source._rescue_of_session_before()
    rescue.subscriptions[1] = source._subscriptions[0]
    rescue.built(100.0)
    for _ in range(2):
        rescue.note_answer(Header(1, 5, 0, has_data=True, arrived_s=101.0), 5)
    source._buffer.put_nowait(Buffered(1, publication(Change(1, 5.0, 0, 5 * S, 0)), 0, 0))
    await source._rescue_due()
    assert [one.value for one in store.good("a/1")] == [1.0, 2.0, 3.0, 5.0]
    assert (told.is_waiting, told.values) == (False, 1)
    assert not rescue.deduplicator._has_old, "it keeps no times any more"


async def test_a_late_value_is_not_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value from before the new subscription's beginning comes behind it: what the tag stands at is the newer one."""
    store = FakeStore()
    source, _, _ = await one_life(monkeypatch, store)
    session = FakeSession(first_number=10)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
        session.answers.put_nowait(answer(11, 1, (1, 6.0, 6 * S)))
        session.answers.put_nowait(answer(1, 4, (1, 5.0, 5 * S)))
        await wait_until_async(lambda: len(store.good("a/1")) == 5, "both")
        assert source._delivery.sampler.last(1).source_time_ns == 6 * S


@pytest.mark.parametrize("case", ["refused", "unanswered", "restarted"])
def test_a_server_that_refuses_costs_one_call(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The source lives on with its new subscription; a server that was started again is not asked, because a number may
    be another client's there."""

    async def story() -> None:
        store = FakeStore()
        source, _, told = await one_life(monkeypatch, store)
        session = FakeSession(first_number=10)
        monkeypatch.setattr(rescue_module, "TRANSFER_S", 1.0 if case == "unanswered" else 60.0)
        session.transfer_statuses = {1: BAD_SUBSCRIPTION_ID_INVALID}
        session.is_mute = case == "unanswered"
        session.started = "tomorrow" if case == "restarted" else session.started
        async with living(monkeypatch, source, session):
            await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
            session.answers.put_nowait(answer(11, 1, (1, 6.0, 6 * S)))
            if case in ("refused", "unanswered"):
                session.answers.put_nowait(answer(1, 4, (1, 5.0, 5 * S)))
                session.answers.put_nowait(answer(11, 2))
            await wait_until_async(lambda: len(store.good("a/1")) == 4, "a value of the new subscription")
            await wait_until_async(lambda: not told.is_waiting, "the end of the rescue")
            await wait_until_async(lambda: session.deleted or case != "unanswered", "what may have been taken over")
        assert len(session.transfers) == (case in ("refused", "unanswered"))
        assert session.deleted == ([1] if case == "unanswered" else [])
        assert (list(told.tags or ()), told.values) == ([], 0)

    run_virtual(story())


@pytest.mark.parametrize("case", ["ended", "missing", "slow", "overflow"])
def test_a_rescue_that_is_not_whole_is_not_called_so(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The old subscription ends, lacks a notification, does not come to its end, or its queue ran over: what it gave is
    kept, its tags do not count as rescued, and what is missing is a gap fact."""

    async def story() -> None:
        store = FakeStore()
        source, recorder, told = await one_life(monkeypatch, store)
        session = FakeSession(first_number=10)
        monkeypatch.setattr(rescue_module, "RESCUE_S", 0.3 if case == "slow" else 30.0)
        monkeypatch.setattr(source_module, "FIRST_VALUE_S", 0.1)
        async with living(monkeypatch, source, session):
            await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
            number = 5 if case == "missing" else 4
            marked = 0x480 if case == "overflow" else 0
            session.answers.put_nowait(answer(1, number, (1, 5.0, 5 * S), quality=marked))
            if case == "ended":
                session.answers.put_nowait(status_change(1, 5, 0x800A_0000))
            elif case != "slow":
                session.answers.put_nowait(answer(1, number + 1, (2, 6.0, 6 * S)))
            await wait_until_async(lambda: told.tags is not None, "the end of the rescue")
            assert set(told.tags or ()) == ({2} if case == "overflow" else set())
        await source.finish()
        await recorder.drain()
        assert 5.0 in [one.value for one in store.of("a/1")]
        reason = "server_queue_overflow" if case == "overflow" else "notifications_missing"
        assert [reason in gap for gap in gaps(store)] == [True]

    run_virtual(story())


@pytest.mark.parametrize("case", ["silent", "missing", "clock set back"])
def test_what_the_old_subscription_lacks_ends_where_the_new_one_begins(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """asyncua hands a subscription over and never sends anything of it to the new session, so that the rescue lasts its
    whole time; another server does not hold a notification any more. What is missing was sampled before the new items
    were created: the values since then are stored, and in no gap, also if the clock was set back in between."""

    async def story() -> None:
        store = FakeStore()
        source, recorder, told = await one_life(monkeypatch, store, publish_requests=1)
        session = FakeSession(first_number=10)
        if case == "clock set back":
            source._clock.read(20 * S, time.monotonic_ns(), None)
        session.shows_ns = 10 * S  # while the new items are created
        async with living(monkeypatch, source, session):
            await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
            for number in (1, 2, 3):
                clock = (HEARTBEAT_HANDLE, float(number), (10 + 10 * number) * S)
                session.answers.put_nowait(answer(11, number, (1, float(number), (10 + number) * S), clock))
            await wait_until_async(lambda: len(store.good("a/1")) == 6, "values of the new subscription")
            session.shows_ns = 40 * S
            if case != "missing":
                monkeypatch.setattr(rescue_module, "RESCUE_S", 0.0)
            else:
                session.answers.put_nowait(answer(1, 5, (2, 5.0, 5 * S)))
                session.answers.put_nowait(answer(1, 6, (2, 6.0, 6 * S)))
            await wait_until_async(lambda: told.tags is not None, "the end of the rescue")
        await source.finish()
        await recorder.drain()
        told_gaps = store.told()
        ends = {gap["last_time"][17:19] for gap in told_gaps if gap["reason"] == "notifications_missing"}
        assert ends == {"10"}
        again = {gap["last_time"][17:19] for gap in told_gaps if gap["reason"] == "clock_set_back"}
        assert again == ({"10", "22"} if case == "clock set back" else set())

    run_virtual(story())


async def test_a_server_with_room_for_one_gives_up_the_old_subscription_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncua refuses the new subscription (BadTooManySubscriptions) beside the old one, which gives nothing: that one
    is deleted when its time is up. The silence of the new one begins with its creation: counted from the refusal it was
    longer than allowed at once, and the session ended, and the next one too."""
    store = FakeStore()
    source, recorder, _ = await one_life(monkeypatch, store)
    session, refused_s = FakeSession(first_number=10), list[float]()
    session.room = 0
    create = session.create_subscription

    async def create_or_refuse() -> OpenedSubscription:
        session.room = len(session.deleted)
        if not session.room:
            refused_s.append(time.monotonic())
        return await create()

    monkeypatch.setattr(session, "create_subscription", create_or_refuse)
    monkeypatch.setattr(rescue_module, "RESCUE_S", 0.1)
    async with living(monkeypatch, source, session):
        await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
        session.answers.put_nowait(answer(11, 1, (1, 5.0, 5 * S)))
        await wait_until_async(lambda: len(store.good("a/1")) == 4, "a value of the new subscription")
        assert (session.deleted, session.subscriptions) == ([1], [11])
        (subscription,) = source._subscriptions
        assert subscription.liveness._begun_s > refused_s[-1] + 0.05
    await source.finish()
    await recorder.drain()
    assert ["notifications_missing" in gap for gap in gaps(store)] == [True]


async def test_a_life_that_was_cut_short_leaves_the_old_subscription_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second session takes subscription 1 over and is lost before it has created its own items. The third takes it
    over again, at the number where the second one stood, and what it still holds is recorded once."""
    store = FakeStore()
    source, recorder, _ = await one_life(monkeypatch, store)
    second = FakeSession(first_number=10)
    monkeypatch.setattr(second, "namespaces", asyncio.Event().wait)  # its items are never created
    async with living(monkeypatch, source, second):
        await wait_until_async(lambda: second.transfers == [[1]], "the transfer")
        second.answers.put_nowait(answer(1, 4, (1, 4.0, 4 * S)))
        await wait_until_async(lambda: len(store.good("a/1")) == 4, "a value of the old subscription")
    await source.finish()
    third = FakeSession(first_number=20)
    async with living(monkeypatch, source, third):
        await wait_until_async(lambda: third.keeps_subscriptions, "everything built")
        assert third.transfers == [[1, 11]], "11 is to be deleted"
        third.answers.put_nowait(answer(1, 5, (1, 5.0, 5 * S)))
        await wait_until_async(lambda: len(store.good("a/1")) == 5, "the next value")
    await source.finish()
    await recorder.drain()
    assert [one.value for one in store.good("a/1")] == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_what_the_rescue_before_brought_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second session receives a value from the old subscription 1, and is lost before its own subscription 11 sends
    the same value. The third takes 11 over: it gets that value again, and the one after it."""
    store = FakeStore()
    source, recorder, _ = await one_life(monkeypatch, store)
    second, third = FakeSession(first_number=10), FakeSession(first_number=20)
    async with living(monkeypatch, source, second):
        await wait_until_async(lambda: second.keeps_subscriptions, "everything built")
        second.answers.put_nowait(answer(1, 4, (1, 4.0, 4 * S)))
        await wait_until_async(lambda: len(store.good("a/1")) == 4, "a value of the old subscription")
    await source.finish()
    await source._delivery.lose(BAD_COMMUNICATION_ERROR, 5 * S, since_ns=4 * S)
    async with living(monkeypatch, source, third):
        await wait_until_async(lambda: third.keeps_subscriptions, "everything built")
        assert third.transfers[0][0] == 11
        third.answers.put_nowait(answer(11, 1, (1, 4.0, 4 * S), (1, 5.0, 5 * S)))
        await wait_until_async(lambda: 5.0 in [one.value for one in store.good("a/1")], "the next value")
    await source.finish()
    await recorder.drain()
    assert [one.value for one in store.good("a/1")] == [1.0, 2.0, 3.0, 4.0, 5.0]


async def test_a_life_that_ended_before_it_began_leaves_the_old_subscription_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second session is lost while it asks when the server was started: the third takes subscription 1 over."""
    source, _, _ = await one_life(monkeypatch, FakeStore())
    second, third = FakeSession(first_number=10), FakeSession(first_number=20)
    asked = asyncio.Event()

    async def started() -> object:
        asked.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(second, "server_start", started)
    async with living(monkeypatch, source, second):
        await asked.wait()
    await source.finish()
    async with living(monkeypatch, source, third):
        await wait_until_async(lambda: third.transfers, "the transfer")
        assert third.transfers == [[1]]
