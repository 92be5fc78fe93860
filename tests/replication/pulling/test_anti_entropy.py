"""The commands of docs/operate/integrity.md over a real broker. The comparison itself: test_comparing_alone.py."""

import asyncio
import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.config import load
from agent.fact_store import FactStore
from agent.local_socket.serving import RequestHandler, serve
from agent.node import compare
from agent.replication.mqtt.link import BrokerLink
from agent.replication.mqtt.requester import Requester
from agent.replication.pulling import PageJudge
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node, access, sealed, write_node_toml
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.system

SMALL_BATCHES = StoreSettings(batch_facts_target=100)  # 1,000 facts are ten batches, to differ in one by one


async def pulled(broker: Mosquitto, folder: Path) -> list[bytes]:
    """plant-a's 1,000 facts in ten batches, stored at idmz too; both closed again."""
    plant, idmz = Node.open(broker, "plant-a", folder, SMALL_BATCHES), Node.open(broker, "idmz", folder)
    plant.serve({"idmz": [STREAM]})
    idmz.pull("plant-a")
    async with plant.running(), idmz.running():
        await plant.append(0, 1_000)
        await idmz.wait_end(1_000)
    batches = sealed(plant.store)
    plant.store.close()
    idmz.store.close()
    return batches


def test_the_commands_of_the_page(broker: Mosquitto, tmp_path: Path) -> None:
    """The commands of docs/operate/integrity.md, with no node running: the first finds nothing, because the damage was
    not read yet; the last finds and repairs it. With a node running the same command uses its socket."""
    before, file = asyncio.run(pulled(broker, tmp_path)), tmp_path / "idmz.db"
    data = bytearray(file.read_bytes())
    data[data.index(before[5][:-16]) + len(before[5]) // 2] ^= 1
    file.write_bytes(bytes(data))
    (tmp_path / "state").mkdir()
    file.rename(tmp_path / "state" / "facts.db")
    config = write_node_toml(tmp_path, broker, "idmz", f'zone = "plant-a"\nhealth = false\npulls = ["{STREAM}"]')
    page = Path(__file__).resolve().parents[3] / "docs" / "operate" / "integrity.md"
    lines = re.findall(r"^bsfg peer .*$", page.read_text("utf-8"), re.MULTILINE)
    assert len(lines) == 3

    def said(line: str) -> str:
        words = shlex.split(line, comments=True)[1:]
        run = CliRunner().invoke(bsfg, words, env={"BSFG_CONFIG": str(config)})
        assert run.exit_code == 0, (line, run.output, run.exception)
        return run.output

    async def scenario() -> None:
        plant = Node.open(broker, "plant-a", tmp_path)
        plant.serve({"idmz": [STREAM]})
        async with plant.running():
            outputs = [await asyncio.to_thread(said, line) for line in lines]
            assert ["equal" in output for output in outputs] == [True, True, False]
            assert "damaged here" in outputs[2]
            assert "repaired: 1 ranges, 100 facts" in outputs[2]
            with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
                assert sealed(store)[:10] == before
                link = BrokerLink(access(broker, "idmz"))
                requesters = {"plant-a": Requester(link, "plant-a")}
                known = compare.comparers(load(config), store, requesters, {}, PageJudge(store))
                door = RequestHandler(store, partial(compare.compare, known))
                tasks = [asyncio.create_task(coroutine) for coroutine in (link.run(), serve(door, tmp_path / "state"))]
                await link.wait_up()
                output = await asyncio.to_thread(said, "bsfg peer compare plant-a --json")
                assert json.loads(output)["divergent_ranges"] == 0
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    asyncio.run(scenario())
