"""A server on a real broker with bad input and false identities: it answers a clear error or nothing, and keeps
running."""

import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.replication.mqtt.carrier import Incoming
from agent.replication.mqtt.requester import Requester
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.messages import (
    AppendAnswer,
    AppendFact,
    BoundsAnswer,
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    CursorAnswer,
    DefinitionsAnswer,
    FetchAnswer,
    FetchFacts,
    GetBounds,
    GetCursor,
    GetDefinitions,
    GetLatest,
    LatestAnswer,
    ListStreams,
    Request,
    StreamsAnswer,
    WantedDefinitions,
)
from agent.replication.protocol.topics import request_topic, response_topic, subscription_to
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node, access
from tests.replication.serving.support import new_message
from tests.support.mosquitto import Mosquitto
from tests.support.received import chains_in
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

NAME = f"idmz.{STREAM}"


@contextlib.asynccontextmanager
async def serve(broker: Mosquitto, folder: Path) -> AsyncIterator[tuple[Node, Requester]]:
    """plant-a with 300 facts in batches of 100 serves idmz and takes its orders; the scenario sends requests as
    idmz."""
    settings = StoreSettings(batch_facts_target=100)
    plant, idmz = Node.open(broker, "plant-a", folder, settings), Node.open(broker, "idmz", folder)
    plant.serve({"idmz": [STREAM, "facts.empty"]}, {"idmz": ["facts.orders"]})
    asker = idmz.requester("plant-a")
    await plant.append(0, 300)
    async with plant.running(), idmz.running():
        yield plant, asker
        reply = await asker.ask(ListStreams(), 5)  # the server keeps running in each case
        assert isinstance(reply.answer, StreamsAnswer)


async def test_each_operation_answers_what_the_store_holds(broker: Mosquitto, tmp_path: Path) -> None:
    """Each operation answers what the store holds; a consumer is registered by its first fetch."""
    async with serve(broker, tmp_path) as (plant, asker):

        async def ask(request: Request) -> object:
            return (await asker.ask(request, 5)).answer

        streams = await ask(ListStreams())
        assert isinstance(streams, StreamsAnswer)
        assert [(stream.name, stream.first_offset, stream.end_offset) for stream in streams.streams] == [
            ("facts.empty", 1, 0),
            (STREAM, 1, 300),
        ]
        bounds = await ask(GetBounds(stream=STREAM))
        assert isinstance(bounds, BoundsAnswer)
        assert (bounds.first_offset, bounds.end_offset) == (1, 300)
        page = await ask(FetchFacts(consumer_name=NAME, stream=STREAM, limit=200))
        assert isinstance(page, FetchAnswer)
        assert (page.covered(), page.more, page.frontier) == ((1, 200), True, 0)
        (chain,) = chains_in(plant.store)
        asked = WantedDefinitions(zone="plant-a", digest=chain.wanted.digest.hex())
        reply = await asker.ask(GetDefinitions(wanted=[asked]), 5)
        assert isinstance(reply.answer, DefinitionsAnswer)
        assert (len(reply.answer.runs), reply.batches) == (1, list(chain.bodies))
        confirmed = await ask(ConfirmReceipt(consumer_name=NAME, offset=200, life=plant.store.life.hex()))
        assert isinstance(confirmed, ConfirmAnswer)
        assert confirmed.cursor_advanced_to == 200
        page = await ask(FetchFacts(consumer_name=NAME, limit=200))
        assert isinstance(page, FetchAnswer)
        assert (page.covered(), page.more, page.frontier) == ((201, 300), False, 200)
        page = await ask(
            FetchFacts(consumer_name=NAME, limit=200, confirm=Confirm(last_offset=300, life=plant.store.life.hex()))
        )
        assert isinstance(page, FetchAnswer)
        assert (page.covered(), page.frontier) == (None, 300)
        cursor = await ask(GetCursor(consumer_name=NAME))
        assert isinstance(cursor, CursorAnswer)
        assert (cursor.stream, cursor.frontier, cursor.end_offset) == (STREAM, 300, 300)
        latest = await ask(GetLatest(stream=STREAM))
        assert isinstance(latest, LatestAnswer)
        assert [value.offset for value in latest.values] == [300]
        appended = await ask(AppendFact(stream="facts.orders", messages=[new_message("a")]))
        assert isinstance(appended, AppendAnswer)
        assert [outcome.offset for outcome in appended.outcomes] == [1]


# --- a client that breaks the rules


class Intruder:
    """A connection in a zone's name that publishes anything and records what arrives."""

    def __init__(self, connection: MqttConnection, arrived: list[Incoming]) -> None:
        self.connection = connection
        self.arrived = arrived

    async def publish(self, topic: str, payload: bytes, answer_to: str) -> bytes:
        """Publish at QoS 1. Returns the correlation."""
        correlation = secrets.token_bytes(16)
        await self.connection.publish_request(topic, payload, answer_to, correlation, 10)
        return correlation

    async def answer(self, correlation: bytes) -> object:
        """The answer with that correlation."""
        await wait_until_async(lambda: any(message.correlation == correlation for message in self.arrived), "an answer")
        return decode_answer(next(message.payload for message in self.arrived if message.correlation == correlation))[0]


@asynccontextmanager
async def intruder(broker: Mosquitto, zone: str, *topics: str) -> AsyncIterator[Intruder]:
    """A client with the certificate of `zone`, subscribed to any topic."""
    arrived: list[Incoming] = []
    connection = await MqttConnection.open(access(broker, zone), arrived.append)
    await connection.subscribe(topics)
    try:
        yield Intruder(connection, arrived)
    finally:
        await connection.close()


ASK = request_topic("plant-a", "idmz")
MINE = response_topic("plant-a", "idmz", "intruder")
LIST = b'{"protocol":"bsfg.replication","version":"1.0","operation":"ListStreams"}'


async def test_a_request_with_a_foreign_response_topic_is_dropped(broker: Mosquitto, tmp_path: Path) -> None:
    """A request with a foreign response topic is dropped and counted: there is no answer at that topic or to the
    requester."""
    async with serve(broker, tmp_path) as (plant, _asker):
        server = plant.server
        assert server is not None
        async with (
            intruder(broker, "idmz", subscription_to(MINE)) as idmz,
            intruder(broker, "enterprise", "bsfg/#") as victim,
        ):
            for wrong in (
                "bsfg/1/plant-a/enterprise/rsp/0/x",
                "bsfg/1/idmz/enterprise/rsp/0/x",
                "bsfg/1/plant-a/plant-b/req",
            ):
                before = server.statistics().drops.get("foreign_response_topic", 0)
                await idmz.publish(ASK, LIST, wrong)
                await wait_until_async(
                    lambda before=before: server.statistics().drops.get("foreign_response_topic", 0) > before,
                    "the drop",
                )
            answer = await idmz.answer(await idmz.publish(ASK, LIST, MINE))
            assert isinstance(answer, StreamsAnswer)
            assert victim.arrived == []
            assert len(idmz.arrived) == 1


async def test_answers_without_a_request_are_dropped(broker: Mosquitto, tmp_path: Path) -> None:
    """An answer without a request is dropped: its correlation is unknown."""
    async with serve(broker, tmp_path) as (_plant, asker), intruder(broker, "plant-a") as plant:
        for correlation in (b"", b"x" * 16):
            plant.connection.publish_answer(asker._response_topic, b"\x00" * 8, correlation)
        await wait_until_async(lambda: asker.link.statistics().unsolicited == 2, "both to be counted")
