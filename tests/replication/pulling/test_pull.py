"""Store to store over a real broker: what arrives is what was sent, byte for byte, whatever fails meanwhile."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agent.settings.store import StoreSettings
from tests.replication.nodes import IMPATIENT, STREAM, Node, define, samples, sealed
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

LIVE = "facts.live"
SMALL_BATCHES = StoreSettings(batch_facts_target=100)  # a log of few facts is many batches, and many pages


async def test_pull_to_equality(broker: Mosquitto, tmp_path: Path) -> None:
    """A backlog and what is appended meanwhile arrive once, in order, unchanged, and are confirmed."""
    plant = Node.open(broker, "plant-a", tmp_path, SMALL_BATCHES)
    idmz = Node.open(broker, "idmz", tmp_path)
    plant.serve({"idmz": [STREAM]})
    puller = idmz.pull("plant-a")
    await plant.append(0, 20_000)
    async with plant.running(), idmz.running():
        await plant.append(20_000, 1_000)
        await idmz.wait_end(21_000)
        await wait_until_async(lambda: frontier(plant) == 21_000, "confirmation")
    assert sealed(idmz.store) == sealed(plant.store)
    assert puller.statistics().counters.facts_duplicate == 0


async def test_many_definitions_travel_before_their_facts(broker: Mosquitto, tmp_path: Path) -> None:
    """The definitions of ten thousand tags come in several answers before the first fact."""
    plant, idmz = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path)
    plant.serve({"idmz": [STREAM]})
    idmz.pull("plant-a")
    await define(plant.store, *(f"line{number // 100}/tag{number}" for number in range(10_000)))
    rows = [samples(number, 1, tag=number)[0] for number in range(1, 10_001)]
    await asyncio.wrap_future(plant.store.appends.append_samples(STREAM, rows))
    async with plant.running(), idmz.running():
        await idmz.wait_end(10_000)
    assert idmz.store.reader.definition_counts() == {"plant-a": 10_000}
    assert sealed(idmz.store) == sealed(plant.store)


def frontier(node: Node, stream: str = STREAM) -> int:
    """What idmz has confirmed here."""
    consumer = node.store.consumers.get(f"idmz.{stream}")
    return 0 if consumer is None else consumer.frontier


def test_two_machines_that_serve_under_one_name(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway and a copy of it with a store of its own both answer every request: the receiver keeps running, logs
    both lives in a line or two instead of two thousand, and continues with the one that remains; nothing is stored
    twice."""
    often = replace(IMPATIENT, blocked_ms=300, twins_ms=3_000)

    async def scenario() -> None:
        plant, copy = (Node.open(broker, "plant-a", tmp_path / name) for name in ("plant", "copy"))
        idmz = Node.open(broker, "idmz", tmp_path)
        puller = idmz.pull("plant-a", receiver=often)
        for number, node in enumerate((plant, copy)):
            node.serve({"idmz": [STREAM]})
            await node.append(number * 10_000, 500)
        async with idmz.running(), plant.running():
            await idmz.wait_end(500)
            async with copy.running():

                async def reported() -> bool:
                    await plant.append(plant.store.end_offset(STREAM), 1)
                    await copy.append(copy.store.end_offset(STREAM), 1)
                    return "answer in turn" in (puller.statistics().lost_reason or "")

                await wait_until_async(reported, "both to be named")
            await plant.append(5_000, 100)
            end_offset = plant.store.end_offset(STREAM)
            await wait_until_async(
                lambda: (puller.statistics().offset, puller.statistics().lost_reason) == (end_offset, None),
                "the one that remains",
            )
            await wait_until_async(lambda: frontier(plant) == end_offset, "its confirmation")
        ours = idmz.store.reader.held(STREAM)
        assert [held_range.last_sequence for held_range in ours[plant.store.origin]] == [end_offset]
        assert puller.statistics().counters.facts_duplicate == 0
        assert puller.statistics().counters.restarts < 20

    asyncio.run(scenario())
    reported = [record for record in caplog.records if "answer in turn" in getattr(record, "reason", "")]
    assert 1 <= len(reported) < 20


async def test_restarted_receiver_goes_on_where_it_was(broker: Mosquitto, tmp_path: Path) -> None:
    """The pulling node is stopped in the middle, several times: it does not request stored facts again."""
    plant = Node.open(broker, "plant-a", tmp_path, SMALL_BATCHES)
    plant.serve({"idmz": [STREAM]})
    await plant.append(0, 5_000)
    async with plant.running():
        for end_offset in (500, 2_000, 5_000):
            idmz = Node.open(broker, "idmz", tmp_path)
            puller = idmz.pull("plant-a", page_bytes_max=2_048)
            async with idmz.running():
                await idmz.wait_end(end_offset)
            assert puller.statistics().counters.facts_duplicate == 0
            idmz.store.close()
    idmz = Node.open(broker, "idmz", tmp_path)
    assert sealed(idmz.store) == sealed(plant.store)
