"""Artifacts over a real broker: complete before the fact that refers to them, or reported as missing."""

import asyncio
import hashlib
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from agent.fact_store.core.errors import ArtifactMissing
from agent.message import Envelope, Fact, Message, canonical_json
from agent.replication.protocol.errors import PeerRefused
from agent.replication.protocol.messages import CHUNK_BYTES_MAX, GetObject, ObjectAnswer, PutAnswer, PutObject
from agent.replication.pulling import artifact_pull
from agent.replication.pulling.anti_entropy import AntiEntropy, AntiEntropySettings
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system

CHUNK = 200_000
ELSEWHERE = "facts.elsewhere"
SMALL = b"a small report"
LARGE = random.Random(18).randbytes(8 * 1024 * 1024 + 5)
LARGE_CHUNKS = -(-len(LARGE) // CHUNK_BYTES_MAX)


def name_of(blob: bytes) -> str:
    """The digest of an artifact."""
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def put(node: Node, blob: bytes) -> None:
    """Put an artifact at a node, as a local program does."""
    for offset in range(0, len(blob), CHUNK):
        node.store.artifacts.put_chunk(node.store.zone, name_of(blob), len(blob), offset, blob[offset : offset + CHUNK])


async def file_report(node: Node, blob: bytes, stream: str = STREAM) -> None:
    """A fact that refers to an artifact."""
    content = canonical_json({"key": "report.pdf", "digest": name_of(blob), "size": len(blob)})
    envelope = Envelope(f"report-{name_of(blob)[7:]}", node.zone, "*", 1, object_media_type="application/pdf")
    message = Message(envelope, Fact("batch:B1", "report_filed", content))
    await asyncio.wrap_future(node.store.appends.append_message(stream, message))


def held(node: Node, blob: bytes) -> bool:
    """Whether the whole artifact is at a node, byte for byte."""
    found, size = b"", 1
    while len(found) < size:
        try:
            size, data = node.store.artifacts.read_chunk(name_of(blob), len(found), CHUNK)
        except ArtifactMissing:
            return False
        found += data
    return found == blob


def coming(node: Node) -> int:
    """The received bytes of an incomplete artifact."""
    return sum(
        file.stat().st_size
        for file in (node.store.path.parent / "artifacts" / "partial").glob("*/*")
        if file.stat().st_nlink == 1
    )


def has_come(node: Node, size: int) -> bool:
    """Whether so many bytes have arrived."""
    return coming(node) >= size


def asked_for(node: Node) -> int:
    """The chunks that were requested from a node."""
    assert node.server is not None
    return node.server.statistics().requests.get("GetObject", 0)


def test_an_artifact_arrives_before_its_fact_despite_a_broker_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 MiB put at the plant are complete at the enterprise when the fact arrives; the broker is killed in between,
    and at no node is the fact stored before its artifact."""
    monkeypatch.setattr(artifact_pull, "ANSWER_S", 3.0)  # the answer lost with the broker is waited for

    async def scenario(broker: Mosquitto) -> None:
        plant, idmz, enterprise = (
            Node.open(broker, zone, tmp_path / zone) for zone in ("plant-a", "idmz", "enterprise")
        )
        plant.serve({"idmz": [STREAM]})
        idmz.serve({"enterprise": [STREAM]})
        idmz.pull("plant-a")
        enterprise.pull("idmz", relays=["plant-a"])
        put(plant, LARGE)
        await file_report(plant, LARGE)
        early = list[str]()

        def committed(node: Node, ends: Mapping[str, int]) -> None:
            if ends.get(STREAM) and not held(node, LARGE):
                early.append(node.zone)

        for node in (idmz, enterprise):
            node.store.on_commit(partial(committed, node))
        async with plant.running(), idmz.running(), enterprise.running():
            await wait_until_async(partial(has_come, idmz, len(LARGE) // 2), "half of it")
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            await enterprise.wait_end(1)
        assert asked_for(plant) <= LARGE_CHUNKS + 3, "it restarted"
        assert held(enterprise, LARGE)
        assert early == []
        assert enterprise.store.artifacts.streams(name_of(LARGE)) == [STREAM]
        assert not [node for node in (plant, idmz, enterprise) if node.store.reader.incidents()]

    with Mosquitto.started(tmp_path / "broker") as broker:
        asyncio.run(scenario(broker))


async def test_a_comparison_brings_what_was_missing(broker: Mosquitto, tmp_path: Path) -> None:
    """An artifact that the peer did not have when its fact came is reported as missing by each comparison, and fetched
    by the first repair after it was put there again; so is one whose file was lost here."""
    plant, idmz = Node.open(broker, "plant-a", tmp_path / "plant-a"), Node.open(broker, "idmz", tmp_path / "idmz")
    plant.serve({"idmz": [STREAM]})
    idmz.pull("plant-a")
    settings = AntiEntropySettings("plant-a", (STREAM,), frozenset({"plant-a"}), frozenset(), 0)
    comparer = AntiEntropy(ThrottledRequester(idmz.requester("plant-a")), idmz.store, settings)
    put(plant, SMALL)
    await file_report(plant, SMALL)
    for file in (tmp_path / "plant-a" / "artifacts").glob("??/*"):
        file.unlink()
    async with plant.running(), idmz.running():
        await idmz.wait_end(1)
        missing = [(await comparer.compare(STREAM, repair=repair)).missing_artifacts for repair in (False, True)]
        put(plant, SMALL)
        missing += [(await comparer.compare(STREAM, repair=repair)).missing_artifacts for repair in (False, True)]
        assert held(idmz, SMALL)
        for file in (tmp_path / "idmz" / "artifacts").glob("??/*"):
            file.unlink()
        missing += [(await comparer.compare(STREAM, repair=repair)).missing_artifacts for repair in (False, True)]
        assert held(idmz, SMALL)
    assert missing == [1, 1, 1, 0, 1, 0]


async def test_access_to_artifacts(broker: Mosquitto, tmp_path: Path) -> None:
    """A zone may get an artifact if it may read a fact that refers to it, and may put one, in chunks, if it may append;
    each refusal has its own code."""
    settings = StoreSettings(artifact_bytes_max=1000)
    plant, idmz = (
        Node.open(broker, "plant-a", tmp_path / "plant-a", settings),
        Node.open(broker, "idmz", tmp_path / "idmz"),
    )
    plant.serve({"idmz": [STREAM]}, {"idmz": [STREAM]})
    asker = idmz.requester("plant-a")

    async def code(request: GetObject | PutObject) -> str:
        with pytest.raises(PeerRefused) as caught:
            await asker.ask(request, 5)
        return caught.value.code

    async with plant.running(), idmz.running():
        digest, size = name_of(SMALL), len(SMALL)
        for offset, data, received in ((0, SMALL[:4], 4), (9, SMALL[9:], 4), (0, b"", 4), (4, SMALL[4:], size)):
            answer = (await asker.ask(PutObject(digest=digest, size=size, offset=offset, data=data), 5)).answer
            assert isinstance(answer, PutAnswer)
            assert (answer.received, answer.is_complete) == (received, received == size)
        assert await code(GetObject(digest=digest)) == "unknown_artifact"
        await file_report(plant, SMALL)
        reply = await asker.ask(GetObject(digest=digest, offset=2), 5)
        assert isinstance(reply.answer, ObjectAnswer)
        assert (reply.answer.size, reply.batches) == (size, [SMALL[2:]])
        assert (await asker.ask(GetObject(digest=digest, offset=size), 5)).batches == []
        assert await code(PutObject(digest=name_of(b"x"), size=1, data=b"y")) == "artifact_mismatch"
        assert await code(PutObject(digest=name_of(b"x"), size=1001)) == "artifact_too_large"
        assert await code(PutObject(digest=name_of(b"x"), size=5, offset=4, data=b"yy")) == "bad_request"
        assert await code(GetObject(digest=digest, bytes_max=10)) == "limit_out_of_range"
