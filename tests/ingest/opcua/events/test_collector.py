"""The collector against a server that the test plays, call by call."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asyncua import ua
from asyncua.ua.uaerrors import BadFilterNotAllowed, BadServiceUnsupported

from agent.concurrency import TaskGroup
from agent.ingest.errors import SourceLost
from agent.ingest.lifecycle import FastClock
from agent.ingest.opcua.events import EVENTS_LOST, EventCollector
from agent.ingest.opcua.events.event_fields import (
    ALL_FIELDS,
    BASE_FIELDS,
    REFRESH_END,
    REFRESH_START,
    Event,
    EventPublication,
)
from agent.ingest.opcua.publisher import Route
from agent.ingest.opcua.publishing import Header, Missing
from agent.ingest.opcua.session import OpenedSubscription
from agent.ingest.opcua.values.variant import ValueReader
from agent.ingest.recorder import Recorder
from agent.message import Message, time_text
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.fakes import Busy, FakeStore
from tests.ingest.opcua.events.events import S, condition, event, notification, publication
from tests.support.virtual_time import run_virtual
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


BAD_EVENT_FILTER_INVALID, BAD_METHOD_INVALID, BAD_TIMEOUT = 0x8047_0000, 0x8075_0000, 0x800A_0000
NAMESPACES = ["http://opcfoundation.org/UA/", "urn:x"]


class Server:
    """Satisfies what a collector asks of a session, of its library, and of a publisher."""

    def __init__(self) -> None:
        self.reader = ValueReader(NAMESPACES)
        self.routes: dict[int, Route] = {}
        self.asked: list[tuple[int, list[str]]] = []  # (handle, fields) of each item that was asked for
        self.item_statuses: list[int] = []  # of the next items; then they are good
        self.bad_fields: set[str] = set()
        self.item_error: Exception | None = None
        self.refreshes: list[int] = []
        self.refresh_status = 0
        self.subscription_errors = 0
        self.types_read: list[str] = []
        self._number = 0
        self.slower = 1.0  # keep-alives than asked for
        self.started: object = "today"
        self.transfers: list[list[int]] = []
        self.transfer_status = 0
        self.begun: list[tuple[int, int]] = []  # subscriptions, and the numbers of their next notifications
        self.deleted: list[int] = []

    async def server_start(self) -> object:
        return self.started

    async def transfer_subscriptions(self, numbers: Sequence[int]) -> list[int]:
        self.transfers.append(list(numbers))
        return [self.transfer_status for _ in numbers]

    async def delete_subscription(self, number: int) -> None:
        self.deleted.append(number)

    def positions(self, *, routed: bool = False) -> dict[int, int]:
        return dict.fromkeys(self.routes, 2) if routed else {}

    @property
    def library(self) -> Any:
        return self

    async def namespaces(self) -> list[str]:
        return NAMESPACES

    async def clock_ns(self) -> int:
        return (8 + 3_600 * (self._number - 1)) * S

    async def create_subscription(self) -> OpenedSubscription:
        if self.subscription_errors:
            self.subscription_errors -= 1
            raise SourceLost("a request to opc.tcp://plc failed: BadTooManySubscriptions")
        self._number += 1
        return OpenedSubscription(self._number, 500.0, self.slower)

    async def create_monitored_items(self, parameters: ua.CreateMonitoredItemsParameters) -> list[Any]:
        if self.item_error is not None:
            raise self.item_error
        (item,) = parameters.ItemsToCreate
        clauses = item.RequestedParameters.Filter.SelectClauses
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
        self.types_read += [one.NodeId.to_string() for one in parameters.NodesToRead]
        return [ua.DataValue(ua.Variant(ua.QualifiedName("PumpEventType", 1))) for _ in parameters.NodesToRead]

    def begin(self, number: int, route: Route, at: int = 1) -> None:
        self.routes[number] = route
        self.begun.append((number, at))

    def forget(self, number: int) -> None:
        self.routes.pop(number, None)

    async def publish(self, content: EventPublication, number: int = 0) -> None:
        """Hand a publication on, by default of the newest subscription."""
        number = number or self._number
        sent_ns = (8 + 3_600 * (number - 1)) * S  # later for the next subscription than its creation lets expect
        header = Header(number, 2, sent_ns, has_data=bool(content.events), arrived_s=time.monotonic())
        await self.routes[number].take(header, content)


LAST_LIFE = "1970-01-01T00:00:06Z"  # of the first answer, less two seconds: the clock showed more at the creation


class Collecting:
    """A collector at work."""

    def __init__(self, **settings: Any) -> None:
        self.store, self.server = FakeStore(), Server()
        recorder = Recorder("plc", "plant-a", self.store, (Busy,), "facts.operational")
        known = {"events": ("Server",), "parked_retry_ms": 100, **settings}
        self.collector = EventCollector(
            OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"), **known), recorder.for_another_task(EVENTS_LOST)
        )
        self.collector.read_clock = lambda _: self.server.clock_ns()

    @asynccontextmanager
    async def life(self) -> Any:
        """A session, until the end of the block."""
        async with TaskGroup() as group:
            task = group.create_task(self._live(), name="life")
            yield
            task.cancel()
        await self.collector.finish()

    async def _live(self) -> None:
        async with TaskGroup() as group:
            await self.collector.begin(self.server, self.server, group)  # type: ignore[arg-type]
            await self.collector.run(self.server, self.server)  # type: ignore[arg-type]

    def said(self) -> list[Any]:
        """The texts of the events that were recorded."""
        return [json.loads(m.fact.object_json).get("message") for m in self.store.events.values()]

    def lost(self) -> list[tuple[str, int, str]]:
        """Reason, count and first time of each loss that was declared."""
        found = [json.loads(m.fact.object_json) for m in self.store.messages.values()]
        assert all(m.fact.predicate == "events_lost" for m in self.store.messages.values())
        return [(one["reason"], one["count"], one["first_time"]) for one in found]


def of(*events: Event, unreadable: int = 0, status: int | None = None) -> EventPublication:
    """A publication."""
    return EventPublication(events, status, unreadable)


def logged(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    """The reasons that the log gives."""
    return [record.why for record in caplog.records if getattr(record, "action", "") == action]  # type: ignore[attr-defined]


async def collecting_again() -> Collecting:
    """A collector whose first session has ended, after one event."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes == [1], "a refresh")
        await run.server.publish(of(event(message="before")))
    return run


async def test_a_subscription_is_built_and_conditions_are_asked_for() -> None:
    """The item has all fields; the refresh comes after it, with the number of the subscription. Bytes are decoded by
    the fields that were asked for."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes == [1], "a refresh")
        ((handle, names),) = run.server.asked
        assert handle == 1
        assert names == [".".join(field.path) for field in ALL_FIELDS]
        body = publication(notification(1, [ua.Variant(b"\x01", ua.VariantType.ByteString)]))
        content = await run.server.routes[1].decode(Header(1, 1, 0, has_data=True), body)
        assert content.events[0].fields == {"event_id": b"\x01"}


async def test_a_server_that_refuses_fields_gets_fewer(caplog: pytest.LogCaptureFixture) -> None:
    """Those that it names are left out, and named in the log; where it names none, only those of every event are
    asked for."""
    run = Collecting()
    run.server.item_statuses = [BAD_EVENT_FILTER_INVALID]
    run.server.bad_fields = {"ClientUserId"}
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
    assert len(run.server.asked[1][1]) == len(ALL_FIELDS) - 1
    assert logged(caplog, "event_fields_left_out") == ["client_user_id"]
    run = Collecting()
    run.server.item_statuses = [BAD_EVENT_FILTER_INVALID]
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        fields = run.collector._subscription.fields[1]
    assert [len(names) for _, names in run.server.asked] == [len(ALL_FIELDS), len(BASE_FIELDS)]
    assert list(fields) == list(BASE_FIELDS)


async def test_a_server_that_refuses_events_is_named_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it refuses, an item, the whole call or the subscription: one line for each reason, and no end of the
    session. When it takes them, events come."""
    run = Collecting()
    run.server.subscription_errors = 2
    run.server.item_error = BadFilterNotAllowed()  # type: ignore[no-untyped-call]
    async with run.life():
        await wait_until_async(lambda: "Server: BadFilterNotAllowed" in logged(caplog, "events_refused"), "a refusal")
        run.server.item_error = BadServiceUnsupported()  # type: ignore[no-untyped-call]
        await wait_until_async(lambda: "Server: BadServiceUnsupported" in logged(caplog, "events_refused"), "another")
        run.server.item_error = None
        await wait_until_async(lambda: run.server.refreshes, "events")
        await run.server.publish(of(event(message="x")))
        await wait_until_async(lambda: run.said() == ["x"], "the event")
    assert len(logged(caplog, "events_refused")) == 3


async def test_a_server_without_conditions_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is not asked again in this subscription, not even after a loss; events come all the same."""
    run = Collecting()
    run.server.refresh_status = BAD_METHOD_INVALID
    async with run.life():
        await wait_until_async(lambda: logged(caplog, "conditions_not_refreshed"), "the refusal")
        began_ns = time.time_ns()
        await run.server.publish(of(event(message="x"), unreadable=3))
        await wait_until_async(lambda: run.said() == ["x"], "the event")
        assert not run.collector._refresh.is_due(1e12)
    assert logged(caplog, "conditions_not_refreshed") == ["BadMethodInvalid"]
    ((reason, count, first),) = run.lost()
    assert (reason, count) == ("events_unreadable", 3)
    assert first < time_text(began_ns), "since nothing was delivered by it yet"


async def test_a_subscription_that_ends_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Events are missing from its last sign of life to the first one of the next, and the conditions are asked for
    again. What still comes of the old one is dropped."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes == [1], "a refresh")
        old = run.server.routes[1]
        await run.server.publish(of(status=BAD_TIMEOUT))
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "another refresh")
        await old.take(Header(1, 9, 9 * S, has_data=True, arrived_s=time.monotonic()), of(event(message="late")))
        await run.server.publish(of(event(message="x")))
        await wait_until_async(lambda: run.said() == ["x"], "the event")
    assert logged(caplog, "event_subscription_lost") == ["BadTimeout"]
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]


async def test_what_a_lost_subscription_holds_is_recorded() -> None:
    """It is taken over, gives what it has, twice, and is deleted. Then nothing is missing, and the conditions are asked
    for again. An event that both subscriptions bring is one message; what a condition is in is the newest state."""
    run = await collecting_again()
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(condition("High", 5, retain=False, message="ended"), event(message="both")))
        await run.server.publish(of(condition("High", 4, message="began"), event(message="both")), number=1)
        assert run.server.refreshes == [1]
        await run.server.publish(of(), number=1)
        await wait_until_async(lambda: run.server.deleted == [1], "the end of the old one")
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "a refresh")
        assert run.collector.statistics()[3] == 0, "no condition is retained"
    assert (run.server.transfers, run.server.begun) == ([[1]], [(1, 1), (1, 2), (2, 1)])
    assert run.said() == ["before", "ended", "both", "began"]
    assert run.lost() == []


@pytest.mark.parametrize("case", ["refused", "restarted", "overflow", "ended", "missing"])
def test_a_rescue_that_is_not_whole_leaves_a_loss(case: str) -> None:
    """The server refuses the transfer, was started again, had no room in its queue, ended the old subscription, or
    lacks a notification."""

    async def story() -> None:
        run = await collecting_again()
        run.server.transfer_status = BAD_TIMEOUT if case == "refused" else 0
        run.server.started = "tomorrow" if case == "restarted" else "today"
        async with run.life():
            await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
            await run.server.publish(of(event(message="new")))
            if case == "missing":
                missing = run.server.routes[1].missing
                assert missing is not None
                await missing(Missing(1, 4, 4))
            if case not in ("refused", "restarted"):
                many = [event(message=str(n)) for n in range(100 if case == "overflow" else 1)]
                await run.server.publish(of(*many, status=BAD_TIMEOUT if case == "ended" else None), number=1)
                await run.server.publish(of(), number=1)
            await wait_until_async(lambda: run.server.refreshes == [1, 2], "a refresh")
        assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]

    run_virtual(story())


async def test_a_rescue_does_not_bridge_the_time_without_a_new_subscription() -> None:
    """The server refuses the new subscription at first. The old one is read to its end and deleted meanwhile; what
    happens from then until the new one begins, no subscription holds: it is a loss."""
    run = await collecting_again()
    run.server.subscription_errors = 1
    async with run.life():
        await wait_until_async(lambda: run.server.begun == [(1, 1), (1, 2)], "the transfer")
        await run.server.publish(of(event(message="held")), number=1)
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="new")))
        for _ in range(2):
            if 1 in run.server.routes:
                await run.server.publish(of(), number=1)
        await wait_until_async(lambda: run.server.deleted == [1], "the end of the old one")
    assert run.said() == ["before", "held", "new"]
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]


async def test_a_second_loss_does_not_hide_the_first() -> None:
    """A session that ends before its rescue did leaves what was missing before it undeclared by any rescue after it."""
    run = await collecting_again()
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="new")))
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 3, "the new item")
        await run.server.publish(of(event(message="newer")))
        for _ in range(2):
            await run.server.publish(of(), number=2)
        await wait_until_async(lambda: run.server.refreshes == [1, 3], "a refresh")
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]
    assert run.server.transfers[1] == [2, 1]


@pytest.mark.parametrize("has_items", [True, False])
async def test_a_process_that_ends_within_a_rescue_declares_what_it_would_have_brought(*, has_items: bool) -> None:
    """The next process knows of nothing before its node's newest value, and that may be one of the new session. So what
    the old subscription still holds is a loss from the last sign of life, also if there is no new item yet."""
    run = await collecting_again()
    run.server.item_statuses = [] if has_items else [BAD_TIMEOUT]
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="second")), number=1)
        await wait_until_async(lambda: run.said() == ["before", "second"], "the event")
    assert run.lost() == []
    await run.collector.end()
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]
    await run.collector.end()
    assert len(run.lost()) == 1


async def test_a_life_that_was_cut_short_leaves_the_old_subscription_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second session takes subscription 1 over and ends before it has one of its own. The third takes it over again
    and reads it to its end: no event is lost, and nothing is left at the server."""
    run = await collecting_again()
    with monkeypatch.context() as cut_short:
        cut_short.setattr(run.server, "create_subscription", asyncio.Event().wait)
        async with run.life():
            await wait_until_async(lambda: run.server.begun == [(1, 1), (1, 2)], "the transfer")
            await run.server.publish(of(event(message="second")), number=1)
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="third")), number=1)
        await run.server.publish(of(event(message="new")))
        await run.server.publish(of(), number=1)
        await wait_until_async(lambda: run.server.deleted == [1], "the end of the old one")
    assert run.server.transfers == [[1], [1]]
    assert sorted(run.said()) == ["before", "new", "second", "third"]
    assert run.lost() == []


async def test_events_are_missing_while_no_process_ran() -> None:
    """From the time at which the node before this one ended to the first sign of life; also in the times of a clock
    that was ahead then, and was perhaps set right meanwhile."""
    run = Collecting()
    run.collector.note_stop(3 * S, FastClock(3_600 * S, time.time_ns()))
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes == [1], "a refresh")
        await run.server.publish(of(event(message="x")))
        await wait_until_async(run.said, "the event")
    stopped, ahead = run.lost()
    assert stopped == ("agent_stopped", 0, "1970-01-01T00:00:03Z")
    assert ahead == ("clock_set_back", 0, "1970-01-01T01:00:00Z")


async def test_a_subscription_that_falls_silent_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Not even keep-alives come: the server has forgotten it."""
    run = Collecting(liveness_timeout_ms=300)
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes[:2] == [1, 2], "another subscription")
    assert logged(caplog, "event_subscription_lost")[0] == "it gave no sign of life"


async def test_a_server_whose_keep_alives_are_rare_is_waited_for() -> None:
    """The server makes the time between its keep-alives forty times as long as asked for."""
    run = Collecting(liveness_timeout_ms=15_000)
    run.server.slower = 40.0
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        run.collector._subscription.liveness.alive_s -= 590
        assert not run.collector._is_silent()
        run.collector._subscription.liveness.alive_s -= 20
        assert run.collector._is_silent()


async def test_a_store_that_refuses_holds_the_next_publish() -> None:
    """Publications fill the buffer, then the hand-over waits, and so does the server. The end of the session in that
    moment loses nothing."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        run.store.refusing = True
        async with TaskGroup() as group:
            publishing = group.create_task(self_publishing(run, 30), name="publish")
            buffer = run.collector._buffer
            await wait_until_async(lambda: bool(buffer._putters), "a waiting publish")  # type: ignore[attr-defined]
            assert not publishing.done()
            assert run.said() == []
            publishing.cancel()
        held = buffer.qsize() + 2  # one is being recorded, one waits for room
        run.store.refusing = False
    assert run.said() == [str(n) for n in range(held)]
    assert len(run.said()) < 30


async def self_publishing(run: Collecting, count: int) -> None:
    """So many publications, one after the other, as the publisher hands them on."""
    for n in range(count):
        await run.server.publish(of(event(message=str(n))))


async def test_a_publication_that_never_came_is_a_loss() -> None:
    """Of this subscription only. A change of a condition may have been in it, so a refresh is wanted. The loss ends by
    the server's clock, whatever ours shows."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        await run.server.publish(of())
        missing = run.server.routes[1].missing
        assert missing is not None
        await missing(Missing(99, 4, 4))
        run.collector._conditions.abandon()
        await missing(Missing(1, 4, 4))
        assert run.collector._refresh.is_due(1e12)
    assert run.lost() == [("event_publication_missing", 1, LAST_LIFE)]
    (told,) = run.store.messages.values()
    assert json.loads(told.fact.object_json)["last_time"] < "1970-01-01T00:01"


async def test_a_loss_is_recorded_although_no_event_follows() -> None:
    """A plant without alarms sends no event for days; the loss must not wait for one."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        await run.server.publish(of())
        missing = run.server.routes[1].missing
        assert missing is not None
        await missing(Missing(1, 4, 4))
        await wait_until_async(run.lost, "the loss, while the session goes on")


async def test_a_loss_is_stored_before_the_events_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process is killed between the two, the store has the loss: otherwise the events after it would look as if
    nothing had been missing before them."""
    run = Collecting()
    stored, append = list[str](), run.store.append_message

    def noted(stream: str, message: Message) -> object:
        stored.append(message.fact.predicate if stream == "facts.operational" else stream)
        return append(stream, message)

    monkeypatch.setattr(run.store, "append_message", noted)
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        await run.server.publish(of(event(message="x"), unreadable=2))
        await wait_until_async(run.said, "the event")
    assert stored == ["events_lost", "events"]


async def test_a_condition_that_a_refresh_does_not_name_is_absent() -> None:
    """The server has forgotten it, as after a restart: a message says that it is not retained any more."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        await run.server.publish(
            of(event(REFRESH_START, 5), condition("High", 1, message="began"), event(REFRESH_END, 6))
        )
        await run.server.publish(of(event(REFRESH_START, 10), event(REFRESH_END, 11)))
        await wait_until_async(lambda: len(run.store.events) == 4, "two refreshes and two states")
    changes = [m.fact for m in run.store.events.values() if m.fact.predicate == "condition_changed"]
    found = [json.loads(one.object_json) for one in changes]
    assert [(one["retain"], one.get("reason")) for one in found] == [(True, None), (False, "absent_at_refresh")]


async def test_types_are_named() -> None:
    """A type of the vendor is asked for when it is met the first time, once; one of a namespace without a place in the
    server's table stays without a name."""
    run = Collecting()
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        vendor = [Event(1, {"event_type": "nsu=urn:x;i=5", "event_id": bytes([n])}, S) for n in range(2)]
        await run.server.publish(of(*vendor, Event(1, {"event_type": "ns=9;i=1"}, S)))
        await run.server.publish(of(Event(1, {"event_type": "nsu=urn:x;i=5", "event_id": b"3"}, S), condition("High")))
        await wait_until_async(lambda: len(run.store.events) == 5, "five events")
    found = [json.loads(m.fact.object_json).get("event_type_name") for m in run.store.events.values()]
    assert found == ["PumpEventType", "PumpEventType", None, "PumpEventType", "AlarmConditionType"]
    assert run.server.types_read == ["ns=1;i=5"]


async def test_an_event_whose_type_is_being_asked_for_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has left the buffer when the session ends, and the server has its acknowledgement."""
    run, asked = Collecting(), asyncio.Event()

    async def read(_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(run.server, "read", read)
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        await run.server.publish(of(event(event_type="nsu=urn:x;i=5", message="held")))
        await asked.wait()
    assert run.said() == ["held"]


async def test_the_server_object_is_watched_for_refreshes_alone() -> None:
    """Where only an area is asked for: its item has a filter on the type, and whatever else comes of it is dropped."""
    run = Collecting(events=("nsu=urn:x;s=Area",))
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        assert [handle for handle, _ in run.server.asked] == [1, 2]
        await run.server.publish(of(event(handle=2, message="other area"), event(handle=1, message="ours")))
        await wait_until_async(run.said, "the event")
    assert run.said() == ["ours"]


async def test_severity_is_a_lower_bound_with_an_exception() -> None:
    """A condition that was severe enough is followed to its end; one that never was is left out, as is an event; what
    has no severity is taken."""
    run = Collecting(events_severity_min=500)
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes, "a refresh")
        high, low = condition("High", 1, severity=500), condition("Low", 1, severity=499, message="low")
        ended = condition("High", 2, severity=1, message="ended", retain=False)
        mild, plain = event(severity=499, message="mild"), event(message="plain")
        await run.server.publish(of(high, low, ended, mild, plain))
        await wait_until_async(lambda: len(run.said()) >= 3, "three events")
    assert run.said() == [None, "ended", "plain"]
