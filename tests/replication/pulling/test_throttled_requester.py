"""Requests within a bandwidth limit, in virtual time: when each is sent, and that its answer is spent."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from agent.config import ConfigFile
from agent.fact_store.store import FactStore
from agent.node.node import Node, compare
from agent.node.start import Start
from agent.replication.mqtt.requester import PeerReply
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.messages import ListStreams, StreamsAnswer
from agent.replication.protocol.token_bucket import REPAIR_WAITS_MS_MAX, Priority, TokenBucket
from agent.replication.pulling import throttled_requester
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import BrokerSettings, PeerSettings
from agent.telemetry import Span, Telemetry

RATE = 100_000
ANSWER_BYTES = 50_000
PEERS = (
    PeerSettings("plant-a", broker="site", pulls=("facts.a", "facts.b"), bytes_per_second_max=RATE),
    PeerSettings("plant-b", broker="site", pulls=("facts.a",)),
)


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


async def test_all_requests_to_a_peer_share_one_token_bucket(tmp_path: Path) -> None:
    """All pulls and the comparison of a limited peer share one token bucket, the comparison with the priority of a
    repair; without a limit there is none."""
    brokers = (BrokerSettings("site", "127.0.0.1", 8883, tmp_path, tmp_path, tmp_path),)
    settings = NodeSettings(IdentitySettings("idmz", tmp_path), broker=brokers, peer=PEERS)
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        node = Node(store, Start(settings), ConfigFile(tmp_path / "node.toml"), asyncio.Event())
        runtime = node._runtimes["site"]
        shared = runtime.bandwidths["plant-a"]
        assert [puller._bandwidth for puller in runtime.pullers] == [shared, shared, shared, None, None]
        compared = runtime.comparers["plant-a"]._requester
        assert (compared._bandwidth, compared._priority) == (shared, Priority.REPAIR)
        assert runtime.comparers["plant-b"]._requester._bandwidth is None
    assert compare.bandwidths(PEERS)["plant-a"].bytes_per_second_max == RATE
