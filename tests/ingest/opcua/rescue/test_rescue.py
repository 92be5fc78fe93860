"""A source whose session was lost, beside a server that still holds what it did not receive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.decode import Change
from agent.ingest.opcua.groups import ServerLimits
from agent.ingest.opcua.rescue import rescue as rescue_module
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from tests.ingest.fakes import FakeStore, in_loop
from tests.ingest.opcua.fake_session import FakeSession, answer, status_change
from tests.ingest.opcua.test_source import S, living, made, publication
from tests.waiting import wait_until_async

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

    def await_rescue(self) -> None:
        self.is_waiting = True

    def rescued(self, tags: Iterable[int], values: int) -> None:
        self.is_waiting, self.tags, self.values = False, tags, values


async def one_life(monkeypatch: pytest.MonkeyPatch, store: FakeStore) -> tuple[Any, Any, Told]:
    """A source with subscription 1 that has had three values of tag 1, and was lost."""
    source, recorder = await made(store)
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


@in_loop
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
        source._buffer.put_nowait(publication(Change(1, 9.5, 0, 9 * S, 0)))  # was on its way when the rescue ended
        session.answers.put_nowait(answer(11, 3, (2, 8.0, 8 * S)))
        await wait_until_async(lambda: len(store.good("a/2")) == 2, "the new subscription")
    await source.finish()
    await recorder.drain()
    assert [one.value for one in store.good("a/1")] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 6.0, 7.0]
    assert [one.value for one in store.good("a/2")] == [5.0, 8.0]
    assert (told.is_waiting, set(told.tags or ()), told.values) == (False, {1, 2}, 5)
    assert gaps(store) == []


@in_loop
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
        assert source._delivery.sampler.last_time_ns(1) == 6 * S


@pytest.mark.parametrize("case", ["refused", "unanswered", "restarted", "no room"])
def test_a_server_that_refuses_costs_one_call(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The source lives on with its new subscription; a server that was started again is not asked, because a number may
    be another client's there, and neither is one without room for the old ones."""

    @in_loop
    async def story() -> None:
        store = FakeStore()
        source, _, told = await one_life(monkeypatch, store)
        limits = ServerLimits(subscriptions_per_session=1) if case == "no room" else ServerLimits()
        session = FakeSession(limits, first_number=10)
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

    story()


@pytest.mark.parametrize("case", ["ended", "missing", "slow", "overflow"])
def test_a_rescue_that_is_not_whole_is_not_called_so(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The old subscription ends, lacks a notification, does not come to its end, or its queue ran over: what it gave is
    kept, its tags do not count as rescued, and what is missing is a gap fact."""

    @in_loop
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

    story()
