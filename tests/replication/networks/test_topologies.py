"""Topologies other than a chain, over a real broker: every fact arrives once, in its origin's order."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agent.batch import Origin, parse
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

ZONES = ("plant-a", "plant-b", "idmz", "enterprise")
LINKS = ("plant-a:idmz", "plant-b:idmz", "idmz:enterprise", "plant-a:enterprise", "idmz:plant-a", "enterprise:idmz")


@pytest.fixture(scope="module")
def meshed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker whose access list has a path around the relay, and paths back."""
    with Mosquitto.started(tmp_path_factory.mktemp("meshed"), ZONES, LINKS) as running:
        yield running


def held(node: Node) -> dict[Origin, list[int]]:
    """The sequences of each origin, in log order."""
    found: dict[Origin, list[int]] = {}
    for one in sealed(node.store):
        header = parse(one).header
        found.setdefault(header.origin, []).extend(range(header.first_sequence, header.last_sequence + 1))
    return found


def batches_of(facts: int) -> StoreSettings:
    """Small batches, so that facts of several origins arrive interleaved."""
    return StoreSettings(batch_facts_target=facts)


def close(*nodes: Node) -> None:
    """Close the stores."""
    for node in nodes:
        node.store.close()


async def test_facts_that_arrive_by_two_paths_are_stored_once(meshed: Mosquitto, tmp_path: Path) -> None:
    """Facts that arrive directly and through a relay are stored once. Without the relay the direct path continues; when
    the relay returns it adds nothing. Position and confirmation of both paths reach the end."""
    plant = Node.open(meshed, "plant-a", tmp_path, batches_of(50))
    idmz, enterprise = (Node.open(meshed, zone, tmp_path) for zone in ("idmz", "enterprise"))
    plant.serve({"idmz": [STREAM], "enterprise": [STREAM]})
    idmz.serve({"enterprise": [STREAM]})
    idmz.pull("plant-a")
    direct, relayed = enterprise.pull("plant-a"), enterprise.pull("idmz", relays=["plant-a"])
    async with plant.running(), enterprise.running():
        async with idmz.running():
            await plant.append(0, 2_000)
            await enterprise.wait_end(2_000)
        await plant.append(2_000, 1_000)
        await enterprise.wait_end(3_000)
        close(idmz)
        idmz = Node.open(meshed, "idmz", tmp_path)
        idmz.serve({"enterprise": [STREAM]})
        idmz.pull("plant-a")
        async with idmz.running():
            await plant.append(3_000, 1_000)
            await wait_until_async(
                lambda: direct.statistics().offset == relayed.statistics().offset == 4_000, "both positions"
            )
            await wait_until_async(lambda: frontier(plant, idmz) == 4_000, "both confirmations")
    assert held(enterprise) == {plant.store.origin: list(range(1, 4_001))}
    assert sealed(enterprise.store) == sealed(plant.store)
    counted = direct.statistics(), relayed.statistics()
    assert sum(each.counters.facts_stored for each in counted) == 4_000
    assert sum(each.counters.facts_duplicate for each in counted) == 4_000
    close(plant, idmz, enterprise)


def frontier(*serving: Node) -> int:
    """The lowest confirmed offset of the enterprise."""
    consumers = [node.store.consumers.get(f"enterprise.{STREAM}") for node in serving]
    return min(one.frontier if one else 0 for one in consumers)


async def test_two_plants_into_one_relay(meshed: Mosquitto, tmp_path: Path) -> None:
    """Facts recorded at the same time by two plants and the relay arrive interleaved, each origin's facts in order."""
    batches = (20, 30, 10, 10)
    one, other, idmz, enterprise = (
        Node.open(meshed, zone, tmp_path, batches_of(facts)) for zone, facts in zip(ZONES, batches, strict=True)
    )
    one.serve({"idmz": [STREAM]})
    other.serve({"idmz": [STREAM]})
    idmz.serve({"enterprise": [STREAM]})
    idmz.pull("plant-a")
    idmz.pull("plant-b")
    enterprise.pull("idmz", relays=["plant-a", "plant-b"])
    async with AsyncExitStack() as running:
        for node in (one, other, idmz, enterprise):
            await running.enter_async_context(node.running())
        await asyncio.gather(one.append(0, 2_000), other.append(50_000, 1_500), idmz.append(90_000, 500))
        await enterprise.wait_end(4_000)
    counts = ((one, 2_000), (other, 1_500), (idmz, 500))
    assert held(enterprise) == {node.store.origin: list(range(1, count + 1)) for node, count in counts}
    assert sealed(enterprise.store) == sealed(idmz.store)
    close(one, other, idmz, enterprise)


def test_eighty_plants_into_one_relay(tmp_path: Path) -> None:
    """One relay pulls from eighty plants through one broker with its generated limits. The broker is killed while they
    record, and restarted: all reconnect, and each fact arrives once."""
    plants = [f"plant-{number}" for number in range(80)]

    async def scenario(broker: Mosquitto) -> None:
        nodes = [Node.open(broker, zone, tmp_path) for zone in plants]
        idmz = Node.open(broker, "idmz", tmp_path)
        for node in nodes:
            node.serve({"idmz": [STREAM]})
            idmz.pull(node.zone)
        async with AsyncExitStack() as running:
            for node in (*nodes, idmz):
                await running.enter_async_context(node.running())
            await asyncio.gather(*(node.append(0, 20) for node in nodes))
            await idmz.wait_end(20 * len(nodes))
            broker.kill()
            await asyncio.gather(*(node.append(20, 20) for node in nodes))
            broker.start()
            await idmz.wait_end(40 * len(nodes))
        assert held(idmz) == {node.store.origin: list(range(1, 41)) for node in nodes}
        close(*nodes, idmz)

    links = [f"{zone}:idmz" for zone in plants]
    # All in one process, the hardest case: two connections for each zone, and the queue that fits the memory limit
    # then.
    with Mosquitto.started(tmp_path / "broker", (*plants, "idmz"), links) as broker:
        asyncio.run(scenario(broker))


async def test_facts_do_not_circulate_in_a_ring(meshed: Mosquitto, tmp_path: Path) -> None:
    """Three zones that pull from each other in a ring end with all facts, each once, and then nothing circulates: every
    position reaches its peer's end."""
    plant, idmz, enterprise = (
        Node.open(meshed, zone, tmp_path, batches_of(20)) for zone in ("plant-a", "idmz", "enterprise")
    )
    plant.serve({"idmz": [STREAM], "enterprise": [STREAM]})
    idmz.serve({"enterprise": [STREAM], "plant-a": [STREAM]})
    enterprise.serve({"idmz": [STREAM]})
    pullers = [
        (plant.pull("idmz", relays=["enterprise"]), idmz),
        (idmz.pull("plant-a", relays=["enterprise"]), plant),
        (idmz.pull("enterprise", relays=["plant-a"]), enterprise),
        (enterprise.pull("plant-a", relays=["idmz"]), plant),
        (enterprise.pull("idmz", relays=["plant-a"]), idmz),
    ]
    nodes = (plant, idmz, enterprise)
    async with AsyncExitStack() as running:
        for node in nodes:
            await running.enter_async_context(node.running())
        await asyncio.gather(*(node.append(n * 10_000, 600) for n, node in enumerate(nodes)))
        await asyncio.gather(*(node.wait_end(1_800) for node in nodes))
        await wait_until_async(lambda: all(one.statistics().offset == 1_800 for one, _ in pullers), "all positions")
    everything = {node.store.origin: list(range(1, 601)) for node in nodes}
    for node in nodes:
        assert held(node) == everything
    close(*nodes)
