"""The local socket: each answer is what the store did, and wrong requests are refused."""

import asyncio
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest

from agent import local_socket
from agent.fact_store import FactStore
from agent.fact_store.log.errors import UnknownConsumer
from agent.ingest import SourceStatistics, State, TagReading
from agent.local_socket.serving import RequestHandler
from agent.message import Fact
from agent.settings.store import StreamSettings
from tests.local_socket.making import request
from tests.support.served_store import served_store


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
    """A program that says it fetches next is seen, another is not. It is in sync where it has confirmed all; one that
    begins before is behind, and what it holds back has an age."""
    async with served_store(tmp_path):
        await local_socket.ask(tmp_path, request())
        for name, start, fetches in (
            ("local.behind", "oldest", True),
            ("local.end", "end", True),
            ("local.other", "end", False),
        ):
            asked = local_socket.RegisterConsumer(name, "facts.operational", start=start, is_fetching=fetches)  # type: ignore[arg-type]
            await local_socket.ask(tmp_path, asked)
        answer = await local_socket.ask(tmp_path, local_socket.ListConsumers())
        assert isinstance(answer, local_socket.Consumers)
        behind, end, other = answer.consumers
        assert [(one.name, one.in_sync, one.behind_facts) for one in (behind, end)] == [
            ("local.behind", False, 1),
            ("local.end", True, 0),
        ]
        assert (bool(behind.seen_unix_ms), other.seen_unix_ms, other.in_sync) == (True, None, False)
        assert behind.held_hours is not None
        assert (end.held_bytes, end.held_hours) == (0, None)


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


async def test_another_zones_consumer_cannot_be_confirmed_here(tmp_path: Path) -> None:
    """Otherwise its facts would be released although that zone does not have them."""
    async with served_store(tmp_path) as store:
        await local_socket.ask(tmp_path, request())
        await asyncio.wrap_future(store.consumers.register("idmz.ops", "idmz", "facts.operational", "oldest"))
        refused = await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("idmz.ops", 1))
        assert isinstance(refused, local_socket.Refused)
        assert "'idmz'" in refused.message
        assert [consumer.frontier for consumer in store.consumers.all()] == [0]


async def test_an_offset_of_another_log_confirms_nothing(tmp_path: Path) -> None:
    """A program that read before the store was restored would release facts that it never saw."""
    async with served_store(tmp_path) as store:
        await local_socket.ask(tmp_path, request())
        await local_socket.ask(tmp_path, local_socket.RegisterConsumer("local.mes", "facts.operational"))
        for life, frontier in (("0" * 32, 0), (store.life.hex(), 1)):
            answer = await local_socket.ask(tmp_path, local_socket.ConfirmReceipt("local.mes", 1, life=life))
            assert answer == local_socket.Confirmed(frontier)


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
        refused = await handler.answer(msgspec.structs.replace(request(), acks="all"))
        assert isinstance(refused, local_socket.Refused)
        assert "write class is local" in refused.message
        queued = await handler.answer(msgspec.structs.replace(request(), stream="b", acks="all"))
        assert isinstance(queued, local_socket.Appended)
        assert (queued.outcome, queued.offset) == ("queued", 1)
        assert "none is registered" in queued.warning
        assert await handler.answer(
            msgspec.structs.replace(request("m2"), stream="b", acks="none")
        ) == local_socket.Appended(0, "queued")


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
