"""Two receivers under one consumer name, through the real broker: the later one goes on, the other stops and says so.

Seen to catch, with the product broken on purpose: a server that looks at no lease, a receiver that asks again after
being fenced (the two then take each other's place for ever), one that asks for a new lease at each connection.
"""

import logging
import shutil
from pathlib import Path

import pytest

from agent.replication.pulling.puller import Puller
from agent.replication.pulling.receiving.pull_events import Asking
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

NAME = f"idmz.{STREAM}"


def base_of(plant: Node) -> int:
    """The epoch after which the lease epochs of the consumer begin."""
    consumer = plant.store.consumers.get(NAME)
    assert consumer is not None
    return consumer.registered_unix_ms


def lease_of(plant: Node) -> int:
    """The lease in force at the plant: 1 for the first one granted."""
    consumer = plant.store.consumers.get(NAME)
    assert consumer is not None
    return consumer.lease.epoch - base_of(plant)


def lease_at(puller: Puller, plant: Node) -> int:
    """The same for a pull's lease; below 0 if it has none."""
    return puller.statistics().lease - base_of(plant)


async def fenced(puller: Puller) -> None:
    """Wait until this pull is fenced."""
    await wait_until_async(lambda: puller.statistics().asking is Asking.FENCED, "the older receiver to be fenced")


async def twins(broker: Mosquitto, folder: Path, facts: int) -> tuple[Node, Node]:
    """idmz with the facts of a running plant, and its image on another machine."""
    one = Node.open(broker, "idmz", folder / "one")
    one.pull("plant-a")
    async with one.running():
        await one.wait_end(facts)
    one.store.close()
    shutil.copytree(folder / "one", folder / "two")
    return Node.open(broker, "idmz", folder / "one"), Node.open(broker, "idmz", folder / "two")


async def test_the_later_of_two_clones_continues(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A clone of a gateway is started: the clone gets every fact once; the original is fenced, logs it once, keeps what
    it has and stops requesting, also when new facts come. Restarted, it takes the lease back and continues from its
    position."""
    caplog.set_level(logging.WARNING)
    plant = Node.open(broker, "plant-a", tmp_path)
    server = plant.serve({"idmz": [STREAM]})
    async with plant.running():
        await plant.append(0, 300)
        one, two = await twins(broker, tmp_path, 300)
        earlier, later = one.pull("plant-a"), two.pull("plant-a")
        async with one.running():
            await plant.append(300, 200)
            await one.wait_end(500)
            before = server.statistics().refusals.get("fenced", 0)  # a fetch that the first life had left waiting
            async with two.running():
                await fenced(earlier)
                await plant.append(500, 500)
                await two.wait_end(1_000)
                await wait_until_async(lambda: later._runner.core.place.frontier == 1_000, "the confirmation")
            assert server.statistics().refusals == {"fenced": before + 1}
            assert one.store.end_offset(STREAM) == 500
            assert (lease_at(earlier, plant), lease_at(later, plant), lease_of(plant)) == (2, 3, 3)
            why = earlier.statistics().lost_reason or ""
            assert "fenced: consumer" in why
            assert why.count("stop one") == 1  # by the hint of the table only, not also by the store's
        one.store.close()
        one = Node.open(broker, "idmz", tmp_path / "one")
        back = one.pull("plant-a")
        async with one.running():
            await one.wait_end(1_000)
        assert (lease_at(back, plant), back.statistics().counters.facts_duplicate) == (4, 0)
    assert sealed(one.store) == sealed(two.store) == sealed(plant.store)
    for node in (plant, one, two):
        node.store.close()
    assert [record.message for record in caplog.records].count("receiver_fenced") == 1
