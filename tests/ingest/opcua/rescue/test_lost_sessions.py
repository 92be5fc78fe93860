"""Sessions whose connections broke, closed over connections of their own."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.ingest.errors import SourceLost
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.rescue import LostSessions, lost_sessions
from agent.ingest.opcua.rescue.lost_sessions import SESSIONS_MAX, VAIN_LIVES_MAX
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.fake_session import FakeSession, answer, living
from tests.ingest.opcua.sources import S, made
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


class Sessions:
    """Sessions of which some are lost, and what is closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.refused: set[str] = set()
        self.unanswered: set[str] = set()
        self.earlier = LostSessions(self.close)  # type: ignore[arg-type] # a key is no more than passed on

    async def close(self, key: str) -> None:
        self.closed.append(key)
        if key in self.unanswered:
            await asyncio.Event().wait()
        if key in self.refused:
            raise SourceLost("BadIdentityChangeNotSupported")

    def open(self, key: str | None, started: object = "Monday") -> None:
        """Another session, with this key, at a server that was started then."""
        session: Any = FakeSession()
        session.key = key
        self.earlier.begin(session, started)

    async def life(self, key: str) -> list[str]:
        """What is closed in a life that does not last."""
        before = len(self.closed)
        self.open(key)
        await self.earlier.close()
        return self.closed[before:]


async def test_each_lost_session_is_closed_once() -> None:
    """Also one that the server refuses to hand over, or does not have any more. One that was closed over its own
    connection is no lost session."""
    sessions = Sessions()
    sessions.refused = {"2"}
    assert await sessions.life("1") == []
    assert await sessions.life("2") == ["1"]
    sessions.open(None)
    sessions.open("4")
    await sessions.earlier.close()
    await sessions.earlier.close()
    assert sessions.closed == ["1", "2"]


@pytest.mark.parametrize("started", ["Tuesday", None])
async def test_sessions_of_a_server_that_was_started_again_are_left_alone(started: object) -> None:
    """Their tokens may be those of other sessions by now, also of the present one. The same holds at a server that does
    not say when it was started."""
    sessions = Sessions()
    sessions.open("1")
    sessions.open("2", started)
    await sessions.earlier.close()
    assert sessions.closed == []
    sessions.open("3", started)
    await sessions.earlier.close()
    assert sessions.closed == ["2"] * (started is not None)


async def test_a_life_that_ends_meanwhile_leaves_it_to_the_next() -> None:
    """The newest first. Of very many only those are kept that a server may still have."""
    sessions = Sessions()
    sessions.unanswered = {"1"}
    sessions.open("1")
    sessions.open("2")
    ended = asyncio.create_task(sessions.earlier.close())
    await wait_until_async(lambda: sessions.closed, "the request")
    ended.cancel()
    await asyncio.wait([ended])
    sessions.unanswered.clear()
    assert await sessions.life("3") == ["2", "1"]
    for number in range(4, 20):
        sessions.open(str(number))
    assert len(await sessions.life("20")) == SESSIONS_MAX


async def test_a_server_that_ends_the_connection_over_it_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some lives in a row that ended soon after they had asked. One that lasted begins the count anew."""
    monkeypatch.setattr(lost_sessions, "STABLE_S", 0.0)
    sessions = Sessions()
    await sessions.life("first")
    for number in range(VAIN_LIVES_MAX - 1):
        assert await sessions.life(f"short {number}")
    sessions.open("lasting")
    await sessions.earlier.run()
    for number in range(VAIN_LIVES_MAX):
        assert await sessions.life(f"short {number}")
    sessions.open("lasting")
    await sessions.earlier.run()
    assert [await sessions.life(str(number)) for number in range(3)] == [[], [], []]


async def test_lost_sessions_are_closed_when_their_subscriptions_are_taken_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the live values; before them at a server that has no room. A session that was lost before anything stood
    in it is closed too."""
    closed: list[tuple[str, int, int]] = []
    sessions = [FakeSession(first_number=number) for number in (0, 10, 20, 30)]
    for number, session in enumerate(sessions):
        session.key = f"session {number}"

    async def close(_: object, key: str) -> None:
        present = sessions[len(lives) - 1]
        present.room = 1_000
        closed.append((key, len(present.transfers), len(present.subscriptions)))

    lives: list[FakeSession] = []

    @asynccontextmanager
    async def life() -> Any:
        lives.append(sessions[len(lives)])
        async with living(monkeypatch, source, lives[-1]):
            yield lives[-1]
        await source.finish()

    monkeypatch.setattr(source_module, "close_session", close)
    monkeypatch.setattr(source_module, "FIRST_VALUE_S", 0.0)
    source, _ = await made(FakeStore())
    async with life() as session:
        await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
        session.answers.put_nowait(answer(1, 1, (1, 1.0, S)))
    async with life():
        await wait_until_async(lambda: closed, "the end of the first session")
    assert closed == [("session 0", 1, 1)]
    monkeypatch.setattr(sessions[2], "limits", asyncio.Event().wait)  # it gets no further
    async with life():
        await wait_until_async(lambda: source._lost_sessions._present is sessions[2], "the third session")
    sessions[3].room = 0
    async with life() as session:
        await wait_until_async(lambda: session.keeps_subscriptions, "everything built")
    assert closed[1:] == [("session 2", 1, 0), ("session 1", 1, 0)]
