"""Peers of other versions over a real broker: a later minor version is understood in both directions, another major
version is named. Shown to fail with the product broken: a decoder that forbids unknown fields, a version that is not
checked."""

import asyncio
import json
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.cli.health import status as status_command
from agent.health.brief import encode_health
from agent.health.snapshot import NodeSnapshot, PeerStatus
from agent.health.verdict import assess
from agent.replication.broker.diagnosis import CheckOutcome
from agent.replication.broker.peer_test import Peer, check_peer
from agent.replication.mqtt import requester
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.messages import GetBounds, ListStreams
from agent.replication.pulling.puller import Puller
from agent.replication.pulling.receiving.pull_events import Asking
from agent.replication.serving import server
from tests.replication.answers import encode_answer
from tests.replication.broker.zones import target_of
from tests.replication.nodes import STREAM, Node, sealed
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

Encode = Callable[..., bytes]
Rewrite = Callable[[dict[str, Any]], dict[str, Any]]
LATER: dict[str, Any] = {"patience": {"unit": "ms", "values": [1, None]}, "mood": True}
VERBATIM = {"object"}  # bytes that are not the sender's


def in_1_7(message: Any) -> Any:
    """The same message in a later minor version: unknown fields in every object."""
    if isinstance(message, list):
        return [in_1_7(element) for element in message]
    if not isinstance(message, dict):
        return message
    grown = {name: value if name in VERBATIM else in_1_7(value) for name, value in message.items()}
    return {**LATER, **grown, **({"version": "1.7"} if "version" in message else {})}


def in_2_0(message: dict[str, Any]) -> dict[str, Any]:
    """A message of another major version; only protocol and version keep their meaning."""
    return {"protocol": message["protocol"], "version": "2.0", "operation": 7, "what": message["operation"]}


def rewritten(encode: Encode, rewrite: Rewrite, *, is_answer: bool) -> Encode:
    """An encoder that rewrites its output."""

    def other(*arguments: object, **named: object) -> bytes:
        payload = encode(*arguments, **named)
        if not is_answer:
            return msgspec.json.encode(rewrite(msgspec.json.decode(payload)))
        length = struct.unpack_from("<I", payload)[0]
        header = msgspec.json.encode(rewrite(msgspec.json.decode(payload[4 : 4 + length])))
        return struct.pack("<I", len(header)) + header + payload[4 + length :]

    return other


@pytest.fixture
def speaking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let the requesting or the serving side of this process use another version."""

    def speak(rewrite: Rewrite, *, asks: bool = False, serves: bool = False) -> None:
        if asks:
            monkeypatch.setattr(
                requester, "encode_request", rewritten(requester.encode_request, rewrite, is_answer=False)
            )
        if serves:
            whole = rewritten(encode_answer, rewrite, is_answer=True)
            monkeypatch.setattr(server, "answer_parts", lambda *arguments: [whole(*arguments)])
            monkeypatch.setattr(server, "encode_error", rewritten(server.encode_error, rewrite, is_answer=True))

    yield speak
    monkeypatch.undo()


def pulled(broker: Mosquitto, folder: Path, until: Callable[[Node, Node, Puller], Any]) -> None:
    """idmz pulls 500 facts of plant-a, until the condition of the test."""

    async def run() -> None:
        plant, idmz = (Node.open(broker, zone, folder) for zone in ("plant-a", "idmz"))
        plant.serve({"idmz": [STREAM]})
        puller = idmz.pull("plant-a")
        await plant.append(0, 500)
        async with plant.running(), idmz.running():
            await until(plant, idmz, puller)

    asyncio.run(run())


@pytest.mark.parametrize("side", ["asks", "serves"])
def test_a_later_minor_version_is_understood(
    broker: Mosquitto, tmp_path: Path, speaking: Callable[..., None], side: str
) -> None:
    """A peer with version 1.7 has unknown fields in every object of its requests, or of its answers and errors: facts,
    definitions, confirmations and the lease are understood, and a refusal keeps its code."""
    speaking(in_1_7, **{side: True})

    async def until(plant: Node, idmz: Node, puller: Puller) -> None:
        await idmz.wait_end(500)
        await wait_until_async(lambda: puller._runner.core.place.frontier == 500, "the confirmation")
        assert puller.statistics().lease > 0
        assert sealed(idmz.store) == sealed(plant.store)
        with pytest.raises(PeerRefused) as raised:
            await idmz.requesters["plant-a"].ask(GetBounds(stream="facts.other"), 5)
        assert raised.value.code == "stream_not_exported"

    pulled(broker, tmp_path, until)


def test_another_major_version_is_reported_at_the_requester(
    broker: Mosquitto, tmp_path: Path, speaking: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A peer answers in version 2.0. The log names both versions and what to do, once; the pull is blocked, and `bsfg
    status` and `bsfg peer test` print the message."""
    caplog.set_level(logging.WARNING)
    speaking(in_2_0, serves=True)
    both = "the peer speaks 'bsfg.replication' '2.0', this node 'bsfg.replication' '1.0'"

    async def until(_plant: Node, _idmz: Node, puller: Puller) -> None:
        await wait_until_async(lambda: puller.statistics().asking is Asking.BLOCKED, "the refusal")
        reason = puller.statistics().lost_reason or ""
        assert both in reason
        assert "Update the older of the two nodes." in reason
        peer = Peer("plant-a", asks_us=False, pulls=(STREAM,), is_asked=True)
        steps = await asyncio.to_thread(lambda: list(check_peer(target_of(broker), peer)))
        bad = [step for step in steps if step.outcome is CheckOutcome.BAD]
        assert [step.step for step in bad] == ["protocol"]
        assert both in bad[0].what
        assert bad[0].hint == "Update the older of the two nodes."
        figures = NodeSnapshot(
            "idmz", "e", 0, 0, None, peers=(PeerStatus("plant-a", STREAM, False, 0, 0, trouble=reason),)
        )
        shown = status_command.text(json.loads(encode_health(figures, assess(figures))))
        assert both in " ".join(shown.split())

    pulled(broker, tmp_path, until)
    lines = [record for record in caplog.records if both in str(getattr(record, "reason", ""))]
    assert [record.message for record in lines] == ["peer_refuses"]


def test_another_major_version_is_reported_at_the_server(
    broker: Mosquitto, tmp_path: Path, speaking: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A request in version 2.0 is refused each time with both versions; the serving node logs it once."""
    caplog.set_level(logging.WARNING)
    speaking(in_2_0, asks=True)

    async def until(plant: Node, idmz: Node, _puller: Puller) -> None:
        for _ in range(3):
            with pytest.raises(PeerRefused) as raised:
                await idmz.requesters["plant-a"].ask(ListStreams(), 5)
            assert raised.value.code == "unsupported_version"
            assert "'2.0', this node 'bsfg.replication' '1.0'" in raised.value.message
        assert plant.server is not None
        assert plant.server.statistics().requests == {}

    pulled(broker, tmp_path, until)
    lines = [record for record in caplog.records if record.message == "peer_version_unsupported"]
    assert [record.__dict__["peer"] for record in lines] == ["idmz"]
