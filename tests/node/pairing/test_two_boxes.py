"""Two nodes of a pair and their witness in one process, with real stores and leads on the disk; only the network is
left out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.concurrency import TaskGroup
from agent.fact_store import FactStore
from agent.node.node import _zone_term
from agent.node.pairing import LeadDesk, PairPorts, PairRunner
from agent.replication.mqtt import Reply
from agent.replication.protocol.codec import decode_request, encode_request
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.messages import ClaimLead
from agent.replication.serving import Caller, Refuse, store_name_of
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.pair import PairSettings
from tests.waiting import wait_until_async

ZONE, NODES, WITNESS = "plant-a", ("plant-a", "plant-a-2"), "idmz"


class Sources:
    """Whether they record."""

    def __init__(self) -> None:
        self.is_recording = False

    def begin_recording(self, since_ns: int | None) -> None:
        assert (since_ns or 1) > 0
        self.is_recording = True

    async def end_recording(self) -> None:
        self.is_recording = False

    def fitness(self) -> int:
        return 2

    def gaps_stored(self) -> bool:
        return self.is_recording


class Way:
    """Requests of one node to another: encoded, decoded and answered by its desk, unless it is gone."""

    def __init__(self, of: "Plant", asker: str, asked: str) -> None:
        self._of, self._asker, self._asked = of, asker, asked

    async def ask(self, request: ClaimLead, timeout_s: float) -> Reply:
        """The answer."""
        desk = self._of.desks.get(self._asked)
        if desk is None or self._asker not in self._of.desks:
            await asyncio.sleep(timeout_s)  # tidy: what a silent peer costs, in place of the network
            raise TransportError(self._asked, "no answer")
        outcome = await desk.answer(Caller(self._asker, "i", b"c" * 8), decode_request(encode_request(request)))
        if isinstance(outcome, Refuse):
            raise TransportError(self._asked, outcome.message)
        return Reply(outcome[0], [])  # type: ignore[index]


class Plant:
    """Both boxes and the witness."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        name = store_name_of(WITNESS, WITNESS, bytes(16))
        claimants = dict.fromkeys(NODES, ZONE)
        self.desks = {WITNESS: LeadDesk(claimants, folder / "leads.json", lambda: name)}
        self.stores: dict[str, FactStore] = {}
        self.sources: dict[str, Sources] = {}
        self.runners: dict[str, PairRunner] = {}

    @asynccontextmanager
    async def box(self, node: str) -> AsyncIterator[None]:
        """One box runs."""
        (other,) = {*NODES} - {node}
        with FactStore.open(self.folder / f"{node}.db", ZONE, node=node) as store:
            name = store_name_of(ZONE, node, store.life)
            settings = NodeSettings(IdentitySettings(ZONE, name=node), pair=PairSettings(other, WITNESS))
            desk = LeadDesk({other: ZONE}, self.folder / f"{node}.json", lambda: name, other)
            self.stores[node], self.sources[node] = store, Sources()

            def requester_of(asked: str) -> Any:
                return Way(self, node, asked)

            ports = PairPorts(
                *(store, self.sources[node], requester_of, lambda: True, str),
                zone_term=_zone_term(store),
            )
            self.runners[node], self.desks[node] = PairRunner(settings, ports, desk), desk
            async with TaskGroup() as group:
                work = group.create_task(self.runners[node].run(), name=node)
                yield
                del self.desks[node]
                work.cancel()

    def leaders(self) -> list[str]:
        """The nodes that run and record."""
        return [node for node, sources in self.sources.items() if sources.is_recording and node in self.desks]


@pytest.mark.timeout(60)
async def test_the_lead_of_two_boxes(tmp_path: Path) -> None:
    """One leads by grant of the witness, with the term as the life of its store, and keeps it while it renews. A switch
    hands it over; when the new leader is gone, the other one leads within seconds. The term rises each time."""
    plant = Plant(tmp_path)
    async with AsyncExitStack() as first:
        await first.enter_async_context(plant.box(NODES[0]))
        await wait_until_async(lambda: plant.leaders() == [NODES[0]], "the first leads", 10)
        async with AsyncExitStack() as second:
            await second.enter_async_context(plant.box(NODES[1]))
            term = plant.stores[NODES[0]].life_number
            leader, other = plant.runners[NODES[0]], plant.runners[NODES[1]]
            await wait_until_async(lambda: other.snapshot().leader == NODES[0], "the second follows", 10)
            since_ms = leader.snapshot().since_unix_ms
            await wait_until_async(lambda: leader.snapshot().partner_state == "follows", "they hear each other", 10)
            await wait_until_async(lambda: leader.snapshot().partner_clock_ahead_ms in range(-50, 51), "clocks", 10)
            assert (await leader.switch()).leader == NODES[1]
            await wait_until_async(lambda: plant.leaders() == [NODES[1]], "the second leads", 10)
            assert plant.stores[NODES[1]].life_number == other.snapshot().term > term
            assert leader.snapshot().since_unix_ms > since_ms
            term = other.snapshot().term
        await wait_until_async(lambda: plant.leaders() == [NODES[0]], "the first leads again", 10)
        assert plant.stores[NODES[0]].life_number > term
        assert leader.snapshot().role == "leads"
        reader = plant.stores[NODES[0]].reader
        await wait_until_async(
            lambda: (
                ("lead", "plant-a to plant-a-2")
                in {(incident.kind, incident.subject) for incident in reader.incidents()}
            ),
            "the switch is an incident",
        )


@pytest.mark.timeout(60)
async def test_a_term_is_kept_while_it_is_renewed(tmp_path: Path) -> None:
    """The clock goes on and the store's next life would have a higher number: the leader keeps its term for all
    that."""
    plant = Plant(tmp_path)
    async with plant.box(NODES[0]), plant.box(NODES[1]):
        file = tmp_path / "leads.json"
        await wait_until_async(lambda: file.exists() and b"plant-a" in file.read_bytes()[12:], "a stored leader", 10)
        (leader,) = plant.leaders()
        term, witness, stored = plant.stores[leader].life_number, plant.desks[WITNESS], file.read_bytes()
        heard = [0]
        answer = witness.answer

        async def counted(caller: Caller, request: ClaimLead) -> Any:
            heard[0] += 1
            return await answer(caller, request)

        witness.answer = counted  # type: ignore[method-assign]
        await wait_until_async(lambda: heard[0] > 12, "renewals", 20)
        assert (plant.leaders(), plant.stores[leader].life_number) == ([leader], term)
        assert file.read_bytes() == stored
