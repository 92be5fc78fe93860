"""Store to store over a real broker: what arrives is what was sent, byte for byte, whatever fails meanwhile."""

import asyncio
import logging
import os
import re
import sqlite3
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore, StoreFull
from agent.message import Sample
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling.receiving.pull_events import Asking
from agent.settings.peers import BYTES_PER_SECOND_MIN
from agent.settings.store import StoreSettings, StreamSettings
from tests.replication.nodes import IMPATIENT, STREAM, Node, define, samples, sealed
from tests.support.mosquitto import Mosquitto
from tests.support.received import chains_in
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
        assert puller.statistics().is_caught_up
    assert sealed(idmz.store) == sealed(plant.store)
    assert puller.statistics().counters.facts_duplicate == 0
    plant.store.close()
    idmz.store.close()


async def test_a_live_stream_passes_the_backlog_of_another(broker: Mosquitto, tmp_path: Path) -> None:
    """Two streams of one peer, at a bandwidth that would need two minutes for the backlog of one: facts appended to the
    other arrive and are confirmed one by one, while the backlog has hardly begun."""
    one_fact_each = StoreSettings(batch_facts_target=1)  # each fact is committed at once: 8,000 bytes are a batch
    plant = Node.open(broker, "plant-a", tmp_path, one_fact_each)
    idmz = Node.open(broker, "idmz", tmp_path)
    plant.serve({"idmz": [STREAM, LIVE]})
    narrow = TokenBucket(BYTES_PER_SECOND_MIN)
    draining = idmz.pull("plant-a", bandwidth=narrow)
    live = idmz.pull("plant-a", stream=LIVE, bandwidth=narrow)
    await define(plant.store, "line1/temperature")
    for number in range(250):
        noise = [Sample(1, number, os.urandom(8_000))]
        await asyncio.wrap_future(plant.store.appends.append_samples(STREAM, noise))
    async with plant.running(), idmz.running():
        await wait_until_async(lambda: draining.statistics().asking is Asking.PACED, "the drain to wait")
        for number in range(5):
            await asyncio.wrap_future(plant.store.appends.append_samples(LIVE, samples(number, 1)))
            await idmz.wait_end(number + 1, LIVE)
        await wait_until_async(lambda: frontier(plant, LIVE) == 5, "confirmation")
        assert live.statistics().is_caught_up
        assert 0 < idmz.store.end_offset(STREAM) < 200
    for node in (plant, idmz):
        node.store.close()


async def test_a_pull_goes_on_across_what_its_peer_no_longer_has(broker: Mosquitto, tmp_path: Path) -> None:
    """Facts that were released before the puller came back are reported on both sides and skipped: later facts arrive,
    nothing is stored twice, and the peer's frontier passes the hole."""
    dropping = StreamSettings(STREAM, bytes_max=1024 * 1024, on_full="drop_oldest")
    plant = Node.open(broker, "plant-a", tmp_path, SMALL_BATCHES, streams=[dropping])
    plant.serve({"idmz": [STREAM]})
    await plant.append(0, 1_000)
    async with plant.running():
        idmz = Node.open(broker, "idmz", tmp_path)
        idmz.pull("plant-a", receiver=IMPATIENT)
        async with idmz.running():
            await wait_until_async(lambda: frontier(plant) == 1_000, "confirmation")
        idmz.store.close()
        for _ in range(25):  # 3 MB that do not compress
            noise = [Sample(1, number, os.urandom(1_200)) for number in range(100)]
            await asyncio.wrap_future(plant.store.appends.append_samples(STREAM, noise))
        assert plant.store.streams()[0].first_offset > 1_001
        idmz = Node.open(broker, "idmz", tmp_path)
        again = idmz.pull("plant-a", receiver=IMPATIENT)
        async with idmz.running():
            end = plant.store.end_offset(STREAM)
            await wait_until_async(lambda: frontier(plant) >= end, "confirmation across the hole")
    assert again.statistics().counters.facts_duplicate == 0
    (incident,) = [one for one in idmz.store.reader.incidents() if one.kind == "peer_hole"]
    reported = re.search(r"1001 to (\d+): expired", incident.detail)
    assert reported, incident.detail
    assert 1_000 < int(reported[1]) < plant.store.streams()[0].first_offset  # more may be released before it is served
    assert [one.kind for one in plant.store.reader.incidents()] == ["facts_expired"]
    assert set(sealed(plant.store)) < set(sealed(idmz.store))
    for node in (plant, idmz):
        node.store.close()


async def test_a_damaged_batch_stops_no_pull(broker: Mosquitto, tmp_path: Path) -> None:
    """A batch that the sender's disk has changed is never sent: it is reported as a hole, both sides have an incident,
    and everything else arrives."""
    plant = Node.open(broker, "plant-a", tmp_path, SMALL_BATCHES)
    await plant.append(0, 300)
    whole = sealed(plant.store)
    plant.store.close()
    with closing(sqlite3.connect(tmp_path / "plant-a.db", isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER batch_update_refused")
        connection.execute("UPDATE batch SET body = zeroblob(length(body)) WHERE first_offset = 101")
    plant, idmz = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path)
    plant.serve({"idmz": [STREAM]})
    idmz.pull("plant-a", receiver=IMPATIENT)
    async with plant.running(), idmz.running():
        await wait_until_async(lambda: frontier(plant) >= 300, "confirmation across the damage")
    assert [one for one in sealed(idmz.store) if one in whole] == [whole[0], whole[2]]
    found = {one.kind: one.detail for one in idmz.store.reader.incidents()}
    assert "101 to 200: damaged" in found["peer_hole"]
    assert [one.kind for one in plant.store.reader.incidents()] == ["damaged"]
    for node in (plant, idmz):
        node.store.close()


async def test_chain_of_three(broker: Mosquitto, tmp_path: Path) -> None:
    """A relay passes on what it received, with the definitions, and no zone is ever sent its own facts."""
    plant, idmz, enterprise = (Node.open(broker, zone, tmp_path) for zone in ("plant-a", "idmz", "enterprise"))
    plant.serve({"idmz": [STREAM]})
    idmz.serve({"enterprise": [STREAM]})
    idmz.pull("plant-a")
    enterprise.pull("idmz", relays=["plant-a"])
    async with plant.running(), idmz.running(), enterprise.running():
        await plant.append(0, 3_000)
        await enterprise.wait_end(3_000)
    assert sealed(enterprise.store) == sealed(plant.store)
    assert chains_in(enterprise.store) == chains_in(plant.store) != []
    for node in (plant, idmz, enterprise):
        node.store.close()


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
    plant.store.close()
    idmz.store.close()


async def test_a_page_may_end_before_the_batch_that_brings_new_tags(broker: Mosquitto, tmp_path: Path) -> None:
    """Tags are defined while a plant runs: wherever a page ends, each batch comes together with its definitions."""
    many_batches = StoreSettings(batch_facts_target=40)
    plant = Node.open(broker, "plant-a", tmp_path, many_batches)
    idmz = Node.open(broker, "idmz", tmp_path)
    plant.serve({"idmz": [STREAM]})
    for life in range(20):
        await define(plant.store, f"line1/tag{life}")
        rows = samples(100 * life, 40 + 7 * life, tag=life + 1)
        await asyncio.wrap_future(plant.store.appends.append_samples(STREAM, rows))
    puller = idmz.pull("plant-a", page_bytes_max=2_048)
    end_offset = plant.store.end_offset(STREAM)
    async with plant.running(), idmz.running():
        await wait_until_async(
            lambda: idmz.store.end_offset(STREAM) == end_offset or puller.statistics().asking is Asking.BLOCKED,
            "facts",
        )
        assert puller.statistics().lost_reason is None
    assert sealed(idmz.store) == sealed(plant.store)
    plant.store.close()
    idmz.store.close()


def test_broker_restart(tmp_path: Path) -> None:
    """The broker stops in the middle and returns: both sides reconnect, and nothing is lost or duplicated."""

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


def frontier(node: Node, stream: str = STREAM) -> int:
    """What idmz has confirmed here."""
    consumer = node.store.consumers.get(f"idmz.{stream}")
    return 0 if consumer is None else consumer.frontier


async def test_peer_goes_and_returns_as_another(broker: Mosquitto, tmp_path: Path) -> None:
    """The serving node restarts with its store, then with a new one: the first continues, the second begins at 1."""
    idmz = Node.open(broker, "idmz", tmp_path)
    puller = idmz.pull("plant-a", receiver=IMPATIENT)
    async with idmz.running():
        for life, (folder, facts, held) in enumerate((("a", 300, 300), ("a", 50, 350), ("b", 100, 450))):
            plant = Node.open(broker, "plant-a", tmp_path / folder)
            plant.serve({"idmz": [STREAM]})
            async with plant.running():
                await plant.append(life * 1000, facts)
                await idmz.wait_end(held)
                await wait_until_async(lambda plant=plant: frontier(plant) > 0, "confirmation")
            plant.store.close()
    assert puller.statistics().counters.facts_duplicate == 0
    assert len(idmz.store.reader.origins()) == 3  # idmz itself, and both lives of the plant
    position = idmz.store.inbound.peer_position("plant-a", STREAM)
    assert position is not None
    assert position.offset == 100
    idmz.store.close()


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
        assert [one.last_sequence for one in ours[plant.store.origin]] == [end_offset]
        assert puller.statistics().counters.facts_duplicate == 0
        assert puller.statistics().counters.restarts < 20
        for node in (plant, copy, idmz):
            node.store.close()

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
    plant.store.close()
    idmz.store.close()


class FullNowAndThen:
    """A store that refuses every other page for lack of space."""

    def __init__(self, store: FactStore) -> None:
        self._store = store
        self.inbound = RefusesEveryOtherPage(store)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class RefusesEveryOtherPage:
    """The inbound API of such a store."""

    def __init__(self, store: FactStore) -> None:
        self._store = store
        self.refused = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store.inbound, name)

    def put_batches(self, *arguments: Any, **named: Any) -> Future[Any]:
        self.refused += 1
        if self.refused % 2:
            raise StoreFull("no space left on device")
        return self._store.inbound.put_batches(*arguments, **named)


def test_full_store_pauses_and_skips_nothing(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each page without space is offered again until it is stored; the log says so when that begins and ends."""

    async def scenario() -> None:
        plant = Node.open(broker, "plant-a", tmp_path, SMALL_BATCHES)
        idmz = Node.open(broker, "idmz", tmp_path)
        plant.serve({"idmz": [STREAM]})
        await plant.append(0, 1_000)
        store = idmz.store
        idmz.store = FullNowAndThen(store)  # type: ignore[assignment]
        idmz.pull("plant-a", page_bytes_max=1_024)
        async with plant.running(), idmz.running():
            await idmz.wait_end(1_000)
        assert sealed(store) == sealed(plant.store)
        plant.store.close()
        store.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    said = [record.message for record in caplog.records if record.message.startswith("store_")]
    assert said[:4] == ["store_refuses", "store_accepts"] * 2


async def test_a_relay_without_permission_is_refused(broker: Mosquitto, tmp_path: Path) -> None:
    """A peer may send only origins that its configuration lets it relay; others block the stream and are named, also in
    an incident."""
    plant, idmz, enterprise = (Node.open(broker, zone, tmp_path) for zone in ("plant-a", "idmz", "enterprise"))
    plant.serve({"idmz": [STREAM]})
    idmz.serve({"enterprise": [STREAM]})
    idmz.pull("plant-a")
    puller = enterprise.pull("idmz")
    async with plant.running(), idmz.running(), enterprise.running():
        await plant.append(0, 10)
        await wait_until_async(lambda: puller.statistics().asking is Asking.BLOCKED, "refusal")
        reason = puller.statistics().lost_reason
        assert reason is not None
        assert "of zone plant-a, which this peer may not relay" in reason
        await wait_until_async(lambda: enterprise.store.reader.incidents() != [], "the incident")
    (incident,) = enterprise.store.reader.incidents()
    assert (incident.kind, incident.subject) == ("pull_stands", f"{STREAM} from idmz")
    assert reason in incident.detail
    assert enterprise.store.end_offset(STREAM) == 0
    for node in (plant, idmz, enterprise):
        node.store.close()


def test_two_zones_that_pull_from_each_other_store_each_fact_once(tmp_path: Path) -> None:
    """Two zones pull the same stream from each other: each ends with the facts of both, once, and then nothing more is
    sent."""

    async def scenario(broker: Mosquitto) -> None:
        one, other = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path)
        one.serve({"idmz": [STREAM]})
        other.serve({"plant-a": [STREAM]})
        pullers = [other.pull("plant-a"), one.pull("idmz")]
        async with one.running(), other.running():
            await one.append(0, 500)
            await other.append(10_000, 300)
            await one.wait_end(800)
            await other.wait_end(800)
            await wait_until_async(lambda: all(each.statistics().offset == 800 for each in pullers), "both positions")
        for node in (one, other):
            assert node.store.end_offset(STREAM) == 800
            node.store.close()
        assert sum(each.statistics().counters.facts_duplicate for each in pullers) == 0

    with Mosquitto.started(tmp_path / "broker", ("plant-a", "idmz"), ("plant-a:idmz", "idmz:plant-a")) as broker:
        asyncio.run(scenario(broker))
