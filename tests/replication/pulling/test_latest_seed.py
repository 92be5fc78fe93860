"""A new zone that begins at the latest values: it has them at once, none of the history, and everything that comes
after."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent import local_socket
from agent.cli import bsfg
from agent.config import load
from agent.message import Sample, TagDefinition
from agent.node.latest import FOLDER, has_peer_latest, peer_latest, save_peer_latest
from agent.replication.protocol.messages import LatestEntry, PeerLatest
from agent.replication.pulling.latest_seed import LatestSeed
from agent.replication.pulling.throttled_requester import ThrottledRequester
from tests.replication.nodes import STREAM, Node, whole_node
from tests.replication.serving.test_latest import value
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

BASE_NS = 1_700_000_000_000_000_000
TAGS = 5


async def plant_with_history(broker: Mosquitto, folder: Path) -> Node:
    """plant-a with a few hundred facts of five tags."""
    plant = Node.open(broker, "plant-a", folder)
    tags = [TagDefinition(f"tag:line1/t{number}", source="press") for number in range(TAGS)]
    await asyncio.wrap_future(plant.store.appends.define(tags))
    await append_rounds(plant, range(100), range(1, TAGS + 1))
    return plant


async def append_rounds(plant: Node, rounds: range, tags: range) -> None:
    """One fact of each tag in each round."""
    rows = [Sample(tag, BASE_NS + n * 1_000_000_000, float(100 * n + tag)) for n in rounds for tag in tags]
    await asyncio.wrap_future(plant.store.appends.append_samples(STREAM, rows))


PULL = f'zone = "plant-a"\npulls = ["{STREAM}"]\nstart = [{{ stream = "{STREAM}", at = "latest" }}]'


async def shown(file: Path) -> dict[str, tuple[float, str | None]]:
    """What `bsfg latest` says of each tag, and who told of it."""
    done = await asyncio.to_thread(CliRunner().invoke, bsfg, ["latest", "--config", str(file), "--json"])
    rows = [json.loads(line) for line in done.output.splitlines()]
    return {row["subject"].removeprefix("tag:line1/"): (row["value"], row["via"]) for row in rows}


@pytest.mark.system
def test_a_new_zone_begins_at_the_latest_values(broker: Mosquitto, tmp_path: Path) -> None:
    """The receiver's log begins after the history. `bsfg latest` has every tag at once, with the peer it came from,
    until the log has a newer value; after a restart nothing is requested twice and nothing is missing."""
    folder = tmp_path / "idmz"
    file = folder / "node.toml"

    async def scenario() -> None:
        plant = await plant_with_history(broker, tmp_path / "plant")
        plant.serve({"idmz": [STREAM]})
        history = plant.store.end_offset(STREAM)
        server = plant.server
        assert server is not None
        async with plant.running():
            async with whole_node(folder, broker, "idmz", PULL):
                await wait_until_async(lambda: has_peer_latest(folder / "state", "plant-a", STREAM), "the values")
                assert await shown(file) == {f"t{tag}": (9901.0 + tag, "plant-a") for tag in range(TAGS)}
                assert plant.store.consumers.all()[0].frontier == history
                await append_rounds(plant, range(200, 201), range(1, 3))
                await wait_until_async(lambda: plant.store.consumers.all()[0].frontier == history + 2, "what is new")
            asked = server.statistics().requests["GetLatest"]
            async with whole_node(folder, broker, "idmz", PULL):
                await append_rounds(plant, range(300, 301), range(2, 3))
                await wait_until_async(
                    lambda: plant.store.consumers.all()[0].frontier == history + 3, "what came after"
                )
                found = await shown(file)
            assert server.statistics().requests["GetLatest"] == asked
        told = {f"t{tag}": (9901.0 + tag, "plant-a") for tag in range(2, TAGS)}
        assert found == {"t0": (20001.0, None), "t1": (30002.0, None), **told}
        plant.store.close()
        with local_socket.open_store(load(file)) as store:
            assert [one.end_offset for one in store.streams()] == [3]
            assert store.incidents() == []

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.system
def test_a_relay_passes_on_the_latest_values_it_received(broker: Mosquitto, tmp_path: Path) -> None:
    """A zone above a relay that began at the latest values gets the same values, with their source and no offset; zones
    that the peer may not relay are left out."""

    async def scenario() -> None:
        idmz, enterprise = Node.open(broker, "idmz", tmp_path), Node.open(broker, "enterprise", tmp_path)
        save_peer_latest(tmp_path, told("plant-a", [value(1), value(2)]))
        idmz.serve({"enterprise": [STREAM]}, peer_latest_in=tmp_path)
        begun, kept = asyncio.Event(), list[PeerLatest]()
        values = LatestSeed(
            ThrottledRequester(enterprise.requester("idmz")), STREAM, frozenset({"idmz", "plant-a"}), begun, kept.append
        )
        others = LatestSeed(
            ThrottledRequester(enterprise.requester("idmz")), STREAM, frozenset({"idmz"}), begun, kept.append
        )
        async with idmz.running(), enterprise.running():
            begun.set()
            await values.run()
            await others.run()
        assert [[(one.subject, one.via, one.offset) for one in each.values] for each in kept] == [
            [("tag:001", "plant-a", None), ("tag:002", "plant-a", None)],
            [],
        ]
        assert kept[0].epoch == idmz.store.epoch.hex()
        for node in (idmz, enterprise):
            node.store.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def told(peer: str, values: list[LatestEntry]) -> PeerLatest:
    """What a peer told."""
    return PeerLatest(peer, "0" * 32, STREAM, 1_700_000_000_000, values)


def test_a_saved_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """Values of two peers are kept apart and read together; a newer file replaces the one before; a truncated file
    counts as missing."""
    save_peer_latest(tmp_path, told("plant-a", [value(1)]))
    save_peer_latest(tmp_path, told("plant-b", [value(2), value(3)]))
    save_peer_latest(tmp_path, told("plant-a", [value(4)]))
    rows = peer_latest(tmp_path, STREAM)
    assert [(row["subject"], row["via"], row["value"]) for row in rows] == [
        ("tag:004", "plant-a", "x" * 10), ("tag:002", "plant-b", "x" * 10), ("tag:003", "plant-b", "x" * 10),
    ]  # fmt: skip
    assert peer_latest(tmp_path, "facts.other") == []
    assert (has_peer_latest(tmp_path, "plant-a", STREAM), has_peer_latest(tmp_path, "plant-c", STREAM)) == (True, False)
    (cut,) = (tmp_path / FOLDER).glob("plant-b.*")
    cut.write_bytes(cut.read_bytes()[:-9])
    assert not has_peer_latest(tmp_path, "plant-b", STREAM)
    assert [row["via"] for row in peer_latest(tmp_path)] == ["plant-a"]
