"""Store to store through the real broker: what arrives is what was sent, byte for byte, whatever goes away meanwhile."""

import asyncio
from pathlib import Path

import pytest

from agent.replication.receiver_words import Asking
from tests.replication.nodes import STREAM, Node, define, samples, sealed
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system


def test_pull_to_equality(broker: Mosquitto, tmp_path: Path) -> None:
    """A backlog and what is appended meanwhile arrive once, in order, unchanged, and are confirmed."""

    async def scenario() -> None:
        plant, idmz = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path)
        plant.serve({"idmz": [STREAM]})
        puller = idmz.pull("plant-a")
        await plant.append(0, 20_000, 500)
        async with plant.running(), idmz.running():
            await plant.append(20_000, 1_000, 10)
            await idmz.wait_end(21_000)
            await wait_until_async(lambda: frontier(plant) == 21_000, "confirmation")
            assert puller.statistics().is_caught_up
        assert sealed(idmz.store) == sealed(plant.store)
        assert puller.statistics().facts_duplicate == 0
        plant.store.close()
        idmz.store.close()

    asyncio.run(scenario())


def test_chain_of_three(broker: Mosquitto, tmp_path: Path) -> None:
    """A relay hands on what it received, with the definitions, and no zone is ever sent its own facts."""

    async def scenario() -> None:
        plant, idmz, enterprise = (Node.open(broker, zone, tmp_path) for zone in ("plant-a", "idmz", "enterprise"))
        plant.serve({"idmz": [STREAM]})
        idmz.serve({"enterprise": [STREAM]})
        idmz.pull("plant-a")
        enterprise.pull("idmz", relays=["plant-a"])
        async with plant.running(), idmz.running(), enterprise.running():
            await plant.append(0, 3_000)
            await enterprise.wait_end(3_000)
        assert sealed(enterprise.store) == sealed(plant.store)
        origin = plant.store.origin
        assert enterprise.store.definitions(origin, 0, 10) == plant.store.definitions(origin, 0, 10) != []
        for node in (plant, idmz, enterprise):
            node.store.close()

    asyncio.run(scenario())


def test_many_definitions_travel_before_their_facts(broker: Mosquitto, tmp_path: Path) -> None:
    """Ten thousand tags do not fit into a page: they come in pages of their own, and the first fact after them."""

    async def scenario() -> None:
        plant, idmz = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path)
        plant.serve({"idmz": [STREAM]})
        idmz.pull("plant-a")
        await define(plant.store, *(f"line{number // 100}/tag{number}" for number in range(10_000)))
        rows = [samples(number, 1, tag=number)[0] for number in range(1, 10_001)]
        await asyncio.wrap_future(plant.store.append_samples(STREAM, rows, awaited=True))
        async with plant.running(), idmz.running():
            await idmz.wait_end(10_000)
        assert idmz.store.definition_counts()[plant.store.origin] == 10_000
        assert sealed(idmz.store) == sealed(plant.store)
        plant.store.close()
        idmz.store.close()

    asyncio.run(scenario())


def test_broker_restart(tmp_path: Path) -> None:
    """The broker goes in the middle and comes back: both sides find it again, and nothing is lost or doubled."""

    async def scenario(broker: Mosquitto) -> None:
        plant, idmz = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path)
        plant.serve({"idmz": [STREAM]})
        puller = idmz.pull("plant-a")
        async with plant.running(), idmz.running():
            await plant.append(0, 500)
            await idmz.wait_end(500)
            await asyncio.to_thread(broker.kill)
            await wait_until_async(lambda: puller.statistics().asking is Asking.OFFLINE, "loss to be noticed")
            await plant.append(500, 500)
            await asyncio.to_thread(broker.restart)
            await idmz.wait_end(1_000)
        assert sealed(idmz.store) == sealed(plant.store)
        plant.store.close()
        idmz.store.close()

    with Mosquitto.started(tmp_path / "broker") as broker:
        asyncio.run(scenario(broker))


def frontier(node: Node) -> int:
    """What idmz has confirmed here."""
    consumer = node.store.consumer(f"idmz.{STREAM}")
    return 0 if consumer is None else consumer.frontier
