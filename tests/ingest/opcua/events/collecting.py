"""A collector at work against a server that the test plays, call by call."""

import json
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asyncua import ua

from agent.concurrency import TaskGroup
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.decode import PublishHeader
from agent.ingest.opcua.events import EVENTS_LOST, EventCollector
from agent.ingest.opcua.events.event_fields import (
    EventPublication,
    OpcuaEvent,
)
from agent.ingest.opcua.publisher import Route
from agent.ingest.opcua.publishing import Missing
from agent.ingest.opcua.session import OpenedSubscription
from agent.ingest.opcua.values.variant import ValueReader
from agent.ingest.recorder import Recorder
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.events.events import S, event
from tests.waiting import wait_until_async

BAD_EVENT_FILTER_INVALID = 0x8047_0000


BAD_TIMEOUT = 0x800A_0000


NAMESPACES = ["http://opcfoundation.org/UA/", "urn:x"]


class Server:
    """Satisfies what a collector asks of a session, of its library, and of a publisher."""

    def __init__(self) -> None:
        self.reader = ValueReader(NAMESPACES)
        self.routes: dict[int, Route] = {}
        self.asked: list[tuple[int, list[str]]] = []  # (handle, fields) of each item that was asked for
        self.types: list[list[int]] = []  # of the events that its filter lets through, of each such item
        self.item_statuses: list[int] = []  # of the next items; then they are good
        self.bad_fields: set[str] = set()
        self.item_error: Exception | None = None
        self.refreshes: list[int] = []
        self.refresh_status = 0
        self.subscription_errors = 0
        self.types_read: list[str] = []
        self._number = 0
        self.slower = 1.0  # keep-alives than asked for
        self.begun: list[int] = []  # subscriptions
        self.republished = 0  # the last status of a Republish
        self.deleted: list[int] = []  # subscriptions
        self.shows_ns = lambda: (8 + 25 * (self._number - 1)) * S  # its clock

    async def republish(self, _: int) -> int:
        return self.republished

    def is_early(self, _: PublishHeader) -> bool:
        return False

    def adopt(self, number: int, route: Route) -> None:
        self.routes[number] = route

    @property
    def library(self) -> Any:
        return self

    async def namespaces(self) -> list[str]:
        return NAMESPACES

    async def clock_ns(self) -> int:
        return self.shows_ns()

    async def create_subscription(self) -> OpenedSubscription:
        if self.subscription_errors:
            self.subscription_errors -= 1
            raise SourceLost("a request to opc.tcp://plc failed: BadTooManySubscriptions")
        self._number += 1
        return OpenedSubscription(self._number, 500.0, self.slower)

    async def delete_subscription(self, number: int) -> None:
        self.deleted.append(number)

    async def create_monitored_items(self, parameters: ua.CreateMonitoredItemsParameters) -> list[Any]:
        if self.item_error is not None:
            raise self.item_error
        (item,) = parameters.ItemsToCreate
        clauses = item.RequestedParameters.Filter.SelectClauses
        where = item.RequestedParameters.Filter.WhereClause.Elements
        self.types.append([kind.Value.Value.Identifier for element in where for kind in element.FilterOperands[1:]])
        names = [".".join(str(step.Name) for step in clause.BrowsePath) for clause in clauses]
        self.asked.append((item.RequestedParameters.ClientHandle, names))
        status = self.item_statuses.pop(0) if self.item_statuses else 0
        results = [ua.StatusCode(BAD_EVENT_FILTER_INVALID if name in self.bad_fields else 0) for name in names]  # type: ignore[arg-type]
        return [
            SimpleNamespace(
                StatusCode=ua.StatusCode(status),  # type: ignore[arg-type]
                MonitoredItemId=7,
                RevisedQueueSize=100,
                FilterResult=SimpleNamespace(SelectClauseResults=results),
            )
        ]

    async def call(self, methods: Sequence[ua.CallMethodRequest]) -> list[Any]:
        (method,) = methods
        assert (method.ObjectId, method.MethodId) == (ua.NodeId(2782), ua.NodeId(3875))  # type: ignore[arg-type]
        self.refreshes.append(method.InputArguments[0].Value)
        return [SimpleNamespace(StatusCode=ua.StatusCode(self.refresh_status))]  # type: ignore[arg-type]

    async def read(self, parameters: ua.ReadParameters) -> list[ua.DataValue]:
        self.types_read += [node.NodeId.to_string() for node in parameters.NodesToRead]
        names = [f"Type {node.NodeId.Identifier}" for node in parameters.NodesToRead]
        return [ua.DataValue(ua.Variant(ua.QualifiedName(name, 1))) for name in names]

    def begin_subscription(self, number: int, route: Route) -> None:
        self.adopt(number, route)
        self.begun.append(number)

    def forget(self, number: int) -> None:
        self.routes.pop(number, None)

    async def publish(self, content: EventPublication, number: int = 0) -> None:
        """Hand a publication on, by default of the newest subscription."""
        number = number or self._number
        sent_ns = (8 + 25 * (number - 1)) * S  # later for the next subscription than its creation lets expect
        header = PublishHeader(number, 2, sent_ns, has_data=bool(content.events))
        await self.routes[number].take_publication(header, content)


LAST_LIFE = "1970-01-01T00:00:06Z"  # of the first answer, less two seconds: the clock showed more at the creation


class Collecting:
    """A collector at work."""

    def __init__(self, **settings: Any) -> None:
        self.store, self.server = FakeStore(), Server()
        recorder = Recorder("plc", "plant-a", self.store)
        known = {"events": ("Server",), "parked_retry_ms": 100, **settings}
        self.collector = EventCollector(
            OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), **known), recorder.for_another_task(EVENTS_LOST)
        )

    @asynccontextmanager
    async def collecting(self) -> Any:
        """A session, until the end of the block, whose subscription stands and has asked for the conditions."""
        async with self.life():
            await wait_until_async(lambda: self.server.refreshes, "a refresh")
            yield

    @asynccontextmanager
    async def life(self, *, is_kept: bool = False) -> Any:
        """A session, until the end of the block."""
        async with TaskGroup() as group:
            task = group.create_task(self._live(is_kept=is_kept), name="life")
            yield
            task.cancel()
        await self.collector.finish()

    async def _live(self, *, is_kept: bool) -> None:
        async with TaskGroup() as group:
            await self.collector.begin_life(self.server, self.server, group, is_kept=is_kept)  # type: ignore[arg-type]
            await self.collector.run(self.server, self.server)  # type: ignore[arg-type]

    async def missing(self, notification: Missing) -> None:
        """The publisher tells the first subscription of a notification that never came."""
        tell = self.server.routes[1].missing
        assert tell is not None
        await tell(notification)

    def said(self) -> list[Any]:
        """The texts of the events that were recorded."""
        return [json.loads(m.fact.object_json).get("message") for m in self.store.events.values()]

    def lost(self) -> list[tuple[str, int, str]]:
        """Reason, count and first time of each loss that was declared."""
        found = self.store.told()
        assert all(m.fact.predicate == "events_lost" for m in self.store.messages.values())
        return [(gap["reason"], gap["count"], gap["first_time"]) for gap in found]


def of(*events: OpcuaEvent, unreadable: int = 0, status: int | None = None) -> EventPublication:
    """A publication."""
    return EventPublication(events, status, unreadable)


def logged(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    """The reasons that the log gives."""
    return [record.why for record in caplog.records if getattr(record, "action", "") == action]  # type: ignore[attr-defined]


async def collecting_again() -> Collecting:
    """A collector whose first session has ended, after one event."""
    run = Collecting()
    async with run.collecting():
        await run.server.publish(of(event(message="before")))
    return run
