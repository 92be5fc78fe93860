"""Events of asyncua's own server, over the wire: what it lacks and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from asyncua import ua
from asyncua.server.monitored_item_service import MonitoredItemService
from asyncua.server.server import Server
from asyncua.ua.object_ids import ObjectIds

from agent.demo.processes import free_port
from agent.ingest.opcua.events.event_fields import BASE_FIELDS
from tests.ingest.plant import Running, ingesting, opcua
from tests.waiting import wait_until_async

TAGS = "tag,address\nf/level,nsu=urn:x;s=level\n"
FILTER_NOT_ALLOWED, EVENT_FILTER_INVALID = 0x8045_0000, 0x8047_0000


@asynccontextmanager
async def collecting(folder: Path, *, conditions: bool, **settings: Any) -> AsyncIterator[tuple[Server, Running]]:
    """The library's server with one variable, and a source of it that wants its events."""
    port = free_port("127.0.0.1")
    server = Server()
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{port}/plant")
    server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
    if conditions:
        await server.iserver.setup_condition_methods()
    index = await server.register_namespace("urn:x")
    area = await server.nodes.objects.add_object(ua.NodeId("area", index), "Area")  # type: ignore[arg-type]
    await area.set_event_notifier([ua.EventNotifier.SubscribeToEvents])
    level = await server.nodes.objects.add_variable(ua.NodeId("level", index), "level", 1.0)  # type: ignore[arg-type]
    await level.write_value(2.0)
    async with server, ingesting(opcua(port, folder, TAGS, **settings)) as run:
        await run.wait_good("f/level")
        yield server, run


async def raised(server: Server, text: str, emitting: Any = ObjectIds.Server) -> None:
    """Raise an event."""
    generator = await server.get_event_generator(emitting_node=emitting)
    await generator.trigger(message=text)


def texts(run: Running) -> list[str]:
    """The events that were recorded, by their subjects."""
    return [m.fact.subject for m in run.store.events.values() if m.fact.predicate == "event_raised"]


def reasons(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    """The reasons that the log gives."""
    return [record.why for record in caplog.records if getattr(record, "action", "") == action]  # type: ignore[attr-defined]


async def test_a_server_without_conditions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its events come; that it has no ConditionRefresh is in the log, and the connection stays."""
    async with collecting(tmp_path, conditions=False, events=("Server",)) as (server, run):
        await wait_until_async(lambda: reasons(caplog, "conditions_not_refreshed"), "the refusal")
        await raised(server, "door open")
        await wait_until_async(lambda: texts(run) == ["event:plc/Server"], "the event")
        assert run.source("plc").connects_total == 1
    assert reasons(caplog, "conditions_not_refreshed")[0].startswith("Bad")


async def test_the_refresh_of_an_area(tmp_path: Path) -> None:
    """The item on the Server object, with its filter on the type, receives beginning and end; only events of the area
    are recorded."""
    async with collecting(tmp_path, conditions=True, events=("nsu=urn:x;s=area",)) as (server, run):
        await wait_until_async(lambda: run.store.events, "the fact about the refresh")
        (fact,) = [m.fact for m in run.store.events.values()]
        assert fact.predicate == "conditions_refreshed"
        await raised(server, "not ours")
        await raised(server, "ours", ua.NodeId("area", 2))  # type: ignore[arg-type]
        await wait_until_async(lambda: texts(run) == ["event:plc/Area"], "the event")


@pytest.mark.parametrize(
    "status, fields_max, action",
    [(EVENT_FILTER_INVALID, len(BASE_FIELDS), "event_fields_left_out"), (FILTER_NOT_ALLOWED, 0, "events_refused")],
)
def test_a_server_that_refuses_the_filter(
    status: int,
    fields_max: int,
    action: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that takes only the fields of every event gives those; one that takes no filter at all is named. Values flow
    in either case."""
    create = MonitoredItemService._create_events_monitored_item

    def limited(service: Any, item: ua.MonitoredItemCreateRequest) -> ua.MonitoredItemCreateResult:
        if len(item.RequestedParameters.Filter.SelectClauses) > fields_max:
            return ua.MonitoredItemCreateResult(StatusCode=ua.StatusCode(status))  # type: ignore[arg-type]
        return create(service, item)

    monkeypatch.setattr(MonitoredItemService, "_create_events_monitored_item", limited)

    async def story() -> None:
        async with collecting(tmp_path, conditions=True, events=("Server",)) as (server, run):
            await wait_until_async(lambda: reasons(caplog, action), "a line in the log")
            if fields_max:
                await raised(server, "door open")
                await wait_until_async(lambda: texts(run) == ["event:plc/Server"], "the event")
            level = server.get_node(ua.NodeId("level", 2))  # type: ignore[arg-type]
            await level.write_value(3.0)
            await run.wait_good("f/level", 1)
            assert run.source("plc").connects_total == 1

    asyncio.run(story())
    (why,) = reasons(caplog, action)
    assert ("condition_id" if fields_max else "BadFilterNotAllowed") in why
