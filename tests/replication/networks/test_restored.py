"""A plant whose store was restored to an old copy, over a real broker: it detects this, and facts recorded since arrive
once."""

import asyncio
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.batch import open_samples, parse
from agent.fact_store import FactStore
from agent.node.trust import RestoreProof
from agent.replication.pulling import TrustPolicy
from agent.settings.store import StoreSettings
from agent.signing.keys import ZoneSigner
from tests.replication.nodes import IMPATIENT, STREAM, Node, sealed
from tests.signing.signers import make, signing_key
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

MADE = make("plant-a", begins=datetime(2020, 1, 1, tzinfo=UTC), ends=datetime(2100, 1, 1, tzinfo=UTC))
"""The plant's signer."""


def values(store: FactStore) -> list[float]:
    """All values of the stream."""
    return [float(value) for one in sealed(store) for value in open_samples(parse(one)).values]  # type: ignore[arg-type]


def plant_at(broker: Mosquitto, folder: Path, *, is_proven: bool = False) -> Node:
    """The plant's node, which serves idmz. `is_proven`: it signs its facts, so that idmz can prove its claims."""
    settings = StoreSettings(batch_facts_target=50)  # the resealed facts are six batches
    policy = TrustPolicy(own_zone="plant-a", own_certificates=(MADE.der,))
    signer = ZoneSigner(signing_key(MADE), MADE.der) if is_proven else None
    node = Node.open(broker, "plant-a", folder, settings, signer=signer, policy=policy)
    node.serve({"idmz": [STREAM]}, is_proven=RestoreProof(node.store, node.judge))
    return node


@pytest.mark.parametrize("is_proven", [False, True])
async def test_a_copy_that_has_grown_past_its_reader_loses_nothing(
    broker: Mosquitto, tmp_path: Path, *, is_proven: bool
) -> None:
    """The store is restored from 200 facts to 100 and grows to 400 before its reader returns. The reader is refused,
    and another zone that reads from the copy is served, until the store begins a new epoch: by the reader's proof, or
    by hand if its claim is unproven. No process ends, and the reader gets the old and the new facts, each once."""
    plant = plant_at(broker, tmp_path, is_proven=is_proven)
    await plant.append(0, 100)
    plant.store.close()
    files = (
        "plant-a.db",
        "plant-a.db.witness",
    )  # an image of the machine: with the witness, so that only a peer can tell
    image = tmp_path / "image"
    image.mkdir()
    for file in files:
        shutil.copy(tmp_path / file, image)
    plant = plant_at(broker, tmp_path, is_proven=is_proven)
    idmz = Node.open(broker, "idmz", tmp_path)
    await plant.append(100, 100)
    puller = idmz.pull("plant-a", receiver=IMPATIENT)
    async with idmz.running():
        async with plant.running():
            await idmz.wait_end(200)
        plant.store.close()
        for file in files:
            shutil.copy(image / file, tmp_path)
        plant = plant_at(broker, tmp_path, is_proven=is_proven)
        await plant.append(1_000, 300)
        old = plant.store.epoch
        async with plant.running():
            if not is_proven:
                await wait_until_async(plant.store.incidents, "the incident")
                await wait_until_async(lambda: "history_differs" in (puller.statistics().lost_reason or ""), "loss")
                assert (idmz.store.end_offset(STREAM), plant.store.epoch) == (200, old)
                await asyncio.wrap_future(plant.store.begin_epoch("an operator says so"))
            await idmz.wait_end(500)
            await wait_until_async(lambda: puller.statistics().frontier == 400, "confirmation")
            assert plant.store.epoch != old
    numbers = [*range(200), *range(1_000, 1_300)]
    assert values(idmz.store) == [float(number) for number in numbers]
    assert values(plant.store) == [float(number) for number in numbers[:100] + numbers[200:]]
    assert {one.kind for one in idmz.store.incidents()} <= (set() if is_proven else {"pull_stands"})
    kinds = {one.kind: one.detail for one in plant.store.incidents()}
    assert kinds.keys() == {"epoch", "restored"} | (set() if is_proven else {"ahead"})
    assert f"300 of {STREAM} from offset 101" in kinds["epoch"]
    for node in (plant, idmz):
        node.store.close()


async def test_a_reader_that_starts_at_the_end_causes_no_epoch_change(broker: Mosquitto, tmp_path: Path) -> None:
    """A reader starts at the end of the log and holds no fact yet; the plant restarts and grows in between. The epoch
    stays, there is no incident, and all new facts arrive."""
    plant, idmz = plant_at(broker, tmp_path), Node.open(broker, "idmz", tmp_path)
    await plant.append(0, 100)
    epoch = plant.store.epoch
    puller = idmz.pull("plant-a", receiver=replace(IMPATIENT, start="end"))
    async with idmz.running():
        async with plant.running():
            await wait_until_async(lambda: puller.statistics().offset == 100, "the end to be known")
            answered_ms = puller.statistics().last_answer_ms
            await wait_until_async(
                lambda: puller.statistics().last_answer_ms != answered_ms, "an answer to the restored peer"
            )
        plant.store.close()
        for first in (100, 150):
            plant = plant_at(broker, tmp_path)
            await plant.append(first, 50)
            async with plant.running():
                await idmz.wait_end(first - 50)
            assert (plant.store.epoch, plant.store.incidents()) == (epoch, [])
            plant.store.close()
    assert values(idmz.store) == [float(number) for number in range(100, 200)]
    idmz.store.close()
