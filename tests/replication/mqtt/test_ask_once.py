"""How often a command repeats a request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from agent.replication.mqtt import requester
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.requester import ATTEMPTS, Reply, ask_once, converse
from agent.replication.protocol.errors import PeerRefused, TransportError
from agent.replication.protocol.messages import ListStreams

ACCESS = Access("b", "idmz", "host", 1, lambda: None)  # type: ignore[arg-type, return-value]
BUSY = PeerRefused("plant-a", "busy", "busy", "", retryable=True)
FORBIDDEN = PeerRefused("plant-a", "stream_not_exported", "no", "", retryable=False)
LOST = TransportError("plant-a", "no answer")
ANSWER = Reply(None, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "happens, attempts, ended",
    [
        ([ANSWER], 1, ANSWER),
        ([BUSY, LOST, ANSWER], 3, ANSWER),
        ([FORBIDDEN, ANSWER], 1, FORBIDDEN),
        ([BUSY, FORBIDDEN, ANSWER], 2, FORBIDDEN),
        ([LOST, BUSY, LOST, ANSWER], 3, LOST),
    ],
)
def test_a_retryable_error_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, happens: list[object], attempts: int, ended: object
) -> None:
    """Three attempts at most, each on a connection of its own; a final error ends them at once."""
    made = 0

    async def ask(*_: object) -> object:
        happened = happens[made - 1]
        if isinstance(happened, Exception):
            raise happened
        return happened

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[SimpleNamespace]:
        nonlocal made
        made += 1
        yield SimpleNamespace(ask=ask)

    monkeypatch.setattr(requester, "open_requester", connected)
    monkeypatch.setattr(requester, "RETRY_MS_MAX", 1)
    asking = ask_once(ACCESS, "plant-a", ListStreams(), 1)
    if isinstance(ended, Exception):
        with pytest.raises(type(ended)) as raised:
            asyncio.run(asking)
        assert raised.value is ended
    else:
        assert asyncio.run(asking) is ended
    assert made == attempts


def test_progress_restores_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long transfer over a bad line ends when it stands still, not when it has been lost three times in all."""
    made = 0

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[None]:
        nonlocal made
        made += 1
        yield

    async def talk(_: object, progress: Callable[[], None]) -> None:
        if made <= 2 * ATTEMPTS:
            progress()
        raise LOST

    failures = list[int]()
    monkeypatch.setattr(requester, "open_requester", connected)
    monkeypatch.setattr(requester, "backoff_ms", lambda _min, _max, count, _chance: failures.append(count) or 0)
    with pytest.raises(TransportError):
        asyncio.run(converse(ACCESS, "plant-a", talk))
    assert made == 2 * ATTEMPTS + ATTEMPTS - 1
    assert failures == [0] * 2 * ATTEMPTS + [*range(1, ATTEMPTS - 1)]
