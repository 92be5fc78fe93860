"""Two nodes that record for one zone, and a node above, on a real broker."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.replication.pulling import PageJudge
from agent.settings.store import StoreSettings
from tests.replication.nodes import IMPATIENT, STREAM, Node, link_to
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.system

PAIR = ("mill-1", "mill-2")
LINKS = ["mill-1:mill-2", "mill-2:mill-1", "mill-1:idmz", "mill-2:idmz"]
ZONES = {node: frozenset({node, "mill"}) for node in PAIR}


def of_pair(broker: Mosquitto, folder: Path, name: str, partner: str) -> Node:
    """A node of the zone mill, which pulls from the other one."""
    store = FactStore.open(folder / f"{name}.db", "mill", node=name, pair_zones=frozenset({"mill"}))
    node = Node(name, store, link_to(broker, name), StoreSettings(), PageJudge(store))
    node.serve({partner: [STREAM], "idmz": [STREAM]}, zones=ZONES)
    pull_from(node, partner)
    return node


def pull_from(node: Node, peer: str) -> None:
    """Pull from a node of the pair."""
    node.pull(peer, ("mill", *PAIR), receiver=replace(IMPATIENT, repeated_ms=200), shared_zones=("mill", *PAIR))


def test_the_node_above_reads_on_at_the_other_one(tmp_path: Path) -> None:
    """What one node records comes to its partner and to the node above, under the zone, once: the partner sends little
    of it again. When the node is gone, the partner leads with a term, and the node above has the facts of both. The
    broker knows the nodes, not the zone."""
    with Mosquitto.started(tmp_path / "broker", (*PAIR, "idmz"), LINKS) as broker:
        asyncio.run(scenario(broker, tmp_path))


async def scenario(broker: Mosquitto, folder: Path) -> None:
    """One node records and ends, then the other one."""
    first, second = (of_pair(broker, folder, *names) for names in (PAIR, PAIR[::-1]))
    above = Node.open(broker, "idmz", folder)
    for name in PAIR:
        pull_from(above, name)
    with first.store, second.store, above.store:
        async with above.running(), second.running():
            async with first.running():
                for number in range(1, 101):
                    await first.append(number, 1)
                await second.wait_end(100)
                await above.wait_end(100)
            counters = [puller.statistics().counters for puller in above.pullers]
            assert sum(counter.facts_stored for counter in counters) == 100
            assert sum(counter.facts_duplicate for counter in counters) <= 30
            await asyncio.wrap_future(second.store.take_lead(2**42))
            await second.append(101, 50)
            await above.wait_end(150)
        held = above.store.reader.held(STREAM)
        assert {origin.zone for origin in held} == {"mill"}
        assert sorted(span.span for spans in held.values() for span in spans) == [(1, 100), (101, 150)]
        assert above.store.end_offset(STREAM) == 150
        assert {consumer.name for consumer in second.store.consumers.all()} == {f"mill-1.{STREAM}", f"idmz.{STREAM}"}
