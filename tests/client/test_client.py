"""The library for programs of this machine, over the socket of a served store."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.client import AsyncClient, Client, NodeSilent
from agent.client.asynchronous import ACKS_WAIT_MS
from agent.fact_store import FactStore
from agent.local_socket import SOCKET, AnyRequest, LocalError, LocalReply
from agent.local_socket.client import KEPT_MAX
from agent.local_socket.serving import RequestHandler, serve
from agent.message import Sample, TagDefinition
from agent.node.latest import latest_lookup
from agent.pages import Hole
from agent.positions import Position
from agent.replication.protocol.messages import AppendedEntry
from tests.support.relay_store import ALARMS, HOLES, TELEMETRY, opened, placed, relay_store
from tests.support.served_store import served_store
from tests.waiting import wait_until_async

PAGE = (Path(__file__).parents[2] / "docs/how-to/program.md").read_text("utf-8")
STREAM = "facts.operational"


@asynccontextmanager
async def served(store: FactStore, folder: Path) -> AsyncIterator[AsyncClient]:
    """A client of a store that is served."""
    handler = RequestHandler(
        store,
        status=lambda everything: b'{"everything":%s}' % str(everything).lower().encode(),
        look_up=latest_lookup(store.reader, lambda _: 0),
    )
    serving = asyncio.create_task(serve(handler, folder))
    await wait_until_async((folder / SOCKET).exists, "the socket")
    try:
        yield AsyncClient(folder, "one")
    finally:
        serving.cancel()


async def test_connections_are_kept_and_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a block, requests one after the other use one connection; simultaneous ones have one each, of which four stay
    open. A node that was restarted in between costs no request."""

    def request(number: int) -> Awaitable[AppendedEntry]:
        return node.append("order:1", "released", number, message_id=str(number))

    opened, open_connection = list[asyncio.StreamWriter](), asyncio.open_unix_connection

    async def noting(*address: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        found = await open_connection(*address, **options)
        opened.append(found[1])
        return found

    monkeypatch.setattr(asyncio, "open_unix_connection", noting)
    async with AsyncClient(tmp_path) as node:
        async with served_store(tmp_path):
            for number in range(3):
                await request(number)
                assert len(node._kept or []) == 1
            await asyncio.gather(*(request(number) for number in range(10, 16)))
            assert len(node._kept or []) == KEPT_MAX == [writer.is_closing() for writer in opened].count(False)
        async with served_store(tmp_path):
            assert (await request(0)).outcome == "noop_already_applied"
            assert len(node._kept or []) == 1
        with pytest.raises(NodeSilent):
            await request(4)


async def test_a_request_that_outlives_the_block_leaves_no_connection(tmp_path: Path) -> None:
    """Its connection is closed once it is answered."""
    async with served_store(tmp_path):
        async with AsyncClient(tmp_path) as node:
            await node.append("order:1", "released", 1, message_id="1")
            kept = node._kept
            assert kept is not None
            (connection,) = kept
            late = asyncio.create_task(node.fetch("local.mes", "facts.alarms", wait_s=60))
            await wait_until_async(lambda: not kept, "the request has its connection")
        await AsyncClient(tmp_path).append("pump:1", "stopped", 1, message_id="2", stream="facts.alarms")
        assert (await late).facts
        assert kept == []
        assert connection[1].is_closing()


async def test_a_fact_is_appended_fetched_and_confirmed(tmp_path: Path) -> None:
    """A fetch gives the facts after the frontier, again and again until they are confirmed, and a page goes on where
    the one before ended. A repeated append is stored once."""
    async with served_store(tmp_path):
        node = AsyncClient(tmp_path)
        sent = [("order:1", {"amount": 5}), ("order:2", [1.5, None]), ("order:3", "x")]
        appended = [await node.append(subject, "released", value, message_id=subject) for subject, value in sent * 2]
        outcomes = [(entry.offset, entry.outcome) for entry in appended]
        assert outcomes == [(n, "applied") for n in (1, 2, 3)] + [(n, "noop_already_applied") for n in (1, 2, 3)]
        for _ in range(2):
            page = await node.fetch("local.mes", limit=2)
            assert [(fact.offset, fact.fact.subject, fact.value) for fact in page.facts] == [
                (n, *pair) for n, pair in enumerate(sent[:2], 1)
            ]
            assert (page.more, page.facts[0].envelope.from_zone) == (True, "plant-a")
        rest = await node.fetch("local.mes", after=page.position)
        assert ([fact.offset for fact in rest.facts], rest.more) == ([3], False)
        assert await node.confirm("local.mes", page.position._replace(digest=bytes(16))) == 0  # of another log
        assert await node.confirm("local.mes", page.position) == 2
        assert (await node.position("local.mes", 3))[:2] == rest.position[:2]
        with pytest.raises(LocalError, match="beyond the end"):
            await node.position("local.mes", 4)
        assert [fact.offset for fact in (await node.fetch("local.mes")).facts] == [3]
    async with served_store(tmp_path):  # another life of the log
        await node.append("order:4", "released", 4, message_id="order:4")
        page = await node.fetch("local.other")
        assert page.position[:2] == (await node.position("local.other", 4))[:2]


async def test_a_request_waits_as_long_as_the_node_may(tmp_path: Path) -> None:
    """The client gives up after the node, which waits for consumers at an append, and for facts at a fetch; other
    requests are answered at once."""
    waited = list[int]()
    async with served_store(tmp_path):
        node = AsyncClient(tmp_path)

        async def ask_node(request: AnyRequest, waits_ms: int) -> LocalReply:
            waited.append(waits_ms)
            return await node._ask_socket(request, waits_ms)

        asking = AsyncClient(tmp_path, ask_node=ask_node)
        await asking.append("order:1", "released", 1, message_id="1")
        await asking.fetch("local.mes", wait_s=20)
    assert waited == [0, ACKS_WAIT_MS, 20_000]


async def test_a_fetch_waits_for_the_first_fact(tmp_path: Path) -> None:
    """It is answered by the commit, long before its time is over."""
    async with served_store(tmp_path) as store:
        node = AsyncClient(tmp_path)
        fetching = asyncio.create_task(node.fetch("local.mes", wait_s=60))
        await wait_until_async(lambda: store.consumers.get("local.mes"), "the fetch")
        await node.append("order:1", "released", 1, message_id="a")
        assert [fact.offset for fact in (await fetching).facts] == [1]


async def test_facts_of_two_plants_lead_around_the_holes(tmp_path: Path) -> None:
    """Samples of two zones with their tags, streams with two kinds of holes, read with and without a consumer, in pages
    of any size."""
    with opened(relay_store(tmp_path)) as store:
        async with served(store, tmp_path) as node:
            ends = {entry.name: entry.end_offset for entry in await node.streams()}
            assert ends.items() >= {TELEMETRY: 24, ALARMS: 6}.items()
            for stream, limit in ((TELEMETRY, 2), (TELEMETRY, 100), (ALARMS, 4)):
                found, after = list[tuple[int, str, int]](), None
                holes = list[Hole]()
                while True:
                    page = await node.fetch(f"local.{stream}.{limit}", stream, limit=limit, after=after)
                    new = [
                        fact for fact in page.facts if fact.offset <= ends[stream]
                    ]  # then comes one about the damage
                    found += [(fact.offset, fact.envelope.from_zone, fact.value["value"]) for fact in new]
                    holes += page.holes
                    parts = [getattr(part, "offset", None) or part.first_offset for part in page.in_order()]  # type: ignore[union-attr]
                    assert parts == sorted(parts)
                    if not page.more:
                        break
                    after = page.position
                assert found == placed(stream)
                assert set(holes) == ({HOLES[1]} if stream == TELEMETRY else set())
            assert tuple((await node.read(TELEMETRY, 0, 100)).holes) == HOLES
            page = await node.read(TELEMETRY, 10, 6)
            rest = await node.read(TELEMETRY, page.position.offset, 4)
            assert [fact.offset for fact in (*page.facts, *rest.facts)] == [11, 12, 15, 16, 17, 18]
            assert [*page.holes, *rest.holes] == [HOLES[1]]
            assert (await node.read(ALARMS, 6, 5)).facts == []
            assert await node.status(everything=True) == {"everything": True}


async def test_new_tags_are_known_when_their_facts_come(tmp_path: Path) -> None:
    """The definitions of a zone grow while a program reads; latest values are of each tag, page by page of names, and
    need no decoding."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        async with served(store, tmp_path) as node:
            after: Position | None = None
            for number, name in enumerate(("tag:b/first", "tag:a/second", "tag:b/third"), 1):
                (tag,) = await asyncio.wrap_future(store.appends.define([TagDefinition(name)]))
                await asyncio.wrap_future(store.appends.append_samples(TELEMETRY, [Sample(tag, number, float(number))]))
                page = await node.fetch("local.lake", TELEMETRY, after=after)
                assert [(fact.offset, fact.fact.subject, fact.value["value"]) for fact in page.facts] == [
                    (number, name, float(number))
                ]
                after = page.position
            assert len(node._chains._chains["plant-a"]) == 1, "the beginnings of it are dropped"
            found = await node.latest("tag:b/")
            assert [(sample.subject, sample.value) for sample in found] == [("tag:b/first", 1.0), ("tag:b/third", 3.0)]


def test_without_a_node_every_call_says_so(tmp_path: Path) -> None:
    """What a program with no event loop sees, too."""
    node = Client(tmp_path)
    calls = (
        lambda: node.append("order:1", "released", 1, message_id="a"), lambda: node.fetch("local.mes"), node.status,
        node.latest, node.streams,
    )  # fmt: skip
    for call in calls:
        with pytest.raises(NodeSilent, match="no node runs"):
            call()


async def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    """As it is printed, but for the folder: it appends, fetches and confirms; run again it finds nothing new."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "/var/lib/bsfg" in program
    assert len(program.strip().splitlines()) <= 12
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        async with served(store, tmp_path):
            words = [sys.executable, "-c", program.replace("/var/lib/bsfg/plant-a", str(tmp_path))]
            shown = [await asyncio.to_thread(subprocess.check_output, words, text=True) for _ in range(2)]
    assert shown == ["applied 1\n1 order:line1/77 5\nconfirmed to 1\n", "noop_already_applied 1\n"]
