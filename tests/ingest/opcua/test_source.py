import asyncio
import logging
import math
import struct

import pytest

from agent.ingest.completeness import Moment
from agent.ingest.gap import TagGap
from agent.ingest.opcua.address import Reading, TagPoint
from agent.ingest.opcua.decode import DataChange
from agent.ingest.opcua.session import HEARTBEAT_HANDLE, ItemRequest
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscriptions.item_plan import Created
from agent.ingest.opcua.subscriptions.monitoring import Monitoring
from agent.ingest.quality import (
    BAD_DECODING_ERROR,
    BAD_INDEX_RANGE_INVALID,
    TAG_REMOVED,
)
from agent.message import Json, Sample
from agent.settings.opcua_address import NodeAddress
from tests.ingest.opcua.fake_session import (
    answer,
    answer_of,
    living,
)
from tests.ingest.opcua.sources import TAGS, S, declare, made, tag, take
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_values_the_server_discarded_become_a_fact() -> None:
    """The overflow bit is kept in the sample, and a gap fact says of which two of three tags values were lost: from
    where everything was delivered before, to the next reading of the server's clock."""
    source, store = await made(*TAGS, tag(3))
    (subscription,) = source._subscriptions
    subscription.liveness.complete = Moment(9 * S)
    await take(source, *(DataChange(number, 2.0, 0x480 if number < 3 else 0, 20 * S, 20 * S) for number in (1, 2, 3)))
    await source.finish()
    await declare(source)
    await source._delivery.recorder.drain()
    assert store.of("a/1") == [Sample(1, 20 * S, 2.0, 0x480)]
    (content,) = store.told()
    assert content["reason"] == "server_queue_overflow"
    assert content["first_time"] == "1970-01-01T00:00:09Z" < content["last_time"]
    assert (content["count"], content["count_exact"], content["tags"]) == (0, False, ["tag:a/1", "tag:a/2"])


@pytest.mark.parametrize("burst, is_declared", [(3, True), (2, False)])
async def test_as_many_values_as_the_queue_holds_may_be_the_rest_of_more(burst: int, *, is_declared: bool) -> None:
    """A server that discards without the overflow bit (asyncua, python-opcua) sends exactly a full queue after a stall.
    The gap before it is declared, also if the server says that it samples rarely; a shorter burst has lost nothing."""
    source, store = await made(sampling_interval_ms=0)
    (subscription,) = source._subscriptions
    request = ItemRequest(1, TAGS[0].point.reading.address, 1, "", 0.0, 3, Monitoring())
    subscription._note_created(request, Created(0, 11, 60_000.0, 3), TAGS[0].point)
    await take(source, DataChange(1, 0.0, 0, 10 * S, 10 * S))
    subscription.liveness.complete = Moment(9 * S)
    await take(source, *(DataChange(1, float(n), 0, 20 * S + n, 20 * S + n) for n in range(burst)))
    await source.finish()
    await declare(source)
    await source._delivery.recorder.drain()
    expected = [("server_queue_overflow", "1970-01-01T00:00:09Z")] if is_declared else []
    assert [(gap["reason"], gap["first_time"]) for gap in store.told()] == expected


async def test_a_full_buffer_holds_the_next_publish() -> None:
    """With no room left nothing is acknowledged and no Publish is sent, so the server queues; an end of the session in
    that moment loses nothing of what has arrived."""
    source, store = await made(publish_requests=3)
    async with living(source) as session:
        await wait_until_async(lambda: session.publishes_open == 3, "open requests")
        store.refusing = True
        for number in range(1, 8):
            session.says(answer(1, number, (1, float(number), number * S)))
        await wait_until_async(lambda: session.publishes_open == 0, "all requests answered")
        assert source._buffer.full()
        assert session.answers.qsize() > 0
    store.refusing = False
    await source.finish()
    await source._delivery.recorder.drain()
    left = session.answers.qsize()
    assert [sample.value for sample in store.of("a/1")] == [float(n) for n in range(1, 8 - left)]
    assert len(session.acks) < 7 - left


async def test_times_come_from_the_source_else_the_server_else_the_servers_clock() -> None:
    """A value without source time takes the server's; one without any takes the server's clock as last seen, not
    ours."""
    source, store = await made()
    hour_ahead_ns = source.clock.now_ns() + 3600 * S
    await take(source, DataChange(HEARTBEAT_HANDLE, "2026", 0, hour_ahead_ns, 0))
    assert abs(source.clock.now_ns() - hour_ahead_ns) < 60 * S
    changes = DataChange(1, 1.0, 0, 5 * S, 6 * S), DataChange(1, 2.0, 0, 0, 7 * S), DataChange(1, 3.0, 0, 0, 0)
    await take(source, *changes)
    await source.finish()
    times = [sample.source_time_ns for sample in store.of("a/1")]
    assert times[:2] == [5 * S, 7 * S]
    assert abs(times[2] - hour_ahead_ns) < 60 * S
    assert len(store.samples) == 3  # the heartbeat is no sample


@pytest.mark.parametrize("connected", [True, False])
async def test_a_new_tag_map_comes_behind_what_has_arrived(connected: bool) -> None:
    """Values in the buffer belong to the map under which they came and are recorded first, also those of a removed tag;
    what still comes for it afterwards is dropped."""
    source, store = await made()
    await take(source, DataChange(1, 1.0, 0, 10 * S, 10 * S), DataChange(2, 1.0, 0, 10 * S, 10 * S))
    source._delivery.offer_map(TAGS[1:], [2])
    await (source._take_over_map() if connected else source.finish())
    await take(source, DataChange(1, 2.0, 0, 11 * S, 11 * S), DataChange(2, 2.0, 0, 11 * S, 11 * S))
    source._subscriptions._refused[1] = 0x8034_0000
    await source.finish()
    await source._delivery.recorder.drain()
    assert [(s.value, s.quality) for s in store.of("a/1")] == [(1.0, 0), (None, TAG_REMOVED)]
    assert [s.value for s in store.of("a/2")] == [1.0, 2.0]


def test_the_log_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """The library's own chatter does not reach the log of a node."""
    from agent.ingest.opcua.session import quiet_library

    quiet_library()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("asyncua.client.ua_client").error("traceback")
    assert not caplog.records


async def test_a_malformed_value_costs_its_own_tag() -> None:
    """It is a bad sample; those behind it become a gap fact, since their beginning is unknown. The session goes
    on."""
    source, store = await made()
    async with living(source) as session:
        good, endless = struct.pack("<Bd", 11, 1.5), struct.pack("<Bi", 12, 1_000_000)
        session.says(
            answer_of(1, 1, (1, good, S), (2, endless, S), (1, good, 2 * S), (1, good, 3 * S)),
            answer(1, 2, (1, 2.5, 4 * S)),
        )
        await wait_until_async(store.told, "the gap")
    await source._delivery.recorder.drain()
    assert [sample.value for sample in store.of("a/1")] == [1.5, 2.5]
    assert [(sample.value, sample.quality) for sample in store.of("a/2")] == [(None, BAD_DECODING_ERROR)]
    (fact,) = store.told()
    assert (fact["reason"], fact["count"], fact["count_exact"]) == ("not_delivered", 0, False)
    assert fact["tags"] == ["tag:a/1", "tag:a/2"]


async def test_an_element_of_an_array_is_a_value() -> None:
    """A number or text by itself, where a whole array of one element is an array. An element that does not exist is
    bad."""
    points = [TagPoint(Reading(NodeAddress("urn:x", n), part)) for n, part in ((1, ""), (2, "3"), (3, "3"))]
    source, store = await made(*(tag(n, point) for n, point in enumerate(points, 1)))
    async with living(source, refusals={(3, "3"): BAD_INDEX_RANGE_INVALID}) as session:
        await wait_until_async(lambda: store.of("a/3"), "the bad tag")
        assert store.of("a/3")[0].quality == BAD_INDEX_RANGE_INVALID
        double, int64, text = struct.Struct("<Bid").pack, struct.Struct("<Biq").pack, struct.Struct("<Bii3s").pack
        arrays = (double(0x8B, 1, 1.5), double(0x8B, 1, math.nan), int64(0x88, 1, 2**60), text(0x8C, 1, 3, b"NaN"))
        values = [(1 if n == 0 else 2, array, S + n) for n, array in enumerate(arrays)]
        last = [(2, double(0x8B, 1, 2.5), 2 * S), (2, struct.pack("<Bi2s", 12, 2, b"xy"), 3 * S)]
        session.says(answer_of(1, 1, *values, *last))
        await wait_until_async(lambda: len(store.of("a/2")) == 5, "values")
    assert store.of("a/1")[0].value == Json.of([1.5])
    assert [sample.value for sample in store.of("a/2")][1:] == [2**60, "NaN", 2.5, "x"]
    assert str(store.of("a/2")[0].value) == "nan"


async def test_a_server_without_index_ranges_gives_no_element() -> None:
    """It would send the whole array with a good status; the tag is bad instead, and others are monitored."""
    points = [TagPoint(Reading(NodeAddress("urn:x", 7), part)) for part in ("", "3", "1:2")]
    source, store = await made(*(tag(n, point) for n, point in enumerate(points, 1)))
    async with living(source, has_no_ranges=True) as session:
        await wait_until_async(lambda: store.of("a/3"), "the bad tags")
        assert [store.of(f"a/{n}")[0].quality for n in (2, 3)] == [BAD_INDEX_RANGE_INVALID] * 2
        assert session.handles(1) == {1}


async def test_history_and_events_run_within_the_life() -> None:
    """Events begin before anything is subscribed. Both have the open session once everything is, and are cancelled with
    the life. History is told of gaps."""
    told: list[object] = []

    class Work:
        async def begin_life(self, *_: object, **__: object) -> None:
            assert not session.subscriptions

        async def run(self, *given: object) -> None:
            told.append(given)
            try:
                await asyncio.Event().wait()
            finally:
                told.append("ended")

        async def finish(self) -> None:
            told.append("finished")

        def note_gap(self, gap: TagGap) -> None:
            told.append(gap)

    plain, _ = await made()
    source = OpcuaSource(plain._settings, plain._delivery, Work(), Work())  # type: ignore[arg-type]
    async with living(source) as session:
        await wait_until_async(lambda: session.asked, "items")
        session.says(answer(1, 1, (1, 1.0, S)))
        await wait_until_async(lambda: len(told) == 2, "history and events")
        assert told == [(session,), (session, source._publisher)]
        source._delivery.add_gap("reason", 1, 2, 0, [1], exact=False)
        assert told[2:] == [TagGap("reason", 1, 2, (1,))]
    assert told[3:] == ["ended", "ended"]
    await source.finish()
    assert told[5:] == ["finished"]
