"""What is asked of a node over MQTT, with a conversation that answers by itself."""

from concurrent.futures import Future
from typing import Any, cast

from agent.replication.mqtt import Reply
from agent.replication.protocol.messages import ConfirmReceipt
from pyspark_bsfg.options import NodeOptions
from pyspark_bsfg.transports.conversation import Conversation
from pyspark_bsfg.transports.mqtt_node import MqttNode, MqttNodeSource, _Known

EPOCH = "a" * 32


class Answering:
    """A conversation that notes the requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, request: Any) -> Future[Reply]:
        self.asked.append(request)
        found = Future[Reply]()
        found.set_result(cast(Reply, None))
        return found


def test_nothing_is_confirmed_before_the_first_fact() -> None:
    """A query that has read nothing has nothing to confirm; a node would refuse the offset 0."""
    node = MqttNode(NodeOptions("broker", "enterprise", "ca.pem", "own.pem", "own.key"))
    conversation = Answering()
    source = MqttNodeSource(node, _Known(cast(Conversation, conversation), {}), "lake", None)
    source.confirm("local.lake", 0, EPOCH)
    assert conversation.asked == []
    source.confirm("local.lake", 5, EPOCH)
    assert conversation.asked == [ConfirmReceipt(consumer_name="local.lake", offset=5, epoch=EPOCH)]
