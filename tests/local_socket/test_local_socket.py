"""The local socket: each answer is what the store did, and wrong requests are refused."""

import asyncio
import os
import sqlite3
import struct
import threading
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import local_socket
from agent.fact_store import FactStore
from agent.fact_store.log.errors import UnknownConsumer
from agent.ingest import SourceStatistics, State, TagReading
from agent.local_socket import client
from agent.local_socket.serving import RequestHandler, open_store, server
from agent.local_socket.serving.server import CONNECTIONS_MAX
from agent.local_socket.transport import socket_address
from agent.message import Envelope, Fact, Message
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.peers import PeerSettings
from agent.settings.signing import SigningSettings
from agent.settings.store import HoldLimit, StreamSettings
from tests.signing.signers import make
from tests.support.served_store import served_store
from tests.waiting import LIMIT_S, wait_until, wait_until_async

FACT = Fact("batch:B-1", "step_completed", b'{"step":"mash"}')


def request(message_id: str = "m1", fact: Fact = FACT, zone: str = "plant-a", **asked: Any) -> local_socket.AppendFact:
    """A well-formed append."""
    return local_socket.AppendFact(
        "facts.operational", Envelope(message_id, zone, "idmz", 1_700_000_000_000), fact, **asked
    )


async def raw(folder: Path, payload: bytes) -> local_socket.Answer:
    """Send these bytes as a client might, and read the answer."""
    with socket_address(folder) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    writer.write(payload)
    (length,) = struct.unpack("<I", await reader.readexactly(4))
    answer: local_socket.Answer = msgspec.json.decode(await reader.readexactly(length), type=local_socket.Answer)
    writer.close()
    return answer


def framed(payload: bytes) -> bytes:
    """With the length in front."""
    return struct.pack("<I", len(payload)) + payload


async def test_a_message_is_stored_once_and_a_different_one_refused(tmp_path: Path) -> None:
    """Same id and content: the first offset again. Same id, other content: refused, and the log has not grown."""
    async with served_store(tmp_path) as store:
        assert await local_socket.ask(tmp_path, request()) == local_socket.Appended(1, "applied")
        assert await local_socket.ask(tmp_path, request()) == local_socket.Appended(1, "noop_already_applied")
        other = request(fact=Fact("batch:B-1", "step_completed", b"{}"))
        assert await local_socket.ask(tmp_path, other) == local_socket.Appended(1, "conflicting_duplicate")
        assert store.end_offset("facts.operational") == 1


async def test_a_lease_fences_the_instance_before(tmp_path: Path) -> None:
    """AcquireLease gives rising epochs; an append with an older one is answered with the epoch in force; a precondition
    that cannot be decided is refused by its field."""
    async with served_store(tmp_path) as store:
        acquire = local_socket.AcquireLease("facts.operational", "mes")
        assert [await local_socket.ask(tmp_path, acquire) for _ in "ab"] == [
            local_socket.LeaseAcquired(1),
            local_socket.LeaseAcquired(2),
        ]
        fenced = await local_socket.ask(tmp_path, request(producer="mes", lease_epoch=1))
        assert fenced == local_socket.Appended(0, "rejected_fenced", lease_epoch=2)
        assert await local_socket.ask(tmp_path, request(producer="mes", lease_epoch=2)) == local_socket.Appended(
            1, "applied"
        )
        for wrong, why in ((request(base_offset=1), "base_offset"), (request(producer="mes"), "lease_epoch")):
            answer = await local_socket.ask(tmp_path, wrong)
            assert isinstance(answer, local_socket.Refused)
            assert why in answer.message
        assert store.end_offset("facts.operational") == 1


async def test_a_consumer_that_reads_the_file_is_in_sync_at_the_end_only(tmp_path: Path) -> None:
    """A program that says it fetches next is seen. It is in sync where it has confirmed all; one that begins before is
    behind, and what it holds back has an age."""
    async with served_store(tmp_path):
        await local_socket.ask(tmp_path, request())
        for name, start in (("local.behind", "oldest"), ("local.end", "end")):
            asked = local_socket.RegisterConsumer(name, "facts.operational", start=start, is_fetching=True)  # type: ignore[arg-type]
            await local_socket.ask(tmp_path, asked)
        answer = await local_socket.ask(tmp_path, local_socket.ListConsumers())
        assert isinstance(answer, local_socket.Consumers)
        behind, end = answer.consumers
        assert [(one.name, one.in_sync, one.behind_facts) for one in (behind, end)] == [
            ("local.behind", False, 1),
            ("local.end", True, 0),
        ]
        assert behind.seen_unix_ms
        assert behind.held_hours is not None
        assert (end.held_bytes, end.held_hours) == (0, None)


def test_limits_of_what_peers_hold_back_apply_from_the_start(tmp_path: Path) -> None:
    """Those of node.toml, not only after a reload."""
    peer = PeerSettings("idmz", "broker", exports=("facts.operational",), hold_bytes_max=1_000_000, hold_hours_max=3)
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path), peer=(peer,))
    with open_store(settings) as store:
        assert store._writer.housekeeping.holds == {"idmz": HoldLimit(1_000_000, 3)}


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


async def test_a_consumer_is_registered_and_confirms(tmp_path: Path) -> None:
    """Registering twice is once; a confirmation moves the frontier, one beyond the log is refused and moves nothing."""
    async with served_store(tmp_path):
        await local_socket.ask(tmp_path, request())
        register = local_socket.RegisterConsumer("local.mes", "facts.operational")
        assert await local_socket.ask(tmp_path, register) == local_socket.Registered("facts.operational", 0)
        assert await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("local.mes", 1)) == local_socket.Confirmed(
            1
        )
        refused = await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("local.mes", 2))
        assert isinstance(refused, local_socket.Refused)
        assert "2" in refused.message
        assert await local_socket.ask(tmp_path, register) == local_socket.Registered("facts.operational", 1)


async def test_a_range_is_confirmed_as_a_range(tmp_path: Path) -> None:
    """Confirming offset 2 alone leaves the frontier before the missing offset 1; confirming 1 then moves it to 2."""
    async with served_store(tmp_path):
        for number in range(3):
            await local_socket.ask(tmp_path, request(f"m{number}"))
        await local_socket.ask(tmp_path, local_socket.RegisterConsumer("local.mes", "facts.operational"))
        for first, last, frontier in ((2, 2, 0), (1, 1, 2)):
            answer = await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("local.mes", last, first))
            assert answer == local_socket.Confirmed(frontier)


async def test_a_consumer_that_fetches_is_seen_and_in_sync(tmp_path: Path) -> None:
    """One that registers in order to fetch has been seen now, and is in sync if it is at the end; another is
    neither."""
    async with served_store(tmp_path):
        for name, is_fetching in (("local.mes", True), ("local.scada", False)):
            asked = local_socket.RegisterConsumer(name, "facts.operational", is_fetching=is_fetching)
            await local_socket.ask(tmp_path, asked)
        listed = await local_socket.ask(tmp_path, local_socket.ListConsumers())
        assert isinstance(listed, local_socket.Consumers)
        found = [(one.name, one.seen_unix_ms is not None, one.in_sync) for one in listed.consumers]
        assert found == [("local.mes", True, True), ("local.scada", False, False)]


@pytest.mark.parametrize(
    "wrong, why",
    [
        (request(zone="idmz"), "from_zone"),
        (request(message_id=""), "message_id"),
        (request(fact=Fact("B-1", "step_completed", b"{}")), "subject"),
        (request(fact=Fact("batch:B-1", "Step", b"{}")), "predicate"),
        (request(fact=Fact("batch:B-1", "step", b'{"b":1,"a":2}')), "canonical"),
        (local_socket.RegisterConsumer("M E S", "facts.operational"), "consumer_name"),
        (local_socket.RegisterConsumer("local.mes", "facts/operational"), "stream"),
        (local_socket.RegisterConsumer("mes", "facts.operational"), "local.mes"),
        (local_socket.RegisterConsumer("local.mes", "facts.operational", start=-1), "start"),
        (local_socket.ConfirmReceipt("nobody", 1), "nobody"),
    ],
)
async def test_a_request_that_breaks_a_rule_is_refused(tmp_path: Path, wrong: local_socket.Request, why: str) -> None:
    """The answer names the wrong field, nothing is stored, and the next request is served."""
    async with served_store(tmp_path) as store:
        refused = await local_socket.ask(tmp_path, wrong)
        assert isinstance(refused, local_socket.Refused)
        assert why in refused.message + refused.hint
        assert store.end_offset("facts.operational") == 0
        assert isinstance(await local_socket.ask(tmp_path, request()), local_socket.Appended)


@pytest.mark.parametrize(
    "payload",
    [
        framed(b"{}"),
        framed(b"\xff"),
        framed(b'{"operation":"Drop"}'),
        framed(b"[" * 5000),
        framed(b'{"operation":"ListConsumers","x":' + b"[" * 100_000),
        struct.pack("<I", 2**31),
    ],
)
async def test_bytes_that_are_no_request_are_refused(tmp_path: Path, payload: bytes) -> None:
    """Garbage, unknown operations, deep nesting and a huge length get an answer, and the next client is served."""
    async with served_store(tmp_path):
        assert isinstance(await raw(tmp_path, payload), local_socket.Refused)
        assert isinstance(await local_socket.ask(tmp_path, request()), local_socket.Appended)


def test_without_a_node_asking_fails_at_once(tmp_path: Path) -> None:
    """Without a socket the client raises at once, so that a command can open the store itself."""
    with pytest.raises(FileNotFoundError):
        asyncio.run(local_socket.ask(tmp_path, request()))


async def test_a_state_folder_may_be_deeper_than_a_sockets_path(tmp_path: Path) -> None:
    """The kernel allows a socket's path 108 bytes; a state folder may be deeper."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    async with served_store(deep):
        assert isinstance(await local_socket.ask(deep, request()), local_socket.Appended)


async def test_a_request_that_is_too_long_gets_one_answer_and_the_end(tmp_path: Path) -> None:
    """The bytes after its length could be anything, so they are not read as another request."""
    async with served_store(tmp_path):
        with socket_address(tmp_path) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(struct.pack("<I", 2**31) + bytes(1000))
        answer = await reader.read()
        (length,) = struct.unpack_from("<I", answer)
        assert len(answer) == 4 + length
        writer.close()


def test_a_silent_client_does_not_delay_the_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server stops with clients connected; they see the end of the connection, and nothing is logged."""

    async def scenario() -> None:
        async with served_store(tmp_path):
            with socket_address(tmp_path) as address:
                reader, writer = await asyncio.open_unix_connection(address)
        assert await reader.read() == b""
        writer.close()

    asyncio.run(scenario())
    assert not caplog.records


async def test_another_zones_consumer_cannot_be_confirmed_here(tmp_path: Path) -> None:
    """Otherwise its facts would be released although that zone does not have them."""
    async with served_store(tmp_path) as store:
        await local_socket.ask(tmp_path, request())
        await asyncio.wrap_future(store.consumers.register("idmz.ops", "idmz", "facts.operational", "oldest"))
        refused = await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("idmz.ops", 1))
        assert isinstance(refused, local_socket.Refused)
        assert "'idmz'" in refused.message
        assert [consumer.frontier for consumer in store.consumers.all()] == [0]


async def test_an_offset_of_a_former_epoch_confirms_nothing(tmp_path: Path) -> None:
    """A program that read before the store was restored would release facts that it never saw."""
    async with served_store(tmp_path) as store:
        await local_socket.ask(tmp_path, request())
        await local_socket.ask(tmp_path, local_socket.RegisterConsumer("local.mes", "facts.operational"))
        for epoch, frontier in (("0" * 32, 0), (store.epoch.hex(), 1)):
            answer = await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("local.mes", 1, epoch=epoch))
            assert isinstance(answer, local_socket.Confirmed) is bool(frontier)
            assert [consumer.frontier for consumer in store.consumers.all()] == [frontier]


async def test_an_epoch_that_ends_before_the_commit_confirms_nothing(tmp_path: Path) -> None:
    """The epoch was in force when the request came, and the next one is to begin in the same commit."""
    async with served_store(tmp_path) as store:
        await local_socket.ask(tmp_path, request())
        await local_socket.ask(tmp_path, local_socket.RegisterConsumer("local.mes", "facts.operational"))
        is_held, may_go = threading.Event(), threading.Event()
        store._writer.submit("hold", lambda _: (is_held.set(), may_go.wait(20)))
        await asyncio.to_thread(is_held.wait, 20)
        store.begin_epoch("an operator knows of a restore")
        asked = local_socket.ConfirmReceipt("local.mes", 1, epoch=store.epoch.hex())
        answering = asyncio.create_task(RequestHandler(store).answer(asked))
        await wait_until_async(lambda: store._writer._queue.calls.count >= 3, "the confirmation to be queued")
        may_go.set()
        answer = await answering
        assert isinstance(answer, local_socket.Refused)
        assert "has ended" in answer.message
        assert [consumer.frontier for consumer in store.consumers.all()] == [0]


async def test_a_consumer_is_removed_as_asked(tmp_path: Path) -> None:
    """One that is active by force only; its deletion begins, or is done at once. The answer shows it as it was."""
    async with served_store(tmp_path) as store:
        for name in ("local.mes", "local.scada"):
            asked = local_socket.RegisterConsumer(name, "facts.operational", is_fetching=True)
            await local_socket.ask(tmp_path, asked)
        refused = await local_socket.ask(tmp_path, local_socket.RemoveConsumer("local.mes"))
        assert isinstance(refused, local_socket.Refused)
        for name, now, state in (("local.mes", False, "deletion started"), ("local.scada", True, "deleted")):
            removed = await local_socket.ask(tmp_path, local_socket.RemoveConsumer(name, force=True, now=now))
            assert isinstance(removed, local_socket.Removed)
            assert (removed.state, removed.was.name) == (state, name)
        assert [consumer.name for consumer in store.consumers.all()] == ["local.mes"]


async def test_an_artifact_of_a_program_counts_as_ours(tmp_path: Path) -> None:
    """Its unreferenced bytes are within the quota of this zone."""
    async with served_store(tmp_path) as store:
        put = local_socket.PutObject("sha256:" + "0" * 64, 8, 0, b"some")
        assert await local_socket.ask(tmp_path, put) == local_socket.ObjectPut(4, is_complete=False)
        assert store.artifacts.unreferenced().keys() == {"plant-a"}


def test_files_of_the_store_are_private(tmp_path: Path) -> None:
    """Whatever the process allows otherwise, only the node's user reads them."""
    before = os.umask(0)
    try:
        with open_store(NodeSettings(IdentitySettings("plant-a", tmp_path / "state"))):
            made = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
            assert len(made) > 2
            assert not [(one, oct(one.stat().st_mode)) for one in made if one.stat().st_mode & 0o077]
    finally:
        os.umask(before)


def test_a_state_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    """The error says what is wrong and what to do."""
    (tmp_path / "state").write_text("")
    with pytest.raises(local_socket.StateFolderUnusable, match="Not a directory"):
        asyncio.run(local_socket.ask(tmp_path / "state", request()))


async def test_silent_clients_do_not_keep_others_out(tmp_path: Path) -> None:
    """All places are taken by clients that send nothing or half a length, which may do so for ever: each new client
    gets the place of the oldest one at once."""
    async with served_store(tmp_path):
        writers = []
        for n in range(CONNECTIONS_MAX):
            with socket_address(tmp_path) as address:
                reader, writer = await asyncio.open_unix_connection(address)
            writer.write(struct.pack("<I", 100)[: n % 5])
            writers.append((reader, writer))
        for n in range(3):
            assert isinstance(await local_socket.ask(tmp_path, request(f"m{n}")), local_socket.Appended)
        assert await writers[0][0].read() == b"", "the oldest has lost its place"
        for _, writer in writers:
            writer.close()


class SlowAnswers(RequestHandler):
    """Answers `ListConsumers` when it is told to, everything else at once."""

    def __init__(self, store: FactStore, asked: list[local_socket.Request], go_on: asyncio.Event) -> None:
        super().__init__(store)
        self.asked, self.go_on = asked, go_on

    async def answer(self, request: local_socket.Request) -> local_socket.Answer:
        if isinstance(request, local_socket.ListConsumers):
            self.asked.append(request)
            await self.go_on.wait()
        return await super().answer(request)


async def test_a_request_under_way_keeps_its_place(tmp_path: Path) -> None:
    """Clients whose requests are being carried out are never disconnected for a new one, which waits for a place."""
    asked, go_on = list[local_socket.Request](), asyncio.Event()
    handler = partial(SlowAnswers, asked=asked, go_on=go_on)
    async with served_store(tmp_path, handler), asyncio.TaskGroup() as group:
        asking = [
            group.create_task(local_socket.ask(tmp_path, local_socket.ListConsumers())) for _ in range(CONNECTIONS_MAX)
        ]
        await wait_until_async(lambda: len(asked) == CONNECTIONS_MAX, "all places to be taken")
        next_one = group.create_task(local_socket.ask(tmp_path, request()))
        await asyncio.wait([next_one], timeout=0.2)
        assert not next_one.done()
        go_on.set()
        assert isinstance(await next_one, local_socket.Appended)
        assert {type(one) for one in await asyncio.gather(*asking)} == {local_socket.Consumers}


async def test_few_clients_wait_for_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While requests are carried out in all places, so many clients wait; more are disconnected at once."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(server, "WAITING_MAX", 1)
    asked, go_on = list[local_socket.Request](), asyncio.Event()
    handler = partial(SlowAnswers, asked=asked, go_on=go_on)
    async with served_store(tmp_path, handler), asyncio.TaskGroup() as group:
        first = group.create_task(local_socket.ask(tmp_path, local_socket.ListConsumers()))
        await wait_until_async(lambda: asked, "the first request")
        with socket_address(tmp_path) as address:
            _, waiting = await asyncio.open_unix_connection(address)
            reader, writer = await asyncio.open_unix_connection(address)
        assert await reader.read() == b""
        go_on.set()
        assert isinstance(await first, local_socket.Consumers)
        for one in (waiting, writer):
            one.close()


async def test_a_request_that_waits_for_others_has_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the time for an answer, that for which the request itself may wait."""
    monkeypatch.setattr(client, "ANSWER_S_MAX", 0.0)
    asked, go_on = list[local_socket.Request](), asyncio.Event()
    handler = partial(SlowAnswers, asked=asked, go_on=go_on)
    async with served_store(tmp_path, handler), asyncio.TaskGroup() as group:
        asking = group.create_task(local_socket.ask(tmp_path, local_socket.ListConsumers(), waits_ms=20_000))
        await wait_until_async(lambda: asked, "the request")
        go_on.set()
        assert isinstance(await asking, local_socket.Consumers)
        with pytest.raises(local_socket.LocalError, match="did not answer"):
            await local_socket.ask(tmp_path, local_socket.ListConsumers())


async def test_an_answer_that_nests_too_deeply_is_no_answer(tmp_path: Path) -> None:
    """Another program at the socket cannot end a command with a traceback."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(b'{"operation":"ListConsumers","x":' + b"[" * 100_000))
        writer.close()

    with socket_address(tmp_path) as address:
        other = await asyncio.start_unix_server(talk, address)
    with pytest.raises(local_socket.LocalError):
        await local_socket.ask(tmp_path, request())
    other.close()


class LongAnswers(RequestHandler):
    """Answers that fill the buffers of a client that does not read them."""

    async def answer(self, request: local_socket.Request) -> local_socket.Answer:  # noqa: ARG002 the handler's signature
        """A megabyte."""
        return local_socket.Refused("x" * 1_000_000)


async def test_clients_that_left_take_no_place(tmp_path: Path) -> None:
    """Any number of clients come one after the other, and each is answered. After them silent clients take all places,
    and the next client gets the place of the oldest of these."""
    async with served_store(tmp_path), asyncio.timeout(LIMIT_S):
        for _ in range(CONNECTIONS_MAX + server.WAITING_MAX + 5):
            assert isinstance(await local_socket.ask(tmp_path, local_socket.ListConsumers()), local_socket.Consumers)
        silent = []
        for _ in range(CONNECTIONS_MAX):
            with socket_address(tmp_path) as address:
                silent.append(await asyncio.open_unix_connection(address))
        assert isinstance(await local_socket.ask(tmp_path, local_socket.ListConsumers()), local_socket.Consumers)
        assert await silent[0][0].read() == b""
    for _, writer in silent:
        writer.close()


async def test_unread_answers_do_not_keep_others_out(tmp_path: Path) -> None:
    """All places are taken by clients that ask and do not read: the next takes the place of the oldest and is answered.
    At the end nothing of their answers is kept: of a megabyte they get what the kernel had taken."""
    async with served_store(tmp_path, LongAnswers):
        clients = []
        for _ in range(CONNECTIONS_MAX):
            with socket_address(tmp_path) as address:
                client = await asyncio.open_unix_connection(address, limit=1024)
            client[1].write(framed(b'{"operation":"ListConsumers"}'))
            clients.append(client)
        answer = await local_socket.ask(tmp_path, local_socket.ListConsumers())
        assert isinstance(answer, local_socket.Refused)
    for reader, writer in clients:
        assert len(await reader.read()) < 1_000_000
        writer.close()


async def test_a_refusal_carries_its_hint_once(tmp_path: Path) -> None:
    """What happened and what to do are two fields without a common text."""
    async with served_store(tmp_path):
        refused = await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("nobody", 1))
        assert refused == local_socket.Refused("no consumer 'nobody'", UnknownConsumer.hint)


async def test_acks_through_the_socket(tmp_path: Path) -> None:
    """The request's acks reach the store; `queued` has its warning, and acks that the write class forbids are
    refused."""
    streams = [
        StreamSettings("facts.operational", write_class="local", acks_timeout_ms=1),
        StreamSettings("b", acks_timeout_ms=1),
    ]
    with FactStore.open(tmp_path / "facts.db", "plant-a", streams=streams) as store:
        handler = RequestHandler(store)
        refused = await handler.answer(changed(request(), acks="all"))
        assert isinstance(refused, local_socket.Refused)
        assert "write class is local" in refused.message
        queued = await handler.answer(changed(request(), stream="b", acks="all"))
        assert isinstance(queued, local_socket.Appended)
        assert (queued.outcome, queued.offset) == ("queued", 1)
        assert "none is registered" in queued.warning
        assert await handler.answer(changed(request("m2"), stream="b", acks="none")) == local_socket.Appended(
            0, "queued"
        )


def changed(one: local_socket.AppendFact, **changes: object) -> local_socket.AppendFact:
    """The same request with some fields changed."""
    return msgspec.structs.replace(one, **changes)


async def test_owner_and_group_may_open_the_socket(tmp_path: Path) -> None:
    """Others may not. What members of the group may ask for is in tests/cli/test_group_member.py."""
    async with served_store(tmp_path):
        await wait_until_async(lambda: (tmp_path / local_socket.SOCKET).stat().st_mode & 0o777 == 0o660, "the mode")


def test_an_unusable_store_is_quarantined_and_a_new_one_begun(tmp_path: Path) -> None:
    """A node starts without an operator: the file that is no store is kept under another name."""
    settings = NodeSettings(IdentitySettings("plant-a", tmp_path))
    ruined = b"no database" * 1000
    settings.node.store_file.write_bytes(ruined)
    with open_store(settings) as store:
        assert [(one.name, one.end_offset) for one in store.streams()] == [("facts.operational", 1)], (
            "the incident's fact"
        )
    assert ruined in [file.read_bytes() for file in tmp_path.iterdir()]


async def test_a_confirmed_range_is_no_prefix(tmp_path: Path) -> None:
    """What lies before the range that a consumer confirms stays unconfirmed."""
    async with served_store(tmp_path):
        for number in range(3):
            await local_socket.ask(tmp_path, request(message_id=f"m{number}"))
        await local_socket.ask(tmp_path, local_socket.RegisterConsumer("local.mes", "facts.operational"))
        second_and_third = local_socket.ConfirmReceipt("local.mes", 3, first_offset=2)
        assert await local_socket.ask(tmp_path, second_and_third) == local_socket.Confirmed(0)
        first = local_socket.ConfirmReceipt("local.mes", 1)
        assert await local_socket.ask(tmp_path, first) == local_socket.Confirmed(3)


STATISTICS = SourceStatistics(
    **{
        one.name: "" if one.type == "str" else 0
        for one in fields(SourceStatistics)
        if one.name not in ("state", "tags_bad")
    },  # type: ignore[arg-type]
    state=State.CONNECTED,
    tags_bad=3,
)


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

        def statistics(self) -> list[SourceStatistics]:
            return [replace(STATISTICS, state=State.WAITING, last_error="SourceLost: gone")]

        async def read_tags(self, name: str, names: list[str]) -> list[TagReading]:
            asked.append((name, names))
            return [TagReading("a/b", "i=1", float("nan"), 0), TagReading("a/c", "i=2", None, 0x80340000, why="no")]

    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        handler = RequestHandler(store, sources=Sources())
        found = asyncio.run(handler.answer(local_socket.RetrySource("plc")))
        assert found == local_socket.SourceRetried("waiting")
        refused = asyncio.run(handler.answer(local_socket.RetrySource("plx")))
        assert isinstance(refused, local_socket.Refused)
        assert "no source 'plx'" in refused.message
        alone = asyncio.run(RequestHandler(store).answer(local_socket.RetrySource("plc")))
        assert isinstance(alone, local_socket.Refused)
        assert "no node runs" in alone.message
        filling = asyncio.run(handler.answer(local_socket.BackfillSource("plc", 5, 9)))
        assert filling == local_socket.BackfillQueued(1)
        (entry,) = asyncio.run(handler.answer(local_socket.ListSources())).sources  # type: ignore[union-attr]
        assert (entry.state, entry.tags_bad, entry.last_value_unix_ms) == ("waiting", 3, None)
        assert entry.trouble == "SourceLost: gone"
        read = asyncio.run(handler.answer(local_socket.ReadSource("plc", ["a/b", "a/c"])))
        values = [local_socket.TagValue("a/b", "NaN", 0, ""), local_socket.TagValue("a/c", None, 0x80340000, "no")]
        assert read == local_socket.SourceRead(values)
        alone = asyncio.run(RequestHandler(store).answer(local_socket.ListSources()))
        assert isinstance(alone, local_socket.Refused)
    assert asked == ["plc", "plx", ("plc", 5, 9), ("plc", ["a/b", "a/c"])]


def test_a_node_signs_with_its_key_and_records_without_it(tmp_path: Path) -> None:
    """With key and certificate the facts of a node are signed; if the key file is gone at the next start they are
    recorded all the same, an incident says so, and the head of the start after that covers them."""
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
            found = [one.detail for one in store.incidents() if one.kind == "signing"]
            assert found == ([] if files["s.key"].exists() else found[:1])
            return [bool(one.head) for one in store.read("facts.operational", 0, 100, 2**30).batches]

    assert record("a") == [True]
    moved = files["s.key"].rename(tmp_path / "moved")
    assert record("b") == [True, False]
    moved.rename(files["s.key"])
    with open_store(settings) as store:
        (incident,) = (one for one in store.incidents() if one.kind == "signing")
        assert "facts are not signed" in incident.detail
        wait_until(lambda: store.next_head("facts.operational", store.origin, 2) is not None, "the head of the second")
        assert store.reader.verified("facts.operational", [(store.origin, 1), (store.origin, 2)]) == ["yes", "yes"]
