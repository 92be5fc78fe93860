"""Answers in a zone's name by an attacker who has taken over what carries them, over a real broker: with the
zone's TLS certificate it sees each request and answers it before the zone does."""

import json
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.replication.mqtt.carrier import Incoming
from agent.replication.mqtt.transport import Connection
from agent.replication.protocol.topics import SLOTS, request_filter, response_filter
from agent.replication.pulling import Puller, TrustPolicy
from agent.replication.pulling.receiving.pull_events import Asking
from agent.signing.certificates import SignerTrust
from agent.signing.keys import ZoneSigner
from agent.signing.messages import MessagePlace, sign_answer, split_answer
from tests.replication.nodes import IMPATIENT, STREAM, Node, access
from tests.signing.signers import make, signing_key
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

LIFE = {"begins": datetime(2020, 1, 1, tzinfo=UTC), "ends": datetime(2100, 1, 1, tzinfo=UTC)}
MADE = {zone: make(zone, **LIFE) for zone in ("plant-a", "evil")}  # type: ignore[arg-type]
SIGNERS = {zone: ZoneSigner(signing_key(one), one.der) for zone, one in MADE.items()}
TRUST = SignerTrust(pins={"plant-a": frozenset({MADE["plant-a"].sha256})})
SIGNED_ANSWER = b"\xff" * 4  # docs/developers/protocol.md, Proofs


def header(status: str, life: str, **fields: object) -> bytes:
    """An answer to FetchFacts, without an attachment."""
    common = {"protocol": "bsfg.replication", "version": "1.0", "operation": "FetchFacts"}
    text = json.dumps({**common, "status": status, "store_zone": "plant-a", "life": life, **fields}).encode()
    return struct.pack("<I", len(text)) + text


def refusal(code: str, life: str) -> bytes:
    """An error that is final."""
    return header("error", life, error={"code": code, "message": "forged", "retryable": False, "hint": ""})


def elsewhere(signed: bytes, after: int) -> bytes:
    """A page of the zone with its facts at another offset: the facts are true, so none is declined, but the facts at
    that offset would be skipped."""
    answer, _ = split_answer(signed)
    (length,) = struct.unpack_from("<I", answer)
    fields = json.loads(answer[4 : 4 + length])
    begin = after + 1
    for one in fields.get("batches", ()):
        one[:2] = [begin, begin + one[1] - one[0]]
        begin = one[1] + 1
    text = json.dumps(fields).encode()
    return struct.pack("<I", len(text)) + text + answer[4 + length :]


class Forger:
    """The attacker: answers each request at once with everything that would stop the puller or move it. It has the
    plant's TLS certificate, a signing key of another zone, and all signed answers that it has seen."""

    def __init__(self, life: str) -> None:
        self.connection: Connection | None = None
        self.seen = list[bytes]()
        self.forged = 0
        self._life = life

    def arrived(self, incoming: Incoming) -> None:
        if incoming.response_topic is None:
            if incoming.payload.startswith(SIGNED_ANSWER):
                self.seen = [*self.seen[-5:], incoming.payload]
            return
        assert self.connection is not None
        assert incoming.correlation is not None
        place = MessagePlace("plant-a", "idmz", incoming.response_topic.rpartition("/")[2], incoming.correlation)
        for payload in self._answers(incoming.payload, place):
            self.forged += 1
            self.connection.publish_answer(incoming.response_topic, payload, incoming.correlation)

    def _answers(self, request: bytes, place: MessagePlace) -> Sequence[bytes]:
        asked = json.loads(request[request.index(b'{"protocol"') :])
        after = (asked.get("trail") or [asked.get("after") or {}])[-1].get("offset", 0)
        page = {"stream": STREAM, "frontier": 0, "end_offset": after + 100}
        whole = {**page, "lives": [{"offset": after + 100, "life": self._life}]}
        whole |= {"after": {"offset": after, "life": self._life}} if after else {}
        fenced = refusal("fenced", self._life)
        return (
            fenced,
            refusal("stream_not_exported", self._life),
            refusal("busy", "ab" * 16),
            header("ok", self._life, **whole, holes=[[after + 1, after + 100, "expired"]]),
            header("ok", self._life, **whole, omitted=[[after + 1, after + 100]]),
            header("ok", "ab" * 16, **page),
            sign_answer(SIGNERS["evil"], place, fenced),
            SIGNED_ANSWER + struct.pack("<H", 1) + bytes(65) + fenced,
            b"no answer",
            *self.seen,
            *[elsewhere(one, after) for one in self.seen],
        )


@asynccontextmanager
async def forging(broker: Mosquitto, life: str) -> AsyncIterator[Forger]:
    """The attacker, connected as the plant, and as idmz to see the plant's signatures."""
    forger = Forger(life)
    seeing = await Connection.open(access(broker, "idmz"), forger.arrived)
    await seeing.subscribe([response_filter("idmz", slot) for slot in SLOTS])
    forger.connection = await Connection.open(access(broker, "plant-a"), forger.arrived)
    await forger.connection.subscribe([request_filter("plant-a")])
    try:
        yield forger
    finally:
        await forger.connection.close()
        await seeing.close()


def pulling(broker: Mosquitto, folder: Path, policy: TrustPolicy | None = None) -> tuple[Node, Puller]:
    """The node of idmz with its pull of the plant."""
    idmz = Node.open(broker, "idmz", folder / "idmz", policy=policy)
    return idmz, idmz.pull("plant-a", receiver=IMPATIENT)


@pytest.mark.parametrize("rule", ["required", "if_present"])
async def test_a_stranger_stops_no_pull_in_the_peers_name(broker: Mosquitto, tmp_path: Path, rule: str) -> None:
    """The attacker answers each request first: fenced, another life, holes, an empty log, no answer, true facts at
    other offsets; unsigned, signed by another zone, or signed by the plant for another request. All of it is counted;
    nothing fences the puller, moves its position or restarts it, and the plant's own answers bring every fact. Without
    a rule this holds once the plant has signed facts."""
    plant = Node.open(broker, "plant-a", tmp_path / "plant", signer=SIGNERS["plant-a"])
    plant.serve({"idmz": [STREAM]})
    idmz, puller = pulling(broker, tmp_path, TrustPolicy(TRUST, {"plant-a": rule}))  # type: ignore[dict-item]
    await plant.append(0, 50)
    async with plant.running(), idmz.running():
        await idmz.wait_end(50)
        async with forging(broker, plant.store.life.hex()) as forger:
            await wait_until_async(lambda: forger.seen and forger.forged > 50, "forged and replayed answers")
            for number in range(50, 55):
                await plant.append(number, 1)
                await idmz.wait_end(number + 1)
            consumers = plant.store.consumers
            await wait_until_async(lambda: consumers.all()[0].frontier == 55, "the confirmation")
            statistics = puller.statistics()
            assert statistics.counters.unproven > 50
            assert statistics.asking is not Asking.FENCED
            assert (statistics.offset, statistics.counters.restarts) == (55, 0)
        assert idmz.store.reader.incidents() == []
        await wait_until_async(lambda: puller.statistics().lost_reason is None, "the pull to be well")
    for node in (plant, idmz):
        node.store.close()


async def test_without_keys_a_stranger_can_stop_a_pull(broker: Mosquitto, tmp_path: Path) -> None:
    """This shows the need for signatures: without a key of the plant, and none demanded, the first forged answer fences
    the puller permanently."""
    plant = Node.open(broker, "plant-a", tmp_path / "plant")
    plant.serve({"idmz": [STREAM]})
    idmz, puller = pulling(broker, tmp_path)
    await plant.append(0, 50)
    async with plant.running(), idmz.running(), forging(broker, plant.store.life.hex()):
        await wait_until_async(lambda: puller.statistics().asking is Asking.FENCED, "the puller to be fenced")
    for node in (plant, idmz):
        node.store.close()


async def test_a_peer_that_cannot_sign_is_named(broker: Mosquitto, tmp_path: Path) -> None:
    """If signatures are demanded of a peer without a key, its pull reports that with what to do, and retries."""
    plant = Node.open(broker, "plant-a", tmp_path / "plant")
    plant.serve({"idmz": [STREAM]})
    idmz, puller = pulling(broker, tmp_path, TrustPolicy(TRUST, {"plant-a": "required"}))
    async with plant.running(), idmz.running():
        await wait_until_async(lambda: puller.statistics().lost_reason is not None, "the reason")
        reason = puller.statistics().lost_reason or ""
        assert reason.startswith(
            "unproven_answer: plant-a: an answer (FetchFacts) is not proven: plant-a did not sign it"
        )
        assert "bsfg pki signer" in reason
        await wait_until_async(lambda: puller.statistics().counters.unproven > 1, "another try")
    for node in (plant, idmz):
        node.store.close()
