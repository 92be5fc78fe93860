"""Confirmations and appends in a zone's name by an attacker who has taken over the broker, over a real broker."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.replication.protocol.messages import ErrorAnswer
from agent.replication.protocol.topics import request_topic, response_filter, response_topic
from agent.replication.pulling import TrustPolicy
from agent.signing.certificates import SignerTrust
from agent.signing.keys import ZoneSigner
from agent.signing.messages import MessagePlace, sign_request
from tests.replication.nodes import IMPATIENT, STREAM, Node
from tests.replication.serving.test_server import Intruder, intruder
from tests.signing.signers import make, signing_key
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

LIFE = {"begins": datetime(2020, 1, 1, tzinfo=UTC), "ends": datetime(2100, 1, 1, tzinfo=UTC)}
MADE = {zone: make(zone, **LIFE) for zone in ("idmz", "evil")}  # type: ignore[arg-type]
SIGNERS = {zone: ZoneSigner(signing_key(made), made.der) for zone, made in MADE.items()}
TRUST = SignerTrust(pins={"idmz": frozenset({MADE["idmz"].sha256})})
CONSUMER = f"idmz.{STREAM}"


def request(operation: str, **fields: object) -> bytes:
    """A request of the protocol."""
    return json.dumps({"protocol": "bsfg.replication", "version": "1.0", "operation": operation, **fields}).encode()


def idmz_at(broker: Mosquitto, folder: Path) -> Node:
    """The node of idmz, which signs its requests."""
    found = Node.open(broker, "idmz", folder / "idmz", signer=SIGNERS["idmz"])
    found.pull("plant-a", receiver=IMPATIENT)
    return found


async def sent(evil: Intruder, payload: bytes) -> str:
    """The plant's answer: ok, or an error code."""
    correlation = await evil.publish(request_topic("plant-a", "idmz"), payload, response_topic("plant-a", "idmz", "x"))
    answer = await evil.answer(correlation)
    return answer.error.code if isinstance(answer, ErrorAnswer) else "ok"


@pytest.mark.parametrize("rule", ["required", "if_present"])
async def test_a_stranger_confirms_and_appends_nothing_in_a_zones_name(
    broker: Mosquitto, tmp_path: Path, rule: str
) -> None:
    """The attacker, with the zone's certificate, confirms facts that never arrived, takes the lease, appends, and
    removes the consumer: unsigned, with a key of another zone, or with the signature of another request. The plant
    refuses all of it, and the zone's own signed requests continue to work. Requests that change nothing are answered.
    Without a rule the attacker is refused from the zone's first signed request on."""
    policy = TrustPolicy(TRUST, {"idmz": rule})  # type: ignore[dict-item]
    plant = Node.open(broker, "plant-a", tmp_path / "plant", policy=policy)
    plant.serve({"idmz": [STREAM]}, {"idmz": [STREAM]})
    idmz = idmz_at(broker, tmp_path)
    await plant.append(0, 50)
    async with plant.running(), intruder(broker, "idmz", response_filter("idmz", "0")) as evil:
        async with idmz.running():
            await idmz.wait_end(50)
            consumers = plant.store.consumers
            await wait_until_async(lambda: consumers.all()[0].frontier == 50, "the confirmation")
        idmz.store.close()
        await plant.append(50, 10)
        confirm = request("ConfirmReceipt", consumer_name=CONSUMER, offset=60, life=plant.store.life.hex())
        place = MessagePlace("plant-a", "idmz", "x", b"c" * 16)
        for payload in (
            confirm,
            request(
                "FetchFacts",
                consumer_name=CONSUMER,
                limit=10,
                confirm={"last_offset": 60, "life": plant.store.life.hex()},
            ),
            request("FetchFacts", consumer_name=CONSUMER, limit=10, lease=0),
            request("UnregisterConsumer", consumer_name=CONSUMER),
            request("AcquireLease", stream=STREAM, producer="idmz.mes"),
            request("AppendFact", stream=STREAM, messages=[]),
            sign_request(SIGNERS["evil"], place, confirm),
            sign_request(SIGNERS["idmz"], place, confirm),  # the correlation is another one
        ):
            assert await sent(evil, payload) in {"unsigned_request", "bad_request"}, payload
        assert await sent(evil, confirm) == "unsigned_request"
        assert await sent(evil, request("GetBounds", stream=STREAM)) == "ok"
        assert plant.store.consumers.all()[0].frontier == 50
        idmz = idmz_at(broker, tmp_path)
        async with idmz.running():
            await idmz.wait_end(60)
            await wait_until_async(lambda: plant.store.consumers.all()[0].frontier == 60, "the confirmation")


async def test_a_zone_without_a_key_goes_on_unsigned(broker: Mosquitto, tmp_path: Path) -> None:
    """Without keys nothing is demanded. If signatures are required of a zone without a key, its requests are refused by
    name and nothing is lost."""
    for number, rule in enumerate(("if_present", "required")):
        policy = TrustPolicy(TRUST, {"idmz": rule})  # type: ignore[dict-item]
        plant = Node.open(broker, "plant-a", tmp_path / f"plant{number}", policy=policy)
        server = plant.serve({"idmz": [STREAM]})
        idmz = Node.open(broker, "idmz", tmp_path / f"idmz{number}")
        puller = idmz.pull("plant-a", receiver=IMPATIENT)
        await plant.append(0, 50)
        async with plant.running(), idmz.running():
            if rule == "if_present":
                await idmz.wait_end(50)
            else:
                said = puller.statistics
                await wait_until_async(lambda: "unsigned_request" in (said().lost_reason or ""), "the refusal")  # noqa: B023
                assert "unsigned_request" in server.statistics().refusals
