"""Requests within a bandwidth limit, in virtual time: when each is sent, and that its answer is spent."""

import asyncio
from unittest.mock import Mock

import pytest

from agent.replication.mqtt.requester import PeerReply
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.messages import ListStreams, StreamsAnswer
from agent.replication.protocol.token_bucket import REPAIR_WAITS_MS_MAX, Priority, TokenBucket
from agent.replication.pulling import throttled_requester
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.telemetry import Span, Telemetry

RATE = 100_000
ANSWER_BYTES = 50_000


class Peer:
    """Answers each request at once with half a second's worth; records when it was asked."""

    peer_node = "plant"

    def __init__(self, clock: "Clock") -> None:
        self.clock = clock
        self.asked_ms: list[int] = []
        self.fails = False

    async def ask(self, _request: ListStreams, _timeout_s: float) -> PeerReply:
        self.asked_ms.append(self.clock.now_ms)
        if self.fails:
            raise TransportError("plant", "no answer")
        return PeerReply(StreamsAnswer(store_zone="plant", life="0" * 32, streams=[]), [], ANSWER_BYTES)


class Clock:
    """A clock that moves only while a caller waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0
        monkeypatch.setattr(throttled_requester, "_now_ms", lambda: self.now_ms)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


def test_the_next_request_waits_for_the_bandwidth_of_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three answers of half a second's worth each are requested half a second apart; a lost one costs nothing. Each
    request is a span that ends as it does."""
    clock, telemetry = Clock(monkeypatch), Telemetry()
    peer, bandwidth = Peer(clock), TokenBucket(RATE)
    bandwidth.spend(RATE // 4, 0)  # what was saved up
    asker = ThrottledRequester(peer, bandwidth, telemetry=telemetry)  # type: ignore[arg-type]

    async def scenario() -> None:
        for _ in range(3):
            await asker.ask(ListStreams(), 1.0)
        peer.fails = True
        for _ in range(2):
            with pytest.raises(TransportError):
                await asker.ask(ListStreams(), 1.0)
        peer.ask = Mock(side_effect=asyncio.CancelledError)  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await asker.ask(ListStreams(), 1.0)

    asyncio.run(scenario())
    assert peer.asked_ms == [0, 500, 1_000, 1_500, 1_500]
    (counted,) = telemetry.statistics()
    assert counted.step == (Span.ASK, "ListStreams")
    assert (counted.started, counted.stopped, counted.failed, counted.discarded) == (6, 3, 2, 1)


def test_a_repair_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """If others always owe more than they pay, a repair is sent after half a minute; without a limit, at once."""
    clock = Clock(monkeypatch)
    peer, bandwidth = Peer(clock), TokenBucket(RATE)
    bandwidth.spend(31 * RATE, 0)
    asyncio.run(ThrottledRequester(peer, bandwidth, Priority.REPAIR).ask(ListStreams(), 1.0))  # type: ignore[arg-type]
    assert peer.asked_ms == [REPAIR_WAITS_MS_MAX]
    asyncio.run(ThrottledRequester(peer).ask(ListStreams(), 1.0))  # type: ignore[arg-type]
    assert peer.asked_ms == [REPAIR_WAITS_MS_MAX] * 2
