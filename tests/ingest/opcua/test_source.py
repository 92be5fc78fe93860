import asyncio
import json
import logging
import time
from pathlib import Path

import pytest

from agent.ingest.delivery import Delivery
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.address import NodeAddress
from agent.ingest.opcua.decode import Change, Publication
from agent.ingest.opcua.liveness import Liveness
from agent.ingest.opcua.plan import Created, ItemPlan
from agent.ingest.opcua.session import HEARTBEAT_HANDLE
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.quality import BAD_OUT_OF_SERVICE
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.settings import OpcuaSourceSettings
from agent.ingest.tags.tag_map import Tag
from agent.message import Sample, TagDefinition
from tests.ingest.fakes import Busy, FakeStore, in_loop
from tests.waiting import wait_until_async

S = 1_000_000_000
TAGS = [Tag(n, "facts.telemetry", TagDefinition(f"tag:a/{n}"), SamplingRule(), NodeAddress("urn:x", n)) for n in (1, 2)]


async def made(store: FakeStore, liveness_timeout_ms: int = 15_000) -> tuple[OpcuaSource, Recorder]:
    """A source of two tags that is connected to nothing."""
    recorder = Recorder("plc", "plant-a", store, (Busy,), "facts.operational")
    numbers = await recorder.define([tag.definition for tag in TAGS])
    limits = {"buffer_values_max": 1_000, "liveness_timeout_ms": liveness_timeout_ms}
    settings = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), **limits)  # type: ignore[arg-type]
    return OpcuaSource(settings, Delivery("plc", TAGS, numbers, recorder)), recorder


def publication(*changes: Change) -> Publication:
    """One message with these values."""
    return Publication(1, 1, has_data=True, changes=changes)


@in_loop
async def test_values_the_server_discarded_become_a_fact() -> None:
    """The overflow bit is kept in the sample, and a gap fact says between which times values were lost, and of which
    tags."""
    store = FakeStore()
    source, recorder = await made(store)
    await source._take(publication(Change(1, 1.0, 0, 10 * S, 10 * S), Change(2, 1.0, 0, 11 * S, 11 * S)))
    await source._take(publication(Change(1, 2.0, 0x480, 20 * S, 20 * S), Change(2, 2.0, 0, 20 * S, 20 * S)))
    await source.finish()
    await recorder.drain()
    assert store.of("a/1") == [Sample(1, 10 * S, 1.0), Sample(1, 20 * S, 2.0, 0x480)]
    (message,) = store.messages.values()
    content = json.loads(message.fact.object_json)
    assert content["reason"] == "server_queue_overflow"
    assert (content["first_time"], content["last_time"]) == ("1970-01-01T00:00:10Z", "1970-01-01T00:00:20Z")
    assert (content["count"], content["count_exact"], content["tags"]) == (1, False, ["tag:a/1"])


@in_loop
async def test_a_full_buffer_holds_the_next_publish() -> None:
    """With no room left the library's callback waits, so the server is not acknowledged and queues; a stop in that
    moment loses nothing."""
    store = FakeStore()
    source, _ = await made(store)
    numbered = [publication(Change(1, float(n), 0, n * S, n * S)) for n in range(1, 4)]
    await source._take(numbered[0])
    await source._take(numbered[1])
    async with asyncio.TaskGroup() as group:
        held = group.create_task(source._take(numbered[2]), name="publish")
        await wait_until_async(lambda: bool(source._buffer._putters), "a waiting publish")  # type: ignore[attr-defined]
        assert not held.done()
        held.cancel()
    await source.finish()
    assert [sample.value for sample in store.of("a/1")] == [1.0, 2.0, 3.0]


@in_loop
async def test_times_come_from_the_source_else_the_server_else_the_servers_clock() -> None:
    """A value without source time takes the server's; one without any takes the server's clock as last seen, not
    ours."""
    store = FakeStore()
    source, _ = await made(store)
    hour_ahead_ns = source.now_ns() + 3600 * S
    await source._take(publication(Change(HEARTBEAT_HANDLE, "2026", 0, hour_ahead_ns, 0)))
    assert abs(source.now_ns() - hour_ahead_ns) < 60 * S
    changes = Change(1, 1.0, 0, 5 * S, 6 * S), Change(1, 2.0, 0, 0, 7 * S), Change(1, 3.0, 0, 0, 0)
    await source._take(publication(*changes))
    await source.finish()
    times = [sample.source_time_ns for sample in store.of("a/1")]
    assert times[:2] == [5 * S, 7 * S]
    assert abs(times[2] - hour_ahead_ns) < 60 * S
    assert len(store.samples) == 3  # the heartbeat is no sample


@pytest.mark.parametrize("connected", [True, False])
def test_a_new_tag_map_comes_behind_what_has_arrived(connected: bool) -> None:  # noqa: FBT001
    """Values in the buffer belong to the map under which they came and are recorded first, also those of a removed tag;
    what still comes for it afterwards is nobody's."""

    @in_loop
    async def story() -> None:
        store = FakeStore()
        source, recorder = await made(store)
        await source._take(publication(Change(1, 1.0, 0, 10 * S, 10 * S), Change(2, 1.0, 0, 10 * S, 10 * S)))
        source._delivery.want(TAGS[1:], [2])
        await (source._retag() if connected else source.finish())
        await source._take(publication(Change(1, 2.0, 0, 11 * S, 11 * S), Change(2, 2.0, 0, 11 * S, 11 * S)))
        source._refused[1] = 0x8034_0000
        await source.finish()
        await recorder.drain()
        assert [(s.value, s.quality) for s in store.of("a/1")] == [(1.0, 0), (None, BAD_OUT_OF_SERVICE)]
        assert [s.value for s in store.of("a/2")] == [1.0, 2.0]

    story()


class MuteSession:
    """A session that accepts everything and never publishes: connected, and silent."""

    async def subscribe(self, _: object) -> None:
        """Accepted."""

    async def items_per_call_max(self) -> int:
        return 0

    async def create_heartbeat(self) -> int:
        return 0

    async def namespaces(self) -> list[str]:
        return ["urn:x"]

    async def create_items(self, items: list[object]) -> list[Created]:
        return [Created(0)] * len(items)


@in_loop
async def test_a_connection_that_stands_and_says_nothing_is_given_up() -> None:
    """No error, no closed socket, every call answered, only no value ever: the server's clock that does not move ends
    it."""
    source, _ = await made(FakeStore(), liveness_timeout_ms=1)
    source._plan = ItemPlan(source._delivery.points, 10, S)
    source._liveness = Liveness(time.monotonic())
    came_up: list[bool] = []
    with pytest.raises(SourceLost, match="it has sent no value and its clock has not moved"):
        await source._tend(MuteSession(), lambda: came_up.append(True))  # type: ignore[arg-type]
    assert came_up == [True]
    assert source._plan.live == {1, 2}


def test_the_log_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The library's own chatter does not reach the log of a node."""
    from agent.ingest.opcua.session import quiet_library

    quiet_library()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("asyncua.client.ua_client").error("traceback")
    assert not caplog.records


@in_loop
async def test_a_value_proves_life_where_the_clock_is_not_notified() -> None:
    """A server that never notifies its clock, but values, is alive (node-opcua with a handle that it cannot hold)."""
    source, _ = await made(FakeStore())
    await source._take(publication(Change(1, 1.0, 0, 10 * S, 10 * S)))
    assert source._liveness.alive_ns > 0
    source._liveness = Liveness(0.0)
    await source._take(publication())
    assert source._liveness.alive_ns == 0


@in_loop
async def test_an_item_whose_node_is_gone_is_created_anew() -> None:
    """The bad sample is recorded as it came; the item is deleted and its tag parked; the value of the node that comes
    back is recorded, with the time of its return, even if the node gives it an old time."""
    store = FakeStore()
    source, recorder = await made(store)
    source._plan = ItemPlan(source._delivery.points, 10, S)
    source._plan.answered([1, 2], [Created(0, 11), Created(0, 12)], 0)
    await source._take(publication(Change(1, 1.0, 0, 10 * S, 10 * S), Change(2, 1.0, 0, 10 * S, 10 * S)))
    await source._take(publication(Change(1, None, 0x8034_0000, 20 * S, 20 * S)))
    await source.finish()
    assert (source._plan.parked, source._plan.next_deletion()) == ({1}, [11])
    source._created_ns = 30 * S
    await source._take(publication(Change(1, 2.0, 0, 5 * S, 5 * S)))
    await source.finish()
    await recorder.drain()
    assert store.of("a/1") == [Sample(1, 10 * S, 1.0), Sample(1, 20 * S, None, 0x8034_0000), Sample(1, 30 * S, 2.0)]
