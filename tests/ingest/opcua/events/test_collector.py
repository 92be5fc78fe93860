"""The collector against a server that the test plays, call by call."""

import asyncio
import json
import time

import pytest
from asyncua import ua
from asyncua.ua.uaerrors import BadFilterNotAllowed, BadServiceUnsupported

from agent.concurrency import TaskGroup
from agent.ingest.opcua.decode import PublishHeader
from agent.ingest.opcua.events.collector import BAD_NOTHING_TO_DO
from agent.ingest.opcua.events.event_fields import (
    ALL_FIELDS,
    BASE_FIELDS,
    QUEUE_OVERFLOW,
    REFRESH_END,
    REFRESH_REQUIRED,
    REFRESH_START,
    OpcuaEvent,
)
from agent.ingest.opcua.publishing import Missing
from agent.message import Message, time_text
from tests.ingest.opcua.events.collecting import (
    BAD_EVENT_FILTER_INVALID,
    BAD_TIMEOUT,
    LAST_LIFE,
    Collecting,
    logged,
    of,
)
from tests.ingest.opcua.events.events import S, condition, event, notification, publication
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time

BAD_METHOD_INVALID = 0x8075_0000


async def test_a_subscription_is_built_and_conditions_are_asked_for() -> None:
    """The item has all fields; the refresh comes after it, with the number of the subscription. Bytes are decoded by
    the fields that were asked for."""
    run = Collecting()
    async with run.collecting():
        ((handle, names),) = run.server.asked
        assert handle == 1
        assert names == [".".join(field.path) for field in ALL_FIELDS]
        body = publication(notification(1, [ua.Variant(b"\x01", ua.VariantType.ByteString)]))
        content = await run.server.routes[1].decode(PublishHeader(1, 1, 0, has_data=True), body)
        assert content.events[0].fields == {"event_id": b"\x01"}


async def test_a_server_that_refuses_fields_gets_fewer(caplog: pytest.LogCaptureFixture) -> None:
    """Those that it names are left out, and named in the log; where it names none, only those of every event are
    asked for."""
    run = Collecting()
    run.server.item_statuses = [BAD_EVENT_FILTER_INVALID]
    run.server.bad_fields = {"ClientUserId"}
    async with run.collecting():
        pass
    assert len(run.server.asked[1][1]) == len(ALL_FIELDS) - 1
    assert logged(caplog, "event_fields_left_out") == ["client_user_id"]
    run = Collecting()
    run.server.item_statuses = [BAD_EVENT_FILTER_INVALID]
    async with run.collecting():
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
    assert (reason, count) == ("not_delivered", 0)
    assert first < time_text(began_ns), "since nothing was delivered by it yet"


async def test_a_subscription_that_ends_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Events are missing from its last sign of life to the first one of the next, and the conditions are asked for
    again. What still comes of the old one is dropped."""
    run = Collecting()
    async with run.collecting():
        old = run.server.routes[1]
        await run.server.publish(of(status=BAD_TIMEOUT))
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "another refresh")
        await old.take_publication(PublishHeader(1, 9, 9 * S, has_data=True), of(event(message="late")))
        await run.server.publish(of(event(message="x")))
        await wait_until_async(lambda: run.said() == ["x"], "the event")
    assert logged(caplog, "event_subscription_lost") == ["BadTimeout"]
    assert run.lost() == [("source_lost", 0, LAST_LIFE)]


async def test_a_subscription_that_falls_silent_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Not even keep-alives come: the server has forgotten it. While they come it stands."""
    run = Collecting(liveness_timeout_ms=300)
    async with run.collecting():
        for _ in range(100):
            published_s = time.monotonic()
            await run.server.publish(of())
            await wait_until_async(lambda begin_s=published_s: time.monotonic() > begin_s + 0.2, "the next keep-alive")
        assert run.server.refreshes == [1]
        await wait_until_async(lambda: run.server.refreshes[:2] == [1, 2], "another subscription")
    assert logged(caplog, "event_subscription_lost")[0] == "it gave no sign of life"


async def test_a_store_that_refuses_holds_the_next_publish() -> None:
    """Publications fill the buffer, then the hand-over waits, and so does the server. If the session ends in that
    moment, the one that waits is neither taken nor acknowledged, and the events are complete up to it only."""
    run = Collecting()
    async with run.collecting():
        run.store.refusing = True
        async with TaskGroup() as group:
            publishing = group.create_task(self_publishing(run, 30), name="publish")
            buffer = run.collector._buffer
            await wait_until_async(lambda: bool(buffer._putters), "a waiting publish")  # type: ignore[attr-defined]
            assert not publishing.done()
            assert run.said() == []
            publishing.cancel()
        held = buffer.qsize() + 1  # one is being recorded
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
    async with run.collecting():
        await run.server.publish(of())
        await run.missing(Missing(99, 4, 4))
        run.collector._conditions.abandon()
        await run.missing(Missing(1, 4, 4))
        assert run.collector._refresh.is_due(1e12)
    assert run.lost() == [("not_delivered", 0, LAST_LIFE)]
    (told,) = run.store.told()
    assert told["last_time"] < "1970-01-01T00:01"


@pytest.mark.parametrize("reason", ["not_delivered", "server_queue_overflow"])
async def test_a_loss_is_recorded_although_no_event_follows(reason: str) -> None:
    """A plant without alarms sends no event for days; the loss must not wait for one. It is told by the number of a
    publication, or by the server itself."""
    run = Collecting()
    async with run.collecting():
        await run.server.publish(of())
        if reason == "not_delivered":
            await run.missing(Missing(1, 4, 4))
        else:
            await run.server.publish(of(event(QUEUE_OVERFLOW)))
        await wait_until_async(run.lost, "the loss, while the session goes on")
    assert [lost[0] for lost in run.lost()] == [reason]


async def test_a_loss_is_stored_before_the_events_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process is killed between the two, the store has the loss: otherwise the events after it would look as if
    nothing had been missing before them."""
    run = Collecting()
    stored, append = list[str](), run.store.append_message

    def noted(stream: str, message: Message) -> object:
        stored.append(message.fact.predicate if stream == "facts.operational" else stream)
        return append(stream, message)

    monkeypatch.setattr(run.store, "append_message", noted)
    async with run.collecting():
        await run.server.publish(of(event(message="x"), unreadable=2))
        await wait_until_async(run.said, "the event")
    assert stored == ["events_lost", "events"]


@pytest.mark.parametrize("status", [0, BAD_NOTHING_TO_DO])
async def test_a_condition_that_a_refresh_does_not_name_is_absent(status: int) -> None:
    """The server has forgotten it, as after a restart: a message says that it is not retained any more. A server that
    retains none may refuse the refresh, because there is nothing to send (S2OPC)."""
    run = Collecting()
    async with run.collecting():
        await run.server.publish(
            of(event(REFRESH_START, 5), condition("High", 1, message="began"), event(REFRESH_END, 6))
        )
        await wait_until_async(lambda: len(run.store.events) == 2, "a refresh and a state")
        run.server.refresh_status = status
        await run.server.publish(of(status=BAD_TIMEOUT))
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "another refresh")
        if not status:
            await run.server.publish(of(event(REFRESH_START, 10), event(REFRESH_END, 11)))
        await wait_until_async(lambda: len(run.store.events) == 4, "two refreshes and two states")
    changes = [m.fact for m in run.store.events.values() if m.fact.predicate == "condition_changed"]
    found = [json.loads(fact.object_json) for fact in changes]
    assert [(state["retain"], state.get("reason")) for state in found] == [(True, None), (False, "absent_at_refresh")]


async def test_types_are_named() -> None:
    """Types of the vendor are asked for when they are met the first time, once; one of a namespace without a place in
    the server's table stays without a name."""
    run = Collecting()
    async with run.collecting():
        types = ("nsu=urn:x;i=5", "nsu=urn:x;i=6", "nsu=urn:x;i=5")
        vendor = [OpcuaEvent(1, {"event_type": name, "event_id": bytes([n])}, S) for n, name in enumerate(types)]
        await run.server.publish(of(*vendor, OpcuaEvent(1, {"event_type": "ns=9;i=1"}, S)))
        await run.server.publish(
            of(OpcuaEvent(1, {"event_type": "nsu=urn:x;i=5", "event_id": b"3"}, S), condition("High"))
        )
        await wait_until_async(lambda: len(run.store.events) == 6, "six events")
    found = [json.loads(m.fact.object_json).get("event_type_name") for m in run.store.events.values()]
    assert found == ["Type 5", "Type 6", "Type 5", None, "Type 5", "AlarmConditionType"]
    assert sorted(run.server.types_read) == ["ns=1;i=5", "ns=1;i=6"]


async def test_an_event_whose_type_is_being_asked_for_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has left the buffer when the session ends, and the server has its acknowledgement."""
    run, asked = Collecting(), asyncio.Event()

    async def read(_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(run.server, "read", read)
    async with run.collecting():
        await run.server.publish(of(event(event_type="nsu=urn:x;i=5", message="held")))
        await asked.wait()
    assert run.said() == ["held"]


async def test_the_server_object_is_watched_for_refreshes_alone() -> None:
    """Where only an area is asked for: its item has a filter on the type, and whatever else comes of it is dropped.
    A server that says so is asked for all conditions again."""
    run = Collecting(events=("nsu=urn:x;s=Area",))
    async with run.collecting():
        assert [handle for handle, _ in run.server.asked] == [1, 2]
        assert run.server.types == [[], [REFRESH_START, REFRESH_END, REFRESH_REQUIRED]]
        await run.server.publish(of(event(handle=2, message="other area"), event(handle=1, message="ours")))
        await wait_until_async(run.said, "the event")
        await run.server.publish(of(event(REFRESH_REQUIRED, handle=2)))
        await wait_until_async(lambda: run.collector._refresh.is_due(1e12), "the wish for a refresh")
    assert run.said() == ["ours"]


async def test_severity_is_a_lower_bound_with_an_exception() -> None:
    """A condition that was severe enough is followed to its end; one that never was is left out, as is an event; what
    has no severity is taken."""
    run = Collecting(events_severity_min=500)
    async with run.collecting():
        high, low = condition("High", 1, severity=500), condition("Low", 1, severity=499, message="low")
        ended = condition("High", 2, severity=1, message="ended", retain=False)
        mild, plain = event(severity=499, message="mild"), event(message="plain")
        await run.server.publish(of(high, low, ended, mild, plain))
        await wait_until_async(lambda: len(run.said()) >= 3, "three events")
        assert run.collector.statistics()[2] == 2_000, "the last one, which is not the last in the message"
    assert run.said() == [None, "ended", "plain"]
