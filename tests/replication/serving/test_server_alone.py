"""How much a server takes on at once: requests in hand, answers that no peer reads, reads and changes in turns; what
it reads in the event loop; how its spans end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.fact_store.core import catalog
from agent.positions import Position, Resolved
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import (
    AcquireLease,
    AppendFact,
    ErrorAnswer,
    FetchFacts,
    FetchRange,
    GetDigests,
    GetLatest,
    ListStreams,
    LogPosition,
    Request,
    StreamsAnswer,
    UnregisterConsumer,
    operation_of,
)
from agent.replication.serving import link_turns
from agent.replication.serving.admission import Caller, PeerRights
from agent.replication.serving.limits import CHANGES_PER_SECOND_MAX, READS_OF_NODE_MAX, REQUESTS_OPEN_MAX, STARTS_MAX
from agent.replication.serving.reading import INLINE_FACTS_MAX
from agent.replication.serving.server import Server
from agent.replication.serving.turns import Use
from agent.telemetry import Span, Started, Telemetry
from tests.replication.nodes import STREAM
from tests.replication.serving.support import Peer, filled, new_message, serving
from tests.waiting import wait_until_async


async def test_requests_in_hand_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests beyond the limit are dropped; when an open one has ended, the next is accepted. More may be open than
    begin in one turn of the event loop: a waiting one delays no other."""
    count = STARTS_MAX + 1
    monkeypatch.setattr(link_turns, "REQUESTS_OPEN_MAX", count)
    async with serving(tmp_path) as (server, peer):
        may_end, begun = asyncio.Event(), 0
        list_streams = server._handlers[ListStreams]

        async def wait(*given: Any) -> Any:
            nonlocal begun
            begun += 1
            await may_end.wait()
            return await list_streams(*given)

        server._handlers[ListStreams] = wait
        for _ in range(count + 1):
            peer.send(ListStreams())
        await wait_until_async(lambda: begun == count, "all in hand")
        assert server.statistics().drops == {"too_many_requests": 1}
        may_end.set()
        await wait_until_async(lambda: len(peer.answers) == count, "their answers")
        for _ in range(count + 1):
            await peer.ask(ListStreams())
        assert server.statistics().drops == {"too_many_requests": 1}


@pytest.mark.parametrize("unread", ["UNREAD_BYTES_MAX", "UNREAD_OF_LINK_BYTES_MAX"])
async def test_answers_that_no_peer_reads_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    """While the broker reads no answer, waiting answers are bounded in bytes, for one zone and in total. Further
    requests are dropped and counted, and accepted again once the broker has read."""
    monkeypatch.setattr(link_turns, unread, 20_000)
    count = 500
    async with serving(tmp_path) as (server, peer):
        unsent = server._context.answers._bytes
        peer.outgoing_bytes = link_turns.OUTGOING_BYTES_ENOUGH
        sizes = list[int]()
        for number in range(count):
            before = unsent["idmz"]
            peer.send(ListStreams())
            await wait_until_async(
                lambda number=number: server._counts.requests["ListStreams"] + server._counts.drops.total() > number,
                "its end",
            )
            await wait_until_async(lambda: not server._arrivals.open["idmz"], "its answer")
            sizes.append(unsent["idmz"] - before)
        assert 20_000 <= unsent["idmz"] < 20_000 + max(sizes)
        dropped = server.statistics().drops
        assert dropped == {"answers_not_read": count - server.statistics().requests["ListStreams"]}
        peer.outgoing_bytes = 0
        await wait_until_async(lambda: not unsent.total(), "the answers are sent")
        await peer.ask(ListStreams())
        assert server.statistics().drops == dropped


async def test_a_page_is_read_when_the_answers_before_it_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zone reads its answers late: nothing is read for it meanwhile, and its next page then needs no other event."""
    monkeypatch.setattr(link_turns, "UNSENT_BYTES_MAX", 100)
    async with serving(tmp_path) as (server, peer):
        peer.outgoing_bytes = link_turns.OUTGOING_BYTES_ENOUGH
        peer.send(ListStreams())
        await wait_until_async(lambda: server._context.answers._bytes["idmz"] >= 100, "an answer that waits")
        peer.send(FetchFacts(consumer_name=f"idmz.{STREAM}", stream=STREAM, limit=5))
        await wait_until_async(lambda: "idmz" in server._context.turns._queues, "a page that waits")
        peer.outgoing_bytes = 0
        await wait_until_async(lambda: len(peer.answers) == 2, "both answers")


async def test_unread_answers_of_others_shut_no_zone_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zone without a waiting answer is served, and its page is read, however many answers and requests of others
    wait."""
    for limit in ("UNREAD_OF_LINK_BYTES_MAX", "UNSENT_OF_LINK_BYTES_MAX"):
        monkeypatch.setattr(link_turns, limit, 1_000)
    async with serving(tmp_path) as (server, peer):
        server._context.answers._bytes["plant-b"] = 5_000
        server._arrivals.open["plant-b"] = REQUESTS_OPEN_MAX
        fetch = FetchFacts(consumer_name=f"idmz.{STREAM}", stream=STREAM, limit=100)
        for request in (ListStreams(), fetch):
            assert not isinstance(await peer.ask(request), ErrorAnswer)


async def test_answers_for_a_lost_link_are_given_up(tmp_path: Path) -> None:
    """All that wait are counted as not sent, and those of the next connection leave."""
    async with serving(tmp_path) as (server, peer):
        peer.outgoing_bytes = link_turns.OUTGOING_BYTES_ENOUGH
        for _ in range(2):
            peer.send(ListStreams())
        await wait_until_async(
            lambda: "idmz" in server._context.answers._waiting._queues and not server._arrivals.open["idmz"],
            "two answers",
        )
        peer.link.connection = None
        await wait_until_async(lambda: server.statistics().drops == {"answer_not_sent": 2}, "the loss")
        peer.link.connection, peer.outgoing_bytes = peer, 0  # type: ignore[assignment]
        assert isinstance(await peer.ask(ListStreams()), StreamsAnswer)


async def test_a_server_that_has_stopped_takes_no_request(tmp_path: Path) -> None:
    """Its link may outlive it by a moment: what arrives then is dropped. The store has nothing left to call."""
    peer = Peer()
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        server = Server(peer.link, store, {"idmz": PeerRights({STREAM})})  # type: ignore[arg-type]
        before = dict(store._writer._subscribers)
        running = asyncio.create_task(server.run())
        await wait_until_async(lambda: server._group is not None, "the server")
        assert store._writer._subscribers != before
        running.cancel()
        await asyncio.wait([running])
        assert store._writer._subscribers == before
        peer.send(ListStreams())
        assert server.statistics().drops == {"too_many_requests": 1}


async def test_each_peer_of_another_version_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two peers that are updated before this node are both named, each once, however often they ask. Of their requests
    only protocol and version are read, and both versions are in the answer."""
    request, other = b'{"protocol":"bsfg.replication","version":"2.0","operation":7}', Caller("plant-b", "1", b"")
    async with serving(tmp_path) as (server, peer):
        for _ in range(2):
            error = await peer.refusal(request)
            assert error.code == "unsupported_version"
            assert "'2.0', this node 'bsfg.replication' '1.0'" in error.message
            server._malformed(other, MalformedMessage("2.0", "unsupported_version"))
        assert server.statistics().requests == {}
    found = [record.__dict__["peer"] for record in caplog.records if record.message == "peer_version_unsupported"]
    assert found == ["idmz", "plant-b"]


@pytest.mark.parametrize(
    "request_of",
    [
        lambda *_: GetDigests(stream=STREAM),
        lambda origin, _: GetDigests(stream=STREAM, origin=str(origin), first_sequence=1, last_sequence=5),
        lambda _, life: FetchRange(stream=STREAM, first_offset=1, last_offset=5, life=life, limit=5),
    ],
    ids=["ranges", "digests", "page"],
)
async def test_what_takes_time_takes_its_turn(tmp_path: Path, request_of: Callable[[Origin, str], Request]) -> None:
    """Digests and pages wait for a place as pages do, so that a flood of them delays no other zone; their time is
    counted."""
    async with serving(tmp_path) as (server, peer):
        store, context = await filled(server, 5), server._context
        request = request_of(Origin("plant-a", store.life), store.life.hex())
        count = len(peer.answers)
        ended = list[str]()
        end = context.turns.end_read
        context.turns.end_read = lambda zone, *given: (ended.append(zone), end(zone, *given))[1]  # type: ignore[method-assign]
        async with AsyncExitStack() as places:
            for _ in range(READS_OF_NODE_MAX):
                await places.enter_async_context(context.reading("idmz"))
            peer.send(request)
            await wait_until_async(lambda: "idmz" in context.turns._queues, "its turn")
            assert len(peer.answers) == count
        await wait_until_async(lambda: len(peer.answers) > count, "its answer")
        assert not isinstance(peer.answers[-1], ErrorAnswer)
        assert ended == ["idmz"] * (READS_OF_NODE_MAX + 1)


@pytest.mark.parametrize("is_consumer", [True, False])
async def test_a_zone_that_changes_without_end_is_slowed_down(tmp_path: Path, *, is_consumer: bool) -> None:
    """Registering and removing consumers and taking leases are commits without facts: a zone that does nothing else
    gets a limited number a second, and its next requests wait."""
    async with serving(tmp_path, {"idmz": frozenset({STREAM})}) as (server, peer):
        now_ms, count = 0, 100
        server._context.now_ns = lambda: now_ms * 1_000_000  # type: ignore[method-assign]

        async def ask_in_time(request: Request) -> Any:
            nonlocal now_ms
            while server._context.pacer.ready_ms(Use.REQUESTS, "idmz", now_ms) > now_ms:
                now_ms += 10
            answer = await peer.ask(request)
            assert not isinstance(answer, ErrorAnswer), answer
            return answer

        for number in range(count):
            if is_consumer:
                name = f"idmz.{number % 3}"
                fetch = FetchFacts(consumer_name=name, limit=1, stream=STREAM, lease=0)
                lease = (await ask_in_time(fetch)).lease
                await ask_in_time(UnregisterConsumer(consumer_name=name, lease=lease))
            else:
                await ask_in_time(AcquireLease(stream=STREAM, producer="idmz.mes"))
        assert now_ms > (2000 if is_consumer else 900) * count / CHANGES_PER_SECOND_MAX


def ends(telemetry: Telemetry, operation: str) -> tuple[int, int, int, int]:
    """Started, stopped, failed, discarded."""
    counted = next(counted for counted in telemetry.statistics() if counted.step == (Span.SERVE, operation))
    return counted.started, counted.stopped, counted.failed, counted.discarded


async def test_requests_are_counted_by_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answered ones stop, refused ones fail, one that waits when the node is stopped is discarded; an unreadable
    request has no operation. The time for which a fetch waits for facts is no serving time."""
    telemetry, waited_ns, stop = Telemetry(), list[int](), Telemetry.stop

    def stopped(self: Telemetry, span: Started, excluded_ns: int = 0, **fields: object) -> None:
        waited_ns.append(excluded_ns)
        stop(self, span, excluded_ns, **fields)

    monkeypatch.setattr(Telemetry, "stop", stopped)
    async with serving(tmp_path, {"idmz": frozenset({STREAM})}, telemetry=telemetry) as (server, peer):
        life = (await filled(server, 5)).life.hex()
        good: list[Request] = [
            AppendFact(stream=STREAM, messages=[new_message("a")]),
            AcquireLease(stream=STREAM, producer="idmz.mes"),
            FetchRange(stream=STREAM, first_offset=1, last_offset=1, life=life, limit=10),
            GetLatest(stream=STREAM),
            GetDigests(stream=STREAM),
        ]
        for request in good:
            await peer.ask(request)
            await peer.refusal(msgspec.structs.replace(request, stream="facts.unknown"))
        await peer.refusal(b"{")
        waits = FetchFacts(consumer_name="idmz.c", stream=STREAM, limit=1, after=LogPosition(offset=6, life=life))
        await peer.ask(msgspec.structs.replace(waits, wait_ms=1_000))
        peer.send(msgspec.structs.replace(waits, wait_ms=60_000))
        await wait_until_async(lambda: server.statistics().parked, "the fetch to wait")
    for request in good:
        assert ends(telemetry, operation_of(request)) == (2, 1, 1, 0), request
    assert ends(telemetry, "FetchFacts") == (2, 1, 0, 1)
    assert ends(telemetry, "") == (1, 0, 1, 0)
    assert max(waited_ns) > 0


async def test_a_small_page_of_the_newest_batches_is_read_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in memory. A page from the file, which may have to wait for the disk, and a large one are read in a
    thread."""
    read, in_loop = FactStore.read, list[bool]()

    def noted(*asked: Any, **limits: Any) -> Any:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return read(*asked, **limits)

    monkeypatch.setattr(FactStore, "read", noted)
    async with serving(tmp_path) as (server, peer):
        with monkeypatch.context() as patched:
            patched.setattr(catalog, "TAIL_BYTES_MAX", 0)
            life = (await filled(server, 100)).life.hex()
        await filled(server, INLINE_FACTS_MAX + 1)
        end = 100 + INLINE_FACTS_MAX + 1
        for first, limit, is_in_loop in ((1, 100, False), (101, INLINE_FACTS_MAX, True), (101, end, False)):
            asked = FetchRange(stream=STREAM, first_offset=first, last_offset=end, life=life, limit=limit)
            assert (await peer.ask(asked)).covered()[0] == first
            assert in_loop.pop() is is_in_loop, asked


async def test_the_position_after_the_page_that_was_read_last_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull that catches up names the end of its last page, in the middle of the log. A position with another digest,
    or of a page that was not read here, is looked up, and refused."""
    looked_up, resolve = list[int](), FactStore.resolve

    def noted(store: FactStore, stream: str, position: Position) -> Resolved:
        looked_up.append(position.offset)
        return resolve(store, stream, position)

    monkeypatch.setattr(FactStore, "resolve", noted)
    async with serving(tmp_path) as (server, peer):
        for _ in range(3):
            await filled(server, 100)
        asked = {"consumer_name": "idmz.reader", "stream": STREAM, "limit": 100}
        first = await peer.ask(FetchFacts(**asked))
        second = await peer.ask(FetchFacts(**asked, after=first.lives[-1]))
        assert (second.covered(), looked_up) == ((101, 200), [])
        other = LogPosition(offset=200, life=second.lives[-1].life, digest="00" * 16)
        refused = await peer.ask(FetchFacts(**asked, after=other))
        assert refused.error.code == "life_unknown"
        assert looked_up == [200]
