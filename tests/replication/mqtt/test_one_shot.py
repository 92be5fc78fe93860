"""How often a command asks."""

import asyncio

import pytest

from agent.replication.mqtt import one_shot
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.one_shot import ask_once
from agent.replication.mqtt.requester import Reply
from agent.replication.protocol.errors import PeerRefused, TransportError
from agent.replication.protocol.messages import ListStreams

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
def test_what_may_pass_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, happens: list[object], attempts: int, ended: object
) -> None:
    """Three attempts at most; what is final ends them at once."""
    made = 0

    async def ask(*_: object) -> Reply:
        nonlocal made
        made += 1
        happened = happens[made - 1]
        if isinstance(happened, Exception):
            raise happened
        return happened  # type: ignore[return-value]

    monkeypatch.setattr(one_shot, "_ask", ask)
    monkeypatch.setattr(one_shot, "RETRY_MS_MAX", 1)
    asking = ask_once(Access("b", "idmz", "host", 1, lambda: None), "plant-a", ListStreams(), 1)  # type: ignore[arg-type, return-value]
    if isinstance(ended, Exception):
        with pytest.raises(type(ended)) as raised:
            asyncio.run(asking)
        assert raised.value is ended
    else:
        assert asyncio.run(asking) is ended
    assert made == attempts
