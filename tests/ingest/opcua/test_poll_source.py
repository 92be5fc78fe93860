"""A source that is polled, with a server that the test plays."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.delivery import Delivery
from agent.ingest.opcua import poll_source
from agent.ingest.opcua.address import TagPoint, parse_readings
from agent.ingest.opcua.groups import ServerLimits
from agent.ingest.opcua.poll_source import OpcuaPollSource
from agent.ingest.quality import BAD_NODE_ID_UNKNOWN
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.settings import OpcuaSourceSettings
from agent.ingest.tags.tag_map import Tag
from agent.message import Sample, TagDefinition
from tests.ingest.fakes import Busy, FakeStore, in_loop
from tests.ingest.opcua.fake_session import FakeSession, opening
from tests.waiting import wait_until_async

S = 1_000_000_000
NAMES = ("a", "b", "array[3]")


def good(value: object, time_ns: int) -> tuple[object, int, int, int]:
    """What a Read gives."""
    return value, 0, time_ns, time_ns


@in_loop
async def test_values_are_read_in_intervals(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In calls the server takes, also if it only enforces its limit. A value with the old time is none; a bad one is
    recorded and logged once, and comes back; an element of an array is found and recorded as one value."""
    tags = [
        Tag(n, "facts.telemetry", TagDefinition(f"tag:a/{name}"), SamplingRule(), TagPoint(readings))
        for n, name in enumerate(NAMES, 1)
        for readings in [parse_readings(f"nsu=urn:x;s={name}")]
    ]
    store = FakeStore()
    recorder = Recorder("plc", "plant-a", store, (Busy,), "facts.operational")
    numbers = await recorder.define([tag.definition for tag in tags])
    settings = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), mode="poll", poll_interval_ms=10)
    source = OpcuaPollSource(settings, Delivery("plc", tags, numbers, recorder))
    session = FakeSession(ServerLimits(nodes_per_read=3))
    session.nodes_per_read = 2
    session.values = {
        ("a", ""): good(1.0, 10 * S),
        ("b", ""): (None, 0x808C_0000, 0, 11 * S),
        ("array[3]", ""): (None, BAD_NODE_ID_UNKNOWN, 0, 11 * S),
        ("array", "3"): good(7, 10 * S),
    }
    monkeypatch.setattr(poll_source, "open_session", opening(session))
    up: list[bool] = []
    with caplog.at_level(logging.WARNING, "agent.ingest"):
        async with asyncio.TaskGroup() as group:
            life = group.create_task(source.run(lambda: up.append(True)), name="life")
            await wait_until_async(lambda: store.good("a/array[3]"), "the element")
            session.values["a", ""] = good(2.0, 12 * S)
            session.values["b", ""] = good(3.0, 5 * S)
            await wait_until_async(lambda: len(store.good("a/a")) == 2, "the next value")
            await wait_until_async(lambda: store.good("a/b"), "the sensor")
            life.cancel()
    assert up == [True]
    assert set(session.reads) == {3, 2}
    assert store.of("a/a") == [Sample(1, 10 * S, 1.0), Sample(1, 12 * S, 2.0)]
    assert [s.quality for s in store.of("a/b")] == [0x808C_0000, 0]
    assert [s.value for s in store.of("a/array[3]")] == [None, 7]
    lines = {record.status: record.tags for record in caplog.records if hasattr(record, "tags")}
    assert lines == {"BadSensorFailure": "a/b", "BadNodeIdUnknown": "a/array[3]"}
    assert source.alive_ns > 0


@in_loop
async def test_polls_that_a_slow_server_costs_become_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that holds an answer back, and gives it within the time-out, costs the polls of that time: several of
    them are a gap, of which the store knows."""
    store = FakeStore()
    recorder = Recorder("plc", "plant-a", store, (Busy,), "facts.operational")
    points = parse_readings("nsu=urn:x;s=a")
    tags = [Tag(1, "facts.telemetry", TagDefinition("tag:a/a"), SamplingRule(), TagPoint(points))]
    numbers = await recorder.define([tag.definition for tag in tags])
    settings = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), mode="poll", poll_interval_ms=10)
    source = OpcuaPollSource(settings, Delivery("plc", tags, numbers, recorder))
    session = FakeSession()
    session.values = {("a", ""): good(1.0, 10 * S)}
    read = session.read_values
    stalled = time.monotonic() + 0.1

    async def slow(*arguments: Any) -> Any:
        await wait_until_async(lambda: time.monotonic() > stalled, "the end of the stall")
        return await read(*arguments)

    monkeypatch.setattr(session, "read_values", slow)
    monkeypatch.setattr(poll_source, "open_session", opening(session))
    async with asyncio.TaskGroup() as group:
        life = group.create_task(source.run(lambda: None), name="life")
        await wait_until_async(lambda: store.messages, "the gap")
        life.cancel()
    (content, *_) = [json.loads(message.fact.object_json) for message in store.messages.values()]
    assert (content["reason"], content["tags"]) == ("polls_missed", ["tag:a/a"])
    assert content["count"] >= 2
