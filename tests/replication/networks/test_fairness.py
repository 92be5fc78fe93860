"""One zone floods a serving node over a real broker: another zone is neither refused nor kept behind the flood.

Counted, not timed: how many pages of the flooding zone are begun between a request of the other and its page.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.fact_store.store import FactStore
from agent.pages import Page
from agent.replication.mqtt.carrier import Incoming
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.protocol.codec import encode_request
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.messages import FetchFacts, FetchRange, GetLatest, LatestAnswer, Request
from agent.replication.protocol.topics import request_topic, response_topic, subscription_to
from agent.replication.serving import LatestValues
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.limits import READS_MAX, REQUESTS_OPEN_MAX, SEARCHES_WAITING_MAX
from agent.replication.serving.server import Server
from agent.settings.peers import PeerLimits
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node, access
from tests.support.mosquitto import Mosquitto
from tests.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.system

FEW = 1_000  # facts of a page of idmz
FLOOD = request_topic("plant-a", "evil")
FLOOD_TO = response_topic("plant-a", "evil", "flood")
RIGHTS = dict.fromkeys(("idmz", "evil"), PeerRights({STREAM}))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A broker where two zones may ask plant-a."""
    folder = tmp_path_factory.mktemp("shared")
    links = ("plant-a:idmz", "plant-a:evil")
    with Mosquitto.started(folder, ("plant-a", "idmz", "evil"), links) as running:
        yield running


class Flood:
    """A connection of evil that keeps as many requests open as the server accepts, and sends another after each
    answer."""

    def __init__(self, broker: Mosquitto, request: Request) -> None:
        self._access = access(broker, "evil")
        self._payload = encode_request(request)
        self._connection: MqttConnection | None = None
        self.answers = 0

    def _arrived(self, _: Incoming) -> None:
        self.answers += 1
        self._ask()

    def _ask(self) -> None:
        assert self._connection is not None
        with contextlib.suppress(TransportError):  # its own queue is full: enough requests are under way
            asked = self._connection.publish_request(FLOOD, self._payload, FLOOD_TO, secrets.token_bytes(16), 30)
            asked.add_done_callback(lambda done: done.cancelled() or done.exception())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Flood"]:
        """Run it connected, with all its requests open."""
        self._connection = await MqttConnection.open(self._access, self._arrived)
        await self._connection.subscribe([subscription_to(FLOOD_TO)])
        try:
            for _ in range(2 * REQUESTS_OPEN_MAX):
                self._ask()
            yield self
        finally:
            connection, self._connection = self._connection, None
            self._ask = lambda: None  # type: ignore[method-assign]
            await connection.close()


async def test_searches_of_one_zone_do_not_make_another_one_busy(shared: Mosquitto, tmp_path: Path) -> None:
    """Evil has all its allowed searches for latest values open, and gets further ones refused. The search of idmz
    begins right after the one that runs, and none of its requests is refused."""
    may_go_on, begun = threading.Semaphore(0), list[str]()

    def look_up(stream: str, _wanted: object, fresh_ms: int, _: int) -> LatestValues:
        begun.append("idmz" if fresh_ms == 1 else "evil")
        assert may_go_on.acquire(timeout=LIMIT_S)
        return LatestValues([], lambda _: pytest.fail(stream), 0, 7)

    plant, idmz = Node.open(shared, "plant-a", tmp_path), Node.open(shared, "idmz", tmp_path)
    server = plant.server = Server(plant.link, plant.store, RIGHTS, look_up=look_up)
    asker = idmz.requester("plant-a")
    flood = Flood(shared, GetLatest(stream=STREAM))
    async with plant.running(), idmz.running(), flood.running():
        await wait_until_async(lambda: server.statistics().refusals.get("busy", 0) > 0, "evil to be refused")
        asking = asyncio.create_task(asker.ask(GetLatest(stream=STREAM, fresh_ms=1), 20))
        await wait_until_async(lambda: server.statistics().requests["GetLatest"] > SEARCHES_WAITING_MAX, "requests")
        await wait_until_async(lambda: "idmz" in server._handlers[GetLatest].__self__._turns._queues, "idmz")  # type: ignore[attr-defined]
        may_go_on.release(2)
        assert isinstance((await asking).answer, LatestAnswer)
        assert begun[:2] == ["evil", "idmz"]
        may_go_on.release(1000)


def test_pages_of_one_zone_do_not_delay_those_of_another(
    shared: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evil requests pages of the largest size, as many at once as it may. Between a request of idmz and the reading of
    its page, no more pages of evil are begun than are read at once."""
    events = list[str]()
    read, arrive = FactStore.read, Server._arrived

    def begun(
        self: FactStore, stream: str, after: int, limit: int, bytes_max: int, *, until_offset: int | None
    ) -> Page:
        events.append("idmz" if limit == FEW else "evil")
        return read(self, stream, after, limit, bytes_max, until_offset=until_offset)

    def arrived(self: Server, incoming: Incoming) -> None:
        if incoming.topic == request_topic("plant-a", "idmz"):
            events.append("asked")
        arrive(self, incoming)

    monkeypatch.setattr(FactStore, "read", begun)
    monkeypatch.setattr(Server, "_arrived", arrived)

    async def scenario() -> None:
        settings = StoreSettings(batch_facts_target=10_000)
        plant, idmz = Node.open(shared, "plant-a", tmp_path, settings), Node.open(shared, "idmz", tmp_path)
        rights = PeerRights({STREAM}, limits=PeerLimits(requests_per_second_max=100_000))
        plant.server = Server(plant.link, plant.store, {"evil": rights, "idmz": rights})
        await plant.append(0, 400_000)
        asker = idmz.requester("plant-a")
        where = {"first_offset": 1, "last_offset": 400_000, "life": plant.store.life.hex()}
        whole = FetchRange(stream=STREAM, **where, limit=1_000_000, bytes_max=1_000_000)
        fetch = FetchFacts(consumer_name=f"idmz.{STREAM}", stream=STREAM, limit=FEW, bytes_max=10_000)
        async with plant.running(), idmz.running():
            await asker.ask(fetch, 20)  # registers the consumer, which waits for the disk
            async with Flood(shared, whole).running() as flood:
                await wait_until_async(lambda: flood.answers > REQUESTS_OPEN_MAX, "the flood")
                for _ in range(30):
                    await asker.ask(fetch, 20)

    asyncio.run(scenario())
    waits = "".join(event[0] for event in events).split("a")[1:]
    assert [wait.index("i") for wait in waits if wait.index("i") > READS_MAX] == []
