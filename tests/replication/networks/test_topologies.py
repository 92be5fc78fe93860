"""Topologies other than a chain, over a real broker: every fact arrives once, in its origin's order."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agent.batch import Origin, parse
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.system


def held(node: Node) -> dict[Origin, list[int]]:
    """The sequences of each origin, in log order."""
    found: dict[Origin, list[int]] = {}
    for batch_bytes in sealed(node.store):
        header = parse(batch_bytes).header
        found.setdefault(header.origin, []).extend(range(header.first_sequence, header.last_sequence + 1))
    return found


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

    links = [f"{zone}:idmz" for zone in plants]
    # All in one process, the hardest case: two connections for each zone, and the queue that fits the memory limit
    # then.
    with Mosquitto.started(tmp_path / "broker", (*plants, "idmz"), links) as broker:
        asyncio.run(scenario(broker))
