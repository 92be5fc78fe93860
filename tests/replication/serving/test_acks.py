"""acks over the network: an append is answered when the zone above has it, and a consumer that fetches at the end is in
sync."""

import asyncio
import time
from pathlib import Path

import pytest

from agent.append_contract import AppendOutcome
from agent.fact_store.append.acks import is_in_sync
from agent.fact_store.core.lifecycle import Lifecycle
from agent.message import Envelope, Fact, Message
from tests.replication.nodes import STREAM, Node, define
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

LAG_NS = 15_000_000_000


async def test_acks_all_through_the_broker(broker: Mosquitto, tmp_path: Path) -> None:
    """With a puller that waits at the end, acks all means that the fact is durable in its store when the answer
    comes."""
    plant, idmz = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path)
    plant.serve({"idmz": [STREAM]})
    idmz.pull("plant-a")
    await define(plant.store, "line1/temperature")
    async with plant.running(), idmz.running():
        await wait_until_async(lambda: keeps_up(plant), "a fetch at the end of an empty log")
        for n in range(5):
            message = Message(Envelope(f"m{n}", "plant-a", "*", 0), Fact("order:line1/77", "step_completed", b"1"))
            appended = await asyncio.wrap_future(plant.store.appends.append_message(STREAM, message, acks="all"))
            assert appended == AppendOutcome(n + 1, "applied")
            assert idmz.store.end_offset(STREAM) == n + 1
        consumer = plant.store.consumers.get(f"idmz.{STREAM}")
        assert consumer is not None
        assert consumer.lifecycle is Lifecycle.ONLINE


def keeps_up(plant: Node) -> bool:
    """Whether the consumer was known to be at the end just now."""
    followers = plant.store.consumers.followers(STREAM)
    return [is_in_sync(follower, LAG_NS, time.monotonic_ns()) for follower in followers] == [True]
