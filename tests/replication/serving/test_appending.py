"""Appends of other zones over a real broker: the same outcomes and messages as at the zone's own socket, and only the
configured rights."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import local_socket
from agent.batch import open_messages, parse
from agent.local_socket.serving import RequestHandler
from agent.message import Envelope, Fact, Message
from agent.replication.mqtt.requester import Requester
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.messages import (
    AcquireLease,
    AppendAnswer,
    AppendedEntry,
    AppendFact,
    LeaseAnswer,
    NewFact,
    NewMessage,
)
from agent.settings.store import StreamSettings
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.system

ORDERS, PLANS, PRIVATE = "facts.orders", "facts.plans", "facts.private"
STREAMS = (
    StreamSettings(ORDERS),
    StreamSettings(PLANS, write_class="strong", acks="all", acks_timeout_ms=50),
    StreamSettings(PRIVATE, write_class="local"),
)


def message(
    message_id: str, content: bytes = b"1", zone: str = "idmz", subject: str = "order:1", **asked: Any
) -> NewMessage:
    """A message as idmz might append it."""
    envelope = Envelope(message_id, zone, "*", 1_700_000_000_000)
    return NewMessage(
        envelope=envelope, fact=NewFact(subject=subject, predicate="done", object=msgspec.Raw(content)), **asked
    )


def request(*messages: NewMessage, stream: str = ORDERS, **asked: Any) -> AppendFact:
    """An append of these messages."""
    return AppendFact(stream=stream, messages=list(messages), **asked)


async def outcomes(asker: Requester, asked: AppendFact) -> list[AppendedEntry]:
    """The outcome of each message."""
    answer = (await asker.ask(asked, 5)).answer
    assert isinstance(answer, AppendAnswer)
    return answer.outcomes


@contextlib.asynccontextmanager
async def serve(
    broker: Mosquitto, folder: Path, streams: Sequence[StreamSettings] = STREAMS
) -> AsyncIterator[tuple[Node, Requester]]:
    """plant-a lets idmz append to three streams and read one; the scenario sends requests as idmz."""
    plant, idmz = Node.open(broker, "plant-a", folder, streams=streams), Node.open(broker, "idmz", folder)
    plant.serve({"idmz": [STREAM]}, {"idmz": [ORDERS, PLANS, PRIVATE]})
    asker = idmz.requester("plant-a")
    async with plant.running(), idmz.running():
        yield plant, asker
    plant.store.close()
    idmz.store.close()


async def test_messages_are_answered_in_order_and_stored_once(broker: Mosquitto, tmp_path: Path) -> None:
    """Each message of one request has its own outcome, in order; stored messages are in that order and name the
    appender's zone."""
    async with serve(broker, tmp_path) as (plant, asker):
        first = await outcomes(
            asker, request(message("a", b"1"), message("b", b"2"), message("a", b"1"), message("a", b"3"))
        )
        assert [(one.outcome, one.offset) for one in first] == [
            ("applied", 1), ("applied", 2), ("noop_already_applied", 1), ("conflicting_duplicate", 1),
        ]  # fmt: skip
        assert plant.store.end_offset(ORDERS) == 2
        stored = [one for each in sealed(plant.store, ORDERS) for one in open_messages(parse(each))]
        assert [(one.envelope.message_id, one.envelope.from_zone) for one in stored] == [("a", "idmz"), ("b", "idmz")]
        assert [each.zone for each in plant.store.reader.origins()] == ["plant-a"]
        assert [one.outcome for one in await outcomes(asker, request(message("c"), stream=PRIVATE))] == ["applied"]


async def test_message_ids_are_unique_per_zone_only(broker: Mosquitto, tmp_path: Path) -> None:
    """The zone itself and another append different messages under the same ids, in either order: both are stored. Each
    is recognised as its own appender's when it comes again, also after a restart, and a changed one under its own
    zone's name is still a conflict."""

    def own(message_id: str, content: bytes) -> Message:
        return Message(Envelope(message_id, "plant-a", "*", 1_700_000_000_000), Fact("order:1", "done", content))

    async def at_home(plant: Node, *messages: Message) -> list[tuple[str, int]]:
        found = await asyncio.wrap_future(plant.store.appends.append_messages(ORDERS, messages))
        return [(one.outcome, one.offset) for one in found]

    async def from_idmz(asker: Requester, *messages: NewMessage) -> list[tuple[str, int]]:
        return [(one.outcome, one.offset) for one in await outcomes(asker, request(*messages))]

    async def take(plant: Node, asker: Requester) -> None:
        assert await from_idmz(asker, message("a", b"1")) == [("applied", 1)]
        assert await at_home(plant, own("a", b"2"), own("b", b"2")) == [("applied", 2), ("applied", 3)]
        assert await from_idmz(asker, message("b", b"1")) == [("applied", 4)]

    async def again(plant: Node, asker: Requester) -> None:
        noop, conflict = "noop_already_applied", "conflicting_duplicate"
        assert await from_idmz(asker, message("a", b"1"), message("b", b"1")) == [(noop, 1), (noop, 4)]
        assert await at_home(plant, own("a", b"2"), own("b", b"2")) == [(noop, 2), (noop, 3)]
        assert await from_idmz(asker, message("a", b"2"), message("b", b"2")) == [(conflict, 1), (conflict, 4)]
        assert await at_home(plant, own("a", b"1"), own("b", b"1")) == [(conflict, 2), (conflict, 3)]

    for scenario in (take, again):
        async with serve(broker, tmp_path) as (plant, asker):
            await scenario(plant, asker)


async def test_remote_appends_have_the_outcomes_of_local_ones(broker: Mosquitto, tmp_path: Path) -> None:
    """The same messages through the local socket of another store give the same offsets, outcomes and warnings."""

    def door_request(asked: NewMessage, stream: str) -> local_socket.AppendFact:
        envelope = msgspec.structs.replace(asked).envelope
        own = Envelope(envelope.message_id, "plant-a", envelope.to_zone, envelope.produced_at_unix_ms)
        fact = Fact(asked.fact.subject, asked.fact.predicate, bytes(asked.fact.object))
        return local_socket.AppendFact(stream, own, fact, None, asked.producer, asked.lease_epoch, asked.base_offset)

    asked = [
        (ORDERS, message("a")), (ORDERS, message("a")), (ORDERS, message("a", b"2")),
        (ORDERS, message("b", producer="idmz.mes", lease_epoch=5)), (ORDERS, message("c", producer="idmz.mes", lease_epoch=4)),
        (PLANS, message("a", base_offset=0)), (PLANS, message("b", b"2", base_offset=0)),
    ]  # fmt: skip
    async with serve(broker, tmp_path) as (plant, asker):
        there = [(await outcomes(asker, request(one, stream=stream)))[0] for stream, one in asked]
        here = Node.open(broker, "plant-a", tmp_path / "other", streams=STREAMS)
        door = RequestHandler(here.store)
        for (stream, one), answer in zip(asked, there, strict=True):
            at_home = await door.answer(door_request(one, stream))
            assert isinstance(at_home, local_socket.Appended)
            assert msgspec.structs.asdict(answer) == msgspec.structs.asdict(at_home)
        here.store.close()
        assert [one.outcome for one in there] == [
            "applied", "noop_already_applied", "conflicting_duplicate", "applied", "rejected_fenced", "queued", "superseded",
        ]  # fmt: skip
        assert there[4].lease_epoch == 5
        assert there[5].warning
        assert plant.store.end_offset(PLANS) == 1


async def test_a_lease_of_another_zone_fences_its_own_producers_only(broker: Mosquitto, tmp_path: Path) -> None:
    """Epochs rise; a producer whose name does not begin with the zone's is refused, for leases and for appends. A
    request after an epoch that is no longer in force gets none, and fences no producer."""
    async with serve(broker, tmp_path) as (plant, asker):
        epochs = []
        for _ in range(2):
            answer = (await asker.ask(AcquireLease(stream=ORDERS, producer="idmz.mes"), 5)).answer
            assert isinstance(answer, LeaseAnswer)
            epochs.append(answer.lease_epoch)
        assert epochs == [1, 2]
        for foreign in (
            AcquireLease(stream=ORDERS, producer="mes"),
            request(message("a", producer="plant-a.mes", lease_epoch=9)),
        ):
            with pytest.raises(PeerRefused, match=r"producers of idmz are named idmz\.") as refused:
                await asker.ask(foreign, 5)
            assert refused.value.code == "bad_request"
        with pytest.raises(PeerRefused) as forbidden:
            await asker.ask(AcquireLease(stream="facts.audit", producer="idmz.mes"), 5)
        assert forbidden.value.code == "append_not_allowed"
        assert plant.store.appends.acquire_lease(ORDERS, "mes").result() == 1
        for after, expected in ((0, (None, 2)), (1, (None, 2)), (2, (3, None)), (2, (None, 3))):
            answer = (await asker.ask(AcquireLease(stream=ORDERS, producer="idmz.mes", lease_after=after), 5)).answer
            assert isinstance(answer, LeaseAnswer)
            assert (answer.lease_epoch, answer.lease_in_force) == expected
