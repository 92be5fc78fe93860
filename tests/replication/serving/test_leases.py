"""Two receivers under one consumer name, through the real broker: the later one goes on, the other stops and says so.

Seen to catch, with the product broken on purpose: a server that looks at no lease, a receiver that asks again after
being fenced (the two then take each other's place for ever), one that asks for a new lease at each connection.
"""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path

import pytest

from agent.lease import LeaseClaim
from agent.replication.mqtt.requester import Requester
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.messages import Confirm, ConfirmAnswer, ConfirmReceipt, FetchAnswer, FetchFacts
from agent.replication.pulling.pull_events import Asking
from agent.replication.pulling.puller import Puller
from tests.replication.nodes import IMPATIENT, STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

NAME = f"idmz.{STREAM}"


def base_of(plant: Node) -> int:
    """The epoch after which the lease epochs of the consumer begin."""
    consumer = plant.store.consumers.get(NAME)
    assert consumer is not None
    return consumer.registered_unix_ms


def lease_of(plant: Node) -> int:
    """The lease in force at the plant: 1 for the first one granted."""
    consumer = plant.store.consumers.get(NAME)
    assert consumer is not None
    return consumer.lease.epoch - base_of(plant)


def lease_at(puller: Puller, plant: Node) -> int:
    """The same for a pull's lease; below 0 if it has none."""
    return puller.statistics().lease - base_of(plant)


async def fenced(puller: Puller) -> None:
    """Wait until this pull is fenced."""
    await wait_until_async(lambda: puller.statistics().asking is Asking.FENCED, "the older receiver to be fenced")


async def twins(broker: Mosquitto, folder: Path, facts: int) -> tuple[Node, Node]:
    """idmz with the facts of a running plant, and its image on another machine."""
    one = Node.open(broker, "idmz", folder / "one")
    one.pull("plant-a")
    async with one.running():
        await one.wait_end(facts)
    one.store.close()
    shutil.copytree(folder / "one", folder / "two")
    return Node.open(broker, "idmz", folder / "one"), Node.open(broker, "idmz", folder / "two")


def test_the_later_of_two_clones_continues(broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A clone of a gateway is started: the clone gets every fact once; the original is fenced, logs it once, keeps what
    it has and stops requesting, also when new facts come. Restarted, it takes the lease back and continues from its
    position."""
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        plant = Node.open(broker, "plant-a", tmp_path)
        server = plant.serve({"idmz": [STREAM]})
        async with plant.running():
            await plant.append(0, 300)
            one, two = await twins(broker, tmp_path, 300)
            earlier, later = one.pull("plant-a"), two.pull("plant-a")
            async with one.running():
                await plant.append(300, 200)
                await one.wait_end(500)
                before = server.statistics().refusals.get("fenced", 0)  # a fetch that the first life had left waiting
                async with two.running():
                    await fenced(earlier)
                    await plant.append(500, 500)
                    await two.wait_end(1_000)
                    await wait_until_async(lambda: later.statistics().frontier == 1_000, "the confirmation")
                assert server.statistics().refusals == {"fenced": before + 1}
                assert one.store.end_offset(STREAM) == 500
                assert (lease_at(earlier, plant), lease_at(later, plant), lease_of(plant)) == (2, 3, 3)
                why = earlier.statistics().lost_reason or ""
                assert "fenced: consumer" in why
                assert why.count("stop one") == 1  # by the hint of the table only, not also by the store's
            one.store.close()
            one = Node.open(broker, "idmz", tmp_path / "one")
            back = one.pull("plant-a")
            async with one.running():
                await one.wait_end(1_000)
            assert (lease_at(back, plant), back.statistics().facts_duplicate) == (4, 0)
        assert sealed(one.store) == sealed(two.store) == sealed(plant.store)
        for node in (plant, one, two):
            node.store.close()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records].count("receiver_fenced") == 1


async def test_leases_survive_the_serving_node(broker: Mosquitto, tmp_path: Path) -> None:
    """The plant is restarted while one of two clones is fenced: the other continues under its lease, and neither
    requests a new one."""
    plant = Node.open(broker, "plant-a", tmp_path)
    plant.serve({"idmz": [STREAM]})
    async with plant.running():
        await plant.append(0, 100)
        one, two = await twins(broker, tmp_path, 100)
        earlier, later = one.pull("plant-a", receiver=IMPATIENT), two.pull("plant-a", receiver=IMPATIENT)
        stack = contextlib.AsyncExitStack()
        await stack.enter_async_context(one.running())
        await wait_until_async(lambda: lease_at(earlier, plant) == 2, "the first lease")
        await stack.enter_async_context(two.running())
        await fenced(earlier)
    async with stack:
        for facts in (200, 300):
            plant.store.close()
            plant = Node.open(broker, "plant-a", tmp_path)
            server = plant.serve({"idmz": [STREAM]})
            async with plant.running():
                await plant.append(facts - 100, 100)
                await two.wait_end(facts)
            assert lease_of(plant) == 3
            assert server.statistics().refusals == {}
    assert (lease_at(earlier, plant), lease_at(later, plant)) == (2, 3)
    assert one.store.end_offset(STREAM) == 100
    for node in (plant, one, two):
        node.store.close()


async def test_a_client_without_leases(broker: Mosquitto, tmp_path: Path) -> None:
    """A client that does not use leases fetches and confirms until another client requests a lease. From then on both
    operations are fenced, also for a parked fetch, until the client requests a lease itself."""
    plant = Node.open(broker, "plant-a", tmp_path)
    plant.serve({"idmz": [STREAM]})
    await plant.append(0, 100)
    foreign, leased = (Node.open(broker, "idmz", tmp_path / name) for name in ("foreign", "leased"))
    page = FetchFacts(consumer_name=NAME, stream=STREAM, limit=1_000)

    without, by_lease = foreign.requester("plant-a"), leased.requester("plant-a")
    async with plant.running(), foreign.running(), leased.running():
        answer = (await without.ask(page, 10)).answer
        assert isinstance(answer, FetchAnswer)
        assert answer.lease is None
        answer = (await without.ask(ConfirmReceipt(consumer_name=NAME, offset=40), 10)).answer
        assert answer == ConfirmAnswer(**_own(plant), cursor_advanced_to=40)
        waits = FetchFacts(consumer_name=NAME, limit=1_000, after_offset=100, wait_ms=20_000)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(refusal(without, waits))
            server = plant.server
            assert server is not None
            await wait_until_async(lambda: server.statistics().parked == 1, "the fetch to wait")
            asks = FetchFacts(consumer_name=NAME, limit=1_000, after_offset=100, lease=0, wait_ms=1)
            answer = (await by_lease.ask(asks, 10)).answer
            assert isinstance(answer, FetchAnswer)
            assert answer.lease == base_of(plant) + 1
        assert waiting.result() == "fenced"
        assert await refusal(without, page) == "fenced"
        assert await refusal(without, ConfirmReceipt(consumer_name=NAME, offset=100)) == "fenced"
        both = FetchFacts(consumer_name=NAME, limit=1_000, confirm=Confirm(last_offset=100), lease=0)
        answer = (await without.ask(both, 10)).answer
        assert isinstance(answer, FetchAnswer)
        assert (answer.lease, answer.frontier) == (base_of(plant) + 2, 100)
        assert (
            await refusal(by_lease, ConfirmReceipt(consumer_name=NAME, offset=100, lease=base_of(plant) + 1))
            == "fenced"
        )
    for node in (plant, foreign, leased):
        node.store.close()


async def test_a_fetch_that_asks_and_waits_does_not_take_the_place_back(broker: Mosquitto, tmp_path: Path) -> None:
    """One instance requests a lease with a fetch that then waits; another requests one meanwhile. The first is fenced
    at once, and the second keeps its lease."""
    plant = Node.open(broker, "plant-a", tmp_path)
    server = plant.serve({"idmz": [STREAM]})
    await plant.append(0, 100)
    one, two = (Node.open(broker, "idmz", tmp_path / name) for name in ("one", "two"))
    earlier, later = one.requester("plant-a"), two.requester("plant-a")
    asks = FetchFacts(consumer_name=NAME, stream=STREAM, limit=1_000, after_offset=100, lease=0, wait_ms=20_000)
    at_once = FetchFacts(consumer_name=NAME, limit=1_000, after_offset=100, confirm=Confirm(last_offset=1), lease=0)
    async with plant.running(), one.running(), two.running(), asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(earlier, asks))
        await wait_until_async(lambda: server.statistics().parked == 1, "the fetch to wait")
        answer = (await later.ask(at_once, 10)).answer
        assert isinstance(answer, FetchAnswer)
        assert answer.lease == base_of(plant) + 2
        assert await waiting == "fenced"
        assert lease_of(plant) == 2
    for node in (plant, one, two):
        node.store.close()


async def test_a_late_request_of_a_dead_instance_takes_no_lease(broker: Mosquitto, tmp_path: Path) -> None:
    """A dead instance had requested the lease in force and the one after it. Its requests arrive when its successor has
    the lease: they get the lease in force, move no cursor, and the successor continues unaffected."""
    plant, living = Node.open(broker, "plant-a", tmp_path), Node.open(broker, "idmz", tmp_path / "living")
    dead = Node.open(broker, "idmz", tmp_path / "dead")
    plant.serve({"idmz": [STREAM]})
    puller, late = living.pull("plant-a"), dead.requester("plant-a")
    async with plant.running(), dead.running():
        await plant.append(0, 100)
        first = FetchFacts(consumer_name=NAME, stream=STREAM, limit=1_000, lease=0, lease_after=0)
        assert (await leases_answered(late, first))[1] is None  # its own predecessor, long ago
        begun = base_of(plant)
        plant.store.consumers.hold_lease(NAME, LeaseClaim("predecessor", 0)).result(20)
        async with living.running():
            await living.wait_end(100)
            await wait_until_async(lambda: puller.statistics().frontier == 100, "the confirmation")
            assert (lease_at(puller, plant), lease_of(plant)) == (3, 3)
            for after in (0, begun + 1, begun + 2):
                ahead = FetchFacts(consumer_name=NAME, limit=1_000, after_offset=0, lease=0, lease_after=after)
                assert await leases_answered(late, ahead) == (None, begun + 3)
            await plant.append(100, 100)
            await living.wait_end(200)
            assert puller.statistics().asking is not Asking.FENCED
            assert lease_of(plant) == 3
    for node in (plant, living, dead):
        node.store.close()


async def leases_answered(asker: Requester, request: FetchFacts) -> tuple[int | None, int | None]:
    """The lease that an answer grants, and the lease in force that it names; with the latter nothing else."""
    answer = (await asker.ask(request, 10)).answer
    assert isinstance(answer, FetchAnswer)
    assert answer.lease_in_force is None or (answer.runs() == [] and answer.more)
    return answer.lease, answer.lease_in_force


async def refusal(asker: Requester, request: FetchFacts | ConfirmReceipt) -> str:
    """The code with which a request is finally refused."""
    with pytest.raises(PeerRefused) as raised:
        await asker.ask(request, 10)
    assert not raised.value.retryable
    return raised.value.code


def _own(plant: Node) -> dict[str, str]:
    return {"store_zone": plant.zone, "epoch": plant.store.epoch.hex()}
