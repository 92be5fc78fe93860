"""A server on a real broker with bad input and false identities: it answers a clear error or nothing, and keeps
running."""

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.batch import open_samples, parse
from agent.replication.mqtt.carrier import Incoming
from agent.replication.mqtt.requester import Requester
from agent.replication.mqtt.transport import Connection
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.errors import MessageTooLarge, NotAuthorized, PeerAbsent, PeerRefused
from agent.replication.protocol.messages import (
    BoundsAnswer,
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    CursorAnswer,
    ErrorAnswer,
    FetchAnswer,
    FetchFacts,
    GetBounds,
    GetCursor,
    ListStreams,
    OriginHead,
    Request,
    StreamsAnswer,
)
from agent.replication.protocol.topics import request_topic, response_topic
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node, access
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

NAME = f"idmz.{STREAM}"


@contextlib.asynccontextmanager
async def serve(broker: Mosquitto, folder: Path) -> AsyncIterator[tuple[Node, Requester]]:
    """plant-a with 300 facts in batches of 100 serves idmz; the scenario sends requests as idmz."""
    settings = StoreSettings(batch_facts_target=100)
    plant, idmz = Node.open(broker, "plant-a", folder, settings), Node.open(broker, "idmz", folder)
    plant.serve({"idmz": [STREAM, "facts.empty"]})
    asker = idmz.requester("plant-a")
    await plant.append(0, 300)
    async with plant.running(), idmz.running():
        yield plant, asker
        reply = await asker.ask(ListStreams(), 5)  # the server keeps running in each case
        assert isinstance(reply.answer, StreamsAnswer)
    plant.store.close()
    idmz.store.close()


async def test_each_operation_answers_what_the_store_holds(broker: Mosquitto, tmp_path: Path) -> None:
    """Each operation answers what the store holds; a consumer is registered by its first fetch."""
    async with serve(broker, tmp_path) as (plant, asker):

        async def ask(request: Request) -> object:
            return (await asker.ask(request, 5)).answer

        streams = await ask(ListStreams())
        assert isinstance(streams, StreamsAnswer)
        assert [(each.name, each.first_offset, each.end_offset) for each in streams.streams] == [
            ("facts.empty", 1, 0),
            (STREAM, 1, 300),
        ]
        bounds = await ask(GetBounds(stream=STREAM))
        assert isinstance(bounds, BoundsAnswer)
        assert (bounds.first_offset, bounds.end_offset) == (1, 300)
        page = await ask(FetchFacts(consumer_name=NAME, stream=STREAM, limit=200))
        assert isinstance(page, FetchAnswer)
        assert (page.covered(), page.more, page.frontier) == ((1, 200), True, 0)
        assert [entry.number for entry in page.definitions] == [1]
        confirmed = await ask(ConfirmReceipt(consumer_name=NAME, offset=200, epoch=plant.store.epoch.hex()))
        assert isinstance(confirmed, ConfirmAnswer)
        assert confirmed.cursor_advanced_to == 200
        page = await ask(FetchFacts(consumer_name=NAME, limit=200))
        assert isinstance(page, FetchAnswer)
        assert (page.covered(), page.more, page.frontier) == ((201, 300), False, 200)
        page = await ask(FetchFacts(consumer_name=NAME, limit=200, confirm=Confirm(last_offset=300)))
        assert isinstance(page, FetchAnswer)
        assert (page.covered(), page.frontier) == (None, 300)
        cursor = await ask(GetCursor(consumer_name=NAME))
        assert isinstance(cursor, CursorAnswer)
        assert (cursor.stream, cursor.frontier, cursor.end_offset) == (STREAM, 300, 300)


async def test_a_page_read_ahead_does_not_wait_for_a_confirmation(broker: Mosquitto, tmp_path: Path) -> None:
    """With `after_offset` the page comes while its confirmation is being written, and names no frontier that is not
    durable."""
    async with serve(broker, tmp_path) as (plant, asker):
        await asker.ask(FetchFacts(consumer_name=NAME, stream=STREAM, limit=100), 5)
        confirm, on_its_way = plant.store.consumers.confirm, Future[int]()
        plant.store.consumers.confirm = lambda *_, **__: on_its_way  # type: ignore[method-assign]
        ahead = FetchFacts(consumer_name=NAME, limit=100, after_offset=100, confirm=Confirm(last_offset=100))
        page = (await asker.ask(ahead, 5)).answer
        assert isinstance(page, FetchAnswer)
        assert (page.covered(), page.frontier) == ((101, 200), 0)
        plant.store.consumers.confirm = confirm  # type: ignore[method-assign]
        on_its_way.set_result(await asyncio.wrap_future(confirm(NAME, 100)))
        page = (await asker.ask(ahead, 5)).answer
        assert isinstance(page, FetchAnswer)
        assert page.frontier == 100


async def test_small_limits_slice(broker: Mosquitto, tmp_path: Path) -> None:
    """A small limit gets a readable slice with exactly the requested facts."""
    async with serve(broker, tmp_path) as (_plant, asker):
        found = []
        for after in range(0, 300, 7):
            request = FetchFacts(consumer_name=NAME, stream=STREAM, limit=7, after_offset=after)
            for data in (await asker.ask(request, 5)).batches:
                found += open_samples(parse(data)).values
        expected = [float(number) for after in range(0, 300, 7) for number in slice_of(after, 7)]
        assert found == expected


def slice_of(after: int, limit: int) -> range:
    """What one page holds: it ends with the batch in which the limit falls inside the first."""
    batch_end = after // 100 * 100 + 100
    return range(after, min(after + limit, batch_end, 300))


async def test_wait_ends_with_a_fact_or_without(broker: Mosquitto, tmp_path: Path) -> None:
    """A parked fetch is answered by the next commit, or empty at the end of its wait; a newer one supersedes it."""
    async with serve(broker, tmp_path) as (plant, asker):

        def request(wait_ms: int) -> FetchFacts:
            return FetchFacts(consumer_name=NAME, stream=STREAM, limit=10_000, after_offset=300, wait_ms=wait_ms)

        empty = (await asker.ask(request(50), 5)).answer
        assert isinstance(empty, FetchAnswer)
        assert empty.covered() is None
        server = plant.server
        assert server is not None
        older = asyncio.create_task(asker.ask(request(20_000), 5))
        await wait_until_async(lambda: server.statistics().parked == 1, "the fetch to wait")
        waiting = asyncio.create_task(asker.ask(request(10_000), 5))
        await wait_until_async(lambda: server.statistics().drops.get("superseded"), "the older one to give way")
        await plant.append(300, 5)
        page = (await waiting).answer
        assert isinstance(page, FetchAnswer)
        assert page.covered() == (301, 305)
        older.cancel()


@pytest.mark.parametrize(
    "claim, code",
    [
        ({"after_offset": 301}, "offset_beyond_log"),
        ({"confirm": Confirm(last_offset=301)}, "confirm_beyond_log"),
        ({"timeline": "0" * 32, "after_offset": 300}, "timeline_differs"),
        ({"timeline": "0" * 32, "after_offset": 0}, "timeline_differs"),
        ({"origin_head": OriginHead(last_sequence=999, digest="0" * 32)}, "history_differs"),
    ],
)
async def test_a_peers_claim_only_leaves_an_incident(
    broker: Mosquitto, tmp_path: Path, claim: dict[str, Any], code: str
) -> None:
    """A zone that never registered a consumer repeatedly claims facts of this epoch that are not here: it is refused,
    no consumer is registered, the epoch stays, the server continues, and one incident names the zone."""
    async with serve(broker, tmp_path) as (plant, asker):
        epoch = plant.store.epoch
        for _ in range(5):
            with pytest.raises(PeerRefused) as refused:
                await asker.ask(FetchFacts(consumer_name=NAME, limit=1, stream=STREAM, epoch=epoch.hex(), **claim), 5)
            assert refused.value.code == code
        await wait_until_async(plant.store.incidents, "the incident")
        (incident,) = plant.store.incidents()
        assert (incident.kind, incident.subject, incident.count) == ("ahead", "peer idmz", 1)
        assert (plant.store.epoch, plant.store.failure, plant.store.consumers.all()) == (epoch, None, [])
        await asker.ask(FetchFacts(consumer_name=NAME, limit=1, stream=STREAM), 5)


@pytest.mark.parametrize(
    "request_, code",
    [
        (FetchFacts(consumer_name=NAME, limit=0, stream=STREAM), "limit_out_of_range"),
        (FetchFacts(consumer_name=NAME, limit=-4, stream=STREAM), "limit_out_of_range"),
        (FetchFacts(consumer_name=NAME, limit=10**20, stream=STREAM), "limit_out_of_range"),
        (FetchFacts(consumer_name=NAME, limit=1), "unknown_consumer"),
        (FetchFacts(consumer_name=NAME, limit=1, stream="facts.audit"), "stream_not_exported"),
        (FetchFacts(consumer_name="plant-a.own", limit=1), "consumer_not_yours"),
        (FetchFacts(consumer_name=NAME, limit=1, stream=STREAM, after_offset=301), "offset_beyond_log"),
        (
            FetchFacts(consumer_name=NAME, limit=1, stream=STREAM, confirm=Confirm(last_offset=301)),
            "confirm_beyond_log",
        ),
        (FetchFacts(consumer_name=NAME, limit=1, stream=STREAM, epoch="0" * 32), "epoch_changed"),
        (ConfirmReceipt(consumer_name="idmz.nobody", offset=1), "unknown_consumer"),
        (GetCursor(consumer_name="idmz.nobody"), "unknown_consumer"),
        (GetCursor(consumer_name="plant-a.own"), "consumer_not_yours"),
        (GetBounds(stream="facts.audit"), "stream_not_exported"),
    ],
)
async def test_each_refusal_has_its_code_and_registers_nothing(
    broker: Mosquitto, tmp_path: Path, request_: Request, code: str
) -> None:
    """Each forbidden request is refused with its code, and nothing is registered on the way."""
    async with serve(broker, tmp_path) as (plant, asker):
        await asyncio.wrap_future(plant.store.consumers.register("plant-a.own", "plant-a", STREAM))
        with pytest.raises(PeerRefused) as raised:
            await asker.ask(request_, 5)
        assert raised.value.code == code
        assert raised.value.hint
        assert [each.name for each in plant.store.consumers.all()] == ["plant-a.own"]


# --- a client that breaks the rules


class Intruder:
    """A connection in a zone's name that publishes anything and records what arrives."""

    def __init__(self, connection: Connection, arrived: list[Incoming]) -> None:
        self.connection = connection
        self.arrived = arrived

    async def publish(self, topic: str, payload: bytes, answer_to: str) -> bytes:
        """Publish at QoS 1. Returns the correlation."""
        correlation = secrets.token_bytes(16)
        await self.connection.publish_request(topic, payload, answer_to, correlation, 10)
        return correlation

    async def answer(self, correlation: bytes) -> object:
        """The answer with that correlation."""
        await wait_until_async(lambda: any(each.correlation == correlation for each in self.arrived), "an answer")
        return decode_answer(next(each.payload for each in self.arrived if each.correlation == correlation))[0]


@asynccontextmanager
async def intruder(broker: Mosquitto, zone: str, *topics: str) -> AsyncIterator[Intruder]:
    """A client with the certificate of `zone`, subscribed to any topic."""
    arrived: list[Incoming] = []
    connection = await Connection.open(access(broker, zone), arrived.append)
    await connection.subscribe(topics)
    try:
        yield Intruder(connection, arrived)
    finally:
        await connection.close()


ASK = request_topic("plant-a", "idmz")
MINE = response_topic("plant-a", "idmz", "intruder")
LIST = b'{"protocol":"bsfg.replication","version":"1.0","operation":"ListStreams"}'


@pytest.mark.parametrize(
    "payload, code, said",
    [
        (b"\x00\x01", "bad_request", ""),
        (b"{}", "bad_request", "protocol"),
        (b"[" * 60_000, "bad_request", ""),
        (LIST.replace(b"1.0", b"3.1"), "unsupported_version", "'3.1'"),
        (LIST.replace(b"ListStreams", b"DropStreams"), "unknown_operation", "DropStreams"),
        (LIST + b" " * 70_000, "request_too_large", "65536"),
        (json.dumps({**json.loads(LIST), "operation": "FetchFacts"}).encode(), "bad_request", "consumer_name"),
    ],
)
async def test_malformed_requests(broker: Mosquitto, tmp_path: Path, payload: bytes, code: str, said: str) -> None:
    """Malformed requests, of another version or too large, are answered with a code, and the server continues."""
    async with serve(broker, tmp_path), intruder(broker, "idmz", MINE) as idmz:
        answer = await idmz.answer(await idmz.publish(ASK, payload, MINE))
        assert isinstance(answer, ErrorAnswer)
        assert answer.error.code == code
        assert re.search(said, answer.error.message)


async def test_a_request_with_a_foreign_response_topic_is_dropped(broker: Mosquitto, tmp_path: Path) -> None:
    """A request with a foreign response topic is dropped and counted: there is no answer at that topic or to the
    requester."""
    async with serve(broker, tmp_path) as (plant, _asker):
        server = plant.server
        assert server is not None
        async with intruder(broker, "idmz", MINE) as idmz, intruder(broker, "enterprise", "bsfg/#") as victim:
            for wrong in (
                "bsfg/1/plant-a/enterprise/rsp/x",
                "bsfg/1/idmz/enterprise/rsp/x",
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


async def test_four_identities(broker: Mosquitto, tmp_path: Path) -> None:
    """No zone can send requests as another, read another's answers, or serve as another: the broker refuses, or
    delivers nothing."""
    async with serve(broker, tmp_path) as (plant, asker):
        async with (
            intruder(broker, "enterprise", "#", "bsfg/1/plant-a/+/rsp/+", "bsfg/1/+/+/req") as enterprise,
            intruder(broker, "plant-b", "#", "bsfg/1/plant-a/+/req") as plant_b,
        ):
            for client, topic in (
                (enterprise, ASK),  # ask as idmz
                (enterprise, request_topic("plant-a", "enterprise")),  # ask in one's own name without being a peer
                (plant_b, ASK),
                (plant_b, MINE),  # answer as plant-a
                (enterprise, response_topic("plant-a", "idmz", "x")),
                (plant_b, response_topic("idmz", "enterprise", "x")),  # answer as idmz
            ):
                with pytest.raises(NotAuthorized):
                    await client.publish(topic, LIST, MINE)
            for _ in range(5):
                reply = await asker.ask(FetchFacts(consumer_name=NAME, stream=STREAM, limit=100), 5)
                assert reply.batches
            assert enterprise.arrived == plant_b.arrived == []
        assert plant.server is not None
        assert plant.server.statistics().requests["FetchFacts"] == 5


async def test_answers_without_a_request_are_dropped(broker: Mosquitto, tmp_path: Path) -> None:
    """An answer without a request is dropped: its correlation is unknown."""
    async with serve(broker, tmp_path) as (_plant, asker), intruder(broker, "plant-a") as plant:
        for correlation in (b"", b"x" * 16):
            plant.connection.publish_answer(asker._response_topic, b"\x00" * 8, correlation)
        await wait_until_async(lambda: asker.link.statistics().unsolicited == 2, "both to be counted")


async def test_absent_peer_and_oversize_are_known_at_once(broker: Mosquitto) -> None:
    """Without a server the broker refuses the request; an oversized one is not sent: it would end the connection."""
    async with intruder(broker, "idmz") as idmz:
        with pytest.raises(PeerAbsent):
            await idmz.publish(request_topic("plant-b", "idmz"), LIST, MINE)
        with pytest.raises(MessageTooLarge, match="1048576"):
            await idmz.publish(ASK, b"x" * 1_048_576, MINE)
        assert not idmz.connection.closed.done()
