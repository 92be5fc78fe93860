"""What is asked of a node over MQTT, without a broker."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.lease import LeaseClaim
from agent.replication.mqtt import PeerReply
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.messages import ConfirmReceipt, GetBounds
from pyspark_bsfg.options import NodeOptions
from pyspark_bsfg.transports import conversation as tested
from pyspark_bsfg.transports.conversation import Conversation
from pyspark_bsfg.transports.mqtt_node import MqttNode, MqttNodeSource, _Known

LIFE = "a" * 32


class Answering:
    """A conversation that notes the requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, request: Any) -> Future[PeerReply]:
        self.asked.append(request)
        found = Future[PeerReply]()
        found.set_result(cast(PeerReply, None))
        return found


def test_nothing_is_confirmed_before_the_first_fact() -> None:
    """A query that has read nothing has nothing to confirm; a node would refuse the offset 0."""
    node = MqttNode(NodeOptions("broker", "enterprise", "ca.pem", "own.pem", "own.key"))
    conversation = Answering()
    source = MqttNodeSource(node, _Known(cast(Conversation, conversation), {}), "lake", None)
    claim = LeaseClaim("us", 7)
    source.confirm("local.lake", 0, LIFE, claim)
    assert conversation.asked == []
    source.confirm("local.lake", 5, LIFE, claim)
    assert conversation.asked == [ConfirmReceipt(consumer_name="local.lake", offset=5, life=LIFE, lease=7)]


def test_another_life_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose store was restored answers each attempt the same way: the reader gets that answer, on the same
    connection, and not a failed connection after some attempts."""
    connections = []

    async def converse(_access: object, _peer: str, answer_all: Any, **_given: object) -> None:
        connections.append(1)
        answers: list[Any] = [PeerRefused("enterprise", "life_unknown", "restored", "", retryable=True), "an answer"]

        async def ask(_request: object, _timeout_s: float) -> PeerReply:
            answer = answers.pop(0)
            if isinstance(answer, PeerRefused):
                raise answer
            return cast(PeerReply, answer)

        await answer_all(SimpleNamespace(ask=ask), lambda: None)

    monkeypatch.setattr(tested, "converse", converse)
    conversation = Conversation(cast(Any, None), "enterprise", 5, 3, cast(Any, None))
    try:
        with pytest.raises(PeerRefused, match="life_unknown"):
            conversation.ask(GetBounds(stream="facts.telemetry")).result()
        assert cast(str, conversation.ask(GetBounds(stream="facts.telemetry")).result()) == "an answer"
    finally:
        conversation.close()
    assert connections == [1]
