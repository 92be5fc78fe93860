"""The clients of the local socket: their places, their bytes, and their end."""

import asyncio
import struct
from functools import partial
from pathlib import Path

import pytest

from agent import local_socket
from agent.fact_store import FactStore
from agent.local_socket import client
from agent.local_socket.serving import RequestHandler, server
from agent.local_socket.serving.server import CONNECTIONS_MAX
from agent.local_socket.transport import socket_address
from agent.replication.protocol.messages import ErrorAnswer, FetchFacts, GetBounds, ListStreams
from tests.local_socket.making import answer_to, appended, connected, framed, raw, request, worded
from tests.support.served_store import served_store
from tests.waiting import LIMIT_S, wait_until_async


@pytest.mark.parametrize(
    "payload",
    [
        framed(b"{}"),
        framed(b"\xff"),
        framed(worded("Drop")),
        framed(b"[" * 5000),
        framed(worded("ListConsumers", b',"x":' + b"[" * 100_000)),
        struct.pack("<I", 2**31),
    ],
)
async def test_bytes_that_are_no_request_are_refused(tmp_path: Path, payload: bytes) -> None:
    """Garbage, unknown operations, deep nesting and a huge length get an answer, and the next client is served."""
    async with served_store(tmp_path):
        assert isinstance(await raw(tmp_path, payload), ErrorAnswer)
        assert (await appended(tmp_path, request()))[0][0] == "applied"


def test_without_a_node_asking_fails_at_once(tmp_path: Path) -> None:
    """Without a socket the client raises at once, so that a command can open the store itself."""
    with pytest.raises(FileNotFoundError):
        asyncio.run(local_socket.ask(tmp_path, request()))


async def test_a_state_folder_may_be_deeper_than_a_sockets_path(tmp_path: Path) -> None:
    """The kernel allows a socket's path 108 bytes; a state folder may be deeper."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    async with served_store(deep):
        assert (await appended(deep, request()))[0][0] == "applied"


async def test_a_request_that_is_too_long_gets_one_answer_and_the_end(tmp_path: Path) -> None:
    """The bytes after its length could be anything, so they are not read as another request."""
    async with served_store(tmp_path):
        reader, writer = await connected(tmp_path)
        writer.write(struct.pack("<I", 2**31) + bytes(1000))
        answer = await reader.read()
        (length,) = struct.unpack_from("<I", answer)
        assert len(answer) == 4 + length
        writer.close()


def test_a_silent_client_does_not_delay_the_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server stops with clients connected; they see the end of the connection, and nothing is logged."""

    async def scenario() -> None:
        async with served_store(tmp_path):
            reader, writer = await connected(tmp_path)
        assert await reader.read() == b""
        writer.close()

    asyncio.run(scenario())
    assert not caplog.records


def test_a_state_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    """The error says what is wrong and what to do."""
    (tmp_path / "state").write_text("")
    with pytest.raises(local_socket.StateFolderUnusable, match="Not a directory"):
        asyncio.run(local_socket.ask(tmp_path / "state", request()))


class SlowAnswers(RequestHandler):
    """Answers `ListConsumers` when it is told to, everything else at once."""

    def __init__(self, store: FactStore, asked: list[local_socket.AnyRequest], go_on: asyncio.Event) -> None:
        super().__init__(store)
        self.asked, self.go_on = asked, go_on

    async def answer(self, request: local_socket.AnyRequest, instance: str = "") -> local_socket.LocalReply:
        if isinstance(request, local_socket.ListConsumers):
            self.asked.append(request)
            await self.go_on.wait()
        return await super().answer(request, instance)


async def test_a_request_under_way_keeps_its_place(tmp_path: Path) -> None:
    """Clients whose requests are being carried out are never disconnected for a new one, which waits for a place."""
    asked, go_on = list[local_socket.AnyRequest](), asyncio.Event()
    handler = partial(SlowAnswers, asked=asked, go_on=go_on)
    async with served_store(tmp_path, handler), asyncio.TaskGroup() as group:
        asking = [group.create_task(answer_to(tmp_path, local_socket.ListConsumers())) for _ in range(CONNECTIONS_MAX)]
        await wait_until_async(lambda: len(asked) == CONNECTIONS_MAX, "all places to be taken")
        next_one = group.create_task(appended(tmp_path, request()))
        await asyncio.wait([next_one], timeout=0.2)
        assert not next_one.done()
        go_on.set()
        assert await next_one == [("applied", 1)]
        assert {type(answer) for answer in await asyncio.gather(*asking)} == {local_socket.Consumers}


async def test_few_clients_wait_for_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While requests are carried out in all places, so many clients wait; more are disconnected at once."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(server, "WAITING_MAX", 1)
    asked, go_on = list[local_socket.AnyRequest](), asyncio.Event()
    handler = partial(SlowAnswers, asked=asked, go_on=go_on)
    async with served_store(tmp_path, handler), asyncio.TaskGroup() as group:
        first = group.create_task(answer_to(tmp_path, local_socket.ListConsumers()))
        await wait_until_async(lambda: asked, "the first request")
        _, waiting = await connected(tmp_path)
        reader, writer = await connected(tmp_path)
        assert await reader.read() == b""
        go_on.set()
        assert isinstance(await first, local_socket.Consumers)
        for stream in (waiting, writer):
            stream.close()


async def test_few_members_of_the_group_wait_for_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no place is free, no more of them wait than may have one: together they would take the places next, and be
    in the way of the node's user."""
    asked, go_on = list[local_socket.AnyRequest](), asyncio.Event()
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(server, "LOOKERS_MAX", 1)
    monkeypatch.setattr(server, "_is_own", lambda _: not asked)
    async with served_store(tmp_path, partial(SlowAnswers, asked=asked, go_on=go_on)), asyncio.TaskGroup() as group:
        first = group.create_task(answer_to(tmp_path, local_socket.ListConsumers()))
        await wait_until_async(lambda: asked, "the first request")
        _, waiting = await connected(tmp_path)
        reader, writer = await connected(tmp_path)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
        go_on.set()
        assert isinstance(await first, local_socket.Consumers)
        for stream in (waiting, writer):
            stream.close()


async def test_an_idle_member_of_the_group_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of a member that keeps its connections does not shut the page out; an idle one of the node's user
    stays."""
    monkeypatch.setattr(server, "LOOKERS_MAX", 1)
    owns = iter([True, False, False])
    monkeypatch.setattr(server, "_is_own", lambda _: next(owns))
    async with served_store(tmp_path):
        own, own_writer = await connected(tmp_path)
        reader, writer = await connected(tmp_path)
        assert isinstance(await answer_to(tmp_path, local_socket.ListConsumers()), local_socket.Consumers)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
        assert not own.at_eof()
        for stream in (own_writer, writer):
            stream.close()


async def test_a_request_that_waits_for_others_has_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the time for an answer, that for which the request itself may wait."""
    monkeypatch.setattr(client, "ANSWER_S_MAX", 0.0)
    asked, go_on = list[local_socket.AnyRequest](), asyncio.Event()
    handler = partial(SlowAnswers, asked=asked, go_on=go_on)
    async with served_store(tmp_path, handler), asyncio.TaskGroup() as group:
        asking = group.create_task(local_socket.ask(tmp_path, local_socket.ListConsumers(), waits_ms=20_000))
        await wait_until_async(lambda: asked, "the request")
        go_on.set()
        assert isinstance((await asking).answer, local_socket.Consumers)
        with pytest.raises(local_socket.LocalError, match="did not answer"):
            await answer_to(tmp_path, local_socket.ListConsumers())


async def test_an_answer_that_nests_too_deeply_is_no_answer(tmp_path: Path) -> None:
    """Another program at the socket cannot end a command with a traceback."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(framed(worded("ListConsumers", b',"x":' + b"[" * 100_000)))
        writer.close()

    with socket_address(tmp_path) as address:
        other = await asyncio.start_unix_server(talk, address)
    with pytest.raises(local_socket.LocalError):
        await local_socket.ask(tmp_path, request())
    other.close()


class LongAnswers(RequestHandler):
    """Answers that fill the buffers of a client that does not read them."""

    async def answer(self, request: local_socket.AnyRequest, instance: str = "") -> local_socket.LocalReply:  # noqa: ARG002 the handler's signature
        """A megabyte."""
        return local_socket.LocalReply(local_socket.SourceRetried("x" * 1_000_000), [])


async def test_clients_that_left_or_are_silent_do_not_keep_others_out(tmp_path: Path) -> None:
    """Any number of clients come one after the other, and each is answered. After them clients that send nothing or
    half a length, which they may do for ever, take all places: each new client gets the place of the oldest at once."""
    async with served_store(tmp_path), asyncio.timeout(LIMIT_S):
        for _ in range(CONNECTIONS_MAX + server.WAITING_MAX + 5):
            assert isinstance(await answer_to(tmp_path, local_socket.ListConsumers()), local_socket.Consumers)
        silent = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
        for turn in range(3):
            while len(silent) < CONNECTIONS_MAX + turn:
                silent.append(await connected(tmp_path))
                silent[-1][1].write(struct.pack("<I", 100)[: len(silent) % 5])
            assert (await appended(tmp_path, request(f"m{turn}")))[0][0] == "applied"
            assert await silent[turn][0].read() == b"", "the oldest has lost its place"
    for _, writer in silent:
        writer.close()


async def test_unread_answers_do_not_keep_others_out(tmp_path: Path) -> None:
    """All places are taken by clients that ask and do not read: the next takes the place of the oldest and is answered.
    At the end nothing of their answers is kept: of a megabyte they get what the kernel had taken."""
    async with served_store(tmp_path, LongAnswers):
        clients = []
        for _ in range(CONNECTIONS_MAX):
            client = await connected(tmp_path, limit=1024)
            client[1].write(framed(worded("ListConsumers")))
            clients.append(client)
        answer = await answer_to(tmp_path, local_socket.ListConsumers())
        assert isinstance(answer, local_socket.SourceRetried)
    for reader, writer in clients:
        assert len(await reader.read()) < 1_000_000
        writer.close()


async def test_members_of_the_group_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the protocol and of the socket's own operations, those that only look are carried out for them."""
    monkeypatch.setattr(server, "_is_own", lambda _: False)
    looking = [ListStreams(), GetBounds(stream="facts.operational"), local_socket.ListConsumers()]
    changing = [
        request(),
        FetchFacts(consumer_name="local.mes", limit=1, stream="facts.operational"),
        local_socket.RegisterConsumer("local.mes", "facts.operational"),
    ]
    async with served_store(tmp_path) as store:
        answers = [await answer_to(tmp_path, asked) for asked in (*looking, *changing)]
        codes = [answer.error.code if isinstance(answer, ErrorAnswer) else "" for answer in answers]
        assert codes == ["", "stream_not_exported", "", *["not_allowed_here"] * 3]
        assert (store.streams(), store.consumers.all()) == ([], [])


async def test_owner_and_group_may_open_the_socket(tmp_path: Path) -> None:
    """Others may not. What members of the group may ask for is in tests/cli/test_group_member.py."""
    async with served_store(tmp_path):
        await wait_until_async(lambda: (tmp_path / local_socket.SOCKET).stat().st_mode & 0o777 == 0o660, "the mode")
