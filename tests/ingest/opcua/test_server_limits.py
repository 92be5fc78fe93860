"""Limits that a server does not tell and that show only as a refusal, or as no answer."""

import pytest

from agent.ingest.errors import SourceBusy, SourceLost
from agent.ingest.opcua import source as source_module
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession, living, opening
from tests.ingest.opcua.sources import FLAT, made, tag
from tests.waiting import wait_until_async


async def test_a_subscription_that_is_refused_costs_no_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has one, and ours is full: it takes the other items too. A source without any says that it waits for
    room, so that it is asked again soon."""
    source, _ = await made(FakeStore(), [tag(n) for n in range(1, 6)], items_per_subscription_max=2)
    session = FakeSession()
    session.room = 1
    async with living(monkeypatch, source, session):
        await wait_until_async(
            lambda: [session.handles(subscription) for subscription in session.subscriptions] == [{1, 2, 3, 4, 5}],
            "all items",
        )
    full = FakeSession()
    full.room, full.start = 0, "tomorrow"
    full.refuses_key = True
    monkeypatch.setattr(source_module, "open_session", opening(full))
    with pytest.RaisesGroup(SourceBusy, **FLAT):  # type: ignore[call-overload]
        await source.run(lambda: None)


async def test_calls_that_are_not_answered_in_time_get_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow controller needs longer for one call than the time-out, at every connect: each next session creates half
    as many items in a call, until they are created."""
    source, _ = await made(FakeStore(), [tag(n) for n in range(1, 9)])
    for _ in range(2):
        slow = FakeSession()
        slow.refuses_key = True
        slow.items_in_time = 3
        monkeypatch.setattr(source_module, "open_session", opening(slow))
        with pytest.RaisesGroup(SourceLost, **FLAT):  # type: ignore[call-overload]
            await source.run(lambda: None)
    session = FakeSession()
    session.items_in_time, session.refuses_key = 3, True
    async with living(monkeypatch, source, session):
        await wait_until_async(
            lambda: session.subscriptions and session.handles(session.subscriptions[0]) == set(range(1, 9)), "all items"
        )
