"""The local socket: each answer is what the store did, and wrong requests are refused. Its store is opened with the
limits, the keys and the signing of node.toml, and never without a store."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent import local_socket
from agent.batch import Origin
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import UnknownConsumer
from agent.ingest import TagReading
from agent.local_socket.serving import RequestHandler, open_store
from agent.message import Envelope, Fact, Message
from agent.replication.protocol.messages import (
    AcquireLease,
    ConfirmReceipt,
    ErrorAnswer,
    FetchFacts,
    GetLatest,
    PutObject,
)
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import PeerSettings
from agent.settings.signing import SigningSettings
from agent.settings.store import StreamSettings, ZoneLimit
from tests.local_socket.making import STREAM, answer_to, appended, refusal_of, request
from tests.signing.signers import make
from tests.support.served_store import served_store
from tests.waiting import wait_until_async


def fetch(consumer: str, limit: int = 100, **asked: Any) -> FetchFacts:
    """A fetch, of all that is there."""
    return FetchFacts(consumer_name=consumer, stream=STREAM, limit=limit, **asked)


def asked_for(folder: Path, consumer: str) -> bool:
    """Whether the store has a consumer."""
    with closing(StoreReader(folder / "facts.db")) as reader:
        return any(known.name == consumer for known in reader.consumers())


async def test_a_message_is_stored_once_and_a_different_one_refused(tmp_path: Path) -> None:
    """Same id and content: the first offset again. Same id, other content: refused, and the log has not grown."""
    async with served_store(tmp_path) as store:
        other = request(fact=Fact("batch:B-1", "step_completed", b"{}"))
        assert await appended(tmp_path, request(), request(), other) == [
            *(("applied", 1), ("noop_already_applied", 1), ("conflicting_duplicate", 1))
        ]
        assert store.end_offset(STREAM) == 1


async def test_a_message_may_be_larger_than_one_of_a_peer(tmp_path: Path) -> None:
    """No broker limits it: 256 KiB, as the store does."""
    large = Fact("batch:B-1", "step_completed", b'"%s"' % (b"x" * (256 * 1024 - 2)))
    larger = Fact("batch:B-1", "step_completed", b'"%s"' % (b"x" * 256 * 1024))
    async with served_store(tmp_path):
        assert await appended(tmp_path, request(fact=large)) == [("applied", 1)]
        assert "object_json" in (await refusal_of(tmp_path, request("m2", fact=larger))).message


async def test_a_lease_fences_the_instance_before(tmp_path: Path) -> None:
    """AcquireLease gives rising epochs; an append with an older one is answered with the epoch in force; a precondition
    that cannot be decided is refused by its field."""
    async with served_store(tmp_path) as store:
        acquire = AcquireLease(stream=STREAM, producer="mes")
        assert [(await answer_to(tmp_path, acquire)).lease_epoch for _ in "ab"] == [1, 2]
        (fenced,) = (await answer_to(tmp_path, request(producer="mes", lease_epoch=1))).outcomes
        assert (fenced.outcome, fenced.lease_epoch) == ("rejected_fenced", 2)
        assert await appended(tmp_path, request(producer="mes", lease_epoch=2)) == [("applied", 1)]
        for wrong, why in ((request(base_offset=1), "base_offset"), (request(producer="mes"), "lease_epoch")):
            assert why in (await refusal_of(tmp_path, wrong)).message
        assert store.end_offset(STREAM) == 1


async def test_a_consumer_is_in_sync_at_the_end_only(tmp_path: Path) -> None:
    """A program that fetches is seen, one that was only registered is not. It is in sync where its
    fetch reached the end; one that has read less is behind, and what it holds back has an age."""
    async with served_store(tmp_path):
        await appended(tmp_path, request(), request("m2"))
        await answer_to(tmp_path, local_socket.RegisterConsumer("local.other", STREAM, "end"))
        for name, start in (("local.behind", "oldest"), ("local.end", "end")):
            await answer_to(tmp_path, fetch(name, limit=1, start=start))
        behind, end, other = (await answer_to(tmp_path, local_socket.ListConsumers())).consumers
        assert [
            (consumer.name, consumer.zone, consumer.in_sync, consumer.behind_facts) for consumer in (behind, end)
        ] == [
            ("local.behind", "local", False, 2),
            ("local.end", "local", True, 0),
        ]
        assert (bool(behind.seen_unix_ms), other.seen_unix_ms, other.in_sync) == (True, None, False)
        assert behind.held_hours is not None
        assert (end.held_bytes, end.held_hours) == (0, None)


async def test_a_consumer_is_registered_once_and_confirms_a_range(tmp_path: Path) -> None:
    """Registering twice is once. Confirming offset 2 alone leaves the frontier before the missing offset 1; confirming
    1 then moves it to 2. Nothing of another log is confirmed."""
    async with served_store(tmp_path) as store:
        await appended(tmp_path, *(request(f"m{number}") for number in range(3)))
        register = local_socket.RegisterConsumer("local.mes", STREAM)
        assert await answer_to(tmp_path, register) == local_socket.Registered(STREAM, 0)
        life = store.life.hex()
        for first, last, of, frontier in ((2, 2, life, 0), (1, 3, "0" * 32, 0), (1, 1, life, 2)):
            confirm = ConfirmReceipt(consumer_name="local.mes", offset=last, first_offset=first, life=of)
            assert (await answer_to(tmp_path, confirm)).cursor_advanced_to == frontier
        assert await answer_to(tmp_path, register) == local_socket.Registered(STREAM, 2)


async def test_a_fetch_waits_for_facts_and_the_newer_one_wins(tmp_path: Path) -> None:
    """A fetch at the end is answered by the next commit. A second one of the same consumer takes its place, and the
    first is told so."""
    async with served_store(tmp_path), asyncio.TaskGroup() as group:
        first = group.create_task(refusal_of(tmp_path, fetch("local.mes", wait_ms=60_000)))
        await wait_until_async(lambda: asked_for(tmp_path, "local.mes"), "the first fetch")
        second = group.create_task(answer_to(tmp_path, fetch("local.mes", wait_ms=60_000)))
        assert (await first).code == "busy"
        await appended(tmp_path, request())
        assert [(begin, end) for begin, end, _ in (await second).batches] == [(1, 1)]


async def test_two_instances_of_a_consumer_fence_each_other(tmp_path: Path) -> None:
    """The instance is what the request names, on any connection; the older of two is fenced."""
    async with served_store(tmp_path):
        claimed, leases = fetch("local.mes", lease=0), list[int]()
        for instance in ("one", "two", "two"):
            reply = await local_socket.ask(tmp_path, claimed, instance=instance)
            leases.append(reply.answer.lease)  # type: ignore[attr-defined]
        assert leases == [leases[0], leases[0] + 1, leases[0] + 1]
        late = await local_socket.ask(tmp_path, fetch("local.mes", lease=leases[0]), instance="one")
        assert isinstance(late.answer, ErrorAnswer)
        assert late.answer.error.code == "fenced"


@pytest.mark.parametrize(
    "wrong, why",
    [
        (request(zone="idmz"), "from_zone"),
        (request(message_id=""), "message_id"),
        (request(fact=Fact("B-1", "step_completed", b"{}")), "subject"),
        (request(fact=Fact("batch:B-1", "Step", b"{}")), "predicate"),
        (local_socket.RegisterConsumer("M E S", STREAM), "consumer_name"),
        (local_socket.RegisterConsumer("local.mes", "facts/operational"), "stream"),
        (local_socket.RegisterConsumer("mes", STREAM), "local.mes"),
        (local_socket.RegisterConsumer("local.mes", STREAM, start=-1), "start"),
        (ConfirmReceipt(consumer_name="local.nobody", offset=1, life="0" * 32), "no consumer 'local.nobody'"),
        (fetch("mes"), "local.<name>"),
        (GetLatest(stream=STREAM), "not served"),
    ],
)
async def test_a_request_that_breaks_a_rule_is_refused(tmp_path: Path, wrong: Any, why: str) -> None:
    """The answer names the wrong field, nothing is stored, and the next request is served. What happened and what to do
    are two fields without a common text."""
    async with served_store(tmp_path) as store:
        refused = await refusal_of(tmp_path, wrong)
        assert why in refused.message + refused.hint
        assert refused.hint not in refused.message or not refused.hint
        assert store.end_offset(STREAM) == 0
        assert await appended(tmp_path, request()) == [("applied", 1)]


async def test_another_zones_consumer_cannot_be_confirmed_here(tmp_path: Path) -> None:
    """Otherwise its facts would be released although that zone does not have them."""
    async with served_store(tmp_path) as store:
        await appended(tmp_path, request())
        for name, zone in (("idmz.ops", "local"), ("local.ops", "idmz")):  # by its name, and by its zone
            await asyncio.wrap_future(store.consumers.register(name, zone, STREAM, "oldest"))
            confirm = ConfirmReceipt(consumer_name=name, offset=1, life=store.life.hex())
            refused = await refusal_of(tmp_path, confirm)
            assert (refused.code, refused.hint) == ("consumer_not_yours", "name your consumers local.<name>")
        assert [consumer.frontier for consumer in store.consumers.all()] == [0, 0]


async def test_a_consumer_is_removed_as_asked(tmp_path: Path) -> None:
    """One that is active by force only; its deletion begins, or is done at once. The answer shows it as it was."""
    async with served_store(tmp_path) as store:
        for name in ("local.mes", "local.scada"):
            await answer_to(tmp_path, fetch(name))
        await refusal_of(tmp_path, local_socket.RemoveConsumer("local.mes"))
        for name, now, state in (("local.mes", False, "deletion started"), ("local.scada", True, "deleted")):
            removed = await answer_to(tmp_path, local_socket.RemoveConsumer(name, force=True, now=now))
            assert (removed.state, removed.was.name) == (state, name)
        assert [consumer.name for consumer in store.consumers.all()] == ["local.mes"]


async def test_an_artifact_of_a_program_counts_as_local(tmp_path: Path) -> None:
    """Its unreferenced bytes are within a quota of their own."""
    async with served_store(tmp_path) as store:
        put = await answer_to(tmp_path, PutObject(digest="sha256:" + "0" * 64, size=8, data=b"some"))
        assert (put.received, put.is_complete) == (4, False)
        assert store.artifacts.unreferenced().keys() == {"local"}


async def test_acks_through_the_socket(tmp_path: Path) -> None:
    """The request's acks reach the store; `queued` has its warning, and acks that the write class forbids are
    refused."""
    streams = [StreamSettings(STREAM, write_class="local", acks_timeout_ms=1), StreamSettings("b", acks_timeout_ms=1)]
    with FactStore.open(tmp_path / "facts.db", "plant-a", streams=streams) as store:
        handler = RequestHandler(store)
        refused: Any = (await handler.answer(request(acks="all"))).answer
        assert "write class is local" in refused.error.message
        queued: Any = (await handler.answer(request(stream="b", acks="all"))).answer
        assert [(entry.outcome, entry.offset) for entry in queued.outcomes] == [("queued", 1)]
        assert "none is registered" in queued.outcomes[0].warning
        unsure: Any = (await handler.answer(request("m2", stream="b", acks="none"))).answer
        assert [(entry.outcome, entry.offset) for entry in unsure.outcomes] == [("queued", 0)]


def answered(handler: RequestHandler, asked: local_socket.Request) -> Any:
    """The answer of a handler."""
    return asyncio.run(handler.answer(asked)).answer


def test_a_source_is_asked_for_by_name(tmp_path: Path) -> None:
    """The name reaches the sources, and their answer or refusal the caller; without a node, the refusal says so."""
    asked = list[object]()

    class Sources:
        def retry(self, name: str) -> str:
            asked.append(name)
            if name != "plc":
                raise UnknownConsumer(f"no source {name!r}")
            return "waiting"

        def backfill(self, name: str, first_ns: int, last_ns: int) -> int:
            asked.append((name, first_ns, last_ns))
            return 1

        async def read_tags(self, name: str, names: list[str]) -> list[TagReading]:
            asked.append((name, names))
            return [TagReading("a/b", "i=1", float("nan"), 0), TagReading("a/c", "i=2", None, 0x80340000, why="no")]

    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        handler = RequestHandler(store, sources=Sources())
        found = answered(handler, local_socket.RetrySource("plc"))
        assert found == local_socket.SourceRetried("waiting")
        refused = answered(handler, local_socket.RetrySource("plx"))
        assert isinstance(refused, ErrorAnswer)
        assert "no source 'plx'" in refused.error.message
        alone = answered(RequestHandler(store), local_socket.RetrySource("plc"))
        assert isinstance(alone, ErrorAnswer)
        assert "no node runs" in alone.error.message
        filling = answered(handler, local_socket.BackfillSource("plc", 5, 9))
        assert filling == local_socket.BackfillQueued(1)
        read = answered(handler, local_socket.ReadSource("plc", ["a/b", "a/c"]))
        values = [local_socket.TagValue("a/b", "NaN", 0, ""), local_socket.TagValue("a/c", None, 0x80340000, "no")]
        assert read == local_socket.SourceRead(values)
    assert asked == ["plc", "plx", ("plc", 5, 9), ("plc", ["a/b", "a/c"])]


def test_limits_of_what_peers_hold_back_apply_from_the_start(tmp_path: Path) -> None:
    """Those of node.toml, not only after a reload."""
    peer = PeerSettings("idmz", "broker", exports=("facts.operational",), hold_bytes_max=1_000_000, hold_hours_max=3)
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path), peer=(peer,))
    with open_store(settings) as store:
        assert store._writer.committer.limits.holds == {"idmz": ZoneLimit(1_000_000, 3, zone="idmz")}


def test_a_command_gives_the_store_the_compromised_keys(tmp_path: Path) -> None:
    """Also without a node: what a command stores after that is judged by readers of the file."""
    listed = tmp_path / "compromised.toml"
    listed.write_text("[[compromised]]\nkey_id = '0011223344556677'\nsince = 2026-11-22T10:00:00Z\n")
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path), signing=SigningSettings(compromised_file=listed))
    with open_store(settings):
        pass
    with closing(sqlite3.connect(settings.node.store_file)) as outside:
        found = outside.execute("SELECT hex(key_id), since_unix_ms FROM compromised").fetchall()
    assert found == [("0011223344556677", 1_795_341_600_000)]


def test_an_unusable_store_is_quarantined_and_a_new_one_begun(tmp_path: Path) -> None:
    """A node starts without an operator: the file that is no store is kept under another name."""
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path))
    ruined = b"no database" * 1000
    settings.node.store_file.write_bytes(ruined)
    with open_store(settings) as store:
        assert [(stream.name, stream.end_offset) for stream in store.streams()] == [("facts.operational", 1)], (
            "the incident's fact"
        )
    assert ruined in [file.read_bytes() for file in tmp_path.iterdir()]


def places(store: FactStore) -> list[tuple[Origin, int]]:
    """The first two facts, each of another life."""
    found = [batch.batch.header for batch in store.read("facts.operational", 0, 100, 2**30).batches]
    return [(header.origin, header.first_sequence) for header in found[:2]]


def test_a_node_signs_with_its_key_and_records_without_it(tmp_path: Path) -> None:
    """With key and certificate the facts of a node are signed; if the key file is gone at the next start they are
    recorded all the same, an incident says so, and the next signed batch proves them."""
    made = make("plant-a")
    files = {name: tmp_path / name for name in ("s.key", "s.pem")}
    files["s.key"].touch(mode=0o600)
    files["s.key"].write_bytes(made.key_pem)
    files["s.pem"].write_bytes(made.pem)
    signing = SigningSettings(files["s.key"], files["s.pem"], compromised_file=tmp_path / "none.toml")
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path), signing=signing)

    def record(name: str) -> list[bool]:
        with open_store(settings) as store:
            fact = Fact("order:line1/77", "order_released", b"1")
            message = Message(Envelope(name, "plant-a", "*", 1_700_000_000_000), fact)
            store.appends.append_message("facts.operational", message).result()
            is_impaired = any(incident.kind == "signing" for incident in store.reader.incidents())
            assert is_impaired is (name != "a")
            return [bool(batch.batch.record) for batch in store.read("facts.operational", 0, 100, 2**30).batches]

    assert record("a") == [True]
    moved = files["s.key"].rename(tmp_path / "moved")
    assert record("b") == [True, False]
    moved.rename(files["s.key"])
    with open_store(settings) as store:
        (incident,) = (incident for incident in store.reader.incidents() if incident.kind == "signing")
        assert "facts are not signed" in incident.detail
        assert store.reader.verified("facts.operational", places(store)) == ["yes", "no"]
    assert record("c") == [True, False, True]
    with open_store(settings) as store:
        assert store.reader.verified("facts.operational", places(store)) == ["yes", "yes"]
