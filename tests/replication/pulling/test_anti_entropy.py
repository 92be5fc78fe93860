"""Two stores compared over a real broker: damaged or missing facts come back byte for byte; a fork is reported and
stays."""

import asyncio
import contextlib
import json
import re
import shlex
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.config import load
from agent.fact_store import FactStore, StoreDamaged
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from agent.local_socket.serving import RequestHandler, serve
from agent.local_socket.serving.store_errors import COMPARISON_ERRORS
from agent.node import compare
from agent.replication.mqtt.link import Link
from agent.replication.mqtt.requester import Requester
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.pulling import PageJudge
from agent.replication.pulling.anti_entropy import AntiEntropy, AntiEntropySettings, Comparison
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.settings.store import StoreSettings
from agent.telemetry import Span, Telemetry
from tests.replication.nodes import STREAM, Node, access, sealed, write_node_toml
from tests.support.mosquitto import Mosquitto
from tests.support.received import chains_in
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

SMALL_BATCHES = StoreSettings(batch_facts_target=100)  # 1,000 facts are ten batches, to differ in one by one


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker at which the two may ask each other."""
    folder = tmp_path_factory.mktemp("broker-both-ways")
    with Mosquitto.started(folder, ("plant-a", "idmz"), ("plant-a:idmz", "idmz:plant-a")) as running:
        yield running


def comparer(node: Node, peer: str, *, every_hours: float = 0, chance: float = 1.0) -> AntiEntropy:
    """Compares the stream of a node with a peer's."""
    settings = AntiEntropySettings(peer, (STREAM,), frozenset({peer}), every_hours=every_hours)
    return AntiEntropy(
        ThrottledRequester(node.requester(peer)), node.store, settings, COMPARISON_ERRORS, chance=lambda: chance
    )


def flip(path: Path, batch: bytes) -> None:
    """Change one bit in the middle of a batch, in the file of a store that is closed."""
    data = bytearray(path.read_bytes())
    data[data.index(batch[:-16]) + len(batch) // 2] ^= 1
    path.write_bytes(bytes(data))


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


@contextlib.asynccontextmanager
async def compared(broker: Mosquitto, folder: Path, exports: dict[str, list[str]]) -> AsyncIterator[tuple[Node, Node]]:
    """Open both nodes again and let a scenario compare them."""
    plant, idmz = Node.open(broker, "plant-a", folder), Node.open(broker, "idmz", folder)
    plant.serve({"idmz": exports["plant-a"]})
    idmz.serve({"plant-a": exports["idmz"]})
    plant.requester("idmz"), idmz.requester("plant-a")
    async with plant.running(), idmz.running():
        yield plant, idmz
    plant.store.close()
    idmz.store.close()


EVERYTHING = {"plant-a": [STREAM], "idmz": [STREAM]}


async def test_a_comparison_is_a_span_that_ends_in_each_of_its_ways(broker: Mosquitto, tmp_path: Path) -> None:
    """Carried out, refused by the peer, and given up in the middle because the node stops."""
    await pulled(broker, tmp_path)
    telemetry = Telemetry()

    def ends() -> tuple[int, int, int, int]:
        one = next(one for one in telemetry.statistics() if one.step.span is Span.ANTI_ENTROPY)
        return one.started, one.stopped, one.failed, one.discarded

    async with compared(broker, tmp_path, EVERYTHING) as (_, idmz):
        streams = (STREAM, "facts.secret")
        settings = AntiEntropySettings("plant-a", streams, frozenset({"plant-a"}), every_hours=0)
        limit = TokenBucket(1_000_000)
        comparing = AntiEntropy(
            ThrottledRequester(idmz.requester("plant-a"), limit),
            idmz.store,
            settings,
            COMPARISON_ERRORS,
            telemetry=telemetry,
        )
        await comparing.compare(STREAM, repair=False)
        assert ends() == (1, 1, 0, 0)
        with pytest.raises(PeerRefused):
            await comparing.compare("facts.secret", repair=False)
        assert ends() == (2, 1, 1, 0)
        limit.spend(10**9, time.monotonic_ns() // 1_000_000)  # so that it waits
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(comparing.compare(STREAM, repair=False))
            await wait_until_async(lambda: ends()[0] == 3, "the comparison to begin")
            waiting.cancel()
        assert ends() == (3, 1, 1, 1)


class Counting(TokenBucket):
    """A token bucket that is never empty, and counts what is spent."""

    def __init__(self) -> None:
        super().__init__(1_000_000_000)
        self.spent = 0

    def spend(self, size: int, now_ms: int) -> None:
        self.spent += size
        super().spend(size, now_ms)


async def test_comparing_and_repairing_spend_bandwidth(broker: Mosquitto, tmp_path: Path) -> None:
    """Each answer, of digests and of batches, is taken from the peer's bandwidth."""
    flipped = (await pulled(broker, tmp_path))[3]
    flip(tmp_path / "idmz.db", flipped)
    async with compared(broker, tmp_path, EVERYTHING) as (_, idmz):
        limit = Counting()
        settings = AntiEntropySettings("plant-a", (STREAM,), frozenset({"plant-a"}), every_hours=0)
        asker = ThrottledRequester(idmz.requester("plant-a"), limit, Priority.REPAIR)
        found = await AntiEntropy(asker, idmz.store, settings, COMPARISON_ERRORS).compare(
            STREAM, repair=True, scan=True
        )
        assert found.repaired_facts == 100
        assert limit.spent == found.bytes > len(flipped)


@pytest.mark.parametrize("hurt, helper", [("idmz", "plant-a"), ("plant-a", "idmz")])
async def test_a_damaged_batch_is_put_back_byte_for_byte(
    broker: Mosquitto, tmp_path: Path, hurt: str, helper: str
) -> None:
    """On either side, two batches changed on disk are found by a scan and named. Without `repair` they stay; with it
    they are restored at their offsets and served again, also after a restart, and `bsfg store verify` finds nothing."""
    before = await pulled(broker, tmp_path)
    for at in (3, 9):
        flip(tmp_path / f"{hurt}.db", before[at])
    async with compared(broker, tmp_path, EVERYTHING) as (plant, idmz):
        node = plant if hurt == "plant-a" else idmz
        comparing = comparer(node, helper)
        found = await comparing.compare(STREAM, repair=False, scan=True)
        assert [span for _, span in found.damaged] == [(301, 400), (901, 1000)]
        assert (found.repaired_facts, found.missing, found.forks) == (0, [], [])
        assert sealed(node.store)[:8] == [*before[:3], *before[4:9]]
        found = await comparing.compare(STREAM, repair=True)
        assert (found.repaired_ranges, found.repaired_facts, found.refused) == (2, 200, [])
        assert sealed(node.store)[:10] == before
        assert found.compared_facts >= 1_000
        counted = comparing.statistics()[0]
        assert (counted.comparisons, counted.repaired_facts, counted.divergent_ranges) == (2, 200, 4)
        assert node.store.integrity().damages == 0
        kinds = {(one.kind, one.subject) for one in node.store.reader.incidents()}
        assert {("repaired", f"{STREAM} 301 to 400"), ("repaired", f"{STREAM} 901 to 1000")} <= kinds
        assert (await comparing.compare(STREAM, repair=True, scan=True)).divergent_ranges == 0
    assert not list(verify_store(tmp_path / f"{hurt}.db", VerifyCounts(), lambda *_: None, is_quick=False))
    with FactStore.open(tmp_path / f"{hurt}.db", hurt) as store:
        assert sealed(store)[:10] == before
        page = store.read(STREAM, 349, 10, 1)
        assert page.batches[0].sealed == before[3]


def spoil_definition(path: Path) -> None:
    """Change one bit of a tag's definition, in the file of a store that is closed."""
    with closing(sqlite3.connect(path)) as connection:
        (refusing,) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name = 'definition_update_refused'"
        ).fetchone()
        connection.execute("DROP TRIGGER definition_update_refused")
        (body,) = connection.execute("SELECT body FROM definition WHERE number = 1").fetchone()
        connection.execute(
            "UPDATE definition SET body = ? WHERE number = 1", (body[:-3] + bytes([body[-3] ^ 1]) + body[-2:],)
        )
        connection.execute(refusing)
        connection.commit()


async def test_a_damaged_tag_definition_is_put_back(broker: Mosquitto, tmp_path: Path) -> None:
    """Every fact of the tag has lost its meaning, and a request for its definition gets an error. A comparison finds it
    and fetches the peer's, proven by a held batch. It stays after a restart, and the store verifies."""
    await pulled(broker, tmp_path)
    spoil_definition(tmp_path / "idmz.db")
    async with compared(broker, tmp_path, EVERYTHING) as (plant, idmz):
        with pytest.raises(StoreDamaged, match="tag definition 1 of"):
            chains_in(idmz.store)
        comparing = comparer(idmz, "plant-a")
        found = await comparing.compare(STREAM, repair=False)
        assert [(zone, wanted.count) for zone, wanted in found.damaged_definitions] == [("plant-a", 1)]
        found = await comparing.compare(STREAM, repair=True)
        assert (found.divergent_ranges, found.repaired_ranges, found.repaired_definitions, found.refused) == (
            1,
            1,
            1,
            [],
        )
        assert chains_in(idmz.store) == chains_in(plant.store)
        assert [one.kind for one in idmz.store.reader.incidents()] == ["definitions_repaired"]
        assert (await comparing.compare(STREAM, repair=True)).divergent_ranges == 0
    assert list(verify_store(tmp_path / "idmz.db", VerifyCounts(), lambda *_: None, is_quick=False)) == []
    with (
        FactStore.open(tmp_path / "idmz.db", "idmz") as idmz,
        FactStore.open(tmp_path / "plant-a.db", "plant-a") as plant,
    ):
        assert chains_in(idmz) == chains_in(plant)


async def test_equal_stores_cost_one_exchange(broker: Mosquitto, tmp_path: Path) -> None:
    """Equal stores are compared by one request and one answer, whose size does not depend on how much they hold."""
    await pulled(broker, tmp_path)
    async with compared(broker, tmp_path, EVERYTHING) as (_plant, idmz):
        found: Comparison = await comparer(idmz, "plant-a").compare(STREAM, repair=True)
        assert (found.exchanges, found.compared_facts, found.divergent_ranges) == (1, 1_000, 0)
        assert found.bytes < 1_000


def test_the_commands_of_the_page(broker: Mosquitto, tmp_path: Path) -> None:
    """The commands of docs/operate/integrity.md, with no node running: the first finds nothing, because the damage was
    not read yet; the last finds and repairs it. With a node running the same command uses its socket."""
    before = asyncio.run(pulled(broker, tmp_path))
    flip(tmp_path / "idmz.db", before[5])
    (tmp_path / "state").mkdir()
    (tmp_path / "idmz.db").rename(tmp_path / "state" / "facts.db")
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
            assert ["equal" in one for one in outputs] == [True, True, False]
            assert "damaged here" in outputs[2]
            assert "repaired: 1 ranges, 100 facts" in outputs[2]
            with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
                assert sealed(store)[:10] == before
                link = Link(access(broker, "idmz"))
                requesters = {"plant-a": Requester(link, "plant-a")}
                known = compare.comparers(load(config), store, requesters, {}, PageJudge(store))
                door = RequestHandler(store, partial(compare.compare, known))
                tasks = [asyncio.create_task(one) for one in (link.run(), serve(door, tmp_path / "state"))]
                await link.wait_up()
                output = await asyncio.to_thread(said, "bsfg peer compare plant-a --json")
                assert json.loads(output)["divergent_ranges"] == 0
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        plant.store.close()

    asyncio.run(scenario())
